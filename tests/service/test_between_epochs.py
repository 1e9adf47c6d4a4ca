"""A fault at any commit between two epochs: the order is repeated, the ledger is kept, the rest is erased."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from direct import MemoryEpoch, direct
from service_harness import GIVE_UP, SMALL, announced

from basecagg.channels.wire import pack
from basecagg.errors import LeaseLost, PassingFault
from basecagg.protocol.effects import Write
from basecagg.protocol.stored import write
from basecagg.service.operator import office
from basecagg.service.page.figures import metrics
from basecagg.service.problems import STORE_FAULT, Problem
from basecagg.service.server.buffer_log import BufferEntry, stored_entries
from basecagg.storage.in_memory import MemoryStore

ENTRY = BufferEntry(version=0, outcome="opened", members=("a", "b"), digest=bytes(32))


class Ground:
    """Counts what is written, and fails once, before or after it is done."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.after = False
        self.failures = 0

    def meet(self, act) -> None:
        fails = self.left == 0
        if self.left is not None:
            self.left -= 1
        if not fails or self.after:
            act()
        if fails:
            self.failures += 1
            raise PassingFault("cannot write", "the disk is full")


@pytest.mark.parametrize("after", [False, True], ids=["undone", "done"])
def test_nothing_is_lost_between_two_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """`after`: the connection is cut when the database has carried it out, and nobody knows."""
    failed = 0
    for step in range(12):
        with monkeypatch.context() as patch:
            failed += asyncio.run(story(tmp_path / str(step), patch, step, after))
    assert failed >= 4  # charter, ledger, erasing and the note that it is done, at least


async def story(folder: Path, patch: pytest.MonkeyPatch, step: int, after: bool) -> int:
    ground, commit, erase = Ground(), MemoryStore.commit, MemoryEpoch.erase

    def committing(store: MemoryStore, writes: Sequence[Write]) -> None:
        is_ours = isinstance(store, MemoryEpoch) and not any(w.kind == "proof" for w in writes)
        act = lambda: commit(store, writes)  # noqa: E731
        ground.meet(act) if is_ours else act()

    patch.setattr(MemoryStore, "commit", committing)
    patch.setattr(MemoryEpoch, "erase", lambda store: ground.meet(lambda: erase(store)))
    patch.setattr(office, "_PAUSE", 0.05)
    async with direct(folder) as scene:
        first, service = scene.service.epochs.host, scene.service
        assert first is not None
        first._store._store.commit([write("ledger", "0/x", ENTRY)])
        await scene.operator.close_epoch()
        while service.epochs.phase != "closed":
            await asyncio.sleep(0.05)
        await scene.operator.end_epoch()
        for name, profile in scene.profiles.items():
            await scene.member(name).call(
                "PUT", "/v1/holder-key", pack(announced(profile, after=1))
            )
        await scene.operator.look()
        ground.left, ground.after = step, after
        await scene.operator.start(SMALL)
        ground.left = None
        async with asyncio.timeout(GIVE_UP):
            while service.epochs.registry.leaving or service.worker.fault is not None:
                await asyncio.sleep(0.02)
        second = service.epochs.host
        assert second is not None
        assert second.agreement.epoch.number == 2
        assert len(service.epochs.store.scan("ledger:1")) == 1
        assert stored_entries(first._store._store) == []
        assert first._store._store.snapshot() == {}  # type: ignore[attr-defined]
        assert (await scene.operator.look()).phase == "open"
    return ground.failures


async def test_the_fault_is_named_to_whoever_may_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health is for whoever would kill the process, readiness for callers, the reason for the operator."""

    def fail(writes: Sequence[Write]) -> None:
        raise PassingFault("cannot write /secret/place", "the disk is full")

    async with direct(tmp_path) as scene:
        service, worker = scene.service, scene.service.worker
        for path in ("/healthz", "/readyz"):
            assert (await scene.client.get(path)).status_code == 200
        with monkeypatch.context() as broken:
            broken.setattr(service.epochs._durable, "commit", fail)
            with pytest.raises(Problem, match="waits for its store"):
                await worker.do(lambda: service.epochs.note("something"))
            assert (await scene.client.get("/healthz")).status_code == 200
            reply = await scene.client.get("/readyz")
            assert reply.status_code == 503
            assert "the disk is full" in reply.json()["fault"]
            assert "/secret/place" not in reply.text
            with pytest.raises(Problem, match="the disk is full") as caught:
                await scene.operator.look(patient=False)
            assert (caught.value.code, caught.value.retry_after) == (STORE_FAULT, 1)
            assert "basecagg_store_failing 1" in metrics(service)
        async with asyncio.timeout(GIVE_UP):
            while worker.fault is not None:
                await asyncio.sleep(0.05)
        worker.defect = LeaseLost("another process has it")
        assert (await scene.client.get("/healthz")).status_code == 503
        assert (await scene.client.get("/readyz")).status_code == 503
        worker.defect = None
