"""The plot of `sweep`: a panel for each parameter, a dot for each combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from matplotlib.figure import Figure

from basecagg.reports.plots import in_house_style
from reproduction.plot import VIVID

_NAMES = (r"$\eta_g$", r"$\eta_l$", r"$\lambda$", r"$\alpha$")
Choice = TypeVar("Choice", bound=tuple[float, ...])
"""η_g, η_l, λ and α."""


@in_house_style
def by_value(found: Mapping[Choice, float], papers: Choice) -> Figure:
    """The line joins the best for each value; the paper's choice is ringed."""
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    for place, axes in enumerate(figure.subplots(1, len(_NAMES), sharey=True)):
        _panel(axes, found, place)
        if papers in found:
            at = sorted({choice[place] for choice in found}).index(papers[place])
            axes.plot(at, found[papers], "o", mfc="none", color="black", markersize=8)
        axes.set_xlabel(_NAMES[place])
    figure.axes[0].set_ylabel("validation accuracy, %")
    return figure


def _panel(axes: Any, found: Mapping[Choice, float], place: int) -> None:
    values = sorted({choice[place] for choice in found})
    x = [values.index(choice[place]) for choice in found]
    axes.scatter(x, list(found.values()), s=6, alpha=0.35, color=VIVID[0], linewidths=0)
    best = [max(s for choice, s in found.items() if choice[place] == value) for value in values]
    axes.plot(range(len(values)), best, "-", color=VIVID[1], linewidth=1.4)
    axes.set_xticks(range(len(values)), [f"{value:g}" for value in values], fontsize=8)
