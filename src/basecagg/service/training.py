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
import traceback
from collections.abc import Callable
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError

Vector = npt.NDArray[np.float32]
_HEAD = struct.Struct(">BIQ")
_DONE, _FAILED = 0, 1


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

    async def __call__(self, model: Vector, info: RoundInfo) -> Vector:
        """The vector that the function returns; an exception in it is a `DataError` here."""
        try:
            return await asyncio.to_thread(self._call, model, info)
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child = None

    def _call(self, model: Vector, info: RoundInfo) -> Vector:
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _send(
                child.stdin,
                _DONE,
                msgspec.json.encode(info),
                model.astype("<f4", copy=False).tobytes(),
            )
            status, text, data = _receive(child.stdout)
        except (OSError, EOFError):
            self.close()
            raise DataError(f"the process of {self._place} ended unexpectedly") from None
        if status == _FAILED:
            raise DataError(f"{self._place} failed: {text.decode(errors='replace')}")
        return np.frombuffer(data, "<f4")

    def _start(self) -> subprocess.Popen[bytes]:
        # The working directory comes last, and -P keeps it from coming first: it may hold anybody's files.
        command = [sys.executable, "-P", "-m", "basecagg.service.training", self._place]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(_search_path())}
        self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        return self._child


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
            _, text, data = _receive(source)
        except EOFError:
            return
        try:
            function = function or _load(place)
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
