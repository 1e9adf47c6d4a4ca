"""Models of the sizes that people have, and messages that do not fit through the line."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from service_harness import SMALL, Nudge, federation

from basecagg.channels.wire import limit_for
from basecagg.errors import TooLarge
from basecagg.options import Masks
from basecagg.planning.planner import plan
from basecagg.protocol.messages import MaskName, PlainUpdate, Refusal, Shipment
from basecagg.service.agent.agent import Agent
from basecagg.service.connection import Patience
from basecagg.service.framing import Body, length_of
from basecagg.service.problems import Problem
from basecagg.service.server import host

NAMES = ["ann", "bob", "cem", "dee"]
FOUR = replace(SMALL, num_holders=4, recovery_threshold=2, max_colluders=1, max_dropouts=1)


@pytest.mark.parametrize(
    ("size", "masks"), [(20_000, "long"), (10**6, "long"), (10**5, "keys"), (10**6, "keys")]
)
def test_agents_train_models_of_usual_sizes(tmp_path: Path, size: int, masks: Masks) -> None:
    """Two long masks of the smaller model fit into a shipment, of the larger one only one; keys always fit."""

    async def story() -> None:
        async with federation(tmp_path) as fed:
            await fed.join(NAMES, lambda name: Nudge())
            await fed.start_epoch(replace(FOUR, model_size=size, masks=masks, modulus=None))
            await fed.reach(2)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("holders", "dropouts", "buffer"),
    [(4, 1, 3), (5, 1, 3), (10, 2, 5), (12, 3, 5), (50, 10, 10), (1000, 300, 100)],
)
@pytest.mark.parametrize("size", [10**3, 10**5, 10**8])
def test_as_many_masks_as_may_be_dealt_ahead_fit_into_a_shipment(
    holders: int, dropouts: int, buffer: int, size: int
) -> None:
    p = plan(
        num_holders=holders, max_dropouts=dropouts, buffer_size=buffer, model_size=size
    ).parameters
    shares = p.mask_quota * holders * p.word_bytes * p.share_size
    assert shares < limit_for(Shipment, p) < 1.1 * shares + holders * 8192


def test_what_is_too_large_is_not_sent_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Four holders go on holding, and say once why nothing comes of them; who only contributes ends."""
    fits = host.limit_for
    monkeypatch.setattr(
        host, "limit_for", lambda kind, p: 100 if kind is Shipment else fits(kind, p)
    )

    async def story() -> None:
        async with federation(tmp_path) as fed:
            await fed.join(NAMES, lambda name: Nudge())
            fed.launch(fed.profile("eve", await fed.invite("eve", "contributor")), Nudge())
            await fed.admit(["eve"])
            eve = fed.agents.pop("eve")
            await fed.start_epoch(FOUR)

            async def all_said() -> bool:
                return eve.done() and len(_said(caplog)) == len(NAMES)

            await fed.until(all_said)
            with pytest.raises(TooLarge, match=r"a Shipment of .* MB is not let through"):
                await eve
            await asyncio.sleep(0.5)
            assert len(_said(caplog)) == len(NAMES)
            assert not any(agent.done() for agent in fed.agents.values())

    with caplog.at_level(logging.INFO):
        asyncio.run(story())


async def test_small_messages_pass_beside_one_that_is_too_large() -> None:
    """A holder's receipts still reach their dealers."""
    sent: list[int] = []

    class Narrow:
        async def call(self, method: str, path: str, body: Body) -> None:
            if length_of(body) > 1000:
                raise Problem(413, "TooLarge", "1000 bytes at most")
            sent.append(length_of(body))

    agent = object.__new__(Agent)
    agent._connection = Narrow()  # type: ignore[assignment]
    agent._persist = Patience().persist
    small, large = (
        Refusal("X", "y"),
        PlainUpdate.unsigned(MaskName("ann", bytes(16)), 0, bytes(32), bytes(2000)),
    )
    with pytest.raises(TooLarge, match="a PlainUpdate of"):
        await agent._send([large, small])
    assert len(sent) == 1


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "no updates in this epoch" in text]
