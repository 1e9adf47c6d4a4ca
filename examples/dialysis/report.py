"""The study made visible, from study.json alone: tables for the terminal, a page and its pictures.

`python examples/dialysis/report.py STUDY.JSON FOLDER` draws a finished study again and prints its tables.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from patients import LABELS, UNITS
from rich.console import Console
from rich.table import Table

from basecagg.reports import page, plots

Found = dict[str, Any]
ARMS = ("secure sums", "local noise")
YEARS = (12, 24, 36)
VERDICTS = {1.0: "good", 3.0: "usable"}
"""How large the error by noise may be, in standard errors; beyond that an estimate is useless."""
VERDICTS_IN_WORDS = (
    "Good: noise errs by no more than the standard error that the estimate has anyway; usable: by no more than"
    " three of them. The coefficients are those of a model in discrete time: Cox's cannot be made private."
)


def promises(found: Found) -> dict[str, bool]:
    """What has to hold, and whether it does."""
    centres, server = found["centres"], found["server"]
    return {
        "Cox's coefficients within 1e-4 of the pooled fit": largest(found, "coefficients") < 1e-4,
        "survival within 1e-6 of the pooled curve": largest(found, "survival") < 1e-6,
        f"only sums of all {centres} centres, none of a single one": server["only sums"]
        and server["smallest"] == centres
        and not server["single centres"],
    }


def largest(found: Found, what: str) -> float:
    """Difference between the study and the pooled analysis."""
    return float(np.abs(np.subtract(found["exact"][what], found["pooled"][what])).max())


# --- tables -----------------------------------------------------------------------------------


def hazard_ratios(found: Found) -> list[tuple[str, ...]]:
    """A line for each covariate: the ratio with its interval, federated and pooled."""
    exact, together = found["exact"], found["pooled"]
    lines = [("hazard ratio (95 % interval)", "by secure sums", "pooled", "difference of β")]
    for index, name in enumerate(found["covariates"]):
        ratios = [
            ratio(each["coefficients"][index], each["errors"][index], UNITS.get(name, 1.0))
            for each in (exact, together)
        ]
        apart = abs(exact["coefficients"][index] - together["coefficients"][index])
        lines.append((LABELS[name], *ratios, f"{apart:.0e}"))
    return lines


def ratio(coefficient: float, error: float, unit: float) -> str:
    """e^β with its 95 % interval."""
    low, middle, high = (math.exp(unit * (coefficient + z * error)) for z in (-1.96, 0, 1.96))
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def survivals(found: Found) -> list[tuple[str, ...]]:
    """A line for each year."""
    lines = [("alive after", "by secure sums", "pooled", "at risk")]
    for month in YEARS:
        index = found["months"].index(month)
        exact, together = (found[each]["survival"][index] for each in ("exact", "pooled"))
        at_risk = found["exact"]["at risk"][index]
        lines.append((f"{month} months", f"{exact:.2%}", f"{together:.2%}", f"{at_risk:.0f}"))
    return lines


def prices(found: Found) -> list[tuple[str, ...]]:
    """A line for each covariate: β without noise, and with noise its mean ± spread over the repetitions."""
    private = found["private"]
    plain = private["without noise"]
    lines = [("coefficient β", "without noise ± error", ARMS[0], "it is", ARMS[1], "it is")]
    for index, name in enumerate(found["covariates"]):
        unit = UNITS.get(name, 1.0)
        value, error = (unit * plain[each][index] for each in ("coefficients", "errors"))
        arms = [unit * np.array([r["coefficients"][index] for r in private[a]]) for a in ARMS]
        cells = [
            cell
            for arm in arms
            for cell in (f"{arm.mean():z.2f} ± {arm.std(ddof=1):.2f}", judged(arm, value, error))
        ]
        lines.append((LABELS[name], f"{value:z.2f} ± {error:.2f}", *cells))
    return lines


def judged(estimates: np.ndarray, value: float, error: float) -> str:
    """How far noise takes them from the value without it, beside the standard error that this has anyway."""
    off = math.sqrt(float(np.mean((estimates - value) ** 2)))
    return next((text for most, text in VERDICTS.items() if off <= most * error), "useless")


def curves_off(found: Found) -> list[tuple[str, ...]]:
    """A line for each kind of noise: by how much its curve is off, over the repetitions."""
    private = found["private"]
    true = np.array(private["without noise"]["survival"])
    lines = [("survival curve off by", "on average", "in the worst repetition", "it is")]
    for arm in ARMS:
        off = [float(np.abs(np.array(r["survival"]) - true).max()) for r in private[arm]]
        verdict = "good" if np.mean(off) < 0.02 else "useless" if np.mean(off) > 0.05 else "rough"
        lines.append((arm, f"{np.mean(off):.1%}", f"{max(off):.1%}", verdict))
    return lines


def server(found: Found) -> str:
    """What the server saw, in words."""
    saw = found["server"]
    return (
        f"{saw['sums']} sums, each of all {saw['smallest']} centres, and masked numbers, each of them random by"
        f" itself. {'No sum of fewer centres follows' if saw['only sums'] else 'SOME OF A SINGLE CENTRE'}."
    )


def show(found: Found) -> None:
    """Print everything."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    exact, private = found["exact"], found["private"]
    console.print(
        f"\n[bold]Survival on dialysis[/bold]: {exact['patients']:.0f} patients of {found['centres']} centres"
        f" ({found['patients']}), {exact['deaths']:.0f} deaths, age {exact['age'][0]:.1f} ±"
        f" {exact['age'][1]:.1f}; pooled by {found['oracle']}\n"
    )
    _print(console, survivals(found))
    _print(console, hazard_ratios(found))
    console.print(
        f"With ε = {private['epsilon']:g} for every patient (δ = {private['delta']:g}),"
        f" {private['seeds']} repetitions:"
    )
    _print(console, curves_off(found))
    _print(console, prices(found))
    console.print(f"{VERDICTS_IN_WORDS}\n")
    console.print(f"The server saw {server(found)}\n")
    for text, holds in promises(found).items():
        console.print(f"{'[green]holds[/green]' if holds else '[red]FAILS[/red]'}  {text}")


