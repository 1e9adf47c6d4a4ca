"""`basecagg operator`: keys, invitations, members, epochs and the final model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from basecagg.commands import _values
from basecagg.errors import DataError, MissingHolders, printable
from basecagg.maths.staleness import StalenessFunction, forms
from basecagg.parameters import Consistency, Correctness, ProtocolParameters
from basecagg.protocol.step_rule import OPTIMISERS, PAPER_STEP, StepRule

if TYPE_CHECKING:
    from basecagg.protocol.epoch import Epoch
    from basecagg.service.connection import Connection
    from basecagg.service.documents import Invitation
    from basecagg.service.operator import Office

Result = TypeVar("Result")
_RATES = {name: each.usual_rate for name, each in OPTIMISERS.items()} | {"sgd": PAPER_STEP.rate}
"""η_g where nobody chose one."""
_PATIENCE = 2.0
"""Seconds to open a folder that `enrol --watch` may have open for a moment."""


class _Place(NamedTuple):
    """Where the operator's things are."""

    folder: Path
    anchors: Path | None


_PLANNING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--days",
        type=click.FloatRange(min=0, min_open=True),
        default=365.0,
        show_default=True,
        help="How long the epoch may last. After that no agent answers in it, by its own clock: rotate before.",
    ),
    click.option(
        "--dropouts",
        type=_values.portion,
        default="20%",
        show_default=True,
        metavar="D",
        help="Holders that may be gone when a sum is opened, D: a number or a part.",
    ),
    click.option(
        "--colluders",
        type=_values.portion,
        metavar="T",
        help="Holders that may pool all they know, T. The planner chooses unless given.",
    ),
    click.option(
        "--liars",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="E",
        help="Holders that may lie without stopping a sum, even when D others are gone, E ≤ T.",
    ),
    click.option(
        "--correctness",
        type=click.Choice(["agreed", "honest-holders"]),
        help="Open a sum when U + T answers agree, so that T liars cannot write it, or from any U (as the paper"
        " does). Without it agreed, if the server may cheat.",
    ),
    click.option(
        "--buffer",
        "buffer_size",
        type=click.IntRange(min=2),
        metavar="K",
        help="Updates in one sum, K. The planner chooses unless given.",
    ),
    click.option(
        "--min-per-version",
        type=click.IntRange(min=1),
        metavar="m",
        help="Members that each version in a sum must have, m. 3 unless given, or 1 with honest-server.",
    ),
    click.option(
        "--clip",
        type=float,
        default=4.0,
        show_default=True,
        metavar="B",
        help="The largest magnitude of an element of an update.",
    ),
    click.option(
        "--max-staleness",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        metavar="τ",
        help="The oldest update that is admitted, in versions.",
    ),
    click.option(
        "--staleness",
        type=_values.staleness,
        default="polynomial:1",
        show_default=True,
        metavar="S",
        help=f"How weight falls with age: {forms()}.",
    ),
    click.option(
        "--consistency",
        type=click.Choice(["certified", "honest-server"]),
        default="certified",
        show_default=True,
        help="Against a cheating server, or for an honest one.",
    ),
    click.option(
        "--server-optimiser",
        type=click.Choice(list(OPTIMISERS)),
        default="sgd",
        show_default=True,
        help="How the mean update moves the model: "
        + ", ".join(f"{name} ({each.about})" for name, each in OPTIMISERS.items())
        + ".",
    ),
    click.option(
        "--rate",
        type=float,
        metavar="η",
        help="The server's step, η_g. Without it: "
        + ", ".join(f"{rate:g} for {name}" for name, rate in _RATES.items())
        + ".",
    ),
    click.option(
        "--momentum", type=float, default=0.9, show_default=True, metavar="β", help="β₁ of both."
    ),
    click.option(
        "--second-momentum",
        type=float,
        default=0.99,
        show_default=True,
        metavar="β",
        help="β₂ of adam.",
    ),
    click.option(
        "--epsilon", type=float, default=1e-3, show_default=True, metavar="τ", help="τ of adam."
    ),
    click.option(
        "--averaged",
        type=_values.span,
        multiple=True,
        metavar="FROM:TO",
        help="Numbers of the model that are averages (BatchNorm's): momentum and adam leave them alone.",
    ),
    click.option(
        "--max-burns",
        type=click.IntRange(min=0, max=2**16 - 1),
        default=1,
        show_default=True,
        metavar="B",
        help="How often a version's sum may be given up for another. Each could be opened, so few are better.",
    ),
    click.option(
        "--server-key",
        type=_values.public_key,
        metavar="HEX",
        help="The key that the server signs with from now on, as `basecagg serve --new-key` printed it.",
    ),
    click.option(
        "--holders",
        type=click.IntRange(min=2),
        metavar="N",
        help="Wait until so many holders have enrolled, and admit them.",
    ),
    click.option(
        "--without",
        multiple=True,
        metavar="NAME",
        help="Leave this holder out of the epoch. Nobody is left out unless you say so.",
    ),
    click.option(
        "--wait",
        "patience",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for holders whose sealing key is missing.",
    ),
)


