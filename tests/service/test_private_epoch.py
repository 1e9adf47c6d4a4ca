"""An epoch with a budget, over the service: agents add noise, keep their ledgers, and stop when they must."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
from service_harness import SMALL, Federation, Nudge, federation

from basecagg.maths.staleness import polynomial
from basecagg.privacy import Privacy
from basecagg.protocol.effects import Released
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.messages import MaskName
from basecagg.service.server.ledger import Ledger
from basecagg.storage.memory import MemoryStore
from basecagg.storage.participant import ParticipantStore

NAMES = [f"user-{index}" for index in range(7)]
USES = 2
PRIVATE = replace(
    SMALL,
    update_levels=2**10,
    weight_levels=1,
    privacy=Privacy(
        clip_norm=1.0,
        noise=2.0,
        epsilon=4.0,
        delta=1e-5,
        max_uses=USES,
        staleness=polynomial(),
    ),
)


def ledger_of(fed: Federation, name: str) -> PrivacyLedger:
    """As it lies on the disk, once the agent has stopped."""
    path = next((fed.folder / name).glob("*.db"))
    with ParticipantStore(path, "participant", anchor_folder=fed.folder / "anchors") as store:
        return PrivacyLedger(store)


def test_every_agent_stops_when_its_budget_is_spent(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path) as fed:
            trainings = {name: Nudge() for name in NAMES}
            await fed.join(NAMES, trainings.__getitem__)
            await fed.start_epoch(PRIVATE)
            await fed.reach(2)
            assert np.ptp(await fed.model()) > 0.1  # there is noise in it

            async def all_have_stopped() -> bool:
                return sum(training.calls for training in trainings.values()) >= USES * 4

            await fed.until(all_have_stopped)
            await asyncio.sleep(0.5)
            for name in NAMES:
                await fed.stop(name)
            uses = [ledger_of(fed, name).uses for name in NAMES]
            assert max(uses) == USES
            assert sum(uses) >= 2 * PRIVATE.buffer_size
            assert all(training.calls <= USES + 1 for training in trainings.values())

    asyncio.run(story())


def test_the_server_notes_who_was_in_a_sum_that_was_not_applied() -> None:
    members = tuple(MaskName(name, bytes(16)) for name in NAMES[:3])
    for applied in (True, False):
        ledger = Ledger(MemoryStore(), NAMES)
        news = Released(5, members, (5,) * 3, (1.0,) * 3, np.zeros(2), applied=applied)
        ledger.record(news, 0.0)
        (entry,) = ledger.take_news()
        assert entry.members == tuple(member.key for member in members)
        assert ("not applied" in entry.reason) is not applied
