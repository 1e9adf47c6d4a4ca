"""`basecagg operator`: keys, invitations, members, epochs and the final model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from basecagg.commands import _values
from basecagg.errors import DataError
from basecagg.maths.staleness import StalenessFunction
from basecagg.parameters import Consistency, ProtocolParameters

if TYPE_CHECKING:
    from basecagg.service.connection import Connection
    from basecagg.service.operator import Operator

Result = TypeVar("Result")
_PLANNING: tuple[Callable[[Any], Any], ...] = (
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
        help="Wrong answers to correct even when D holders are gone.",
    ),
    click.option(
        "--buffer",
        "buffer_size",
        type=click.IntRange(min=2),
        metavar="K",
        help="Updates in one sum, K. The planner chooses unless given.",
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
        help="How weight falls with age: constant, polynomial:α or hinge:a:b.",
    ),
    click.option(
        "--consistency",
        type=click.Choice(["certified", "honest-server"]),
        default="certified",
        show_default=True,
        help="Against a cheating server, or for an honest one.",
    ),
    click.option(
        "--learning-rate",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        show_default=True,
        metavar="η",
        help="The server's step, η_g.",
    ),
    click.option(
        "--holders",
        type=click.IntRange(min=2),
        metavar="N",
        help="Wait until so many holders have enrolled, and admit them.",
    ),
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
@click.pass_context
def command(context: click.Context, *, folder: Path) -> None:
    """Run a federation as its operator: keys, invitations, epochs, the final model.

    The operator needs no machine that is always on: a command connects to the server, does its work and ends.
    """
    context.obj = folder


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
    folder: Path,
    *,
    name: str,
    url: str,
    suite: Literal["x25519", "mlkem768-x25519"],
    public_pki: bool,
) -> None:
    """Make the keys of a new federation, and the folder for its server."""
    from basecagg.service.operator import create

    server = create(folder, name, url, suite=suite, public_pki=public_pki)
    click.echo(f"The operator's keys are in {folder}: keep them here, and safe.")
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
def certificate(folder: Path, *, hosts: tuple[str, ...], out: Path) -> None:
    """Make a new TLS certificate for the server, from the federation's own CA."""
    from basecagg.service.operator import certify_server

    certify_server(folder, out, list(hosts))
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
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    metavar="DIR",
    help="Where NAME.invitation is written.",
)
@click.pass_obj
def invite(
    folder: Path,
    *,
    names: tuple[str, ...],
    role: Literal["both", "contributor", "holder"],
    out: Path,
) -> None:
    """Write an invitation for each of NAMES. Send it by a way that others cannot read."""
    from basecagg.service.operator import write_invitation

    async def work(operator: Operator, connection: Connection) -> None:
        for name in names:
            path = out / f"{name}.invitation"
            write_invitation(path, await operator.invite(connection, name, role))
            click.echo(f"{path}")

    _connected(folder, work)


@command.command("enrol")
@click.option("--watch", is_flag=True, help="Go on, admitting whoever comes with an invitation.")
@click.pass_obj
def enrol(folder: Path, *, watch: bool) -> None:
    """Admit those who have enrolled with an invitation."""

    async def work(operator: Operator, connection: Connection) -> None:
        while True:
            for name in await operator.admit_all(connection):
                click.echo(f"admitted {name}")
            if not watch:
                return
            await asyncio.sleep(1.0)

    _connected(folder, work)


@command.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke(folder: Path, *, name: str) -> None:
    """Take nothing more from the user NAME. Rotate the epoch to replace a revoked holder."""

    async def work(operator: Operator, connection: Connection) -> None:
        await operator.revoke(connection, name)
        click.echo(f"revoked {name}")

    _connected(folder, work)


