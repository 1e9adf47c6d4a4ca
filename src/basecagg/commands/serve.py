"""`basecagg serve`: the server of a federation."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from basecagg.commands._options import POSITIVE, Anchors, Count, Folder, options
from basecagg.commands._program import begin_log, ready_kernels
from basecagg.service.server.serving import ServeOptions, run
from basecagg.service.server_folder import renew_server_key
from basecagg.service.training import UserFunction


class _ServeOptions:
    state: Annotated[Folder, click.Path(path_type=Path, exists=True, file_okay=False)]
    """The server's folder, as `basecagg operator init` made it."""
    database: Annotated[str | None, "URL"] = None
    """Where to keep everything: postgresql+psycopg://user@host/name. SQLite in DIR unless given."""
    anchors: Anchors = None
    standby: bool = False
    """While another server has the database, wait; take over when it is gone."""
    new_key: bool = False
    """Make another key for the server to sign with from the next epoch on, print it, and end."""
    host: str = "0.0.0.0"  # noqa: S104 - users call from elsewhere
    """The address to listen at."""
    port: Annotated[int, click.IntRange(0, 65535)] = 8443
    """The port to listen at."""
    tls: Annotated[bool, "--tls/--no-tls"] = True
    """TLS with tls.pem and tls.key of DIR; off only behind a proxy that does it."""
    answer_timeout: Annotated[float, POSITIVE, "SECONDS"] = ServeOptions.answer_timeout
    """How long to wait for holders before they are asked again."""
    retries: Count = ServeOptions.retries
    """How often holders are asked again before a buffer is given up."""
    keep_versions: Annotated[Count, "R"] = ServeOptions.keep_versions
    """Versions of the model whose parts are kept, for members who make them again."""
    memory: Annotated[Count, "MB"] = ServeOptions.memory // 2**20
    """Bodies that may be in memory at one time; beyond that callers get 503. An eighth is the operator's."""
    member_rate: Annotated[float, POSITIVE, "R"] = ServeOptions.member_rate
    """Requests per second of one participant; beyond that it gets 429."""
    evaluate: Annotated[str | None, "MODULE:FUNCTION"] = None
    """Your own test of a model, f(vector, info) → number; shown on the page."""
    open_here: bool = False
    """Show the page on this machine, called localhost, without its token; not behind a proxy."""
    log_level: Literal["DEBUG", "INFO", "WARNING"] = "INFO"
    """How much to log; DEBUG has a line for every request."""


@click.command("serve")
@options(_ServeOptions, store="the database")
def command(*, state: Path, new_key: bool, memory: int, log_level: str, **others: Any) -> None:
    """Run the server of a federation.

    Logs are JSON lines on standard error. SIGTERM ends it in good order; after anything worse it goes on from
    its database. The operator's page is at https://HOST:PORT/, its token in DIR/server.json.
    """
    if new_key:
        key = renew_server_key(state).hex()
        click.echo(key)
        click.echo(f"If another machine stands by, copy {state / 'server.json'} there.", err=True)
        click.echo(
            "Restart the server. Then the operator types, with the epoch's other options:", err=True
        )
        click.echo(f"  basecagg operator rotate --server-key {key}", err=True)
        return
    begin_log(log_level)
    ready_kernels(state)
    if others["evaluate"]:
        with closing(UserFunction(others["evaluate"])) as function:
            function.require()
    run(ServeOptions(folder=state, memory=memory * 2**20, **others))
