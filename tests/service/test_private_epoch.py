"""An epoch with a budget, over the service: agents add noise, keep their ledgers, and stop when they must."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from service_harness import SMALL, Federation, Nudge, federation

from basecagg.commands import operator
from basecagg.maths.randomness import Words
from basecagg.maths.staleness import polynomial
from basecagg.privacy import Privacy
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Released
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.messages import MaskName
from basecagg.service.server.buffer_log import BufferLog
from basecagg.service.training import RoundInfo, Vector
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.participant_store import ParticipantStore

NAMES = [f"user-{index}" for index in range(7)]
USES = 2
PRIVATE = replace(
    SMALL,
    update_levels=2**10,
    staleness=polynomial(),
    privacy=Privacy(
        clip_norm=1.0,
        noise=2.0,
        epsilon=4.0,
        delta=1e-5,
        max_uses=USES,
    ),
)


def uses_of(fed: Federation, name: str) -> int:
    """As its ledger on the disk says, once the agent has stopped."""
    path = next((fed.folder / name).glob("*.db"))
    with ParticipantStore(path, "participant", anchor_folder=fed.folder / "anchors") as store:
        return PrivacyLedger(store).uses


async def test_every_agent_stops_when_its_budget_is_spent(tmp_path: Path) -> None:
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
        uses = [uses_of(fed, name) for name in NAMES]
        assert max(uses) == USES
        assert sum(uses) >= 2 * PRIVATE.buffer_size
        assert all(training.calls <= USES + 1 for training in trainings.values())


OF_RECORDS = replace(
    PRIVATE,
    clip=20.0,
    privacy=Privacy(
        clip_norm=1.0,
        noise=2.0,
        epsilon=1.0,
        delta=1e-5,
        max_uses=20,
        unit="record",
        sampling_rate=0.05,
        max_records=20,
    ),
)


class Attentive(Nudge):
    """Keeps what it is told of the privacy."""

    async def __call__(self, model: Vector, info: RoundInfo) -> Vector:
        self.told = info.privacy
        return await super().__call__(model, info)


async def test_training_is_told_of_records(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        training = Attentive()
        fed.floor = replace(fed.floor, unit="record")
        await fed.join(NAMES, lambda name: training)
        await fed.start_epoch(OF_RECORDS)
        await fed.reach(1)
        assert training.told == OF_RECORDS.privacy
        for name in NAMES:
            await fed.stop(name)
        assert sum(uses_of(fed, name) for name in NAMES) >= OF_RECORDS.buffer_size


BOUNDED = replace(
    PRIVATE,
    privacy=Privacy(clip_norm=1.0),
    max_colluding_contributors=2,
    min_per_version=None,
)


async def test_the_operator_sees_who_was_in_sums_that_were_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of seven send far more than they may: one is in every sum. A restart does not forget that."""
    honest, liars = Contributor._hide, NAMES[:4]

    def hide(self: Contributor, *arguments: Any) -> tuple[Words, int]:
        words, clipped = honest(self, *arguments)
        if self.name in liars:
            words[0] = (int(words[0]) + 2**25) % SMALL.modulus
        return words, clipped

    monkeypatch.setattr(Contributor, "_hide", hide)

    async with federation(tmp_path) as fed:
        await fed.join(NAMES, lambda name: Nudge())
        await fed.start_epoch(BOUNDED)
        async with asyncio.timeout(60):
            while not (seen := (await fed.operator.look()).unapplied):
                await asyncio.sleep(0.05)
        assert len(seen) >= BOUNDED.buffer_size
        assert set(seen) & set(liars)
        await fed.stop_server()
        await fed.start_server()
        after = (await fed.operator.look()).unapplied
        assert all(after[name] >= count for name, count in seen.items())
        fed.operator.close()
        place = ["--folder", str(fed.folder / "operator")]
        place += ["--anchors", str(fed.folder / "anchors")]
        ask = partial(CliRunner().invoke, operator.command, [*place, "status"])
        told = (await asyncio.to_thread(ask)).output
        named = [line for line in told.splitlines() if "too long to be honest" in line]
        assert {line.split()[0] for line in named} >= set(seen)


def test_the_server_notes_who_was_in_a_sum_that_was_not_applied() -> None:
    members = tuple(MaskName(name, bytes(16)) for name in NAMES[:3])
    for applied in (True, False):
        ledger = BufferLog(MemoryStore(), NAMES)
        news = Released(5, members, (5,) * 3, (1.0,) * 3, np.zeros(2), applied=applied)
        ledger.record(news, 0.0)
        (entry,) = ledger.take_news()
        assert entry.members == tuple(member.key for member in members)
        assert ("not applied" in entry.reason) is not applied
        assert ledger.unapplied == ({} if applied else dict.fromkeys(NAMES[:3], 1))
