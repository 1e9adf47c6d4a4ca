"""`basecagg operator init`, `key`, `passphrase` and `recover`: the operator's own keys and folder."""

from pathlib import Path
from typing import Annotated, Any

import click

from basecagg.commands._options import File, options
from basecagg.commands.operator.addresses import serve_commands
from basecagg.commands.operator.place import Place, connected
from basecagg.protocol.messages import Suite
from basecagg.protocol.operator import PRESENT
from basecagg.service.operator.custody import read_passphrase, require_long
from basecagg.service.operator.folder import change_passphrase, create, public_key
from basecagg.service.operator.office import Office


class _Init:
    name: str
    """The federation's name."""
    urls: Annotated[tuple[str, ...], "--url", "URL"]
    """Where users reach the server: https://host:8443. Again for each machine that may take over."""
    suite: Suite = "x25519"
    """How shares are sealed; the second withstands quantum computers too."""
    public_pki: bool = False
    """The server has a certificate that every browser trusts; make no private CA."""
    encrypt: bool = False
    """Encrypt the keys with a passphrase, which you are asked for or which is in --passphrase-file."""


@click.command("init")
@options(_Init)
@click.pass_obj
def init(
    place: Place, /, *, name: str, urls: tuple[str, ...], encrypt: bool, **chosen: Any
) -> None:
    """Make the keys of a new federation, and the folder for its server."""
    url, *standbys = urls
    words = require_long(place.passphrase(fresh=True)) if encrypt else ""
    chosen |= {"standbys": standbys, "anchor_folder": place.anchors, "passphrase": words}
    server = create(place.folder, name, url, **chosen)
    click.echo(f"The operator's keys are in {place.folder}: keep them here, and safe.")
    where = f"copy it to each of {', '.join(urls)}" if standbys else "move it to the server"
    click.echo(f"The server's folder is {server}: {where}, and start it there:")
    for line in serve_commands(Path(server.name), urls):
        click.echo(f"  {line}")


@click.command("key")
@click.pass_obj
def key(place: Place) -> None:
    """Print the operator's public key, as `verify --operator-key` takes it.

    `join --check` and `verify` print the same digits, so that people can compare them.
    """
    click.echo(public_key(place.folder, place.passphrase).hex())


class _Passphrase:
    new_file: File | None = None
    """Its first line is the new passphrase. You are asked for it otherwise, twice."""
    remove: bool = False
    """Store the keys without a passphrase from now on."""


@click.command("passphrase")
@options(_Passphrase)
@click.pass_obj
def passphrase(place: Place, *, new_file: Path | None, remove: bool) -> None:
    """Encrypt the operator's keys with a passphrase, or with another one.

    operator.json, which holds all secret keys, is written anew. Copies made before have the old passphrase, or
    none.
    """
    if remove:
        new = ""
    elif new_file is not None:
        new = require_long(read_passphrase(new_file))
    else:
        typed = click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
        new = require_long(typed)
    change_passphrase(place.folder, place.passphrase, new)
    click.echo(f"the keys in operator.json are {'encrypted' if new else 'not encrypted any more'}")


class _Recover:
    above: Annotated[int, click.IntRange(min=0, max=10**15), "N"]
    """The number of the last epoch that anybody has seen: ask your people, not only the server."""
    confirmed: Annotated[tuple[str, ...], "--confirm", "NAME"] = ()
    """Somebody who still belongs to the federation; you are asked about everybody else."""


@click.command("recover")
@options(_Recover)
@connected
async def recover(office: Office, *, above: int, confirmed: tuple[str, ...]) -> None:
    """Go on from an older copy of the operator's folder, or on another machine.

    The copy does not know who was revoked or replaced since, nor which epochs were signed. So you confirm its
    people one by one; whoever you do not confirm is revoked. The next epoch gets a number above N, and fresh
    keys.
    """
    people = sorted(office.machine.people.items())
    asked = [name for name, each in people if each.state in PRESENT and name not in confirmed]
    kept = [name for name in asked if click.confirm(f"Does {name} still belong to you?")]
    await office.recover(above, [*confirmed, *kept])
    click.echo(f"the next epoch is {above + 1} or later; in are: {', '.join([*confirmed, *kept])}")
