"""`basecagg operator study`: a study protocol becomes an epoch."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import click
import numpy as np

from basecagg.commands._options import options
from basecagg.commands.operator.epochs import when_keys_are_there
from basecagg.commands.operator.people import admit
from basecagg.commands.operator.place import connected
from basecagg.errors import DataError
from basecagg.options import Days, EpochOptions, Seconds
from basecagg.protocol.questions import StudyTerms
from basecagg.protocol.step_rule import StepRule
from basecagg.protocol.stored import CONTRIBUTES
from basecagg.service.documents import day
from basecagg.service.operator.office import Office
from basecagg.statistics.protocol_file import RATE, StudyProtocol, read_file

_POLL = 0.3
"""Seconds between two looks at the server."""


class _StudyOptions:
    epoch_days: Annotated[Days, "--days"] = EpochOptions.epoch_days
    key_timeout: Annotated[Seconds, "--wait"] = EpochOptions.key_timeout


@click.command("study")
@click.argument("protocol", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@options(_StudyOptions)
@connected
async def study(office: Office, *, protocol: Path, key_timeout: float, epoch_days: float) -> None:
    """Sign the study protocol in the file PROTOCOL, and start it as an epoch of its members.

    Waits until all members and the analyst have enrolled, and admits them. Every centre's people read the
    protocol and approve it (`basecagg desk approve`) before their desk answers anything. The file's text is
    signed as it is: a protocol with any other text has to be approved again.
    """
    said = read_file(protocol)
    if (await office.look()).phase in ("open", "closing"):
        raise DataError("an epoch is open: close it first")
    await _until_enrolled(office, said)
    people = office.machine.people
    terms = StudyTerms(office.federation, said.text, said.analyst, people[said.analyst].signing_key)
    without = tuple(set(office.machine.holders()) - set(said.members))
    await office.set_model(np.zeros(said.size, np.float32))
    begin = partial(
        office.start,
        said.parameters,
        StepRule(rate=RATE),
        without,
        epoch_days,
        max_burns=0,
        terms=terms,
    )
    epoch = await when_keys_are_there(office, key_timeout, begin)
    p = epoch.parameters
    click.echo(
        f"{said.title}: epoch {epoch.number} with N = K = {p.num_holders}, U = {p.recovery_threshold},"
        f" T = {p.max_colluders}, D = {p.max_dropouts}, d = {p.model_size:,}; it ends on"
        f" {day(epoch.ends)} at the latest"
    )
    click.echo(f"every centre approves {terms.contract.hex()}")


async def _until_enrolled(office: Office, said: StudyProtocol) -> None:
    told = False
    while True:
        await admit(office)
        people = office.machine.people
        present = {name: each for name, each in people.items() if each.state == "admitted"}
        missing = [name for name in (*said.members, said.analyst) if name not in present]
        if not missing:
            break
        if strangers := [name for name in missing if name not in people]:
            raise DataError(f"nobody is called {strangers[0]}: invite first")
        if not told:
            click.echo(f"waiting for {', '.join(missing)} to enrol")
            told = True
        await asyncio.sleep(_POLL)
    if bad := [name for name in said.members if present[name].role != "both"]:
        raise DataError(
            f"{bad[0]} is a {present[bad[0]].role}: a study's centres have the role both"
        )
    if present[said.analyst].role != "analyst":
        raise DataError(f"{said.analyst} was not invited with --role analyst")
    others = {n for n, each in present.items() if each.role in CONTRIBUTES} - set(said.members)
    if others:
        raise DataError(
            f"{min(others)} belongs to the federation and not to the study: who may contribute could take a"
            " member's place in a sum. Give the study a federation of its own"
        )
