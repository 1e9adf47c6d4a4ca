"""The plots of a report. Ink is drawn in one colour that a page can replace, so a plot suits light and dark."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import cycle
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from basecagg.reports.runs import RunRecord, shared_score
from basecagg.simulation.purposes import by_purpose
from basecagg.simulation.run_folder import USUAL_SCORE

INK = "#5a6472"
"""Axes and text; `save` turns it into the page's own text colour."""
COLOURS = (
    *("#2f6fdf", "#e0703a", "#2a9d6f", "#a35bd0", "#c9a227", "#d1495b"),
    *("#3aa5c2", "#8c6d4f", "#6b7fd7", "#9aa53a", "#d77fb0", "#7f7f7f"),
)
_STYLE: Any = {  # matplotlib types its settings by name
    "font.family": "sans-serif",
    "font.size": 10,
    **{f"axes.{part}color": INK for part in ("edge", "label", "title")},
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")},
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    **{f"{part}.facecolor": "none" for part in ("figure", "axes", "savefig")},
    "svg.fonttype": "none",
    "svg.hashsalt": "basecagg",
}


_LEGEND_WIDTH = 84
"""Characters, with six for a line and its margins."""
_LEGEND_LINE = 0.19
"""Inches that a plot grows by each further line of its legend."""
Drawing = ParamSpec("Drawing")


def in_house_style(draw: Callable[Drawing, Figure]) -> Callable[Drawing, Figure]:
    """Draw everything, legends and colour bars too, in the house style."""

    @wraps(draw)
    def styled(*arguments: Drawing.args, **options: Drawing.kwargs) -> Figure:
        with rc_context(_STYLE):
            return draw(*arguments, **options)

    return styled


def new_figure(width: float = 6.4, height: float = 3.6) -> tuple[Figure, Any]:
    """An empty plot; call it from a function that draws `in_house_style`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


@in_house_style
def score_by_version(runs: Sequence[RunRecord]) -> Figure:
    """Test accuracy, or another score, against the version of the model."""
    return _score(runs, "version", "version of the model")


@in_house_style
def score_by_time(runs: Sequence[RunRecord]) -> Figure:
    """Test accuracy, or another score, against simulated time."""
    return _score(runs, "time", "simulated seconds")


def _score(runs: Sequence[RunRecord], key: str, label: str) -> Figure:
    name = shared_score(runs)
    unit, percent = (100, ", %") if name == USUAL_SCORE else (1, "")
    curves = {
        f"{run.name} ({run.score_text})": [(v[key], v["score"] * unit) for v in run.scored]
        for run in runs
    }
    return _lines(curves, label, f"test {name or 'score'}{percent}")


@in_house_style
def epsilon_by_version(runs: Sequence[RunRecord]) -> Figure:
    """The largest ε that a user has spent, against the version of the model."""
    curves = {
        f"{run.name} (ε = {run.priced[-1]['epsilon']:.2f})": [
            (version["version"], version["epsilon"]) for version in run.priced
        ]
        for run in runs
    }
    figure = _lines(curves, "version of the model", "largest ε of a user")
    figure.axes[0].set_ylim(bottom=0)
    return figure


def _lines(curves: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> Figure:
    """Points joined by a line for each curve, by its label."""
    figure, axes = new_figure()
    for (label, points), colour in zip(curves.items(), cycle(COLOURS), strict=False):
        axes.plot(*zip(*points, strict=True), color=colour, label=_plain(label), linewidth=1.6)
    axes.set(xlabel=x, ylabel=_plain(y))
    _add_legend(figure, axes.lines)
    return figure


@in_house_style
def staleness(runs: Sequence[RunRecord]) -> Figure:
    """How old the summed updates were."""
    figure, axes = new_figure()
    width = 0.8 / len(runs)
    bars = []
    for index, (run, colour) in enumerate(zip(runs, cycle(COLOURS), strict=False)):
        counts = run.staleness()
        total = max(1, counts.total())
        x = np.array(sorted(counts)) + (index - (len(runs) - 1) / 2) * width
        percent = [100 * counts[tau] / total for tau in sorted(counts)]
        bars.append(axes.bar(x, percent, width, color=colour, label=_plain(run.name)))
    axes.set(xlabel="staleness τ of an update, in versions", ylabel="fraction of updates, %")
    _add_legend(figure, bars)
    return figure


@in_house_style
def traffic(runs: Sequence[RunRecord]) -> Figure:
    """Bytes per user by what they are for."""
    parts = [
        {what: size / run.config.users / 1e6 for what, size in by_purpose(run.sent).items()}
        for run in runs
    ]
    return _stacked(runs, parts, "megabytes per user in the whole run")


@in_house_style
def phases(runs: Sequence[RunRecord]) -> Figure:
    """Where the seconds of the simulation's own machine went."""
    parts = [
        {"training": run.totals["training seconds"], **run.totals.get("crypto seconds", {})}
        for run in runs
    ]
    return _stacked(runs, parts, "measured seconds, all parties together")


def _stacked(runs: Sequence[RunRecord], parts: Sequence[dict[str, float]], label: str) -> Figure:
    figure, axes = new_figure(height=1.4 + 0.4 * len(runs))
    largest = {k: max(part.get(k, 0.0) for part in parts) for part in parts for k in part}
    kinds = sorted(sorted(largest), key=lambda kind: -largest[kind])
    left, bars = np.zeros(len(runs)), []
    for kind, colour in zip(kinds, cycle(COLOURS), strict=False):
        widths = np.array([part.get(kind, 0.0) for part in parts])
        bars.append(axes.barh(range(len(runs)), widths, left=left, color=colour, label=kind))
        left += widths
    axes.set_yticks(range(len(runs)), [_plain(run.name) for run in runs])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    _add_legend(figure, bars)
    return figure


def _plain(text: str) -> str:
    """A name as it is: no formula, whatever its dollars enclose."""
    return text.replace("$", r"\$")


def _add_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Below the plot, never over a curve; in as many columns as the longest label leaves room for."""
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(3, _LEGEND_WIDTH // (longest + 6)))
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * (rows - 1))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=9)


@in_house_style
def partition(runs: Sequence[RunRecord]) -> Figure:
    """How many examples of each label every user of a run has."""
    figure, axes = new_figure(height=3.0)
    counts = np.array(runs[0].totals["label counts"]).T
    image = axes.imshow(counts, aspect="auto", cmap="viridis", interpolation="nearest")
    axes.grid(visible=False)
    axes.set(xlabel="user", ylabel="label")
    figure.colorbar(image, ax=axes, label="examples")
    return figure


_SAVED: dict[str, Any] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 160, "facecolor": "white"},
}


def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = tuple(_SAVED)) -> str:
    """The figure as files for papers and slides: SVG, and PNG on white.

    Returned is the SVG for a page: in the page's own text colour.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(_STYLE), warnings.catch_warnings():
        # A PNG shows boxes for letters that its font has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        for kind in kinds:
            figure.savefig(folder / f"{name}.{kind}", **_SAVED[kind])
            # Everything has its place now; to find it again takes as long as to draw.
            figure.set_layout_engine("none")
    text = (folder / f"{name}.svg").read_text("utf-8").replace(INK, "currentColor")
    return text[text.index("<svg") :]
