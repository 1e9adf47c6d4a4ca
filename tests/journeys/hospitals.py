"""A federation of hospitals on this machine: server, operator and agents by their commands."""

from __future__ import annotations

from collections import Counter

from traveller import Figures, Traveller

from free_ports import free_port

MY_PACKAGE = '''"""What a hospital and the operator write themselves."""

import numpy as np


def train(model, info):
    """A step towards where this hospital's patients are, from a sample of them: no two are equal."""
    goal = sum(map(ord, info.name)) % 7
    sample = np.random.default_rng().normal(goal, 0.1, model.shape).astype("float32")
    return model + 0.1 * (sample - model)


def build_model():
    return np.zeros({size}, "float32")
'''


class Federation:
    """One federation, its server, and those who joined."""

    def __init__(self, traveller: Traveller, size: int, database: str = "") -> None:
        self.traveller = traveller
        self.database = database
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        traveller.write("my_package.py", MY_PACKAGE.format(size=size))

    def operator(self, words: str, **how: object) -> str:
        return self.traveller.type(f"basecagg operator {words}", **how)  # type: ignore[arg-type]

    def found(self, *more_urls: str) -> None:
        """Make the keys, move the server's folder, start the server."""
        urls = " ".join(f"--url {url}" for url in (self.url, *more_urls))
        self.operator(f"init --name ten-hospitals {urls}")
        self.traveller.type("mv operator/server server")
        self.serve()

    def serve(self, options: str = "") -> None:
        """Start the server and wait until it answers."""
        self.launch("server", "server", self.port, options)
        self.wait_until_serving()

    def launch(self, name: str, state: str, port: int, options: str = "") -> None:
        """Start a server with this folder, and do not wait."""
        where = f"--state {state} --host 127.0.0.1 --port {port}"
        self.traveller.leave_running(name, f"basecagg serve {where} {self.database} {options}")

    def wait_until_serving(self) -> None:
        """Wait until the server answers at its port."""
        work = self.traveller.work
        self.figures = Figures(self.port, work / "server", work / "operator" / "ca.pem")
        self.traveller.wait_until(lambda: bool(self.figures.read()), "the server answers", 120)

    def invite(self, *names: str) -> None:
        self.operator(f"invite {' '.join(names)}")

    def join(self, name: str, options: str = "--longest-wait 2 --pause 0.1") -> None:
        command = f"basecagg join {name}.invitation --train my_package:train {options}"
        self.traveller.leave_running(name, command)

    def wait_until_enrolled(self, *names: str) -> None:
        for name in names:
            self.traveller.wait_until(
                lambda name=name: self.traveller.has_logged(name, "enrolled"), f"{name} enrols", 180
            )

    def start(self, holders: int, plan: str) -> str:
        model = "--model my_package:build_model"
        return self.operator(f"start {model} --holders {holders} {plan}")

    def reach(self, version: int, seconds: float = 600) -> None:
        """Wait until the model has come so far."""
        what = f"version {version}"
        self.traveller.wait_until(lambda: self.figures.version >= version, what, seconds)

    def refusals(self) -> Counter[str]:
        """HTTP status from 400 on → how many requests met it."""
        found = self.figures.statuses().items()
        return Counter({status: count for status, count in found if status >= "400"})

    def export_and_verify(self) -> None:
        """The model so far, with its proof, which somebody else checks."""
        exported = self.operator("export model.safetensors")
        assert "model.safetensors" in exported
        verify = f"basecagg verify model.safetensors --operator-key {self.operator_key}"
        assert "1 of 1 checked and equal" in self.traveller.type(verify)

    @property
    def operator_key(self) -> str:
        """As the operator tells it to those who verify."""
        return self.operator("key").split()[-1]
