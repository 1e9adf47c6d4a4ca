"""The plots of `theorem`: both bounds beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from basecagg.reports.plots import in_house_style, new_figure
from reproduction.plot import VIVID
from reproduction.report import Line

_STYLES = {
    "corrected": (VIVID[2], "-", "v"),
    "measured": (VIVID[0], "o", "o"),
    "printed": (VIVID[1], "--", "^"),
}
"""Colour, line and marker of every curve."""
_LABELS = {"K": "$K$", "τ_max": r"$\tau_\mathrm{max}$", "c_l": "$c_l$"}


@in_house_style
def sweeps(panels: Mapping[str, Mapping[str, Sequence[Line]]]) -> Figure:
    """A row for each problem, a panel for each symbol that is varied."""
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    grid = figure.subplots(len(panels), len(_LABELS))
    for row, (problem, varied) in zip(grid, panels.items(), strict=True):
        for axes, (symbol, lines) in zip(row, varied.items(), strict=True):
            _sweep(axes, lines, symbol)
        row[0].set_ylabel(f"{problem}\nmean of ‖∇F‖²")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    return figure


def _sweep(axes: Any, lines: Sequence[Line], symbol: str) -> None:
    x = [line[symbol] for line in lines]
    for column, (colour, style, _) in _STYLES.items():
        axes.plot(x, [line[column] for line in lines], style, color=colour, label=column)
    axes.set_yscale("log")
    axes.set_xlabel(_LABELS[symbol])
    if symbol == "c_l":
        axes.set_xscale("log", base=2)
    else:
        axes.set_xticks(x)


@in_house_style
def gaps(found: Mapping[str, Line]) -> Figure:
    """The settings in which the printed bound is too small."""
    figure, axes = new_figure(width=7.2)
    places = range(len(found))
    for column, (colour, _, marker) in _STYLES.items():
        values = [gap[column] for gap in found.values()]
        axes.plot(places, values, marker, color=colour, label=column, markersize=8)
    axes.set_yscale("log")
    axes.set_xticks(places, [name.replace(" ", "\n", 1) for name in found])
    axes.set_xlim(-0.5, len(found) - 0.5)
    axes.set_ylabel("mean of ‖∇F‖²")
    axes.legend()
    return figure
