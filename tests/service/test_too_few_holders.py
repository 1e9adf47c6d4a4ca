"""Too few holders for a sum: the server says so where people look, and nobody waits for what cannot come."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import httpx
import pytest
from service_harness import SMALL, Federation, Nudge, federation
from test_commands import Desk

from basecagg.protocol.floor import LocalFloor
from basecagg.service.server import core

NAMES = ["ann", "bob", "cem", "dee", "eve", "fay", "gus"]
PLAN = ("--max-dropouts", "0", "--max-colluders", "1", "--buffer-size", "3")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of the tests ask for their letters every 25 s too; a holder that is away for 2 s is silent."""
    monkeypatch.setattr(core, "_SILENT", 2.0)
    monkeypatch.setattr("basecagg.service.agent.agent._WAIT", 1)


async def said_everywhere(fed: Federation) -> list[str]:
    """What status, page, metrics and readiness say of it."""
    async with httpx.AsyncClient(verify=fed.tls, base_url=fed.url) as browser:
        status = (await browser.get("/status")).json()["epoch"]["trouble"]
        ready = (await browser.get("/readyz")).json()["trouble"]
        metrics = (await browser.get("/metrics")).text
    overview = (await fed.operator.look()).trouble
    counted = "yes" if "basecagg_trouble 1\n" in metrics else ""
    return [status, ready, overview, counted]


async def test_silent_holders_are_missed_and_welcome_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Seven holders, of which two may be away."""
    async with federation(tmp_path, open_here=True) as fed:
        with caplog.at_level(logging.INFO):
            await fed.begin(NAMES)
            await fed.reach(1)
            for name in NAMES[:2]:
                await fed.stop(name)
            await asyncio.sleep(3)
            assert not any(await said_everywhere(fed))  # the control: five are enough
            await fed.stop("cem")

            async def is_said() -> bool:
                return all(await said_everywhere(fed))

            await fed.until(is_said)
            (said, *_) = await said_everywhere(fed)
            assert "needs 5 of the 7 holders, and 4 can answer (3 silent)" in said
            assert "no sum is opened" in (await Desk(fed)("status")).output
            fed.launch(fed.profile("cem"), Nudge())

            async def is_over() -> bool:
                return not any(await said_everywhere(fed))

            await fed.until(is_over)
        assert [text for text in caplog.messages if "no sum" in text or "sums are" in text] == [
            "no sum is opened",
            "sums are opened again",
        ]


def test_a_holder_on_a_slow_line_is_there() -> None:
    """Its answer takes minutes to come in; and one that never took part in the epoch is not there."""
    activity = core.Activity()
    activity.begin("ann")
    activity.begin("bob")
    activity.end("bob")
    activity.takes_part |= {"ann", "bob", "cem"}
    later = activity.last_seen["bob"] + 100
    assert activity.is_there("ann", later)
    assert not activity.is_there("bob", later)
    assert activity.is_there("bob", later - 101)
    assert not activity.is_there("cem", later)
    activity.begin("dee")
    assert not activity.is_there("dee", later)


async def test_a_rotation_does_not_wait_for_holders_that_were_revoked(tmp_path: Path) -> None:
    """A server asks twenty times, half a minute each: 600 s. It is told at once that nobody can answer."""
    async with federation(tmp_path, answer_timeout=30.0) as fed:
        await fed.begin(NAMES)
        await fed.reach(1)
        desk = Desk(fed)
        for name in NAMES[:3]:
            await fed.stop(name)
            await desk("revoke", name)
        rotated = await desk("rotate", *PLAN)
        assert "epoch 2 from version" in rotated.output, rotated.exception
        await desk.reach(3)


async def test_an_epoch_that_is_declined_is_declined_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent whose floor asks for more than the epoch gives says so, and waits for another epoch."""
    async with federation(tmp_path) as fed:
        await fed.join(NAMES[1:], lambda name: Nudge())
        fed.floor = LocalFloor(max_colluders=6)
        fed.launch(fed.profile("ann", await fed.invite("ann")), Nudge())
        await fed.admit(["ann"])
        with caplog.at_level(logging.INFO):
            await fed.start_epoch(SMALL)
            await fed.reach(1)
            await asyncio.sleep(3)
        assert caplog.messages.count("epoch declined") == 1
