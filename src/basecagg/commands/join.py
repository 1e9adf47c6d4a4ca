"""`basecagg join`: a user's agent."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec

from basecagg.commands._options import (
    POSITIVE,
    Anchors,
    Count,
    Delta,
    Folder,
    Part,
    Seconds,
    options,
)
from basecagg.commands._program import begin_log, log_end, ready_kernels
from basecagg.errors import DataError, ServerCaught, TooLarge, TurnedAway, printable
from basecagg.privacy import Unit
from basecagg.protocol.floor import LocalFloor
from basecagg.service.agent.agent import Agent, AgentOptions
from basecagg.service.agent.check import look
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience
from basecagg.service.invitation_file import read_invitation
from basecagg.service.logs import Log
from basecagg.service.training import UserFunction

_CAUGHT, _TURNED_AWAY = 3, 4
"""The exit status when the server was caught cheating, and when it takes nothing from this user."""


class _JoinOptions:
    train: Annotated[str | None, "MODULE:FUNCTION"] = None
    """Your training: f(model, info) → model, both float32 vectors. Runs on your machine only."""
    data: Annotated[str, {"show_default": False}] = ""
    """Passed on to your function as info.data."""
    urls: Annotated[tuple[str, ...], "--url", "URL"] = ()
    """Where the server is, if not where the invitation says; again for each machine that may take over."""
    holder_only: bool = False
    """Keep shares for others and contribute nothing."""
    state: Folder | None = None
    """Where keys and shares are kept. A folder named after you, here, unless given."""
    anchors: Anchors = None
    buffer_size: Annotated[int, click.IntRange(min=2), "--min-buffer", "K"] = 2
    """Refuse an epoch whose sums have fewer members."""
    max_colluders: Annotated[Count, "--min-colluders", "T"] = 1
    """Refuse an epoch that withstands fewer colluding holders."""
    min_per_version: Annotated[Count | None, "m"] = None
    """Refuse an epoch in whose sums a version may have fewer members. 3 unless given, or 1 with
    --trust-server."""
    max_burns: Annotated[int | None, click.IntRange(min=0), "B"] = None
    """Refuse an epoch in which more sums of one version may be given up for others. 1 unless given, or any
    number with --trust-server."""
    max_epsilon: Annotated[float | None, POSITIVE, "ε"] = None
    """Join only epochs with differential privacy of this ε or less, for all that this user ever uploads."""
    max_delta: Delta = 1e-5
    """The largest δ that goes with --max-epsilon."""
    unit: Unit = "user"
    """Whose ε it is: of all that this user uploads, or of each record of its data. With record your training
    has to clip each of them, as `record_update` does."""
    trust_server: bool = False
    """Accept an epoch that protects against an honest server only."""
    trust_holders: bool = False
    """Accept an epoch in which any U answers open a sum, and T lying holders could write it."""
    verify: Literal["auto", "always", "sample", "never"] = "auto"
    """Which versions of the model to make again from their parts before using them. With auto always, or
    samples where the parts of a version take more than 64 MB."""
    verify_share: Annotated[Part, "P"] = 0.5
    """The share of the versions, where samples are taken."""
    pause: Seconds = 0.0
    """Rest between two updates."""
    longest_wait: Annotated[float, click.FloatRange(min=0.1), "SECONDS"] = 30.0
    """The longest time between two attempts to reach the server."""
    check: bool = False
    """Only see whether it would work: the function, the disk, the server, its certificate, the clock."""


@click.command("join")
@click.argument("invitation", type=click.Path(path_type=Path, dir_okay=False))
@options(_JoinOptions, store="DIR")
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
    from DIR afterwards. Calls out only, to the server that the invitation names. While your function trains,
    the agent goes on answering for others.

    Exit status: 3 if the server was caught cheating; the evidence is in a file in DIR. Start it again when the
    operator has another server. 4 if the server says that you were revoked, that the invitation has expired or
    that your messages are too large: ask the operator; nothing is deleted, and it can be started again. 2 if
    something that was typed is wrong; with --check 1 if something is amiss.
    """
    if holder_only == (train is not None):
        raise DataError("give either --train MODULE:FUNCTION or --holder-only")
    if check:
        _check(invitation, state, train, urls)
        return
    begin_log()
    invited = read_invitation(invitation)
    function = UserFunction(train) if train else None
    if function is not None:
        function.require()  # a slip of the pen shows now, and not after the first download
    profile = Profile.open(state or Path(invited.name), invited)
    ready_kernels(profile.folder)
    chosen = AgentOptions(
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
        agent = Agent(profile, chosen, function)
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
    except (TooLarge, TurnedAway) as refusal:
        raise log_end(str(refusal), _TURNED_AWAY) from None


def _check(invitation: Path, state: Path | None, train: str | None, urls: tuple[str, ...]) -> None:
    invited = read_invitation(invitation)
    if urls:
        invited = msgspec.structs.replace(invited, url=urls[0], standbys=urls[1:])
    bad = 0
    for what, good, said in look(invited, state or Path(invited.name), train):
        click.echo(printable(f"{'ok' if good else 'BAD':4} {what:12} {said}", keep="\n"))
        bad += not good
    if bad:
        raise click.exceptions.Exit(1)
