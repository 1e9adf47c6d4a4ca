"""`basecagg compare`: protocols, schedules, a rival's code and an incompatibility, measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from basecagg.commands._kernels import load_kernels
from basecagg.extras import require
from reproduction.showing import show

if TYPE_CHECKING:
    from reproduction.publishing import Publication

Tell = Callable[[int, int, str], None]


def _protocols(out: Path, full: bool, tell: Tell) -> Publication:
    from reproduction import protocol_costs

    return protocol_costs.run(
        out, full=full, progress=lambda done, total, cell: tell(done, total, cell.key)
    )


def _schedules(out: Path, full: bool, tell: Tell) -> Publication:
    require("torch", extra="learn", needed_for="compare schedules")
    from reproduction import schedule_race

    return schedule_race.run(
        out, full=full, progress=lambda done, total, race: tell(done, total, race.key)
    )


def _flower(out: Path, full: bool, tell: Tell) -> Publication:
    require("flwr", extra="flower", needed_for="compare flower")
    from reproduction import flower_comparison

    settings = flower_comparison.SETTINGS if full else flower_comparison.SETTINGS[:2]
    return flower_comparison.run(out, settings, progress=tell)


def _incompatibility(out: Path, full: bool, tell: Tell) -> Publication:
    from reproduction import incompatibility

    return incompatibility.run(out, 10 if full else 1, tell)


_COMPARISONS: dict[str, tuple[Callable[[Path, bool, Tell], Publication], Sequence[str]]] = {
    "protocols": (
        _protocols,
        (
            "protocol",
            "N",
            "dropout",
            "d",
            "T",
            "user CPU s",
            "server CPU s",
            "320 Mb/s: seconds",
            "320 Mb/s: seconds, overlapped",
        ),
    ),
    "schedules": (
        _schedules,
        (
            "method",
            "speed",
            "C",
            "K",
            "simulated seconds",
            "updates",
            "reached",
            "faster than fedavg",
            "faster than fedasync",
        ),
    ),
    "flower": (
        _flower,
        (
            "users",
            "shares",
            "model_size",
            "threshold",
            "flower_total",
            "secagg_total",
            "basecagg_total",
            "flower / our secagg, per user",
            "flower / basecagg, total",
        ),
    ),
    "incompatibility": (_incompatibility, ()),
}
"""What can be compared: how, and the columns for the terminal (none: all)."""


@click.command("compare", short_help="Measure protocols and schedules side by side.")
@click.argument(
    "what",
    type=click.Choice(list(_COMPARISONS)),
    help="The comparison: protocols, schedules, flower or incompatibility.",
)
@click.option("--full", is_flag=True, help="Everything, for hours; without it some minutes.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="results",
    show_default=True,
    help="Folder for tables, page and plots. A stopped run goes on from what is there.",
)
def command(*, what: str, full: bool, out: Path) -> None:
    """Measure protocols and schedules side by side.

    protocols: CPU of a user and of the server, bytes by phase and the time of an aggregation at 98, 320 and
    802 Mb/s for SecAgg, SecAgg+, LightSecAgg and BASecAgg, with the growth in N beside theory.

    schedules: simulated time and updates until a target accuracy for FedAvg, FedAsync, FedAT, FedBuff and
    BASecAgg, with slow devices and lost trainings.

    flower: total CPU of one aggregation beside Flower's SecAgg+ (needs flwr).

    incompatibility: the error of SecAgg's sum when a buffer mixes versions.

    Everything is measured on this machine and written as JSON, CSV, a page and plots.

    \b
    Example:
      basecagg compare protocols --out results
    """
    require("matplotlib", extra="learn", needed_for="basecagg compare")
    work, columns = _COMPARISONS[what]
    load_kernels()
    show(_with_progress(lambda tell: work(out, full, tell)), out, columns)


def _with_progress(work: Callable[[Tell], Publication]) -> Publication:
    """Run with a bar that says what is being measured."""
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)

        def tell(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        publication = work(tell)
        bar.update(task, completed=bar.tasks[0].total or 0, description="done")
    return publication
