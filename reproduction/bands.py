"""Curves with bands: the mean over seeds as a line, from the worst seed to the best one as a shade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Curve: TypeAlias = Sequence[tuple[float, float]]
"""Points (x, y) of one seed, x ascending."""

# Okabe and Ito's colours: told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")


def draw(
    groups: Mapping[str, Sequence[Curve]],
    x_label: str,
    y_label: str,
    *,
    bottom: float | None = None,
) -> Any:
    """One line with its band for every group of seeds."""
    from basecagg.reports import plots

    @plots.in_house_style
    def drawn() -> Any:
        figure, axes = plots.new_figure()
        for index, (label, curves) in enumerate(groups.items()):
            _add(axes, label, curves, COLOURS[index % len(COLOURS)], _LINES[index % 2])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if bottom is not None:
            axes.set_ylim(bottom=bottom)
        axes.legend(fontsize=8.5)
        return figure

    return drawn()


def _add(axes: Any, label: str, curves: Sequence[Curve], colour: str, line: str) -> None:
    x, rows = common(curves)
    axes.plot(x, rows.mean(axis=0), line, color=colour, label=label, linewidth=1.5)
    if len(rows) > 1:
        axes.fill_between(x, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.18, lw=0)


def common(curves: Sequence[Curve]) -> tuple[Any, Any]:
    """All curves at the same x, as far as every one of them goes; between points they are straight."""
    end = min(curve[-1][0] for curve in curves)
    x = np.unique([point for curve in curves for point, _ in curve if point <= end])
    return x, np.array([_at(x, np.array(curve)) for curve in curves])


def _at(x: Any, points: Any) -> Any:
    return np.interp(x, points[:, 0], points[:, 1])
