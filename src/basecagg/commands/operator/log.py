"""`basecagg operator log`: the audit logs of operator and server, checked."""

from datetime import UTC, datetime
from typing import Annotated

import click

from basecagg.commands._options import options
from basecagg.commands.operator.place import connected
from basecagg.errors import DataError, printable
from basecagg.protocol.audit_log import AuditEntry, CheckedLog
from basecagg.service.logs import json_line
from basecagg.service.operator.office import Office

_BROKEN = 4
"""The exit status when a log was changed or cut, as `audit` has it for transcripts."""


class _LogOptions:
    own: bool = False
    """The operator's own log only: no server is asked."""
    as_json: Annotated[bool, "--json"] = False
    """Print JSON, one entry a line."""
    heads: Annotated[tuple[str, ...], "--contains", "HEAD"] = ()
    """Demand that a log goes on from this head, which somebody wrote down or signed earlier."""


@click.command("log")
@options(_LogOptions)
@connected
async def log(office: Office, *, own: bool, as_json: bool, heads: tuple[str, ...]) -> None:
    """Read and check the audit logs: who was invited, admitted, refused, revoked, what was opened and exported.

    The operator's is in its own folder, the server's comes from the server. Each is a hash chain whose end its
    writer signed, and the server's must go on from where it was when this command last ran.

    Exit status: 4 if a log was changed or cut.
    """
    try:
        logs = {"operator": office.own_log()}
        if not own:
            logs["server"] = await office.server_log()
        _require_heads(logs, heads)
    except DataError as error:
        click.echo(printable(f"Error: {error}", keep="\n"), err=True)
        raise click.exceptions.Exit(_BROKEN) from None
    entries = [(each.time, who, each) for who, log in logs.items() for each in log.entries]
    for _, who, entry in sorted(entries, key=lambda found: found[0]):
        click.echo(_as_json(who, entry) if as_json else _as_text(who, entry))
    for who, each in logs.items():
        said = f"{who}: {each.head.length} entries, whole and signed, head {each.head.head.hex()}"
        click.echo(said, err=True)


def _require_heads(logs: dict[str, CheckedLog], heads: tuple[str, ...]) -> None:
    known = {chain.head.hex() for each in logs.values() for chain in each.heads}
    for head in heads:
        if head not in known:
            raise DataError(f"no log goes on from {head}: it was rewritten since that was seen")


def _as_text(who: str, entry: AuditEntry) -> str:
    moment = datetime.fromtimestamp(entry.time, UTC)
    facts = ", ".join(f"{name} {value}" for name, value in entry.facts.items())
    return printable(f"{moment:%Y-%m-%d %H:%M:%S}Z  {who:8}  {entry.event:20}  {facts}")


def _as_json(who: str, entry: AuditEntry) -> str:
    moment = datetime.fromtimestamp(entry.time, UTC).isoformat()
    return json_line({"time": moment, "by": who, "event": entry.event, **entry.facts})
