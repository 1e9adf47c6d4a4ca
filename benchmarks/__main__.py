"""`python -m benchmarks`: the bars, the scaling table, a file of results and a picture. Takes 5 minutes."""

from __future__ import annotations

import argparse
import os
from itertools import product
from pathlib import Path

# One thread for BLAS as well, before numpy reads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rich.console import Console

from benchmarks import bars, fedml_peer, first_use, kernels, machine, plot, report, scaling
from benchmarks.sizes import Sizes

RESULTS = Path("benchmarks/results/kernels.json")
PICTURE = Path("docs/images/kernels.svg")


def main() -> int:
    """Measure, print, write; fail if a bar is missed."""
    options = _options()
    console = Console()
    users = [100, 200] if options.quick else [100, 200, 500, 1000]
    d = 10**5 if options.quick else 10**6
    seconds = _measure(console, users, d, options.peers)
    rows = _scale(console, users, [d] if options.quick else [10**5, 10**6, 10**7])
    console.print("first use …")
    starts = list(first_use.measure())
    lines = list(bars.results(seconds))
    report.show_seconds(console, seconds, kernels.HOW)
    report.show_scaling(console, rows)
    report.show_first_use(console, starts)
    report.show_bars(console, lines)
    if options.quick:
        console.print("A quick run: too small for the bars, and nothing is written.")
        return 0
    about = machine.describe() | {"model_size": d, "how": kernels.HOW}
    report.write(RESULTS, about, bars=lines, first_use=starts, seconds=seconds, scaling=rows)
    plot.draw(seconds, users, d, f"{about['cpu']}, {about['date']}", PICTURE)
    console.print(f"Written: {RESULTS}, {PICTURE}")
    return 0 if len(lines) == len(bars.BARS) and all(line.ok for line in lines) else 1


def _measure(console: Console, users: list[int], d: int, peers: Path) -> dict[str, float]:
    fedml = fedml_peer.load(peers)
    seconds: dict[str, float] = {}
    for n in users:
        console.print(f"encode and decode, N = {n}, d = {d:,} …")
        seconds |= kernels.code_seconds(Sizes(n, d), fedml)
    console.print(f"streams, rounding and sums, d = {d:,} …")
    return seconds | kernels.stream_seconds(d) | kernels.growth_seconds(d)


def _scale(console: Console, users: list[int], model_sizes: list[int]) -> list[dict[str, float]]:
    rows = []
    for d, n in product(model_sizes, users):
        console.print(f"scaling, N = {n}, d = {d:,} …")
        rows.append(scaling.measure_apart(Sizes(n, d)))
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--peers", type=Path, default=fedml_peer.PEERS, help="where FedML lies")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
