"""A sum that a liar spoiled: its honest members are left out of the next for a while, by the server's clock."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import numpy as np
import pytest
from parties import SIZE, make_federation
from service_harness import GIVE_UP, SMALL, Nudge, federation

from basecagg.protocol import contributor as contributor_module
from basecagg.protocol.server import Server
from basecagg.service.server.host import EpochHost
from basecagg.service.server.registry import Charter
from basecagg.storage.in_memory import MemoryStore
from lying import SIGN, lie_if_marked

PARAMETERS = replace(SMALL, buffer_size=3, max_colluders=1, max_colluding_contributors=1)
NAMES = [f"user-{index}" for index in range(7)]
LIAR, AWAY = "user-2", ("user-4", "user-5", "user-6")


class Liar(Nudge):
    """It lies the first time."""

    async def __call__(self, model, info):
        trained = await super().__call__(model, info)
        return trained - SIGN if self.calls == 1 else trained


class Away(Nudge):
    """It has dealt masks, and never comes back from training."""

    async def __call__(self, model, info):
        await asyncio.sleep(10 * GIVE_UP)


def training(name: str) -> Nudge:
    if name == LIAR:
        return Liar()
    return Away() if name in AWAY else Nudge(seconds=3.0 if name == "user-3" else 0.0)


async def test_the_service_pardons_those_who_were_in_a_spoiled_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(contributor_module, "hide", lie_if_marked)
    async with federation(tmp_path) as fed:
        await fed.join(NAMES, training)
        await fed.start_epoch(PARAMETERS)
        for _ in range(240):  # a busy machine is slow, not at a standstill
            await asyncio.sleep(0.5)
            if await fed.version():
                break
        assert await fed.version() >= 1


def test_a_wait_that_ends_by_itself_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The control: that too few holders are there is one, also when it comes while members are left out."""
    federation = make_federation()
    agreement, signer = federation.agreement, federation.identity("server")
    host = EpochHost(
        agreement, signer, MemoryStore(), np.zeros(SIZE, np.float32), Charter(phase="open")
    )

    def told(*, waits: bool, absent: int) -> list[tuple[str, str]]:
        caplog.clear()
        monkeypatch.setattr(Server, "waits_for_others", waits)
        host.hear_of_absence(dict.fromkeys(agreement.holder_names[:absent], "silent"))
        return [(record.levelname, record.message) for record in caplog.records]

    everybody = len(agreement.holder_names)
    with caplog.at_level(logging.INFO):
        assert told(waits=True, absent=0) == [("INFO", "no sum is opened yet")]
        assert told(waits=True, absent=0) == []
        assert told(waits=True, absent=everybody) == [("ERROR", "no sum is opened")]
        assert told(waits=True, absent=0) == []
        assert told(waits=False, absent=0) == [("INFO", "sums are opened again")]
        assert told(waits=False, absent=everybody) == [("ERROR", "no sum is opened")]
