"""The full cycle of this commit beside another one's, in one run: python -m benchmarks.beside COMMIT.

Both are real processes that take turns, a cycle each, so that what is compared meets the same machine, and both
open with this commit's U: shares of another size would cost more or less by themselves. The other commit is
checked out beside this one for as long as it takes, and hides updates as it does by default. It prints ratios;
nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from basecagg.parameters import usual_tolerance

ROOT = Path(__file__).parent.parent
K, D = 10, 10**6
"""Members of a sum, and numbers of an update."""
CASES: Mapping[str, Mapping[str, Any]] = {
    "12": {"num_holders": 12},
    "100": {"num_holders": 100},
    "12-long": {"num_holders": 12, "masks": "long", "weights": "field"},
    "100-long": {"num_holders": 100, "masks": "long", "weights": "field"},
}
"""By name: what this commit runs. The other one leaves out what it does not know."""
_CHILD = """
import json, resource, sys, time
from dataclasses import fields
import numpy as np
from basecagg import ProtocolParameters
from basecagg.channels.wire import pack
from basecagg.protocol import recovery
from benchmarks.cycle import BenchFederation, durable_stores
from reproduction.cycle import run_cycle

spent = {}

def timed(function, name):
    def call(*arguments):
        begun = time.process_time()
        try:
            return function(*arguments)
        finally:
            spent[name] = spent.get(name, 0.0) + time.process_time() - begun
    return call

class Watched(BenchFederation):
    def _build_contributor(self, name, store):
        machine = super()._build_contributor(name, store)
        machine.deal = timed(machine.deal, "contributors")
        machine.submit = timed(machine.submit, "contributors")
        return machine

recovery.open_sum = timed(recovery.open_sum, "opening")
wished = json.loads(sys.argv[1])
known = {each.name for each in fields(ProtocolParameters)}
p = ProtocolParameters(**{name: value for name, value in wished.items() if name in known})
updates = np.random.default_rng(1).normal(0, 0.02, (p.buffer_size, p.model_size)).astype(np.float32)
model = np.zeros(p.model_size, np.float32)
size = 0

def weigh(letter):
    global size
    if type(letter.message).__name__ in ("Shipment", "Upload", "Contribution"):
        size += len(pack(letter.message))

def cycles(federation):
    runs = 0
    while True:
        spent.clear()
        fresh = updates + np.float32(runs * 1e-3)
        begun = time.process_time()
        run_cycle(federation, fresh)
        runs += 1
        yield time.process_time() - begun

with durable_stores() as make_store:
    federation = Watched(p, model)
    federation.network.observers.append(weigh)
    in_memory = cycles(federation)
    next(in_memory)  # compiles
    federation.network.observers.clear()
    next(in_memory)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    on_disk = cycles(Watched(p, model, make_store=make_store))
    for _ in sys.stdin:
        whole = next(in_memory)
        seconds = {"a contributor": spent["contributors"] / p.buffer_size}
        seconds |= {"the server's opening": spent["opening"], "all parties, in memory": whole}
        print(json.dumps(seconds | {"all parties, on disk": next(on_disk)}), flush=True)
    share = size / p.buffer_size / (4 * p.model_size)
    print(json.dumps({"upload with its shares": share, "memory": most}), flush=True)
"""


class Side:
    """One commit at work in a process of its own."""

    def __init__(self, tree: Path, wished: Mapping[str, Any]) -> None:
        """Start; the first cycles compile and are not counted."""
        paths = os.pathsep.join([str(tree / "src"), str(tree)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps(wished)],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.runs: list[dict[str, float]] = []
        self._cycle()

    def run(self) -> None:
        """One more cycle of each kind."""
        self.runs.append(self._cycle())

    def best(self, kind: str) -> float:
        """The least of all runs: whatever else the machine did only adds."""
        return min(run[kind] for run in self.runs)

    def median(self, kind: str) -> float:
        """The one in the middle."""
        return statistics.median(run[kind] for run in self.runs)

    def close(self) -> dict[str, float]:
        """End the process; the size of an upload, and the most memory of cycles in memory."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        last = self._line()
        self._process.wait()
        return last

    def _cycle(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side ended: its own words are above")
        read: dict[str, float] = json.loads(line)
        return read


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The tree of a commit, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", tree, commit], cwd=ROOT, check=True
        )
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def wished(case: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ProtocolParameters` of a case, with the D, T and U that are usual for its N."""
    dropouts, colluders, threshold = usual_tolerance(case["num_holders"], K, "certified")
    tolerance = {
        "max_dropouts": dropouts,
        "max_colluders": colluders,
        "recovery_threshold": threshold,
    }
    return {"buffer_size": K, "model_size": D, **tolerance, **case}


def compare(case: str, tree: Path, commit: str, repeats: int, console: Console) -> None:
    """Print both sides of a case and their ratios."""
    console.print(f"[bold]N, masks: {case}[/]; compiling both sides …")
    ours, theirs = (Side(each, wished(CASES[case])) for each in (ROOT, tree))
    for _ in track(range(repeats), "cycles in turn …", console=console):
        theirs.run()
        ours.run()
    ended = ours.close(), theirs.close()
    for kind in ours.runs[0]:
        console.print(
            f"{kind}: {1e3 * ours.best(kind):.1f} ms of CPU here, {1e3 * theirs.best(kind):.1f} at {commit}:"
            f" best {ours.best(kind) / theirs.best(kind):.3f},"
            f" median {ours.median(kind) / theirs.median(kind):.3f}"
        )
    sizes, most = zip(*(each.values() for each in ended), strict=True)
    console.print(
        f"upload with its shares: {sizes[0]:.3f} of the model in float32, {sizes[1]:.3f} at {commit}"
    )
    console.print(f"memory: {most[0] / 1024:.0f} MB here, {most[1] / 1024:.0f} MB at {commit}")


def main() -> None:
    """Compare all cases, or those named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("commit", help="the one to compare with")
    parser.add_argument("cases", nargs="*", default=["12", "100"], metavar="CASE")
    parser.add_argument("--repeats", type=int, default=8)
    given, console = parser.parse_args(), Console()
    with checked_out(given.commit) as tree:
        for case in given.cases:
            compare(case, tree, given.commit, given.repeats, console)


if __name__ == "__main__":
    main()
