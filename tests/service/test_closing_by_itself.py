"""An epoch that was told when to close does so by itself, with the operator's machine switched off."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from service_harness import SMALL, Federation, Nudge, federation
from test_commands import Desk

from basecagg.commands.operator.people import closing_words
from basecagg.errors import DataError
from basecagg.service.documents import Overview
from basecagg.service.handed_over import read_invitation

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]
PLAN = ("--max-dropouts", "2", "--max-colluders", "2", "--buffer-size", "4")


async def closed(fed: Federation) -> Overview:
    """What the server says when it has closed the epoch, which nobody ordered meanwhile."""

    async def is_closed() -> bool:
        return (await fed.operator.look()).phase == "closed"

    await fed.until(is_closed)
    return await fed.operator.look()


async def begin(fed: Federation, seconds: float = 0.0, **when: int) -> None:
    await fed.join(NAMES, lambda name: Nudge(seconds=seconds))
    await fed.operator.set_model(np.zeros(SMALL.model_size, "<f4"))
    await fed.operator.start(SMALL, **when)


async def test_after_so_many_versions_and_not_one_more(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await begin(fed, versions=3)
        said = await closed(fed)
        assert (said.version, said.last_version) == (3, 3)
        await fed.operator.end_epoch()


async def test_what_was_said_outlives_the_server(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await begin(fed, seconds=0.05, versions=4)
        await fed.reach(1)
        await fed.stop_server()
        await fed.start_server()
        assert (await fed.operator.look()).last_version == 4
        assert (await closed(fed)).version == 4


async def test_at_a_moment(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await begin(fed, until=int(time.time()) + 2)
        assert (await fed.operator.look()).phase == "open"
        await closed(fed)


async def test_an_epoch_that_was_told_nothing_goes_on(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await begin(fed)
        await fed.reach(4)
        said = await fed.operator.look()
        assert (said.phase, said.last_version, said.closes) == ("open", None, 0)


def test_a_moment_that_a_server_made_up_is_no_crash() -> None:
    assert closing_words(None, 2**62 - 1) == "closes on 9999-12-31 23:59 UTC"


async def test_in_commands(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        desk = Desk(fed)
        await desk("invite", *NAMES, "--out", str(tmp_path))
        for name in NAMES:
            invitation = read_invitation(tmp_path / f"{name}.invitation")
            fed.launch(fed.profile(name, invitation), Nudge(seconds=0.1))
        np.save(tmp_path / "m.npy", np.zeros(50))
        start = ("start", "--model", str(tmp_path / "m.npy"), "--holders", "7", *PLAN)
        past = await desk(*start, "--until", "2020-01-01")
        assert isinstance(past.exception, DataError)
        assert "2020-01-01" in str(past.exception)
        late = f"{datetime.now(UTC) + timedelta(days=9):%Y-%m-%dT%H:%M}Z"
        beyond = await desk(*start, "--days", "8", "--until", late)
        assert "--days" in str(beyond.exception)
        assert (await desk("status")).output.startswith("epoch 0 is waiting")
        started = await desk(*start, "--versions", "3", "--until", late)
        when = f"{late[:10]} {late[11:16]} UTC"
        assert f"closes at version 3 or on {when}, whichever comes first" in started.output
        assert f"closes at version 3 or on {when}" in (await desk("status")).output
        ended = await desk("close", "--when-due")
        assert ended.exit_code == 0, ended.exception
        assert "epoch 1 is closed at version 3" in ended.output
        status = (await desk("status")).output
        assert status.splitlines()[0] == "epoch 1 is closed, version 3"
        rotated = await desk("rotate", *PLAN, "--versions", "2")
        assert "closes at version 5" in rotated.output, rotated.exception
        await closed(fed)
        unsigned = (await desk("status")).output.splitlines()[0]
        assert unsigned == "epoch 2 is closed, version 5; `operator close` signs its end"
        again = await desk("rotate", *PLAN)
        assert "epoch 3 from version 5" in again.output, again.exception
        nothing = await desk("close", "--when-due")
        assert "close it without --when-due" in str(nothing.exception)
