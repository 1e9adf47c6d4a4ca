"""Our SecAgg and BASecAgg beside Flower's SecAgg+, in one run: CPU of all parties, and the bars. 5 minutes.

Needs flwr. It wants other versions of what basecagg uses, so keep it apart:
`pip install --target <environment>/bench-flower 'flwr>=1.41,<1.43'`; it is found there.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

# One thread for BLAS as well, before numpy reads it; and no telemetry.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
if find_spec("flwr") is None:
    sys.path.append(str(Path(sys.prefix) / "bench-flower"))

from rich.console import Console

from benchmarks.bars import Result, at_least
from reproduction import machine, report
from reproduction.flower import (
    BAR,
    MODEL_SIZES,
    SETTINGS,
    Comparison,
    compare,
)

RESULTS = Path(__file__).parent / "results" / "secagg.json"


def bars(comparisons: list[Comparison]) -> list[Result]:
    """Our SecAgg is an honest competitor everywhere; BASecAgg's gain at the largest size."""
    lines = [
        at_least(
            f"SecAgg per user: Flower / ours, N = {c.users}, n = {c.shares}, d = {c.model_size:,}",
            1,
            c.secagg_gain,
        )
        for c in comparisons
    ]
    last = comparisons[-1]
    if (last.users, last.shares, last.model_size) == (*SETTINGS[-1], MODEL_SIZES[-1]):
        name = f"total: Flower's SecAgg+ / BASecAgg, K = N = {last.users}, T = {last.colluders}"
        lines.append(at_least(name, BAR, last.basecagg_gain))
    return lines


def main() -> int:
    """Measure, print, write; fail if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="N = 10 only, and nothing is written")
    quick = parser.parse_args().quick
    console, comparisons = Console(), []
    for users, shares in SETTINGS[:1] if quick else SETTINGS:
        for size in MODEL_SIZES:
            console.print(f"N = {users}, {shares} shares, d = {size:,} …")
            comparisons.append(compare(users, shares, size))
    lines = bars(comparisons)
    told = [line._asdict() for line in lines]
    report.show_table(console, "Bars", told)
    if not quick:
        record = {
            "machine": machine.describe(),
            "bars": told,
            "comparisons": [comparison.flat() for comparison in comparisons],
        }
        report.write_json(RESULTS, record)
    return 0 if all(line.ok for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