_out = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    metavar="DIR",
    help="Where NAME.invitation is written.",
)


@click.group(
    "operator", short_help="Create a federation, enrol people, sign epochs, export the model."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="operator",
    show_default=True,
    metavar="DIR",
    help="The operator's folder. It holds the federation's most precious keys.",
)
@click.option(
    "--anchors",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the counter is kept that shows whether the folder is an older copy; leave it out of backups.",
)
@click.pass_context
def command(context: click.Context, *, folder: Path, anchors: Path | None) -> None:
    """Run a federation as its operator: keys, invitations, epochs, the final model.

    The operator needs no machine that is always on: a command connects to the server, does its work and ends.
    """
    context.obj = _Place(folder, anchors)


@command.command("init")
@click.option("--name", required=True, help="The federation's name.")
@click.option(
    "--url", required=True, metavar="URL", help="Where users reach the server: https://host:8443."
)
@click.option(
    "--suite",
    type=click.Choice(["x25519", "mlkem768-x25519"]),
    default="x25519",
    show_default=True,
    help="How shares are sealed; the second withstands quantum computers too.",
)
@click.option(
    "--public-pki",
    is_flag=True,
    help="The server has a certificate that every browser trusts; make no private CA.",
)
@click.pass_obj
def init(
    place: _Place,
    *,
    name: str,
    url: str,
    suite: Literal["x25519", "mlkem768-x25519"],
    public_pki: bool,
) -> None:
    """Make the keys of a new federation, and the folder for its server."""
    from basecagg.service.operator import create

    server = create(
        place.folder, name, url, suite=suite, public_pki=public_pki, anchor_folder=place.anchors
    )
    click.echo(f"The operator's keys are in {place.folder}: keep them here, and safe.")
    click.echo(f"Move {server} to the server and start it there:")
    click.echo(f"  basecagg serve --state {server.name}")


@command.command("certificate")
@click.option(
    "--host", "hosts", multiple=True, required=True, help="A name or address of the server."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Where tls.pem and tls.key are written.",
)
@click.pass_obj
def certificate(place: _Place, *, hosts: tuple[str, ...], out: Path) -> None:
    """Make a new TLS certificate for the server, from the federation's own CA."""
    from basecagg.service.operator import certify_server

    certify_server(place.folder, out, list(hosts))
    click.echo(f"{out}/tls.pem and tls.key: restart the server with them.")


@command.command("invite")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--role",
    type=click.Choice(["both", "contributor", "holder"]),
    default="both",
    show_default=True,
    help="What they do: train, keep shares, or both as in the paper.",
)
@_out
@click.pass_obj
def invite(
    place: _Place,
    *,
    names: tuple[str, ...],
    role: Literal["both", "contributor", "holder"],
    out: Path,
) -> None:
    """Write an invitation for each of NAMES. Send it by a way that others cannot read."""

    async def work(office: Office, connection: Connection) -> None:
        for name in names:
            _write_invitation(out, await office.invite(connection, name, role))

    _connected(place, work)


@command.command("replace")
@click.argument("name")
@_out
@click.pass_obj
def replace(place: _Place, *, name: str, out: Path) -> None:
    """Write another invitation for NAME, whose disk or invitation was lost.

    NAME joins with it as if new, in an empty folder, and is a holder again from the next epoch on; the old key
    never comes back.
    """

    async def work(office: Office, connection: Connection) -> None:
        _write_invitation(out, await office.replace(connection, name))

    _connected(place, work)


@command.command("enrol")
@click.option("--watch", is_flag=True, help="Go on, admitting whoever comes with an invitation.")
@click.pass_obj
def enrol(place: _Place, *, watch: bool) -> None:
    """Admit those who have enrolled with an invitation."""

    async def work(office: Office, connection: Connection) -> None:
        for name in await office.admit_all(connection):
            click.echo(f"admitted {name}")

    _connected(place, work)
    while watch:  # the folder is free for other commands in between
        time.sleep(1.0)
        _connected(place, work)


@command.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke(place: _Place, *, name: str) -> None:
    """Take nothing more from the user NAME. Holders forget it with the next epoch: rotate."""

    async def work(office: Office, connection: Connection) -> None:
        await office.revoke(connection, name)
        click.echo(f"revoked {name}")

    _connected(place, work)


