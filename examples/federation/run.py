"""A whole federation on one machine, with real processes over TLS: `python examples/federation/run.py`.

A server and twelve users learn to read digits. On the way one user is killed and another one joins. It uses
the same commands that an organisation would.
"""

# ruff: noqa: S603 - the programs it starts are its own
from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
USERS = 12


class Processes:
    """Programs of this federation, with their logs in its folder."""

    def __init__(self, folder: Path, code: Path = HERE) -> None:
        """Start with none; `code` has what users and operator wrote."""
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        paths = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
        state = str(folder / "state")  # where anchors are; at home they outlive the folder
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "XDG_STATE_HOME": state,
        }

    def start(self, name: str, *arguments: str) -> None:
        """Start `basecagg ARGUMENTS` and let it run."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                _program(*arguments), cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def run(self, *arguments: str) -> str:
        """Run `basecagg ARGUMENTS` to its end; give what it prints."""
        print(f"$ basecagg {shlex.join(arguments)}", flush=True)
        done = subprocess.run(
            _program(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            check=False,
        )
        text = done.stdout.decode()
        print(text, end="", flush=True)
        if done.returncode:
            sys.exit(f"basecagg {arguments[0]} failed with status {done.returncode}")
        return text

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Ask everybody to stop."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def require_alive(self) -> None:
        """Fail, with its last words, if somebody ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                print((self.folder / f"{name}.log").read_text()[-2000:], file=sys.stderr)
                sys.exit(f"{name} ended with status {process.returncode}")


def _program(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from basecagg.cli import main; main()", *arguments]


def main() -> None:
    """Tell the whole story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=30, help="when to stop")
    parser.add_argument(
        "--folder", type=Path, help="where to keep everything; temporary unless given"
    )
    parser.add_argument("--users", type=int, default=USERS, help="how many begin, four or more")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="federation-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        processes = Processes(folder.resolve())
        try:
            tell(processes, given.versions, given.users)
        finally:
            processes.stop()


def tell(processes: Processes, versions: int, users: int = USERS) -> None:
    """Set up, learn, lose one, win one, finish."""
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    processes.run("operator", "init", "--name", "digits", "--url", url)
    processes.start(
        "server",
        *("serve", "--state", "operator/server", "--host", "127.0.0.1", "--port", str(port)),
        *("--evaluate", "digits:accuracy", "--answer-timeout", "5"),
    )
    wait_until_listening(port, processes)
    print(f"the operator's page: {url}/ (with the CA {processes.folder}/operator/ca.pem)")
    names, newcomer = [f"user-{index}" for index in range(users)], f"user-{users}"
    processes.run("operator", "invite", *names)
    for index, name in enumerate(names):
        _join(processes, name, f"{index}/{users + 1}")
    began = time.monotonic()
    processes.run(
        *("operator", "start", "--model", "digits:build", "--holders", str(users)),
        *("--max-dropouts", str(users // 4), "--max-colluders", str(users // 4)),
        *("--buffer-size", str(min(5, users - 1))),  # one is killed
    )
    wait_for_version(processes, versions // 3)
    print("user-0 is killed")
    processes.kill("user-0")
    processes.run("operator", "invite", newcomer)
    _join(processes, newcomer, f"{users}/{users + 1}")
    wait_for_version(processes, 2 * versions // 3)
    wait_for_event(processes, newcomer, "enrolled")
    processes.run("operator", "enrol")
    wait_for_version(processes, versions)
    print(f"{versions} versions in {time.monotonic() - began:.0f} s")
    processes.run("operator", "export", "digits.safetensors", "--model", "digits:build")
    print(f"accuracy on the operator's test digits: {last_score(processes):.1%}")


def _join(processes: Processes, name: str, data: str) -> None:
    processes.start(
        name,
        *("join", f"{name}.invitation", "--state", name, "--anchors", "anchors"),
        *("--train", "digits:train", "--data", data, "--longest-wait", "2"),
    )


def wait_for_version(processes: Processes, version: int) -> None:
    """Wait until the model has come so far."""
    program = _program("operator", "status")
    while True:
        processes.require_alive()
        done = subprocess.run(
            program,
            cwd=processes.folder,
            env=processes.environment,
            stdout=subprocess.PIPE,
            check=False,
        )
        found = re.search(r"version (\d+)", done.stdout.decode())
        if found and int(found[1]) >= version:
            return print(done.stdout.decode().splitlines()[0], flush=True)
        time.sleep(2)


def wait_for_event(processes: Processes, name: str, event: str) -> None:
    """Wait until somebody's log tells of it."""
    log = processes.folder / f"{name}.log"
    while f'"event": "{event}"' not in log.read_text():
        processes.require_alive()
        time.sleep(0.5)


def last_score(processes: Processes) -> float:
    """The server's last score, from its log."""
    while True:
        lines = (processes.folder / "server.log").read_text().splitlines()
        scores = [json.loads(line) for line in lines if '"event": "evaluation"' in line]
        if scores and "score" in scores[-1]:
            return float(scores[-1]["score"])
        time.sleep(0.5)


def wait_until_listening(port: int, processes: Processes) -> None:
    """Wait until somebody answers there."""
    while True:
        processes.require_alive()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
