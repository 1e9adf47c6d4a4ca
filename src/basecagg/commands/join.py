"""`basecagg join`: a user's agent."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from basecagg.commands._options import AnchorOptions, Folder, options
from basecagg.commands._program import begin_log, load_kernels_quietly, log_end
from basecagg.errors import DataError, ServerCaught, TooLarge, TurnedAway, printable
from basecagg.options import Count, MemberOptions, Range, Unit
from basecagg.protocol.floor import LocalFloor
from basecagg.service.agent.agent import Agent, AgentOptions
from basecagg.service.agent.check import look
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience
from basecagg.service.handed_over import read_invitation
from basecagg.service.logs import Log
from basecagg.service.training import Training, UserFunction

_CAUGHT, _TURNED_AWAY = 3, 4
"""The exit status when the server was caught cheating, and when it takes nothing from this user."""


class _JoinOptions(MemberOptions, AnchorOptions):
    train: Annotated[str | None, "MODULE:FUNCTION"] = None
    """Your training: f(model, info) → model, both float32 vectors. Runs on your machine only."""
    desk: Folder | None = None
    """Instead of training, answer the studies that people approved at the desk in this folder."""
    data: Annotated[str, {"show_default": False}] = ""
    """Passed on to your function as info.data."""
    urls: Annotated[tuple[str, ...], "--url", "URL"] = ()
    """Where the server is, if not where the invitation says; again for each machine that may take over."""
    holder_only: bool = False
    """Keep shares for others and contribute nothing."""
    state: Folder | None = None
    """Where keys and shares are kept. Not set: a folder named after you, here."""
    buffer_size: Annotated[int, Range(2), "--min-buffer-size"] = 2
    """Refuse an epoch with a smaller K."""
    max_colluders: Annotated[Count, "--min-colluders"] = 1
    """Refuse an epoch with a smaller T."""
    min_per_version: Count | None = None
    """Refuse an epoch with a smaller m. With --trust-server 1 if not set."""
    field_weights: bool = False
    """Accept an epoch whose updates weigh differently in the field. One sum of it tells more about an update
    than the sum of numbers does; without this only --trust-server accepts it."""
    allow_clear: bool = False
    """Accept an epoch with protection none: your updates are sent in clear, and the server sees each of them.
    Without this nothing of yours ever leaves in clear, whatever server or operator say. Nobody promises
    anything in such an epoch, so of your other conditions only --max-epsilon is looked at."""
    long_masks: bool = False
    """Refuse an epoch whose masks grow from keys: that these stay secret rests on ring-LWE."""
    max_burns: Annotated[int, Range(0)] | None = None
    """Refuse an epoch that allows more. Not set: 1, or any number with --trust-server."""
    unit: Unit = "user"
    """With record your training has to clip each of them, as `record_update` does; with user such epochs are
    refused."""
    trust_server: bool = False
    """Accept an epoch that protects against an honest server only."""
    trust_holders: bool = False
    """Accept an epoch in which any U answers open a sum, and T lying holders could write it."""
    check: bool = False
    """Only see whether it would work: the function, the disk, the server, its certificate, the clock."""


@click.command("join")
@click.argument("invitation", type=click.Path(path_type=Path, dir_okay=False))
@options(_JoinOptions)
def command(
    *,
    check: bool,
    invitation: Path,
    train: str | None,
    desk: Path | None,
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
    if holder_only + (train is not None) + (desk is not None) != 1:
        raise DataError("give either --train MODULE:FUNCTION, --desk FOLDER or --holder-only")
    if check:
        _check(invitation, state, train, urls)
        return
    begin_log()
    invited = read_invitation(invitation)
    function = UserFunction(train) if train else None
    if function is not None:
        function.require()  # a slip of the pen shows now, and not after the first download
    profile = Profile.open(state or Path(invited.name), invited)
    load_kernels_quietly(profile.folder)
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
        work_of: Training | None = function
        if desk is not None:
            from basecagg.statistics.centre import StudyAnswers
            from basecagg.statistics.desk_folder import DeskFolder

            work_of = StudyAnswers(profile, DeskFolder(desk, anchors), chosen.patience, *urls)
        agent = Agent(profile, chosen, work_of)
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
