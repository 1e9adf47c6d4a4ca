"""`basecagg reproduce`: the papers' figures and claims and some of our own, one command each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from basecagg.commands._program import load_kernels
from basecagg.errors import DataError
from basecagg.extras import require
from reproduction import comparison, report
from reproduction.catalogue import EXPERIMENTS, find
from reproduction.jobs import Order, Progress, Size
from reproduction.report import Publication

_MINUTE, _HOUR = 60, 3600
_ALL = {**{name: line for name, (_, line) in EXPERIMENTS.items()}, "all": "One after the other."}
_LIST = "\n".join(f"{name:<23} {line}" for name, line in _ALL.items())
_HELP = f"""Run the paper's experiments, and some beyond it.

WHAT is one of these. Everything is measured on this machine and written as JSON, CSV, a page and plots. Every
run is written down when it is over: the same command goes on after a stop.

\b
{_LIST}

\b
Example:
  basecagg reproduce accuracy-mnist --quick --data-dir data --out results
  basecagg reproduce --check incompatibility
"""


@click.command("reproduce", help=_HELP)
@click.argument("what", type=click.Choice(list(_ALL)))
@click.option("--quick", is_flag=True, help="Minutes instead of hours: shorter runs, one seed.")
@click.option("--smoke", is_flag=True, help="Seconds, on digits: shows that it works, no more.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="data",
    show_default=True,
    help="Folder with mnist/ and cifar-10-batches-bin/, the official files in them.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="results",
    show_default=True,
    help="Folder for tables, page and plots. A stopped experiment goes on from what is there.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Runs at the same time, each in a process with one thread.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare the full run with the one in this checkout; exit with 1 if a figure or a verdict differs.",
)
def command(
    *, what: str, quick: bool, smoke: bool, data_dir: Path, out: Path, workers: int, check: bool
) -> None:
    """Run one experiment, or all."""
    size: Size = "smoke" if smoke else "quick" if quick else "full"
    if check and size != "full":
        raise click.UsageError("--check compares full runs; leave --quick and --smoke out")
    names = list(EXPERIMENTS) if what == "all" else [what]
    for module in ("matplotlib", "torch"):
        require(module, extra="learn", needed_for="basecagg reproduce")
    if "flower" in names:
        require("flwr", extra="flower", needed_for="basecagg reproduce flower")
    load_kernels()
    committed = _committed(names, told=what != "all") if check else {}
    differing = 0
    for name in names:
        with _progress(name) as tell:
            order = Order(size, data_dir, workers, tell)
            publication = find(name).run(order, out)
        report.show(publication)
        click.echo(f"page: {report.publish(publication, out)}")
        if name in committed:
            differing += _compare(publication, committed[name])
    if differing:
        raise click.ClickException(f"{differing} differ from the committed run")


def _committed(names: Sequence[str], *, told: bool) -> dict[str, Publication]:
    """What can be checked, before hours are spent; what cannot is an error if it was asked for by name."""
    found = {}
    for name in names:
        try:
            found[name] = comparison.load_committed(find(name))
        except DataError as error:
            if told:
                raise
            click.echo(f"not checked: {error}")
    return found


def _compare(publication: Publication, committed: Publication) -> int:
    """How much differs from the committed run."""
    lines = comparison.compare(publication, committed)
    report.show_table(Console(highlight=False), "Beside the committed run", lines)
    differing = sum(not line["agrees"] for line in lines)
    click.echo(f"{len(lines) - differing} of {len(lines)} agree with the committed run")
    return differing


@contextmanager
def _progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal; in a file one line for every run."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda progress: console.print(
            f"{name}: {progress.done} of {progress.total} runs, {in_words(progress)}",
            soft_wrap=True,
        )
        return
    with Bar(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console
    ) as bar:
        task = bar.add_task(name, total=None)

        def tell(progress: Progress) -> None:
            text = f"{name}: {in_words(progress)}"
            bar.update(task, completed=progress.done, total=progress.total, description=text)

        yield tell


def in_words(progress: Progress) -> str:
    """The run, and about how long it will still take."""
    seconds = progress.seconds_left
    if seconds is None:
        return progress.now
    if seconds >= _HOUR:
        left = f"{seconds / _HOUR:.1f} h"
    else:
        left = f"{seconds / _MINUTE:.0f} min" if seconds >= _MINUTE else f"{seconds:.0f} s"
    return f"{progress.now}, about {left} left"
