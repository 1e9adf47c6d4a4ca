"""What tests let a fresh process do: functions for `detached.launch`, and an app that a run config steers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from fake_grid import FakeGrid, make_grid
from flwr.app import Context, Message, MetricRecord
from small_app import make_app

from basecagg.flower import basecagg_mod


def wait_until(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


# --- for detached.launch: bytes → update and memory ---


def tell_process(content: bytes) -> tuple[Any, bytes]:
    """Where it runs, and with what."""
    found = f"{os.getcwd()}\n{os.environ.get('TOLD', '')}\n{sys.argv[1:]}".encode()
    return np.array([os.getpid()], np.float64), found + content


def wait(content: bytes) -> tuple[Any, bytes]:
    """Until there is a file `go` in this folder."""
    wait_until(Path(content.decode()) / "go")
    return np.zeros(1), b""


def fail(content: bytes) -> tuple[Any, bytes]:
    raise ValueError("patient 4711")


def hang(content: bytes) -> tuple[Any, bytes]:
    time.sleep(600)
    raise AssertionError


def hang_with_helper(content: bytes) -> tuple[Any, bytes]:
    """As a loader of data with workers does."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(content.decode()).write_text(str(helper.pid))
    return hang(content)


# --- an app ---


def hold_one(folder: Path, context: Context) -> None:
    """One node trains until there is a file `go`."""
    if context.node_id == int((folder / "slow").read_text()):
        wait_until(folder / "go")


def hold_first(folder: Path, context: Context) -> None:
    """The first training of all lasts until there is a file `go`."""
    if _is_first(folder):
        wait_until(folder / "go")


def kill_first(folder: Path, context: Context) -> None:
    """The first training of all is killed."""
    if _is_first(folder):
        os.kill(os.getpid(), signal.SIGKILL)


def hang_one(folder: Path, context: Context) -> None:
    """One node never ends."""
    if context.node_id == int((folder / "slow").read_text()):
        time.sleep(600)


def fail_first(folder: Path, context: Context) -> None:
    """The first training of all says something and fails."""
    if _is_first(folder):
        print("epoch 1 of 3")
        raise ValueError("patient 4711 is missing")


def fail_always(folder: Path, context: Context) -> None:
    raise ZeroDivisionError("as if it depended on the data")


def count(folder: Path, context: Context) -> None:
    """Every training finds what the one before remembered."""
    seen = context.state.get("trainings")
    number = int(seen["count"]) if seen is not None else 0  # type: ignore[call-overload,arg-type]
    (folder / f"{context.node_id}-{number}").touch(exist_ok=False)
    context.state["trainings"] = MetricRecord({"count": number + 1})


def _is_first(folder: Path) -> bool:
    try:
        (folder / "first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def steered(message: Message, context: Context, call_next: Any) -> Message:
    """Behind our mod: what the run config asks for, in the process that trains."""
    habit = context.run_config.get("habit")
    if habit:
        globals()[str(habit)](Path(str(context.run_config["folder"])), context)
    return call_next(message, context)


app = make_app([basecagg_mod, steered])


def grid_with(nodes: int, folder: Path, habit: str = "") -> FakeGrid:
    """Nodes with this app and habit; the first of them is the one that some habits are about."""
    grid = make_grid(nodes, app, folder / "nodes")
    (folder / "slow").write_text(str(next(iter(grid.nodes))))
    for node in grid.nodes.values():
        node.context.run_config.update({"habit": habit, "folder": str(folder)})
    return grid
