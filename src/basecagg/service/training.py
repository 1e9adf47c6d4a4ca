"""The user's own code, in a process of its own: it may take all the time and all the interpreter it wants.

The agent goes on answering meanwhile. The child is fed through a pipe and ends with it, so it does not outlive
a killed agent for longer than one round.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError
from basecagg.privacy import Privacy
from basecagg.service.logs import Log

Vector = npt.NDArray[np.float32]
_HEAD = struct.Struct(">BIQ")
_DONE, _FAILED, _LOOK = 0, 1, 2
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
        """Start nothing yet."""
        if place.count(":") != 1:
            raise DataError(f"'{place}' is not of the form module:function")
        self._place = place
        self._child: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None

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
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            if self._listener is not None:
                self._listener.join(_FAREWELL)  # its own children may still have the pipe
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child = None

    def _call(self, model: Vector, info: RoundInfo) -> Vector:
        data = model.astype("<f4", copy=False).tobytes()
        return np.frombuffer(self._ask(_DONE, msgspec.json.encode(info), data), "<f4")

    def _ask(self, kind: int, text: bytes, data: bytes) -> bytes:
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _send(child.stdin, kind, text, data)
            status, said, result = _receive(child.stdout)
        except (OSError, EOFError):
            self.close()
            raise DataError(f"the process of {self._place} ended unexpectedly") from None
        if status == _FAILED:
            raise DataError(f"{self._place} failed: {said.decode(errors='replace')}")
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        # The working directory comes last, and -P keeps it from coming first: it may hold anybody's files.
        command = [sys.executable, "-P", "-m", "basecagg.service.training", self._place]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(_search_path())}
        self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self._listener = threading.Thread(
            target=_log_output, args=(self._child.stderr,), name="output", daemon=True
        )
        self._listener.start()
        return self._child


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


def _serve(place: str) -> None:
    """The child: call the function for every model that comes in, until the pipe ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints must not get between the numbers
    function: Callable[[Vector, RoundInfo], Any] | None = None
    while True:
        try:
            kind, text, data = _receive(source)
        except EOFError:
            return
        try:
            function = function or _load(place)
            if kind == _LOOK:
                _send(sink, _DONE, b"", b"")
                continue
            info = msgspec.json.decode(text, type=RoundInfo)
            result = np.asarray(function(np.frombuffer(data, "<f4").copy(), info), "<f4").reshape(
                -1
            )
        except Exception:
            _send(sink, _FAILED, traceback.format_exc(limit=-3).encode(), b"")
        else:
            _send(sink, _DONE, b"", result.tobytes())


def _load(place: str) -> Callable[[Vector, RoundInfo], Any]:
    module, _, name = place.partition(":")
    function: Callable[[Vector, RoundInfo], Any] = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{place} is no function")
    return function


def _send(pipe: IO[bytes], status: int, text: bytes, data: bytes) -> None:
    pipe.write(_HEAD.pack(status, len(text), len(data)))
    pipe.write(text)
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[int, bytes, bytes]:
    status, text, data = _HEAD.unpack(_read(pipe, _HEAD.size))
    return status, _read(pipe, text), _read(pipe, data)


def _read(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) != count:
        raise EOFError
    return data


if __name__ == "__main__":
    _serve(sys.argv[1])
