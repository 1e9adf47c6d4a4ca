"""`basecagg report`: simulated runs as a table in the terminal and a page for the browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import click
from rich import box
from rich.console import Console
from rich.table import Column, Table

from basecagg.auditing.audit_rendering import in_words
from basecagg.auditing.leakage import audit
from basecagg.errors import DataError, StorageError, printable
from basecagg.extras import require
from basecagg.simulation.run_folder import CONFIG, transcripts

_NARROW = 9
"""Characters in a line of a heading."""


@click.command("report")
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN..."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for report.html and plots/; the first RUN unless given.",
)
@click.option(
    "--target",
    type=float,
    metavar="SCORE",
    help="Show the time to this score, such as 0.9; the best that all runs reached unless given.",
)
def command(*, folders: tuple[Path, ...], out: Path | None, target: float | None) -> None:
    """Write one self-contained page about simulated runs, and every plot as PNG and SVG.

    A RUN is a folder that `basecagg run` wrote, with one run or several in it.

    \b
    basecagg report runs/mine
    basecagg report runs/iid/basecagg runs/dirichlet/basecagg --out comparison
    """
    runs = [run for folder in folders for run in _runs_in(folder)]
    report_on(Console(markup=False, emoji=False), runs, out or folders[0], target)


def _runs_in(folder: Path) -> list[Path]:
    if (folder / CONFIG).exists():
        return [folder]
    runs = sorted((path.parent for path in folder.glob(f"*/{CONFIG}")), key=_age)
    if not runs:
        raise DataError(f"{folder} holds no run")
    return runs


def _age(run: Path) -> float:
    return (run / CONFIG).stat().st_mtime


def report_on(
    console: Console, folders: Sequence[Path], out: Path, target: float | None = None
) -> None:
    """Print the table and write the page."""
    require("matplotlib", extra="learn", needed_for="basecagg report")
    from basecagg.reports.run_report import summary, write_report
    from basecagg.reports.runs import read_runs

    runs = read_runs(folders)
    console.print(_table(*summary(list(runs.values()), target)))
    audits = {run.name: said for folder, run in runs.items() if (said := _audit(folder))}
    try:
        page = write_report(list(runs.values()), out, audits, target)
    except OSError as error:
        raise StorageError(f"the report cannot be written: {error}") from None
    console.print(f"report: {printable(str(page))}")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Numbers whole, in narrow columns; a name that finds no room goes on below, for it tells runs apart."""
    narrow = ["\n".join(wrap(each, _NARROW)) for each in header[1:]]
    numbers = [Column(each, justify="right", no_wrap=True) for each in narrow]
    name = Column(header[0], min_width=8, overflow="fold")
    table = Table(name, *numbers, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def _audit(folder: Path) -> str:
    """What the run's server learned, in words, epoch by epoch; nothing if it kept no transcript."""
    return " ".join(in_words(audit(path)) for path in transcripts(folder))
