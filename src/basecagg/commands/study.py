"""`basecagg study`: the analyst of a study over the network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from basecagg.channels.wire import pack
from basecagg.commands._options import AnchorOptions, options
from basecagg.commands._program import load_kernels
from basecagg.errors import BASecAggError, DataError
from basecagg.protocol.floor import LocalFloor
from basecagg.service.agent.local_member import LocalMember
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience
from basecagg.service.documents import to_json
from basecagg.service.handed_over import read_invitation
from basecagg.statistics.analyses import Outcome
from basecagg.statistics.protocol_file import read_file
from basecagg.statistics.remote import RemoteStudy
from basecagg.statistics.study_report import write_report

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group("study")
def command() -> None:
    """Ask questions of many centres, as the analyst of a study that they approved."""


@command.command("enrol")
@click.argument("invitation", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--state", type=_FOLDER, help="Where your key is kept. Not set: a folder named after you."
)
@options(AnchorOptions)
def enrol(invitation: Path, state: Path | None, anchors: Path | None) -> None:
    """Enrol with the INVITATION that the operator sent you (`operator invite --role analyst`)."""
    invited = read_invitation(invitation)
    profile = Profile.open(state or Path(invited.name), invited)
    member = LocalMember(profile, LocalFloor(), anchors, contributes=False)
    key = pack(member.announce())
    member.close()

    async def hand_in() -> None:
        connection = profile.connect()
        try:
            call = Patience().persist
            await call(lambda: connection.enrol(to_json(profile.enrolment(key))), "AlreadyEnrolled")
        finally:
            await connection.close()

    asyncio.run(hand_in())
    click.echo(f"enrolled as {profile.name}; the operator admits you with the study")


@command.command("run")
@click.argument("protocol", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--as", "state", type=_FOLDER, required=True, help="The folder that `enrol` made.")
@click.option("--out", type=_FOLDER, default="results", help="Where results and sums are written.")
def run(protocol: Path, state: Path, out: Path) -> None:
    """Ask everything that stands in the file PROTOCOL, and write tables and a page to --out.

    Centres answer when they are there and their people have approved. Ended anywhere, the same command goes
    on: what was asked is not asked again. Every sum is opened here again before it is believed.
    """
    load_kernels()
    said, console = read_file(protocol), Console(highlight=False)
    outcomes = dict[str, Outcome]()
    profile = Profile.open(state, None)
    with RemoteStudy(profile, out, lambda words: console.print(words, style="dim")) as study:
        if study.protocol.text != said.text:
            raise DataError(
                f"{protocol} is not the text that the operator signed and centres approved"
            )
        for asked in said.analyses:
            try:
                outcomes[asked.name] = asked.run(
                    study.ask_privately if asked.private else study.ask
                )
            except BASecAggError as error:
                outcomes[asked.name] = {"failed": str(error)}
            _print(console, asked.name, outcomes[asked.name])
        page = write_report(out, study, outcomes)
    audit = study.audit()
    console.print(
        f"{len(study.asked)} sums, the smallest of {audit.smallest or len(said.members)} centres;"
        f" budget: {'none' if study.uses_left is None else f'{study.uses_left} noisy questions left'}"
    )
    console.print(f"{page}")
    if failed := [name for name, each in outcomes.items() if "failed" in each]:
        raise DataError(f"{failed[0]}: {outcomes[failed[0]]['failed']}")


def _print(console: Console, name: str, outcome: Outcome) -> None:
    console.print(f"\n[bold]{name}[/bold]")
    rows = outcome.get("table", [])
    if rows:
        table = Table(*rows[0])
        for row in rows[:_SHOWN]:
            table.add_row(*(_written(each) for each in row.values()))
        console.print(table)
        if len(rows) > _SHOWN:
            console.print(f"… and {len(rows) - _SHOWN} more rows in the files")
    for word, value in outcome.items():
        if word == "tests":
            for test, found in value.items():
                said = ", ".join(f"{each} = {_written(v)}" for each, v in found.items())
                console.print(f"{test}: {said}")
        elif word != "table":
            console.print(f"{word}: {_written(value)}")


_SHOWN = 24


def _written(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
