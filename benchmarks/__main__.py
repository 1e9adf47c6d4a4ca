"""`python -m benchmarks`: the bars, the scaling table, a file of results and a picture. Takes 5 minutes."""

from __future__ import annotations

import argparse
import os
from itertools import product
from pathlib import Path
from typing import Any

# One thread for BLAS as well, before numpy reads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rich.console import Console

from basecagg.reports import plots
from benchmarks import bars, fedml_peer, first_use, kernels, scaling
from benchmarks.sizes import Sizes
from benchmarks.timing import times
from reproduction import machine, plot, report

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
    starts = [start._asdict() for start in first_use.measure()]
    lines = [line._asdict() for line in bars.results(seconds)]
    report.show_table(console, f"Times: {kernels.HOW}", times(seconds))
    report.show_table(console, "Scaling, all cores: seconds and bytes", rows)
    report.show_table(console, "First use", starts)
    report.show_table(console, "Bars", lines)
    if options.quick:
        console.print("A quick run: too small for the bars, and nothing is written.")
        return 0
    about = machine.describe() | {"model_size": d, "how": kernels.HOW}
    parts = {"bars": lines, "first_use": starts, "seconds": seconds, "scaling": rows}
    report.write_json(RESULTS, {"about": about, **parts})
    plots.save(_drawn(seconds, users, d), PICTURE.parent, PICTURE.stem, ("svg",))
    console.print(f"Written: {RESULTS}, {PICTURE}")
    return 0 if len(lines) == len(bars.BARS) and all(line["ok"] for line in lines) else 1


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


ENCODERS = {
    "FedML encode": "FedML mask_encoding (15-bit field)",
    "dense encode": "dense product, NumPy",
    "encode": "basecagg",
}


def _drawn(seconds: dict[str, float], users: list[int], d: int) -> Any:
    """The time to encode against the number of users, for the docs."""
    curves = {
        label: [(n, seconds[f"{name}, N = {n}"]) for n in users] for name, label in ENCODERS.items()
    }
    return plot.lines(
        curves,
        "users N (U = 0.7 N, T = 0.5 N)",
        f"seconds to encode a mask of {d:,} elements, one thread",
        x_scale=plot.LOG,
        y_scale=plot.LOG,
        ticks=users,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--peers", type=Path, default=fedml_peer.PEERS, help="where FedML lies")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
