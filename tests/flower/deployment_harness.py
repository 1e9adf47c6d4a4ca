"""Flower's two engines as real processes: a SuperLink over TLS and SuperNodes with keys, or a simulation."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from basecagg.service.operator.certificates import make_authority, make_server_certificate
from free_ports import free_port
from processes import Processes, short_folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"


class Federation(Processes):
    """A SuperLink that takes runs."""

    engine: tuple[str, ...] = ()
    """What `flwr run` has to say about the engine."""

    def __init__(self, folder: Path, connection: str) -> None:
        super().__init__(folder)
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n\n'
            f'[superlink.test]\naddress = "{self.address}"\n{connection}'
        )

    def start_superlink(self, *options: str) -> None:
        """Start it, or start it again, and wait until it serves."""
        before = self.said("superlink").count(_SERVES)
        host, port = self.address.split(":")
        self.start(
            "superlink",
            *("flower-superlink", "--host", host, "--port", port),
            *("--disable-runtime-dependency-installation", *options),
        )
        self.wait_until(
            lambda: (
                not self.is_running("superlink") or self.said("superlink").count(_SERVES) > before
            ),
            "a SuperLink",
        )
        assert self.is_running("superlink"), self.said("superlink")[-3000:]

    def start_run(self, app: Path, config: str = "") -> None:
        """`flwr run`, with what the server says in the log of "run"."""
        settings = ("--run-config", config) if config else ()
        self.start("run", "flwr", "run", str(app), "test", "--stream", *settings, *self.engine)

    def follow_run(self) -> None:
        """Listen again, from the beginning: a SuperLink that ends hangs up."""
        self.kill("run")
        self.start("run", "flwr", "log", self._run_number(), "test", "--stream")

    def finish_run(self) -> str:
        """Wait for its end, which must be a good one; give what the server said."""
        said = self.finish("run")
        self.start("list", "flwr", "list", "test", "--run-id", self._run_number())
        assert "finished:completed" in self.finish("list"), said[-3000:]
        return said

    def _run_number(self) -> str:
        *_, number = re.findall(r"started run (\d+)", self.said("run"))
        return str(number)


class Deployment(Federation):
    """A SuperLink over TLS that admits registered keys only, and SuperNodes.

    Node i has partition i, a key of its own, and a folder for its state that outlives it.
    """

    def __init__(self, folder: Path, num_nodes: int, *, external_executor: bool = False) -> None:
        self._tls = folder / "tls"
        super().__init__(folder, f'root-certificates = "{self._tls / "ca.pem"}"\n')
        self.num_nodes = num_nodes
        self._external_executor = external_executor
        _make_certificates(self._tls, num_nodes)

    @classmethod
    @contextmanager
    def running(cls, num_nodes: int, *, external_executor: bool = False) -> Iterator[Self]:
        """A federation that waits for its first run; at the end nothing of it is left."""
        with short_folder() as folder:
            federation = cls(folder, num_nodes, external_executor=external_executor)
            with federation.stopped_at_the_end():
                federation.start_superlink()
                for node in range(num_nodes):
                    federation.register(node)
                    federation.start_node(node)
                for node in range(num_nodes):
                    federation.wait_until_joined(node)
                yield federation

    # --- the SuperLink ----------------------------------------------------------------------------------------

    def start_superlink(self, *options: str) -> None:
        """What it must remember is in its database."""
        super().start_superlink(
            *("--ssl-ca-certfile", str(self._tls / "ca.pem")),
            *("--ssl-certfile", str(self._tls / "server.pem")),
            *("--ssl-keyfile", str(self._tls / "server.key")),
            *("--enable-supernode-auth", "--database", str(self.folder / "superlink.db")),
            *(("--isolation", "process") if self._external_executor else ()),
            *options,
        )

    def start_executor(self) -> None:
        """Start what runs the ServerApp, apart from the SuperLink so that it outlives it."""
        self.start(
            "executor",
            *("flower-superexec", "--runtime-api-address", self.address),
            *("--root-certificates", str(self._tls / "ca.pem")),
        )

    # --- SuperNodes -------------------------------------------------------------------------------------------

    def register(self, node: int) -> None:
        """Let the SuperLink admit the node's key."""
        name = f"register{node}"
        self.start(
            name, "flwr", "supernode", "register", str(self._tls / f"node{node}.pub"), "test"
        )
        self.finish(name)

    def start_node(self, node: int) -> None:
        """Start it, or start it again with the same key and state."""
        state, anchors = self.state_folder(node), self.folder / "anchors" / f"node{node}"
        self.start(
            f"node{node}",
            *("flower-supernode", "--superlink", self.address, "--port", str(free_port())),
            *("--root-certificates", str(self._tls / "ca.pem")),
            *("--auth-supernode-private-key", str(self._tls / f"node{node}")),
            "--node-config",
            f"partition-id={node} num-partitions={self.num_nodes}"
            f" state-dir='{state}' anchor-dir='{anchors}'",
        )

    def wait_until_joined(self, node: int, lives: int = 1) -> None:
        """Until it has joined for the `lives`-th time. One that comes back too early is sent away: again."""

        def joined() -> bool:
            if not self.is_running(f"node{node}"):
                self.start_node(node)
            return len(self.ids_of(node)) >= lives

        self.wait_until(joined, f"node {node} has joined")

    def ids_of(self, node: int) -> list[int]:
        """The id that the SuperLink gave it, once per life."""
        return [
            int(found) for found in re.findall(r"SuperNode ID: (\d+)", self.said(f"node{node}"))
        ]

    def state_folder(self, node: int) -> Path:
        return self.folder / "state" / f"node{node}"


class Simulation(Federation):
    """A SuperLink that simulates its nodes with Ray."""

    @classmethod
    @contextmanager
    def running(cls, num_nodes: int) -> Iterator[Self]:
        """One that waits for its first run; at the end nothing of it is left."""
        with short_folder() as folder:
            federation = cls(folder, "insecure = true\n")
            federation.engine = ("--federation-config", f"num-supernodes={num_nodes}")
            with federation.stopped_at_the_end():
                federation.start_superlink("--insecure", "--simulation")
                yield federation


def copy_of(app: Path, folder: Path) -> Path:
    """The app where a test may change it."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(app, folder / app.name, ignore=ignored))


_SERVES = "Uvicorn running"


def _make_certificates(folder: Path, num_nodes: int) -> None:
    folder.mkdir()
    authority = make_authority("test")
    server = make_server_certificate(authority, ["127.0.0.1"])
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "server.pem").write_bytes(server.certificate)
    (folder / "server.key").write_bytes(server.key)
    for node in range(num_nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"node{node}").write_bytes(secret)
        (folder / f"node{node}.pub").write_bytes(public)
