"""The plot of `levels-…`: accuracy against c_l, and below it what each source of error adds."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from basecagg.reports.plots import INK, in_house_style
from reproduction.plot import VIVID
from reproduction.report import Line

_ERRORS = (("rounding error", "s-"), ("wrap-around error", "^--"))


@in_house_style
def against_levels(lines: Sequence[Line], plain: float) -> Figure:
    """Two panels over log₂ c_l; the dashed line is FedBuff."""
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    x = [line["log2 c_l"] for line in lines]
    above.axhline(plain, color=INK, linestyle="--", linewidth=1, label="FedBuff")
    scores = [float(line["accuracy, %"]) for line in lines]
    above.plot(x, scores, "o-", color=VIVID[0], label="BASecAgg", markersize=4)
    above.set_ylabel("test accuracy, %")
    above.legend()
    for (name, marker), colour in zip(_ERRORS, VIVID[1:], strict=False):
        points = [(level, line[name]) for level, line in zip(x, lines, strict=True) if line[name]]
        if points:
            both = zip(*points, strict=True)
            below.plot(*both, marker, color=colour, label=name, markersize=4)
    below.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    below.set_yscale("log")
    below.set_ylim(bottom=1e-5)
    below.set_ylabel("error / update")
    below.set_xlabel(r"$\log_2 c_l$")
    below.legend()
    return figure
