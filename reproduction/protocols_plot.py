"""The plots of `protocols`: a cost against N, a panel for each share of dropouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from basecagg.reports.plots import COLOURS, in_house_style
from reproduction.costs import PROTOCOLS, Row


@in_house_style
def against_users(rows: Sequence[Row], label: str, read: Callable[[Row], float]) -> Figure:
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


def _panel(axes: Any, rows: Sequence[Row], read: Callable[[Row], float]) -> None:
    for protocol, colour in zip(PROTOCOLS, COLOURS, strict=False):
        own = [row for row in rows if row.cell.protocol == protocol]
        x, y = [row.cell.users for row in own], [read(row) for row in own]
        axes.plot(x, y, color=colour, label=protocol, linewidth=1.6)
        for row, value in zip(own, y, strict=True):
            fill = "none" if row.extrapolated else colour
            axes.plot(row.cell.users, value, "o", mfc=fill, mec=colour, markersize=5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted({row.cell.users for row in rows}))
    axes.get_xaxis().set_major_formatter("{x:.0f}")
    axes.xaxis.minorticks_off()
