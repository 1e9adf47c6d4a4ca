"""An epoch with protection 'none' over real TLS: who was told to sends in clear, and nobody else ever does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import numpy as np
from service_harness import SMALL, Federation, Nudge, federation

from basecagg.errors import StaleUpdate
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Message, PlainUpdate, Refusal, Upload
from basecagg.service.server.host import EpochHost

TERMS = ProtocolParameters.in_clear(buffer_size=3, model_size=SMALL.model_size)
STRICT = LocalFloor(consistency="certified", correctness="agreed", verify="always")
TOLD = LocalFloor(allow_clear=True, verify="always")
ALLOW, REFUSE = [f"user-{index}" for index in range(4)], ["user-4", "user-5"]


class Ear:
    """Everything that members have sent to the machine."""

    def __init__(self, monkeypatch) -> None:
        self.heard: list[tuple[str, Message]] = []
        receive = EpochHost.receive

        def listen(host: EpochHost, sender: str, message: Message) -> None:
            self.heard.append((sender, message))
            receive(host, sender, message)

        monkeypatch.setattr(EpochHost, "receive", listen)

    def senders(self, kind: type[Message]) -> set[str]:
        return {name for name, message in self.heard if isinstance(message, kind)}


async def everybody(fed: Federation, refusing: LocalFloor) -> None:
    for names, floor in ((ALLOW, TOLD), (REFUSE, refusing)):
        fed.floor = floor
        await fed.join(names, lambda name: Nudge())
    await fed.operator.set_model(np.zeros(TERMS.model_size, "<f4"))
    await fed.operator.start(TERMS)


async def test_only_who_wrote_it_down_sends_in_clear(tmp_path: Path, monkeypatch) -> None:
    ear = Ear(monkeypatch)
    async with federation(tmp_path, open_here=True) as fed:
        await everybody(fed, STRICT)
        await fed.reach(4)  # each made again by who trains from it
        overview = await fed.operator.look()
        async with httpx.AsyncClient(base_url=fed.url, verify=fed.tls) as browser:
            status = (await browser.get("/status")).json()
        vector, _ = await fed.operator.fetch_model(), await asyncio.sleep(0)
        assert 0 < np.mean(vector[1]) <= 1.1
    assert ear.senders(PlainUpdate) <= set(ALLOW)
    assert len(ear.senders(PlainUpdate)) >= 3
    assert ear.senders(Upload) == set()
    assert overview.protection == status["epoch"]["protection"] == "none"


async def test_the_control_told_agents_all_send_in_clear(tmp_path: Path, monkeypatch) -> None:
    ear = Ear(monkeypatch)
    async with federation(tmp_path) as fed:
        await everybody(fed, TOLD)
        async with asyncio.timeout(60):
            while ear.senders(PlainUpdate) != {*ALLOW, *REFUSE}:
                await asyncio.sleep(0.05)
    refusals = [m for _, m in ear.heard if isinstance(m, Refusal)]
    assert {m.code for m in refusals} <= {StaleUpdate.__name__}


async def test_a_protected_epoch_may_follow_and_precede(tmp_path: Path, monkeypatch) -> None:
    """The same people and folders; what was allowed is not used where it is not needed."""
    ear = Ear(monkeypatch)
    async with federation(tmp_path) as fed:
        fed.floor = LocalFloor(
            consistency="certified", correctness="agreed", allow_clear=True, verify="always"
        )
        names = [f"user-{index}" for index in range(7)]
        await fed.begin(names)
        await fed.reach(1)
        assert ear.senders(PlainUpdate) == set()
        for terms, kind in ((TERMS, PlainUpdate), (SMALL, Upload)):
            version = await fed.version()
            await fed.close_epoch()
            await fed.operator.end_epoch()
            await fed.operator.settle_model(None)
            ear.heard.clear()
            await fed.start_epoch(terms)
            await fed.reach(version + 1)
            await fed.reach(await fed.version() + 1)
            other = Upload if kind is PlainUpdate else PlainUpdate
            assert len(ear.senders(kind)) >= 3
            assert ear.senders(other) == set()


async def test_a_server_that_stops_goes_on_where_it_was(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await everybody(fed, STRICT)
        await fed.reach(1)
        await fed.stop_server()
        await fed.start_server()
        await fed.reach(await fed.version() + 2)
