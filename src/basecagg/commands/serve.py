"""`basecagg serve`: the server of a federation."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from basecagg.commands._options import AnchorOptions, Folder, options
from basecagg.commands._program import begin_log, load_kernels_quietly
from basecagg.options import Count, ServingOptions
from basecagg.service.handed_over import renew_server_key
from basecagg.service.server.serving import ServeOptions, run
from basecagg.service.training import UserFunction


class _ServeOptions(ServingOptions, AnchorOptions):
    state: Annotated[Folder, click.Path(path_type=Path, exists=True, file_okay=False)]
    """The server's folder, as `basecagg operator init` made it."""
    new_key: bool = False
    """Make another key for the server to sign with from the next epoch on, print it, and end."""
    memory: Annotated[Count, "MB"] = ServeOptions.memory // 2**20
    """Bodies that may be in memory at one time; beyond that callers get 503. An eighth is the operator's."""
    log_level: Literal["DEBUG", "INFO", "WARNING"] = "INFO"
    """How much to log; DEBUG has a line for every request."""


@click.command("serve")
@options(_ServeOptions)
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
    load_kernels_quietly(state)
    if others["evaluate"]:
        with closing(UserFunction(others["evaluate"])) as function:
            function.require()
    run(ServeOptions(folder=state, memory=memory * 2**20, **others))
