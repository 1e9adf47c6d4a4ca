"""`basecagg operator init`, `certificate`, `passphrase` and `recover`: the operator's own keys and folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from basecagg.commands import _values
from basecagg.commands.operator.office import Place, connected

if TYPE_CHECKING:
    from basecagg.service.connection import Connection
    from basecagg.service.operator.office import Office


@click.command("init")
@click.option("--name", required=True, help="The federation's name.")
@click.option(
    "--url",
    "urls",
    required=True,
    multiple=True,
    metavar="URL",
    help="Where users reach the server: https://host:8443. Again for each machine that may take over.",
)
@click.option(
    "--suite",
    type=click.Choice(["x25519", "mlkem768-x25519"]),
    default="x25519",
    help="How shares are sealed; the second withstands quantum computers too.",
)
@click.option(
    "--public-pki",
    is_flag=True,
    help="The server has a certificate that every browser trusts; make no private CA.",
)
@click.option(
    "--encrypt",
    is_flag=True,
    help="Encrypt the keys with a passphrase, which you are asked for or which is in --passphrase-file.",
)
@click.pass_obj
def init(
    place: Place,
    *,
    encrypt: bool,
    name: str,
    urls: tuple[str, ...],
    suite: Literal["x25519", "mlkem768-x25519"],
    public_pki: bool,
) -> None:
    """Make the keys of a new federation, and the folder for its server."""
    from basecagg.service.operator.custody import require_long
    from basecagg.service.operator.folder import create

    url, *standbys = urls
    server = create(
        place.folder,
        name,
        url,
        standbys=standbys,
        suite=suite,
        public_pki=public_pki,
        anchor_folder=place.anchors,
        passphrase=require_long(place.passphrase(fresh=True)) if encrypt else "",
    )
    click.echo(f"The operator's keys are in {place.folder}: keep them here, and safe.")
    click.echo(f"Move {server} to the server and start it there:")
    click.echo(f"  basecagg serve --state {server.name}")


@click.command("certificate")
@click.option(
    "--host", "hosts", multiple=True, required=True, help="A name or address of the server."
)
@click.option(
    "--out",
    type=_values.FOLDER,
    required=True,
    metavar="DIR",
    help="Where tls.pem and tls.key are written.",
)
@click.pass_obj
def certificate(place: Place, *, hosts: tuple[str, ...], out: Path) -> None:
    """Make a new TLS certificate for the server, from the federation's own CA."""
    from basecagg.service.operator.folder import certify_server

    certify_server(place.folder, out, list(hosts), place.passphrase)
    click.echo(f"{out}/tls.pem and tls.key: restart the server with them.")


@click.command("passphrase")
@click.option(
    "--new-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Its first line is the new passphrase. You are asked for it otherwise, twice.",
)
@click.option("--remove", is_flag=True, help="Store the keys without a passphrase from now on.")
@click.pass_obj
def passphrase(place: Place, *, new_file: Path | None, remove: bool) -> None:
    """Encrypt the operator's keys with a passphrase, or with another one.

    operator.json, which holds all secret keys, is written anew. Copies made before have the old passphrase, or
    none.
    """
    from basecagg.service.operator.custody import read_passphrase, require_long
    from basecagg.service.operator.folder import change_passphrase

    if remove:
        new = ""
    elif new_file is not None:
        new = require_long(read_passphrase(new_file))
    else:
        typed = click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
        new = require_long(typed)
    change_passphrase(place.folder, place.passphrase, new)
    click.echo(
        "the keys in operator.json are " + ("encrypted" if new else "not encrypted any more")
    )


@click.command("recover")
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
@connected
async def recover(
    office: Office, connection: Connection, *, above: int, confirmed: tuple[str, ...]
) -> None:
    """Go on from an older copy of the operator's folder, or on another machine.

    The copy does not know who was revoked or replaced since, nor which epochs were signed. So you confirm its
    people one by one; whoever you do not confirm is revoked. The next epoch gets a number above N, and fresh
    keys.
    """
    from basecagg.protocol.operator import PRESENT

    people = sorted(office.machine.people.items())
    asked = [name for name, each in people if each.state in PRESENT and name not in confirmed]
    kept = [name for name in asked if click.confirm(f"Does {name} still belong to you?")]
    await office.recover(connection, above, [*confirmed, *kept])
    click.echo(f"the next epoch is {above + 1} or later; in are: {', '.join([*confirmed, *kept])}")
