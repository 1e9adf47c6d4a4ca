"""Training in a process of its own, so that the node can answer recoveries meanwhile.

A SuperNode handles one message at a time. The process is a fork of the ClientApp's: it has the app's function
and data at hand, outlives the message and even the SuperNode, and leaves one file behind. While it lives it
holds a lock, so a visitor can tell training that goes on from training that died.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import numpy as np

from basecagg.errors import DataError
from basecagg.flower.failures import AppFailedError, told_of
from basecagg.protocol.global_model import Model
from basecagg.storage import disk

_FOLDER, _LOG = "training", "output.log"
LAST_FAILURE = "last-failure.log"
"""In the node's folder: what the last training that failed has printed."""
_TAIL = 20
"""Lines of it that go to the node's log."""


class TrainingStatus(NamedTuple):
    """How far training has come."""

    state: Literal["running", "done", "failed"]
    update: Model | None = None
    problem: str = ""
    memory: bytes = b""
    """What the app remembers from now on: Flower's Context.state, of which the process had a copy."""


def launch(
    node_folder: Path, train: Callable[[], Model], remember: Callable[[], bytes] = bytes
) -> None:
    """Start training and come back at once. The node must be closed: a fork would keep its locks.

    `remember` is asked, in the process, for what the app's state has become by its training.
    """
    if not hasattr(os, "fork"):
        raise DataError("this system cannot fork: use BufferedSecAgg(training='attached')")
    clear(node_folder)
    folder = node_folder / _FOLDER
    folder.mkdir(mode=0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        disk.lock(lock)  # shared with the child, and free again when the child ends
        with warnings.catch_warnings():
            # Newer Pythons warn that the parent's threads are not copied. The child needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _become_own_process(folder, train, remember)
        os.waitpid(child, 0)
    finally:
        os.close(lock)


def look(node_folder: Path) -> TrainingStatus:
    """How far the training that was launched has come."""
    folder = node_folder / _FOLDER
    # First: whoever has let go of the lock has put everything in its place.
    is_running = _is_locked(folder / "lock")
    with suppress(OSError):
        update = np.load(folder / "update.npy")
        return TrainingStatus("done", update, memory=(folder / "memory").read_bytes())
    with suppress(OSError):
        return TrainingStatus("failed", problem=(folder / "problem").read_text())
    if is_running:
        return TrainingStatus("running")
    return TrainingStatus("failed", problem="ProcessDied")


def clear(node_folder: Path) -> None:
    """Remove what training left behind; what one that failed has printed is kept until the next failure."""
    folder = node_folder / _FOLDER
    if not (folder / "update.npy").exists():
        with suppress(OSError):
            (folder / _LOG).replace(node_folder / LAST_FAILURE)
    shutil.rmtree(folder, ignore_errors=True)


def tail(node_folder: Path) -> str:
    """The last lines that training printed: for the node's own log, never for the server."""
    try:
        text = (node_folder / _FOLDER / _LOG).read_text("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL:])


def stop(node_folder: Path) -> None:
    """End training that goes on: nobody waits for it any more."""
    folder = node_folder / _FOLDER
    if _is_locked(folder / "lock"):
        with suppress(OSError, ValueError):
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def _is_locked(path: Path) -> bool:
    with suppress(OSError), path.open("r+b") as file:
        return disk.is_locked(file.fileno())
    return False


def _become_own_process(
    folder: Path, train: Callable[[], Model], remember: Callable[[], bytes]
) -> NoReturn:
    """In the child: leave the parent's session, and fork once more so that nobody has to wait for us."""
    try:
        os.setsid()
        if os.fork() == 0:
            _run(folder, train, remember)
    finally:
        os._exit(0)  # nothing of the parent's is to be cleaned up twice


def _run(folder: Path, train: Callable[[], Model], remember: Callable[[], bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # the parent's handlers would report to Flower
    (folder / "pid").write_text(str(os.getpid()))
    _redirect(folder / _LOG)
    try:
        update = train()
        _put(folder, "memory", remember())
    except BaseException as error:
        of_app = isinstance(error, AppFailedError)
        traceback.print_exception((error.__cause__ if of_app else None) or error)
        _put(folder, "problem", told_of(error).encode())
    else:
        with open(folder / "update.new", "wb") as file:
            np.save(file, update)
        (folder / "update.new").replace(folder / "update.npy")
    sys.stdout.flush()


def _put(folder: Path, name: str, content: bytes) -> None:
    (folder / f"{name}.new").write_bytes(content)
    (folder / f"{name}.new").replace(folder / name)


def _redirect(path: Path) -> None:
    """What the app prints goes to a file: the pipe to the SuperNode ends with the message."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - until the end
