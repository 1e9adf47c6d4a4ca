"""Start, watch and end training in a process of its own, so that the node can answer recoveries meanwhile.

A SuperNode handles one message at a time. The process is a fresh interpreter: a fork would lack the threads
that an app's libraries have started, and wait for them for ever. It outlives the message and even the
SuperNode, and leaves one file behind. While it lives it holds a lock, so a visitor can tell training that goes
on from training that died.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from basecagg.errors import DataError
from basecagg.flower.visits import AppFailedError, told_of
from basecagg.protocol.global_model import Model
from basecagg.storage import disk

_FOLDER, _LOG = "training", "output.log"
LAST_FAILURE = "last-failure.log"
"""In the node's folder: what the last training that failed has printed."""
_TAIL = 20
"""Lines of it that go to the node's log."""
_BOOT = """
import os, sys
folder, target, lock, *sys.path = sys.argv[1:]
child = os.fork()
if child:
    with open(os.path.join(folder, "pid"), "w") as file:
        file.write(str(child))
    os._exit(0)
os.set_inheritable(int(lock), False)
content = sys.stdin.buffer.read()
from basecagg.flower.detached import run
run(folder, target, content)
"""
"""The fresh interpreter's first lines. It forks while it has one thread, so that no node waits for it."""


class TrainingStatus(NamedTuple):
    """How far training has come."""

    state: Literal["running", "done", "failed"]
    update: Model | None = None
    problem: str = ""
    memory: bytes = b""
    """What the app remembers from now on: Flower's Context.state, which the process had a copy of."""


def launch(node_folder: Path, target: str, content: bytes) -> None:
    """Start training and come back at once. The node must be closed: the process would keep its locks.

    `target` is "module:function". The process imports it by the same path, in the same working directory and
    environment; the function takes `content` and gives the update and what the app remembers from now on. The
    content goes through a pipe: it is on no disk and on no command line.
    """
    if not hasattr(os, "fork"):
        raise DataError(
            "this system cannot detach training: use BufferedSecAgg(training='attached')"
        )
    clear(node_folder)
    folder = node_folder / _FOLDER
    folder.mkdir(mode=0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    output = os.open(folder / _LOG, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        disk.lock(lock)  # shared with the process, and free again when it ends
        subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _BOOT, str(folder), target, str(lock), *sys.path],
            input=content,
            stdout=output,  # the pipe to the SuperNode ends with the message
            stderr=output,
            pass_fds=(lock,),
            start_new_session=True,
            check=False,  # one that could not begin has left its reason in the log, and no lock
        )
    finally:
        os.close(output)
        os.close(lock)


def look(node_folder: Path) -> TrainingStatus:
    """How far the training that was launched has come."""
    folder = node_folder / _FOLDER
    # Asked first: a process that has let go of the lock has put everything in its place before.
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
    """Remove what training left behind. What a failed one has printed is kept until the next failure."""
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
    """End training that goes on, and every process that it started."""
    folder = node_folder / _FOLDER
    if _is_locked(folder / "lock"):
        with suppress(OSError, ValueError):
            os.killpg(os.getpgid(int((folder / "pid").read_text())), signal.SIGKILL)


def _is_locked(path: Path) -> bool:
    with suppress(OSError), path.open("r+b") as file:
        return disk.is_locked(file.fileno())
    return False


def run(path: str, target: str, content: bytes) -> None:
    """In the fresh process: train, and leave the update or what went wrong."""
    folder = Path(path)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        module, _, function = target.partition(":")
        update, memory = getattr(import_module(module), function)(content)
        _put(folder, "memory", memory)
    except BaseException as error:
        of_app = isinstance(error, AppFailedError)
        traceback.print_exception((error.__cause__ if of_app else None) or error)
        _put(folder, "problem", told_of(error).encode())
    else:
        with open(folder / "update.new", "wb") as file:
            np.save(file, update)
        (folder / "update.new").replace(folder / "update.npy")


def _put(folder: Path, name: str, content: bytes) -> None:
    (folder / f"{name}.new").write_bytes(content)
    (folder / f"{name}.new").replace(folder / name)
