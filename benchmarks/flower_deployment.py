"""`python -m benchmarks.flower_deployment`: how to keep training from blocking recoveries on Flower.

A SuperLink and four SuperNodes over TLS with authentication on this machine, as the tests start them, and on
them three runs of the example, each of its trainings 20 to 40 s longer than it is. A SuperNode handles one
message at a time, so a holder that trains within a message cannot answer. Measured for each run:

1. from the request for a sum until it is open, and from one version to the next: medians of what followed the
   first version, before which keys, epoch and masks are made;
2. processor time of the SuperNodes and all that they start, divided by the messages that they took. Training
   that is detached is not in it, for it has left its parents.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from reproduction import machine, report

sys.path.append(str(Path("tests/flower")))  # one way to start a federation, for tests and figures

from deployment_apps import slow_app
from deployment_harness import Deployment

RESULTS = Path("benchmarks/results/flower-deployment.json")
NODES, BUFFER = 4, 2
SLOWNESS = "__import__('random').uniform(20, 40)"
"""Extra seconds of training: uneven, as in life, or all nodes would train in step."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    "detached": {"training": "detached"},
    "attached": {"training": "attached"},
    "holders apart": {"training": "attached", "holders": 2, "holders_train": False},
}
"""What the strategy is told. First everybody holds and trains; in the end two nodes hold and two train."""
STOPWATCH = '''

import time
from basecagg.parties.epoch_server import EpochServer


def _perform(self, effects, perform=EpochServer._perform, seen=[]):
    """Say when a sum is asked for and when a version is there."""
    perform(self, effects)
    state = self.machine.version, self.machine.is_opening
    if state not in seen:
        seen.append(state)
        print("SEEN", time.time(), *state, flush=True)


EpochServer._perform = _perform
'''


class Moment(NamedTuple):
    """Something that the stopwatch has seen."""

    at: float
    version: int
    is_opening: bool


def main() -> None:
    """Measure the three ways, print them, write them."""
    options = _options()
    console = Console()
    with tempfile.TemporaryDirectory() as folder, Deployment.running(NODES) as federation:
        found = {}
        for number, (name, settings) in enumerate(WAYS.items()):
            console.print(f"{name}, {options.versions} versions …")
            place = Path(folder, str(number))
            place.mkdir()
            found[name] = _measure(federation, place, settings, options.versions)
    lines = [{"": name, **row} for name, row in found.items()]
    report.show_table(console, "Trainings and recoveries", lines)
    about = machine.describe() | {"flwr": version("flwr"), "how": _how(options.versions)}
    report.write_json(RESULTS, {"about": about, "ways": found})
    console.print(f"Written: {RESULTS}")


def _measure(
    federation: Deployment, place: Path, settings: Mapping[str, Any], versions: int
) -> dict[str, Any]:
    """One run, from before its start to its end."""
    app = slow_app(place, SLOWNESS, **settings)
    server = app / "flower_mnist" / "server_app.py"
    server.write_text(server.read_text("utf-8") + STOPWATCH, "utf-8")
    before = _cost(federation)
    heard = len(federation.said("run"))
    config = f"num-server-rounds={versions} buffer-size={BUFFER} fraction-evaluate=0.0"
    federation.start_run(app, config)
    moments = _moments(federation.finish_run()[heard:])
    cost = _cost(federation)
    processor, messages = cost.processor - before.processor, cost.messages - before.messages
    return {
        "seconds to open a sum": _median(_openings(moments)),
        "seconds per version": _median(_versions(moments)),
        "messages": messages,
        "processor seconds": round(processor, 1),
        "processor seconds per message": round(processor / messages, 1),
    }


# --- the stopwatch --------------------------------------------------------------------------------


def _moments(said: str) -> list[Moment]:
    found = re.findall(r"SEEN ([\d.]+) (\d+) (True|False)", said)
    return [Moment(float(at), int(number), state == "True") for at, number, state in found]


def _openings(moments: list[Moment]) -> list[float]:
    """Seconds from each request to its sum, without the first."""
    began = {moment.version: moment.at for moment in moments if moment.is_opening}
    ended = _first_seen(moments)
    return [ended[v + 1] - at for v, at in began.items() if v > 0 and v + 1 in ended]


def _versions(moments: list[Moment]) -> list[float]:
    """Seconds from each version to the next, without the first."""
    return [later - earlier for earlier, later in pairwise(list(_first_seen(moments).values())[1:])]


def _first_seen(moments: list[Moment]) -> dict[int, float]:
    seen: dict[int, float] = {}
    for moment in moments:
        seen.setdefault(moment.version, moment.at)
    return seen


def _median(seconds: list[float]) -> float:
    return round(statistics.median(seconds), 1)


# --- the cost -------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Of all SuperNodes since they were started."""

    processor: float
    messages: int


def _cost(federation: Deployment) -> Cost:
    names = [f"node{node}" for node in range(NODES)]
    pids = [pid for name in names for pid in federation.members(name)]
    messages = sum(federation.said(name).count("Receiving: train message") for name in names)
    return Cost(sum(map(_processor_seconds, pids)), messages)


def _processor_seconds(pid: int) -> float:
    """Of a process, and of its children that have ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:  # it has ended: its parent has its time
        return 0.0
    ticks = status.rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


# --- the results ----------------------------------------------------------------------------------


def _how(versions: int) -> str:
    return (
        f"examples/flower-mnist, {NODES} SuperNodes over TLS with authentication on this machine, K = {BUFFER},"
        f" {versions} versions, trainings 20 to 40 s longer than they are; medians after the first version"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flower_deployment")
    parser.add_argument("--versions", type=int, default=5, help="of each run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
