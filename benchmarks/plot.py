"""The time to encode against the number of users, as a picture for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

LINES = (
    ("FedML encode", "FedML mask_encoding (15-bit field)", "tab:red", "s"),
    ("dense encode", "dense product, NumPy", "tab:gray", "^"),
    ("encode", "basecagg", "tab:blue", "o"),
)


def draw(
    seconds: Mapping[str, float], users: Sequence[int], d: int, machine: str, file: Path
) -> None:
    """One line for each encoder, both axes logarithmic."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "basecagg"  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for name, label, colour, marker in LINES:
        times = [seconds[f"{name}, N = {n}"] for n in users]
        axes.loglog(users, times, color=colour, marker=marker, label=label)
    axes.set_xticks(users, [str(n) for n in users])
    axes.minorticks_off()
    axes.set_xlabel("users N (U = 0.7 N, T = 0.5 N)")
    axes.set_ylabel("seconds to encode one mask, one thread")
    axes.set_title(f"Encoding a mask of {d:,} elements\n{machine}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
