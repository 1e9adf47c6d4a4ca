"""The user's own code, in a process of its own: it may take all the time and all the interpreter it wants.

The agent goes on answering meanwhile. The child is fed through a pipe and ends with it, so it does not outlive
a killed agent for longer than one round.
"""

import asyncio
import importlib
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError
from basecagg.privacy import Privacy
from basecagg.service.logs import Log

Vector = npt.NDArray[np.float32]
_TRAIN, _LOOK, _DONE, _FAILED = b"train", b"look", b"done", b"failed"
"""What a message begins with; a text and numbers follow."""
_LOG = Log("basecagg.training")
_LONGEST_LINE = 4096
_FAREWELL = 1.0
"""Seconds for what a process that has ended may still have printed."""


class RoundInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a training function is told besides the model."""

    federation: str
    name: str
    version: int
    """t_i: the version of the model that it gets."""
    round: int
    """How many updates this agent has made since it started."""
    data: str
    """What was given as --data."""
    epoch: str = ""
    """The id of the epoch, in hexadecimal digits."""
    privacy: Privacy | None = None
    """What the epoch promises. Where the unit is the record, your function has to clip (`record_update`)."""


class Training(Protocol):
    """Turns a model into a better one, in its own time."""

    async def __call__(self, model: Vector, info: RoundInfo) -> Vector:
        """The trained model."""
        ...

    def close(self) -> None:
        """Stop."""
        ...


class UserFunction:
    """A function `module:name` of the user, called as f(vector, RoundInfo), in a child process."""

    def __init__(self, place: str) -> None:
        if place.count(":") != 1:
            raise DataError(f"'{place}' is not of the form module:function")
        self._place = place
        self._child: _Child | None = None
        self._lock = threading.Lock()
        """A child is not let go of while it starts."""

    async def __call__(self, model: Vector, info: RoundInfo) -> Vector:
        """The vector that the function returns; an exception in it is a `DataError` here."""
        try:
            return await asyncio.to_thread(self._call, model, info)
        except asyncio.CancelledError:
            self.close()
            raise

    def require(self) -> None:
        """Import the function now, or `DataError` if it is not there. Its process stays for the first model."""
        self._ask(_LOOK, b"", b"")

    def close(self) -> None:
        """End the child."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def _call(self, model: Vector, info: RoundInfo) -> Vector:
        data = model.astype("<f4", copy=False).tobytes()
        return np.frombuffer(self._ask(_TRAIN, msgspec.json.encode(info), data), "<f4")

    def _ask(self, kind: bytes, text: bytes, data: bytes) -> bytes:
        with self._lock:
            child = self._child = self._child or _Child(self._place)
        try:
            _send(child.pipe, kind, text, data)
            status, said, result = _receive(child.pipe)
        except (OSError, EOFError):
            self.close()
            raise DataError(f"the process of {self._place} ended unexpectedly") from None
        if status == _FAILED:
            raise DataError(f"{self._place} failed: {said.decode(errors='replace')}")
        return result


class _Child:
    """The process, the pipe to it, and the thread that hears what it prints."""

    def __init__(self, place: str) -> None:
        self.pipe, its_end = Pipe()
        # The working directory comes last, and -P keeps it from coming first: it may hold anybody's files.
        # -u: what it has printed is heard even if it is killed right afterwards.
        here = [sys.executable, "-P", "-u", "-m", "basecagg.service.training"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(_search_path())}
        with its_end:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*here, place, str(its_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[its_end.fileno()],
                env=environment,
            )
        output = self._process.stdout
        self._listener = threading.Thread(
            target=_log_output, args=[output], name="output", daemon=True
        )
        self._listener.start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join(_FAREWELL)  # its own children may still have the pipe
        self.pipe.close()


def _log_output(pipe: IO[bytes]) -> None:
    """What the user's code prints becomes lines of our log, which has JSON in it and nothing else."""
    with pipe:
        while line := pipe.readline(_LONGEST_LINE):
            _LOG.info("output", line=line.decode(errors="replace").rstrip())


def _search_path() -> list[str]:
    """Where the child finds modules: what is installed, then the working directory."""
    here = os.getcwd()
    elsewhere = [path for path in sys.path if path and os.path.abspath(path) != here]
    return [*elsewhere, here]


def _serve(place: str, pipe: Connection) -> None:
    """The child: call the function for every model that comes in, until the pipe ends."""
    function: Callable[[Vector, RoundInfo], Any] | None = None
    while True:
        try:
            kind, text, data = _receive(pipe)
        except EOFError:
            return
        result = np.zeros(0, "<f4")
        try:
            function = function or _load(place)
            if kind == _TRAIN:
                info = msgspec.json.decode(text, type=RoundInfo)
                result = np.asarray(function(np.frombuffer(data, "<f4").copy(), info), "<f4")
        except Exception:
            _send(pipe, _FAILED, traceback.format_exc(limit=-3).encode(), b"")
        else:
            _send(pipe, _DONE, b"", result.tobytes())


def _load(place: str) -> Callable[[Vector, RoundInfo], Any]:
    module, _, name = place.partition(":")
    function: Callable[[Vector, RoundInfo], Any] = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{place} is no function")
    return function


def _send(pipe: Connection, *parts: bytes) -> None:
    for part in parts:
        pipe.send_bytes(part)


def _receive(pipe: Connection) -> tuple[bytes, bytes, bytes]:
    return pipe.recv_bytes(), pipe.recv_bytes(), pipe.recv_bytes()


if __name__ == "__main__":
    _serve(sys.argv[1], Connection(int(sys.argv[2])))
