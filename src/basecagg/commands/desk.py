"""`basecagg desk`: what a centre's people decide about studies of their records."""

from __future__ import annotations

import getpass
from pathlib import Path

import click

from basecagg.commands._options import AnchorOptions, options
from basecagg.errors import printable
from basecagg.statistics.desk_folder import DeskFolder, Waiting
from basecagg.statistics.protocol_file import StudyProtocol

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group("desk")
def command() -> None:
    """Decide, as a centre, which studies may ask about your records.

    A desk is a folder on your machine with `mapping.toml`, which says where your records are and how your
    columns become those of a study. The agent (`basecagg join --desk`) puts the studies there that it hears of.
    It answers those that you approve, in sums over all centres, and no others.
    """


@command.command("show")
@click.argument("folder", type=_FOLDER)
@click.argument("study", default="")
@options(AnchorOptions)
def show(folder: Path, study: str, anchors: Path | None) -> None:
    """Show the studies that have come to the desk in FOLDER; of the STUDY whose hash begins so, everything.

    What is said of your own records is for your eyes only.
    """
    desk = DeskFolder(folder, anchors)
    if not study:
        found = desk.studies()
        for each in found:
            click.echo(_line(each))
        if not found:
            click.echo(
                "no study has come yet: the agent fetches it when the operator has started it"
            )
        return
    _show(desk, desk.study(study))


@command.command("approve")
@click.argument("folder", type=_FOLDER)
@click.argument("study")
@click.option(
    "--by", default="", help="Who approves; it stands in reports. Not set: your login here."
)
@click.option("--yes", is_flag=True, help="Do not ask again.")
@options(AnchorOptions)
def approve(folder: Path, study: str, by: str, yes: bool, anchors: Path | None) -> None:
    """Let the desk in FOLDER answer the STUDY whose hash begins so.

    First it is shown in words, with what does not fit in your records. What you approve is this text: if a
    word of it changes, or the program that computes, you are asked again.
    """
    desk = DeskFolder(folder, anchors)
    found = desk.study(study)
    _show(desk, found)
    if not yes:
        click.confirm("Answer these questions, and no others?", abort=True)
    desk.approve(found, by or getpass.getuser())
    click.echo(f"approved {found.terms.contract.hex()}")


@command.command("withdraw")
@click.argument("folder", type=_FOLDER)
@click.argument("study")
@options(AnchorOptions)
def withdraw(folder: Path, study: str, anchors: Path | None) -> None:
    """Let the desk in FOLDER answer no more of the STUDY. What was answered cannot be taken back."""
    desk = DeskFolder(folder, anchors)
    found = desk.study(study)
    desk.withdraw(found)
    click.echo(f"withdrawn {found.terms.contract.hex()}")


@command.command("log")
@click.argument("folder", type=_FOLDER)
@options(AnchorOptions)
def log(folder: Path, anchors: Path | None) -> None:
    """List the questions that the desk in FOLDER has answered."""
    for key, given in DeskFolder(folder, anchors).answered():
        epoch, _, number = key.partition("/")
        kind = "with noise" if given.private else "exactly"
        click.echo(printable(f"{epoch[:12]} question {int(number)}: {given.name}, {kind}"))


def _line(each: Waiting) -> str:
    state = "approved" if each.is_open else "approved for another program: approve it again"
    if each.approved is None:
        state = "waits for your approval"
    return printable(f"{each.terms.contract.hex()[:12]}  {each.protocol.title}: {state}")


def _show(desk: DeskFolder, found: Waiting) -> None:
    for line in in_words(found.protocol):
        click.echo(printable(line))
    click.echo("\nIn your records (nobody else is told):")
    notes = desk.findings(found.protocol)
    for note in notes or ["everything fits"]:
        click.echo(f"  {printable(note)}")
    click.echo(f"\nThe hash of all this: {found.terms.contract.hex()}")


def in_words(protocol: StudyProtocol) -> list[str]:
    """A protocol as people read it."""
    lines = [protocol.title, protocol.question, ""]
    lines += [
        f"{protocol.analyst} asks. The sums are over {len(protocol.members)} centres, always all:"
    ]
    lines += [f"  {', '.join(protocol.members)}"]
    lines += [f"with {protocol.most} records each at most. Columns that are used:"]
    for column in protocol.columns.values():
        span = column.span
        where = (
            f"one of {', '.join(f'{level:g}' for level in column.levels)}"
            if column.levels
            else f"{span.low:g} to {span.high:g} {column.unit}".rstrip()
        )
        lines.append(f"  {column.name}: {where}{f' ({column.meaning})' if column.meaning else ''}")
    lines.append("What is told about all centres together:")
    for asked in protocol.analyses:
        how = "with noise" if asked.private else "exactly"
        lines.append(f"  {asked.name}, {how}: {asked.words}")
    if protocol.budget is not None:
        lines.append(
            f"Noise hides each record: ε = {protocol.budget.epsilon:g} at δ = {protocol.budget.delta:g} for"
            f" {protocol.budget.max_uses} noisy questions together."
        )
    if not all(asked.private for asked in protocol.analyses):
        lines.append(
            "Exact sums hide your centre among the others. They promise nothing about a single patient to"
            " somebody who knows all the others."
        )
    return lines