@command.command("status")
@click.pass_obj
def status(place: _Place) -> None:
    """Say where the federation stands."""

    async def work(office: Office, connection: Connection) -> None:
        overview = await office.look(connection)
        click.echo(f"epoch {overview.epoch_number} is {overview.phase}, version {overview.version}")
        if office.machine.suspended:
            click.echo("an older copy of the operator, which signs nothing: `operator recover` it")
        missing = office.machine.missing()
        for name, person in sorted(office.machine.people.items()):
            wanting = f"; next epoch: {missing[name]}" if name in missing else ""
            wrong = overview.inconsistent.get(name)
            lied = (
                f"; {wrong} wrong answers corrected (a bad dealing looks the same)" if wrong else ""
            )
            click.echo(f"  {name:30} {person.role}, {person.state}{wanting}{lied}")
        for enrolment in overview.enrolments:
            click.echo(f"  {enrolment.name:30} waits for `enrol`")
        if overview.trouble:
            click.echo(printable(f"no sum is opened: {overview.trouble}"))

    _connected(place, work)


def _planned(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that the planner needs."""
    for option in reversed(_PLANNING):
        function = option(function)
    return function


@command.command("start")
@click.option(
    "--model",
    required=True,
    metavar="SOURCE",
    help="The first model: a .npy file, or module:function that makes a vector or a torch module.",
)
@_planned
@click.pass_obj
def start(place: _Place, /, *, model: str, **planning: Any) -> None:
    """Sign an epoch with all holders who have enrolled, and start it with a model of yours.

    If the last epoch never reached the server, the same wishes send the very same one again.
    """
    from basecagg.service.export import initial_model

    async def work(office: Office, connection: Connection) -> None:
        vector, statistics = initial_model(model)
        if statistics and not planning["averaged"] and planning["server_optimiser"] != "sgd":
            planning["averaged"] = statistics
            typed = " ".join(f"--averaged {start}:{stop}" for start, stop in statistics)
            click.echo(f"the model has running statistics: when you rotate, give {typed}")
        await office.set_model(connection, vector)
        await _start(office, connection, len(vector), **planning)

    _connected(place, work)


@command.command("rotate")
@_planned
@click.pass_obj
def rotate(place: _Place, /, **planning: Any) -> None:
    """End the present epoch and start the next, with fresh keys and the present members."""

    async def work(office: Office, connection: Connection) -> None:
        await _close(office, connection)
        overview = await office.look(connection)
        await _start(office, connection, overview.model_size, **planning)

    _connected(place, work)


@command.command("close")
@click.pass_obj
def close(place: _Place) -> None:
    """End the present epoch; the model stays."""
    _connected(place, _close)


@command.command("recover")
@click.option(
    "--above",
    type=click.IntRange(min=0, max=10**15),
    required=True,
    metavar="N",
    help="The number of the last epoch that anybody has seen: ask your people, not only the server.",
)
@click.option(
    "--confirm",
    "confirmed",
    multiple=True,
    metavar="NAME",
    help="Somebody who still belongs to the federation; you are asked about everybody else.",
)
@click.pass_obj
def recover(place: _Place, *, above: int, confirmed: tuple[str, ...]) -> None:
    """Go on from an older copy of the operator's folder, or on another machine.

    The copy does not know who was revoked or replaced since, nor which epochs were signed. So you confirm its
    people one by one; whoever you do not confirm is revoked. The next epoch gets a number above N, and fresh
    keys.
    """

    from basecagg.protocol.operator import PRESENT

    async def work(office: Office, connection: Connection) -> None:
        people = office.machine.people.items()
        asked = [
            name
            for name, person in sorted(people)
            if person.state in PRESENT and name not in confirmed
        ]
        kept = [name for name in asked if click.confirm(f"Does {name} still belong to you?")]
        await office.recover(connection, above, [*confirmed, *kept])
        click.echo(
            f"the next epoch is {above + 1} or later; in are: {', '.join([*confirmed, *kept])}"
        )

    _connected(place, work)


@command.command("export")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Makes the torch module whose names and shapes the tensors get. One flat tensor without it.",
)
@click.pass_obj
def export(place: _Place, *, path: Path, model: str | None) -> None:
    """Write the present model to PATH: as safetensors, or as a torch state_dict if PATH ends in .pt.

    Safetensors carry the chain proof, which `basecagg verify PATH` checks: that these are the numbers of a
    version that the server released, made from a sum that a quorum of the holders endorsed.
    """
    from basecagg.service.export import export as write

    async def work(office: Office, connection: Connection) -> None:
        version, vector, pedigree = await office.fetch_model(connection)
        proven = write(vector, path, model, pedigree)
        click.echo(f"version {version} → {path}{'' if proven else ', without a chain proof'}")

    _connected(place, work)


async def _start(
    office: Office,
    connection: Connection,
    model_size: int,
    *,
    holders: int | None,
    without: tuple[str, ...],
    patience: float,
    days: float,
    server_optimiser: str,
    rate: float | None,
    momentum: float,
    second_momentum: float,
    epsilon: float,
    averaged: tuple[tuple[int, int], ...],
    max_burns: int,
    server_key: bytes | None,
    **wishes: Any,
) -> None:
    step = StepRule(
        server_optimiser,
        rate=_RATES[server_optimiser] if rate is None else rate,
        momentum=momentum,
        second_momentum=second_momentum,
        epsilon=epsilon,
        averaged=averaged,
    )
    while holders is not None and len(office.machine.holders(without)) < holders:
        for name in await office.admit_all(connection):
            click.echo(f"admitted {name}")
        await asyncio.sleep(0.3)
    p = _plan(len(office.machine.holders(without)), model_size, **wishes)
    step.require_fits(p.model_size)

    async def begin() -> Epoch:
        return await office.start(
            connection,
            p,
            step,
            without,
            days,
            max_burns=max_burns,
            server_key=server_key,
        )

    epoch = await _when_keys_are_there(office, connection, patience, begin)
    click.echo(
        f"epoch {epoch.number} from version {epoch.first_version}: N = {p.num_users}, U ="
        f" {p.recovery_threshold}, T = {p.max_colluders}, D = {p.max_dropouts}, K = {p.buffer_size},"
        f" m = {p.least_per_version}, d = {p.model_size:,}, {p.consistency}, {p.correctness}; it ends"
        f" on {_day(epoch.ends)} at the latest"
    )


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


async def _when_keys_are_there(
    office: Office,
    connection: Connection,
    patience: float,
    attempt: Callable[[], Awaitable[Result]],
) -> Result:
    """Ask for sealing keys that are missing, once, and try until they are there or patience ends."""
    asked, clock = False, asyncio.get_running_loop().time
    deadline = clock() + patience
    while True:
        try:
            return await attempt()
        except MissingHolders as missing:
            if clock() >= deadline:
                raise
            if not asked:
                click.echo(f"waiting for the keys of {', '.join(missing.reasons)}")
                await office.ask_for_keys(connection, missing.reasons)
                asked = True
        await asyncio.sleep(0.3)


def _plan(
    num_users: int,
    model_size: int,
    *,
    dropouts: _values.Portion,
    colluders: _values.Portion | None,
    liars: int,
    buffer_size: int | None,
    min_per_version: int | None,
    clip: float,
    max_staleness: int,
    staleness: StalenessFunction,
    consistency: Consistency,
    correctness: Correctness | None,
) -> ProtocolParameters:
    from basecagg.planning.planner import Wishes, plan

    if num_users < 2:
        raise DataError(f"{num_users} holders have enrolled: at least 2 are needed")
    wishes = Wishes(
        num_users=num_users,
        max_dropouts=dropouts.of(num_users),
        max_colluders=colluders.of(num_users) if colluders else None,
        model_size=model_size,
        liars=liars,
        buffer_size=buffer_size,
        min_per_version=min_per_version,
        clip=clip,
        max_staleness=max_staleness,
        staleness=staleness,
        consistency=consistency,
        correctness=correctness,
    )
    return plan(wishes).parameters


async def _close(office: Office, connection: Connection) -> None:
    if (await office.look(connection)).phase == "waiting":
        raise DataError("no epoch has begun: `basecagg operator start` begins one")
    await office.close_epoch(connection)
    if (await office.look(connection)).phase == "closing":
        click.echo(
            "waiting for the sum that is being opened, until the server has it or gives it up"
        )
    while (await office.look(connection)).phase == "closing":
        await asyncio.sleep(0.3)
    overview = await office.end_epoch(connection)
    click.echo(f"epoch {overview.epoch_number} is closed at version {overview.version}")


def _write_invitation(out: Path, invitation: Invitation) -> None:
    """Under the invitation's own name, which was checked: it cannot lead out of the folder."""
    from basecagg.service.operator import write_invitation

    path = out / f"{invitation.name}.invitation"
    write_invitation(path, invitation)
    click.echo(f"{path}")


def _connected(place: _Place, work: Callable[[Office, Connection], Awaitable[Result]]) -> Result:
    """Open the folder, connect, do the work, hang up."""
    from basecagg.service.operator import Office
    from basecagg.storage.lease import acquire_within

    async def whole() -> Result:
        office = acquire_within(_PATIENCE, lambda: Office(place.folder, place.anchors))
        connection = office.connect()
        try:
            return await work(office, connection)
        finally:
            await connection.close()
            office.close()

    return asyncio.run(whole())
