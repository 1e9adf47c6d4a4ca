"""Plots from plain numbers, in the house style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from basecagg.reports.plots import COLOURS, in_house_style, new_figure

Curve: TypeAlias = Sequence[tuple[float, float]]
"""Points (x, y), x ascending."""
Scale: TypeAlias = Mapping[str, Any]
"""What matplotlib's `set_yscale` takes."""
LOG: Scale = {"value": "log"}

# Okabe and Ito's: told apart with any colour vision.
VIVID = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MOST_INSIDE = 6
"""Labels that a legend can have without hiding lines."""


@in_house_style
def bands(groups: Mapping[str, Sequence[Curve]], x_label: str, y_label: str) -> Figure:
    """For every group of seeds its mean as a line, and from the worst seed to the best one a shade."""
    figure, axes = new_figure()
    for index, (label, curves) in enumerate(groups.items()):
        x, rows = common(curves)
        line = ("-", "--")[index % 2] if index < len(VIVID) else ":"
        colour = VIVID[index % len(VIVID)]
        axes.plot(x, rows.mean(axis=0), line, color=colour, label=label, linewidth=1.5)
        if len(rows) > 1:
            axes.fill_between(x, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.18, lw=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    above = {"ncols": 2, "loc": "lower left", "bbox_to_anchor": (0, 1)}
    axes.legend(fontsize=8.5, **(above if len(groups) > _MOST_INSIDE else {}))
    return figure


def common(curves: Sequence[Curve]) -> tuple[Any, Any]:
    """All curves at the same x, as far as every one of them goes; between points they are straight."""
    end = min(curve[-1][0] for curve in curves)
    x = np.unique([point for curve in curves for point, _ in curve if point <= end])
    return x, np.array([np.interp(x, *np.array(curve).T) for curve in curves])


@in_house_style
def lines(
    curves: Mapping[str, Curve],
    x_label: str,
    y_label: str,
    *,
    style: str = "o-",
    width: float = 1.6,
    colours: Sequence[str] = COLOURS,
    x_scale: Scale | None = None,
    y_scale: Scale | None = None,
    ticks: Sequence[float] = (),
    bottom: float | None = None,
    legend_size: float | None = None,
) -> Figure:
    """One line for each label that has points."""
    figure, axes = new_figure()
    drawn = [(label, curve) for label, curve in curves.items() if curve]
    for (label, curve), colour in zip(drawn, colours, strict=False):
        x, y = zip(*curve, strict=True)
        axes.plot(x, y, style, color=colour, label=label, linewidth=width)
    if x_scale:
        axes.set_xscale(**x_scale)
    if y_scale:
        axes.set_yscale(**y_scale)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if ticks:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.legend(fontsize=legend_size)
    return figure


def accuracy_by_epsilon(
    curves: Mapping[str, Curve], whose: str, unit: str, ticks: Sequence[float]
) -> tuple[Figure, str]:
    """What noise costs: accuracy against ε, and the caption."""
    label, y_label = f"ε of {whose}", "test accuracy, %"
    figure = lines(curves, label, y_label, x_scale=LOG, ticks=ticks, legend_size=8.5)
    return figure, f"Accuracy against ε, for one promise to every {unit}; mean of all seeds."


@in_house_style
def bars(
    groups: Mapping[str, Sequence[float]],
    places: Sequence[str],
    y_label: str,
    *,
    colours: Sequence[str] = COLOURS,
    room: float = 0.8,
    log: bool = False,
    tick_size: float | None = None,
) -> Figure:
    """At every place one bar for each label, side by side."""
    figure, axes = new_figure()
    width = room / len(groups)
    for index, ((label, values), colour) in enumerate(zip(groups.items(), colours, strict=False)):
        left = (index - (len(groups) - 1) / 2) * width
        axes.bar(
            [place + left for place in range(len(places))], values, width, color=colour, label=label
        )
    axes.set_xticks(range(len(places)), places, fontsize=tick_size)
    if log:
        axes.set_yscale("log")
    axes.set_ylabel(y_label)
    axes.legend()
    return figure
