"""`basecagg serve`: the server of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from basecagg.commands import _values
from basecagg.commands._program import begin_log


@click.command("serve", short_help="Run the server of a federation over HTTPS.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    metavar="DIR",
    help="The server's folder, as `basecagg operator init` made it.",
)
@click.option(
    "--database",
    metavar="URL",
    help="Where to keep everything: postgresql+psycopg://user@host/name. SQLite in DIR unless given.",
)
@_values.anchors_option("the database")
@click.option(
    "--standby",
    is_flag=True,
    help="While another server has the database, wait; take over when it is gone.",
)
@click.option(
    "--new-key",
    is_flag=True,
    help="Make another key for the server to sign with from the next epoch on, print it, and end.",
)
@click.option(
    "--host",
    default="0.0.0.0",  # noqa: S104 - users call from elsewhere
    help="The address to listen at.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8443,
    help="The port to listen at.",
)
@click.option(
    "--tls/--no-tls",
    default=True,
    help="TLS with tls.pem and tls.key of DIR; off only behind a proxy that does it.",
)
@click.option(
    "--answer-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    metavar="SECONDS",
    help="How long to wait for holders before they are asked again.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=1),
    default=20,
    help="How often holders are asked again before a buffer is given up.",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(min=1),
    default=2,
    metavar="R",
    help="Versions of the model whose parts are kept, for members who make them again.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    default=512,
    metavar="MB",
    help="Bodies that may be in memory at one time; beyond that callers get 503.",
)
@click.option(
    "--member-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=50.0,
    metavar="R",
    help="Requests per second of one participant; beyond that it gets 429.",
)
@click.option(
    "--evaluate",
    metavar="MODULE:FUNCTION",
    help="Your own test of a model, f(vector, info) → number; shown on the page.",
)
@click.option(
    "--open-here",
    is_flag=True,
    help="Show the page on this machine without its token; not behind a proxy.",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING"]),
    default="INFO",
    help="How much to log; DEBUG has a line for every request.",
)
def command(*, state: Path, new_key: bool, memory: int, log_level: str, **options: Any) -> None:
    """Run the server of a federation.

    Logs are JSON lines on standard error. SIGTERM ends it in good order; after anything worse it goes on from
    its database. The operator's page is at https://HOST:PORT/, its token in DIR/server.json.
    """
    from basecagg.service.server.serving import ServeOptions, run
    from basecagg.service.server_folder import renew_server_key
    from basecagg.service.training import UserFunction

    if new_key:
        click.echo(renew_server_key(state).hex())
        click.echo("Restart the server, then: basecagg operator rotate --server-key KEY", err=True)
        return
    begin_log(log_level)
    if options["evaluate"]:
        function = UserFunction(options["evaluate"])
        try:
            function.require()
        finally:
            function.close()
    run(ServeOptions(folder=state, memory=memory * 2**20, **options))