def _print(console: Console, lines: list[tuple[str, ...]]) -> None:
    table = Table(*lines[0], box=None, pad_edge=False, header_style="dim")
    for line in lines[1:]:
        table.add_row(*line)
    console.print(table, "")


# --- pictures ---------------------------------------------------------------------------------


@plots.in_house_style
def survival_picture(found: Found) -> Figure:
    """The curve by secure sums with its interval, and the pooled one on it."""
    figure, axes = plots.new_figure()
    months = [0, *found["months"]]
    middle = np.array([1.0, *found["exact"]["survival"]])
    spread = 1.96 * np.array([0.0, *found["exact"]["deviation"]])
    blue, orange = plots.COLOURS[:2]
    axes.fill_between(
        months, middle - spread, middle + spread, step="post", color=blue, alpha=0.2, linewidth=0
    )
    axes.step(
        months, middle, where="post", color=blue, label="by secure sums, 95 % interval", lw=2.4
    )
    axes.step(
        months, [1.0, *found["pooled"]["survival"]], where="post", color=orange, lw=1.2, ls="--",
        label=f"pooled ({found['oracle']})",
    )  # fmt: skip
    _months(axes)
    axes.legend(loc="lower left")
    return figure


@plots.in_house_style
def forest_picture(found: Found) -> Figure:
    """Hazard ratios with their intervals."""
    figure, axes = plots.new_figure(height=3.2)
    names = found["covariates"]
    units = np.array([UNITS.get(name, 1.0) for name in names])
    pairs = (("exact", "by secure sums", "o", -0.12), ("pooled", "pooled", "s", 0.12))
    for colour, (kind, label, marker, shift) in zip(plots.COLOURS, pairs, strict=False):
        middle = units * np.array(found[kind]["coefficients"])
        spread = 1.96 * units * np.array(found[kind]["errors"])
        ends = np.exp(middle) - np.exp(middle - spread), np.exp(middle + spread) - np.exp(middle)
        axes.errorbar(
            np.exp(middle), np.arange(len(names)) + shift, xerr=ends, fmt=marker, color=colour,
            label=label, capsize=3, markersize=5,
        )  # fmt: skip
    axes.axvline(1.0, color=plots.INK, lw=1)
    axes.set_xscale("log")
    axes.set_xticks([0.4, 0.6, 0.8, 1, 1.5, 2], ["0.4", "0.6", "0.8", "1", "1.5", "2"])
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), [LABELS[name] for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("hazard ratio: right of 1 more deaths, left of 1 fewer")
    axes.legend(loc="lower right")
    return figure


@plots.in_house_style
def price_picture(found: Found) -> Figure:
    """Survival curves of all repetitions, by kind of noise."""
    figure, axes = plots.new_figure()
    private = found["private"]
    months = [0, *private["months"]]
    for arm, colour in zip(reversed(ARMS), (plots.COLOURS[5], plots.COLOURS[0]), strict=True):
        for index, each in enumerate(private[arm]):
            label = f"ε = {private['epsilon']:g}, {arm}" if not index else None
            axes.step(
                months, [1.0, *each["survival"]], where="post", color=colour, alpha=0.55, lw=1, label=label
            )  # fmt: skip
    exact = [1.0, *private["without noise"]["survival"]]
    axes.step(
        months, exact, where="post", color=plots.COLOURS[1], lw=1.2, ls="--", label="without noise"
    )
    _months(axes)
    axes.set_ylim(0.4, 1.01)
    axes.legend(loc="lower left")
    return figure


@plots.in_house_style
def server_picture(found: Found) -> Figure:
    """What one centre put in, and what the server got of it."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    own, seen = figure.subplots(2, 1, sharex=True)
    one, months = found["server"]["one centre"], found["months"]
    deaths = one["own"][: len(months)]
    own.bar(months, deaths, color=plots.COLOURS[0])
    own.set_ylabel("deaths")
    own.set_title("what one centre knows", loc="left", fontsize=10)
    seen.bar(months, np.array(one["seen"][: len(months)]) / 2**32, color=plots.COLOURS[5])
    seen.set_ylabel("of 2³²")
    seen.set_title("what the server gets of it", loc="left", fontsize=10)
    seen.set_xlabel("months on dialysis")
    return figure


def _months(axes: Any) -> None:
    axes.set_xlabel("months on dialysis")
    axes.set_ylabel("alive")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


PICTURES = {
    "survival": (survival_picture, "Survival on dialysis: by secure sums, and with all rows in one place."),
    "forest": (forest_picture, "Hazard ratios with 95 % intervals; diseases are compared with hypertension."),
    "price": (price_picture, "The same curve when noise hides every single patient: one line each time."),
    "server": (server_picture, "One centre's deaths by month, and the numbers that left it."),
}  # fmt: skip


def draw(found: Found, folder: Path, kinds: tuple[str, ...] = ("svg", "png")) -> dict[str, str]:
    """Write the pictures; give each as SVG text with its caption, for the page."""
    drawn = {}
    for name, (picture, caption) in PICTURES.items():
        drawn[name] = page.figure(plots.save(picture(found), folder, name, kinds), caption)
    return drawn


def write(found: Found, folder: Path) -> Path:
    """Write the page and its pictures into a folder."""
    drawn, path = draw(found, folder / "plots"), folder / "report.html"
    exact, private = found["exact"], found["private"]
    held = [(text, "holds" if holds else "FAILS") for text, holds in promises(found).items()]
    page.write_page(
        path,
        "What predicts survival on dialysis?",
        f"{exact['patients']:.0f} patients of {found['centres']} centres ({found['patients']}), of which none"
        f" showed its patients; {found['gone']} of the centres were gone once they had answered.",
        [
            page.section("Survival", _table(survivals(found)), page.plots([drawn["survival"]])),
            page.section("What predicts it", _table(hazard_ratios(found)), page.plots([drawn["forest"]])),
            page.section(
                "The price of privacy",
                page.paragraph(
                    f"ε = {private['epsilon']:g}, δ = {private['delta']:g} for every single patient, over"
                    f" {private['seeds']} repetitions. Local noise is what each centre must add if it trusts"
                    " nobody and there are no secure sums."
                ),
                _table(curves_off(found)),
                _table(prices(found)),
                page.paragraph(VERDICTS_IN_WORDS, dim=True),
                page.plots([drawn["price"]]),
            ),
            page.section("What the server saw", page.paragraph(server(found)), page.plots([drawn["server"]])),
            page.section("What was promised", page.table(("promise", ""), held, numbers=False)),
        ],
    )  # fmt: skip
    return path


def _table(lines: list[tuple[str, ...]]) -> str:
    return page.table(lines[0], lines[1:])


def markdown(lines: list[tuple[str, ...]]) -> str:
    """A table for a page of the documentation."""
    header, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([header, f"|{'---|' * len(lines[0])}", *rows])


if __name__ == "__main__":
    source, into = sys.argv[1:]
    finished = json.loads(Path(source).read_text("utf-8"))
    draw(finished, Path(into), ("svg",))
    for tabled in (survivals, hazard_ratios, curves_off, prices):
        print(markdown(tabled(finished)), end="\n\n")
