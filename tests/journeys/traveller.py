"""Somebody who types commands into a shell, in one folder, with the programs of the built wheel."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from installation import Installation, hand_over

from processes import Processes

T = TypeVar("T")


class Traveller(Processes):
    """Programs that run in the background have a log each; the others are waited for."""

    def __init__(
        self, folder: Path, installation: Installation, *, with_programs: bool = True
    ) -> None:
        self.installation = installation
        self._lines = 0
        self.programs = installation.programs if with_programs else Path("/usr/local/bin")
        self.whose = installation.whose
        self.surroundings = installation.surroundings
        folder.chmod(0o755)
        super().__init__(
            folder,
            HOME=self.surroundings["HOME"],
            XDG_STATE_HOME=str(folder / "state"),
        )
        (folder / "home").rmdir()
        self.own()

    @property
    def work(self) -> Path:
        """Where commands are typed."""
        return self.folder / "work"

    def own(self) -> None:
        """What was put into the folder belongs to the traveller."""
        hand_over(self.folder, self.whose)

    def write(self, name: str, text: str) -> Path:
        """A file of the traveller's own."""
        path = self.work / name
        path.write_text(text, "utf-8")
        hand_over(path, self.whose)
        return path

    def type(self, line: str, *, status: int = 0, answers: str = "", seconds: float = 900) -> str:
        """Type a line, answer what it asks, wait for its end; give what it printed.

        What it exports and where it goes is so for the next line too, as in any shell.
        """
        print(f"$ {line}", flush=True)
        session = self.folder / "session"
        script = (
            f"[ -e {session} ] && source {session}\n{line}\nstatus=$?\n"
            f'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {session}\nexit $status'
        )
        self._lines += 1
        log_name = (
            f"typed-{self._lines}.log"  # no pipe, which a program in the background would keep
        )
        with (self.folder / "logs" / log_name).open("wb+") as log:
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=self.work,
                env=self.marked("typed"),
                input=answers.encode(),
                stdout=log,
                stderr=log,
                timeout=seconds,
                check=False,
                **self.whose,
            )
            log.seek(0)
            said = log.read().decode("utf-8", "replace")
        print(said, end="", flush=True)
        assert done.returncode == status, f"`{line}` ended with {done.returncode}:\n{said[-3000:]}"
        return said

    def leave_running(self, name: str, line: str) -> None:
        """Type a line whose program goes on, and call it `name`."""
        print(f"$ {line} &", flush=True)
        self.start(name, "bash", "-c", f"exec {line}")

    def forget(self, name: str) -> None:
        """One that was killed is not missed."""
        del self._started[name]

    def see_it_end(self, name: str, seconds: float = 120) -> int:
        """Wait until it ends of its own accord; give its status."""
        return self._started.pop(name).wait(seconds)

    def stop(self, name: str) -> int:
        """Ask it to end, and wait; give its status."""
        process = self._started.pop(name)
        process.terminate()
        return process.wait(60)

    def wait_for(self, look: Callable[[], T | None], what: str, seconds: float = 600) -> T:
        """Look until there is something; fail with the last words of a program that has ended."""
        deadline = time.monotonic() + seconds
        while (found := look()) is None:
            self.require_alive()
            assert time.monotonic() < deadline, (
                f"not seen in {seconds:.0f} s: {what}\n{self._last_words()}"
            )
            time.sleep(0.1)
        return found

    def wait_until(self, happened: Callable[[], bool], what: str, seconds: float = 600) -> None:
        """Look until it has happened."""
        self.wait_for(lambda: happened() or None, what, seconds)

    def require_alive(self) -> None:
        """Nobody who was left running has ended."""
        for name, process in self._started.items():
            status = process.poll()
            assert status is None, f"{name} ended with {status}:\n{self.said(name)[-3000:]}"

    def _stop(self) -> None:
        super()._stop()
        for (
            pid
        ) in self.leftovers():  # what a typed command left behind, such as Flower's own SuperLink
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_for_nobody()

    def wait_for_nobody(self) -> None:
        """Until all who were killed are gone."""
        while self.leftovers():
            time.sleep(0.1)

    def _last_words(self) -> str:
        return "\n".join(f"--- {name}:\n{self.said(name)[-600:]}" for name in self._started)

    def events(self, name: str) -> list[dict[str, object]]:
        """The JSON lines of its log."""
        lines = self.said(name).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def has_logged(self, name: str, event: str) -> bool:
        return any(entry.get("event") == event for entry in self.events(name))


class Figures:
    """What a running server says in /metrics, as the page's token lets us see it."""

    def __init__(self, port: int, state: Path, authority: Path) -> None:
        self._url = f"https://127.0.0.1:{port}/metrics"
        token = json.loads((state / "server.json").read_text())["page_token"]
        self._header = {"Authorization": f"Bearer {token}"}
        self._trust = ssl.create_default_context(cafile=str(authority))

    def read(self) -> dict[str, float]:
        """Name → value; nothing while the server does not answer."""
        request = urllib.request.Request(self._url, headers=self._header)
        try:
            with urllib.request.urlopen(request, context=self._trust, timeout=20) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found = re.findall(r"^basecagg_(\S+) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    @property
    def version(self) -> int:
        return int(self.read().get("model_version", -1))

    def statuses(self) -> dict[str, int]:
        """HTTP status → how many answers had it."""
        found = self.read().items()
        pattern = re.compile(r'requests_total{status="(\d+)"}')
        return {match[1]: int(value) for name, value in found if (match := pattern.match(name))}
