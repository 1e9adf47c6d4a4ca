"""`basecagg operator address` and `certificate`: where the server is reached, and what it shows there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import click

from basecagg.commands._options import Folder, options
from basecagg.commands.operator.place import Place, at_work
from basecagg.service.documents import day
from basecagg.service.operator.folder import certify_server, hosts_of, read_keys
from basecagg.service.operator.office import Office

_WEB_PORT = 443
"""Where https:// leads without a port."""
_DATABASE = "postgresql+psycopg://USER@HOST/NAME"


def serve_commands(state: Path, urls: Sequence[str]) -> list[str]:
    """What to type on each machine of the server, so that users reach it where they call."""
    shared = f" --standby --database {_DATABASE}" if len(urls) > 1 else ""
    ports = [urlsplit(url).port or _WEB_PORT for url in urls]
    return [f"basecagg serve --state {state} --port {port}{shared}" for port in ports]


class _Address:
    urls: Annotated[tuple[str, ...], "--url", "URL"] = ()
    """Where users reach the server from now on: https://host:8443. Again for each machine that may take over.
    Without it the present addresses are printed."""
    out: Folder = "renewed"
    """Where tls.pem and tls.key are written, if the addresses have hosts that the last ones had not."""


@click.command("address")
@options(_Address)
@click.pass_obj
def address(place: Place, *, urls: tuple[str, ...], out: Path) -> None:
    """Say where the server is reached: all addresses, old ones that stay included.

    Invitations name them from now on, and these commands call there. An agent that has joined goes on calling
    where its invitation says, until it is started with `join --url`.
    """
    path = place.folder / "operator.json"
    before = read_keys(path)
    if not urls:
        click.echo("\n".join(before.addresses))
        return
    at_work(place, _move, urls=tuple(dict.fromkeys(urls)))
    now = read_keys(path)
    click.echo(f"Invitations and these commands use {', '.join(now.addresses)} from now on.")
    if set(hosts_of(now)) - set(hosts_of(before)):
        if now.public_pki:
            click.echo(f"The server's own tls.pem has to name {', '.join(hosts_of(now))}.")
        else:
            _certify(place, hosts_of(now), out)
    options = " ".join(f"--url {url}" for url in now.addresses)
    click.echo(
        "Agents that have joined call the old addresses until their `basecagg join` is given:"
    )
    click.echo(f"  {options}")
    click.echo("An invitation that nobody has used is written anew: basecagg operator invite NAME")


async def _move(office: Office, *, urls: Sequence[str]) -> None:
    office.move(urls)


class _Certificate:
    hosts: Annotated[tuple[str, ...], "--host"] = ()
    """A name or address of the server. Those of all addresses (`operator address`) unless given."""
    out: Folder
    """Where tls.pem and tls.key are written."""


@click.command("certificate")
@options(_Certificate)
@click.pass_obj
def certificate(place: Place, *, hosts: tuple[str, ...], out: Path) -> None:
    """Make a new TLS certificate for the server, from the federation's own CA."""
    known = hosts_of(read_keys(place.folder / "operator.json"))
    _certify(place, list(hosts) or known, out)
    missing = [host for host in known if hosts and host not in hosts]
    if missing:
        click.echo(f"It is not for {', '.join(missing)}, where invitations say that the server is.")


def _certify(place: Place, hosts: list[str], out: Path) -> None:
    ends = certify_server(place.folder, out, hosts, place.passphrase)
    click.echo(f"{out}/tls.pem and tls.key are for {', '.join(hosts)}, until {day(ends)}.")
    click.echo(
        "Copy both into the server's folder, on each of its machines: a running server takes them up within"
        " seconds, without a restart, and agents need nothing."
    )
