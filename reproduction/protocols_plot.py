"""The plots of `protocols`: a cost against N, a panel for each share of dropouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from basecagg.reports.plots import COLOURS, in_house_style
from reproduction.costs import NAMES, PROTOCOLS, Row, Spread


@in_house_style
def against_users(rows: Sequence[Row], label: str, read: Callable[[Row], Spread]) -> Figure:
    """One line for each protocol; rows of one model."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    dropouts = sorted({row.cell.dropout for row in rows})
    panels = figure.subplots(1, len(dropouts), sharey=True, squeeze=False)[0]
    for axes, dropout in zip(panels, dropouts, strict=True):
        _panel(axes, [row for row in rows if row.cell.dropout == dropout], read)
        axes.set_title(f"{dropout:.0%} drop out", fontsize=10)
        axes.set_xlabel("N")
    panels[0].set_ylabel(label)
    panels[0].legend(fontsize=8)
    return figure


def _panel(axes: Any, rows: Sequence[Row], read: Callable[[Row], Spread]) -> None:
    for protocol, colour in zip(PROTOCOLS, COLOURS, strict=False):
        own = [row for row in rows if row.cell.protocol == protocol]
        x, found = [row.cell.users for row in own], [read(row) for row in own]
        y = [each.middle for each in found]
        below = [each.middle - each.least for each in found]
        above = [each.most - each.middle for each in found]
        axes.errorbar(
            x,
            y,
            (below, above),
            fmt="o-",
            color=colour,
            label=NAMES[protocol],
            linewidth=1.6,
            markersize=4,
            capsize=3,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted({row.cell.users for row in rows}))
    axes.get_xaxis().set_major_formatter("{x:.0f}")
    axes.xaxis.minorticks_off()
