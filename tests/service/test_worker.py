"""The thread that owns the machine: in order, together, durable before anybody is answered."""

from __future__ import annotations

import asyncio
import threading

import pytest

from basecagg.errors import LeaseLost, PassingFault
from basecagg.protocol.effects import Forget, Persist
from basecagg.service.problems import Problem
from basecagg.service.server.group_commit import GroupCommit
from basecagg.service.server.worker import Defect, MachineThread
from basecagg.storage.in_memory import MemoryStore


class Owner:
    """Remembers what was flushed; fails on demand."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.durable: list[list[int]] = []
        self.recovered = 0
        self.fails = 0
        self.stays_down = 0
        self.damage: Exception | None = None

    def flush(self) -> None:
        if self.damage:
            raise self.damage
        if self.fails:
            self.fails -= 1
            raise PassingFault("cannot write", "the disk is full")
        self.durable.append(self.done)
        self.done = []

    def recover(self) -> None:
        self.fails = 0
        if self.stays_down:
            self.stays_down -= 1
            raise PassingFault("cannot read", "the disk is still full")
        self.recovered += 1
        self.done = []

    def job(self, number: int):
        def run() -> int:
            self.done.append(number)
            return number

        return run


async def persist(worker: MachineThread, job):
    async with asyncio.timeout(120):
        while True:
            try:
                return await worker.do(job)
            except Problem:
                await asyncio.sleep(0.05)


async def keep_busy(worker: MachineThread) -> tuple[threading.Event, asyncio.Task[object]]:
    """A gate, and the job that the thread has begun with, alone, and which waits there."""
    begun, gate = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        gate.wait()

    task = asyncio.create_task(worker.do(job))
    assert await asyncio.to_thread(begun.wait, 60)
    return gate, task


def with_worker(story, **options) -> Owner:
    owner = Owner()

    async def whole() -> None:
        worker = MachineThread(owner.flush, owner.recover, **options)
        try:
            await story(worker, owner)
        finally:
            await worker.close()

    asyncio.run(whole())
    return owner


def test_jobs_that_wait_are_made_durable_together() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        gate, first = await keep_busy(worker)
        others = [asyncio.create_task(worker.do(owner.job(number))) for number in range(5)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in others)
        gate.set()
        await first
        assert await asyncio.gather(*others) == list(range(5))

    assert with_worker(story).durable == [[], [0, 1, 2, 3, 4]]


def test_callers_are_put_off_while_the_ground_fails_and_it_goes_on_by_itself() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        owner.fails = owner.stays_down = 3
        gate, first = await keep_busy(worker)
        tasks = [first]
        tasks += [asyncio.create_task(worker.do(owner.job(number))) for number in range(3)]
        await asyncio.sleep(0)  # now their jobs wait
        gate.set()
        for task in tasks:
            with pytest.raises(Problem, match="waits for its store") as caught:
                await task
            assert (caught.value.status, caught.value.code) == (503, "StoreFault")
            assert caught.value.retry_after
        assert worker.can_go_on
        assert await persist(worker, owner.job(7)) == 7
        assert worker.fault is None

    owner = with_worker(story)
    assert owner.durable[-1] == [7]
    assert owner.recovered >= 1


def test_what_does_not_pass_ends_it_all() -> None:
    """Damage at the flush, and a machine that cannot be built again."""

    async def damaged(worker: MachineThread, owner: Owner) -> None:
        owner.damage = LeaseLost("another process has it")
        with pytest.raises(Problem, match="its log says why"):
            await worker.do(owner.job(1))
        assert not worker.can_go_on
        assert isinstance(worker.defect, LeaseLost)
        with pytest.raises(Problem, match="its log says why"):
            await worker.do(owner.job(2))

    async def broken(worker: MachineThread, owner: Owner) -> None:
        worker._go_back = lambda: 1 // 0
        with pytest.raises(ZeroDivisionError):
            await worker.do(lambda: 1 // 0)
        assert isinstance(worker.defect, Defect)
        assert not worker.can_go_on

    assert with_worker(damaged).durable == []
    assert with_worker(broken).durable == []


def test_it_can_be_closed_while_the_ground_fails() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        owner.fails = owner.stays_down = 10**9
        with pytest.raises(Problem, match="waits for its store"):
            await worker.do(owner.job(1))

    assert with_worker(story).durable == []


def test_a_job_that_fails_takes_nobody_with_it() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        gate, first = await keep_busy(worker)
        good = asyncio.create_task(worker.do(owner.job(1)))
        bad = asyncio.create_task(worker.do(lambda: 1 // 0))
        last = asyncio.create_task(worker.do(owner.job(2)))
        await asyncio.sleep(0)  # now their jobs wait
        gate.set()
        await first
        with pytest.raises(ZeroDivisionError):
            await bad
        assert await asyncio.gather(good, last) == [1, 2]

    owner = with_worker(story)
    assert owner.recovered == 2
    assert owner.durable[-2:] == [[1], [2]]


def test_a_problem_is_an_answer_and_undoes_nothing() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        def refuse() -> None:
            raise Problem(409, "No", "no")

        with pytest.raises(Problem, match="no"):
            await worker.do(refuse)

    assert with_worker(story).recovered == 0


def test_too_many_jobs_are_put_off() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        gate, first = await keep_busy(worker)
        tasks = [first, *(asyncio.create_task(worker.do(gate.wait)) for _ in range(2))]
        await asyncio.sleep(0)  # now their jobs wait
        with pytest.raises(Problem) as caught:
            await worker.do(gate.wait)
        assert caught.value.status == 503
        assert caught.value.retry_after
        gate.set()
        await asyncio.gather(*tasks)

    with_worker(story, most_waiting=2)


def test_a_group_is_readable_before_it_is_durable() -> None:
    store = MemoryStore()
    store.commit([Persist("k", "old", b"1"), Persist("k", "gone", b"2")])
    group = GroupCommit(store)
    group.commit([Persist("k", "new", b"3"), Forget("k", "gone"), Persist("other", "new", b"4")])
    assert group.read("k", "new") == b"3"
    assert group.read("k", "gone") is None
    assert group.scan("k") == [("new", b"3"), ("old", b"1")]
    assert group.keys("k") == ["new", "old"]
    assert store.scan("k") == [("gone", b"2"), ("old", b"1")]
    group.flush()
    assert store.scan("k") == [("new", b"3"), ("old", b"1")]
    group.commit([Forget("k", "old")])
    group.discard()
    group.flush()
    assert store.read("k", "old") == b"1"