@command.command("status")
@click.pass_obj
def status(folder: Path) -> None:
    """Say where the federation stands."""

    async def work(operator: Operator, connection: Connection) -> None:
        overview = await operator.look(connection)
        click.echo(f"epoch {overview.epoch_number} is {overview.phase}, version {overview.version}")
        for member in overview.members:
            click.echo(f"  {member.name:30} {member.role}{' revoked' if member.revoked else ''}")
        for enrolment in overview.enrolments:
            click.echo(f"  {enrolment.name:30} waits for `enrol`")

    _connected(folder, work)


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
def start(folder: Path, /, *, model: str, **planning: Any) -> None:
    """Sign the first epoch with the holders who have enrolled, and start it."""
    from basecagg.service.export import initial_model

    async def work(operator: Operator, connection: Connection) -> None:
        vector = initial_model(model)
        await operator.set_model(connection, vector)
        await _start(operator, connection, len(vector), **planning)

    _connected(folder, work)


@command.command("rotate")
@_planned
@click.pass_obj
def rotate(folder: Path, /, **planning: Any) -> None:
    """End the present epoch and start the next, with fresh keys and the present members."""

    async def work(operator: Operator, connection: Connection) -> None:
        await _close(operator, connection)
        overview = await operator.look(connection)
        await _start(operator, connection, overview.model_size, **planning)

    _connected(folder, work)


@command.command("close")
@click.pass_obj
def close(folder: Path) -> None:
    """End the present epoch; the model stays."""
    _connected(folder, _close)


@command.command("export")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Makes the torch module whose names and shapes the tensors get. One flat tensor without it.",
)
@click.pass_obj
def export(folder: Path, *, path: Path, model: str | None) -> None:
    """Write the present model to PATH: as safetensors, or as a torch state_dict if PATH ends in .pt."""
    import numpy as np

    from basecagg.service.export import export as write

    async def work(operator: Operator, connection: Connection) -> None:
        reply = await connection.call("GET", "/v1/model")
        write(np.frombuffer(reply.content, "<f4"), path, model)
        click.echo(f"version {reply.headers['basecagg-version']} → {path}")

    _connected(folder, work)


async def _start(
    operator: Operator,
    connection: Connection,
    model_size: int,
    *,
    holders: int | None,
    learning_rate: float,
    **wishes: Any,
) -> None:
    overview = await operator.look(connection)
    while holders is not None and len(operator.holders(overview)) < holders:
        for name in await operator.admit_all(connection):
            click.echo(f"admitted {name}")
        await asyncio.sleep(0.3)
        overview = await operator.look(connection)
    parameters = _plan(len(operator.holders(overview)), model_size, **wishes)
    epoch = await operator.start(connection, parameters, learning_rate)
    p = parameters
    click.echo(
        f"epoch {epoch.number} from version {epoch.first_version}: N = {p.num_users}, U ="
        f" {p.recovery_threshold}, T = {p.max_colluders}, D = {p.max_dropouts}, K = {p.buffer_size},"
        f" d = {p.model_size:,}, {p.consistency}"
    )


def _plan(
    num_users: int,
    model_size: int,
    *,
    dropouts: _values.Portion,
    colluders: _values.Portion | None,
    liars: int,
    buffer_size: int | None,
    clip: float,
    max_staleness: int,
    staleness: StalenessFunction,
    consistency: Consistency,
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
        clip=clip,
        max_staleness=max_staleness,
        staleness=staleness,
        consistency=consistency,
    )
    return plan(wishes).parameters


async def _close(operator: Operator, connection: Connection) -> None:
    await operator.close(connection)
    while (overview := await operator.look(connection)).phase == "closing":
        await asyncio.sleep(0.3)
    click.echo(f"epoch {overview.epoch_number} is closed at version {overview.version}")


def _connected(folder: Path, work: Callable[[Operator, Connection], Awaitable[Result]]) -> Result:
    """Open the folder, connect, do the work, hang up."""
    from basecagg.service.operator import Operator

    async def whole() -> Result:
        operator = Operator(folder)
        connection = operator.connect()
        try:
            return await work(operator, connection)
        finally:
            await connection.close()

    return asyncio.run(whole())
