"""`basecagg join`: a user's agent."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click

from basecagg.commands import _values
from basecagg.commands._program import begin_log, log_end
from basecagg.errors import DataError, ServerCaught, TurnedAway, printable

_CAUGHT, _TURNED_AWAY = 3, 4
"""The exit status when the server was caught cheating, and when it says that this user does not belong."""


@click.command("join", short_help="Take part in a federation as contributor, holder or both.")
@click.argument("invitation", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--train",
    metavar="MODULE:FUNCTION",
    help="Your training: f(model, info) → model, both float32 vectors. Runs on your machine only.",
)
@click.option(
    "--data", default="", show_default=False, help="Passed on to your function as info.data."
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="Where the server is, if not where the invitation says; again for each machine that may take over.",
)
@click.option("--holder-only", is_flag=True, help="Keep shares for others and contribute nothing.")
@click.option(
    "--state",
    type=_values.FOLDER,
    metavar="DIR",
    help="Where keys and shares are kept. A folder named after you, here, unless given.",
)
@_values.anchors_option("DIR")
@click.option(
    "--min-buffer",
    "buffer_size",
    type=click.IntRange(min=2),
    default=2,
    metavar="K",
    help="Refuse an epoch whose sums have fewer members.",
)
@click.option(
    "--min-colluders",
    "max_colluders",
    type=click.IntRange(min=1),
    default=1,
    metavar="T",
    help="Refuse an epoch that withstands fewer colluding holders.",
)
@click.option(
    "--min-per-version",
    type=click.IntRange(min=1),
    metavar="m",
    help="Refuse an epoch in whose sums a version may have fewer members. 3 unless given, or 1 with"
    " --trust-server.",
)
@click.option(
    "--max-epsilon",
    type=click.FloatRange(min=0, min_open=True),
    metavar="ε",
    help="Join only epochs with differential privacy of this ε or less, for all that this user ever uploads.",
)
@click.option(
    "--max-delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-5,
    metavar="δ",
    help="The largest δ that goes with --max-epsilon.",
)
@click.option(
    "--unit",
    type=click.Choice(["user", "record"]),
    default="user",
    help="Whose ε it is: of all that this user uploads, or of each record of its data. With record your"
    " training has to clip each of them, as `record_update` does.",
)
@click.option(
    "--trust-server",
    is_flag=True,
    help="Accept an epoch that protects against an honest server only.",
)
@click.option(
    "--trust-holders",
    is_flag=True,
    help="Accept an epoch in which any U answers open a sum, and T lying holders could write it.",
)
@click.option(
    "--verify",
    type=click.Choice(["auto", "always", "sample", "never"]),
    default="auto",
    help="Which versions of the model to make again from their parts before using them. With auto always, or"
    " samples where the parts of a version take more than 64 MB.",
)
@click.option(
    "--verify-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    metavar="P",
    help="The share of the versions, where samples are taken.",
)
@click.option(
    "--pause",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Rest between two updates.",
)
@click.option(
    "--longest-wait",
    type=click.FloatRange(min=0.1),
    default=30.0,
    metavar="SECONDS",
    help="The longest time between two attempts to reach the server.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Only see whether it would work: the function, the disk, the server, its certificate, the clock.",
)
def command(
    *,
    check: bool,
    invitation: Path,
    train: str | None,
    data: str,
    urls: tuple[str, ...],
    holder_only: bool,
    state: Path | None,
    anchors: Path | None,
    trust_server: bool,
    trust_holders: bool,
    pause: float,
    longest_wait: float,
    **floor: Any,
) -> None:
    """Take part in a federation.

    Enrols with INVITATION, the file that the operator sent you (it holds a secret), the first time and goes on
    from DIR afterwards. Calls out only, to the server
    that the invitation names. While your function trains, the agent goes on answering for others.

    Exit status: 3 if the server was caught cheating; the evidence is in a file in DIR. Start it again when the
    operator has another server. 4 if the server says that you were revoked, or that the invitation has expired:
    ask the operator; nothing is deleted, and it can be started again. 2 if something that was typed is wrong;
    with --check 1 if something is amiss.
    """
    if holder_only == (train is not None):
        raise DataError("give either --train MODULE:FUNCTION or --holder-only")
    from basecagg.protocol.epoch import LocalFloor
    from basecagg.service.agent.agent import Agent, AgentOptions
    from basecagg.service.agent.profile import Profile
    from basecagg.service.connection import Patience
    from basecagg.service.invitation_file import read_invitation
    from basecagg.service.logs import Log
    from basecagg.service.training import UserFunction

    if check:
        _check(invitation, state, train, urls)
        return
    begin_log()
    invited = read_invitation(invitation)
    function = UserFunction(train) if train else None
    if function is not None:
        function.require()  # a slip of the pen shows now, and not after the first download
    profile = Profile.open(state or Path(invited.name), invited)
    options = AgentOptions(
        floor=LocalFloor(
            consistency="honest-server" if trust_server else "certified",
            correctness="honest-holders" if trust_holders else "agreed",
            **(floor | {"unit": "record"} if holder_only else floor),
        ),
        data=data,
        urls=urls,
        pause=pause,
        patience=Patience(longest=longest_wait),
        anchor_folder=anchors,
    )

    async def work() -> None:
        agent = Agent(profile, options, function)
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await agent.run()

    try:
        asyncio.run(work())
    except asyncio.CancelledError:
        Log("basecagg.agent").info("stopped")
    except ServerCaught as caught:
        raise log_end(str(caught), _CAUGHT) from None
    except TurnedAway as refusal:
        raise log_end(str(refusal), _TURNED_AWAY) from None


def _check(invitation: Path, state: Path | None, train: str | None, urls: tuple[str, ...]) -> None:
    import msgspec

    from basecagg.service.agent.check import look
    from basecagg.service.invitation_file import read_invitation

    invited = read_invitation(invitation)
    if urls:
        invited = msgspec.structs.replace(invited, url=urls[0], standbys=urls[1:])
    bad = 0
    for what, good, said in look(invited, state or Path(invited.name), train):
        click.echo(printable(f"{'ok' if good else 'BAD':4} {what:12} {said}", keep="\n"))
        bad += not good
    if bad:
        raise click.exceptions.Exit(1)
