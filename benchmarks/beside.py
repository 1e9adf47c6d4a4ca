"""The full cycle of this commit beside another one's, in one run: python -m benchmarks.beside COMMIT.

Both are real processes that take turns, a cycle each, so that what is compared meets the same machine, and both
open with this commit's U: shares of another size would cost more or less by themselves. The other commit is
checked out beside this one for as long as it takes. It prints ratios; nothing is written.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.cycle import PARAMETERS

ROOT = Path(__file__).parent.parent
_CHILD = """
import sys, time
from dataclasses import replace
import numpy as np
from benchmarks.cycle import PARAMETERS, BenchFederation, Rival, durable_stores
p = replace(PARAMETERS, recovery_threshold=int(sys.argv[1]))
updates = np.random.default_rng(1).normal(0, 0.02, (p.buffer_size, p.model_size)).astype(np.float32)
model = np.zeros(p.model_size, np.float32)
with durable_stores() as make_store:
    rivals = (
        Rival(BenchFederation(p, model), updates, time.process_time),
        Rival(BenchFederation(p, model, make_store=make_store), updates, time.process_time),
    )
    for _ in sys.stdin:
        for rival in rivals:
            rival.best = float("inf")
            rival.run()
        print(*(rival.best for rival in rivals), flush=True)
"""


class Side:
    """One commit at work in a process of its own."""

    def __init__(self, tree: Path) -> None:
        """Start; the first cycle compiles and is not counted."""
        paths = os.pathsep.join([str(tree / "src"), str(tree)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(PARAMETERS.recovery_threshold)],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.runs: list[list[float]] = []
        self._cycle()

    def run(self) -> None:
        """One more cycle of each kind."""
        self.runs.append(self._cycle())

    def best(self, kind: int) -> float:
        """The least of all runs: whatever else the machine did only adds."""
        return min(run[kind] for run in self.runs)

    def median(self, kind: int) -> float:
        """The one in the middle."""
        return statistics.median(run[kind] for run in self.runs)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _cycle(self) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side ended: its own words are above")
        return [float(number) for number in line.split()]


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


def main() -> None:
    """Print both sides and their ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("commit", help="the one to compare with")
    parser.add_argument("--repeats", type=int, default=8)
    given, console = parser.parse_args(), Console()
    with checked_out(given.commit) as tree:
        console.print("compiling both sides …")
        ours, theirs = Side(ROOT), Side(tree)
        for _ in track(range(given.repeats), "cycles in turn …", console=console):
            theirs.run()
            ours.run()
        for side in (ours, theirs):
            side.close()
    for kind, name in enumerate(("full cycle in memory", "full cycle on disk")):
        console.print(
            f"{name}: {ours.best(kind):.3f} s of CPU here, {theirs.best(kind):.3f} at {given.commit}:"
            f" best {ours.best(kind) / theirs.best(kind):.3f},"
            f" median {ours.median(kind) / theirs.median(kind):.3f}"
        )


if __name__ == "__main__":
    main()
