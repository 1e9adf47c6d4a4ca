"""The thread that owns the machine: in order, together, durable before anybody is answered."""

from __future__ import annotations

import asyncio
import threading

import pytest

from basecagg.errors import StorageError
from basecagg.protocol.effects import Forget, Persist
from basecagg.service.problems import Problem
from basecagg.service.server.group_commit import GroupCommit
from basecagg.service.server.worker import MachineThread
from basecagg.storage.memory import MemoryStore


class Owner:
    """Remembers what was flushed; fails on demand."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.durable: list[list[int]] = []
        self.recovered = 0
        self.fails = 0

    def flush(self) -> None:
        if self.fails:
            self.fails -= 1
            raise StorageError("the disk is full")
        self.durable.append(self.done)
        self.done = []

    def recover(self) -> None:
        self.recovered += 1
        self.done = []

    def job(self, number: int):
        def run() -> int:
            self.done.append(number)
            return number

        return run


def with_worker(story, **options) -> Owner:
    owner = Owner()

    async def whole() -> None:
        worker = MachineThread(owner, **options)
        try:
            await story(worker, owner)
        finally:
            await worker.close()

    asyncio.run(whole())
    return owner


def test_jobs_that_wait_are_made_durable_together() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        gate = threading.Event()
        first = asyncio.create_task(worker.do(gate.wait))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(worker.do(owner.job(number))) for number in range(5)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in others)
        gate.set()
        await first
        assert await asyncio.gather(*others) == list(range(5))

    assert with_worker(story).durable == [[], [0, 1, 2, 3, 4]]


def test_a_failed_commit_is_undone_and_tried_one_by_one() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        owner.fails = 1
        gate = threading.Event()
        tasks = [asyncio.create_task(worker.do(gate.wait))]
        await asyncio.sleep(0.05)
        tasks += [asyncio.create_task(worker.do(owner.job(number))) for number in range(3)]
        gate.set()
        with pytest.raises(StorageError):  # alone in its batch, so it failed alone
            await tasks[0]
        assert await asyncio.gather(*tasks[1:]) == [0, 1, 2]

    assert with_worker(story).recovered == 1


def test_a_job_that_fails_takes_nobody_with_it() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        gate = threading.Event()
        first = asyncio.create_task(worker.do(gate.wait))
        await asyncio.sleep(0.05)
        good = asyncio.create_task(worker.do(owner.job(1)))
        bad = asyncio.create_task(worker.do(lambda: 1 // 0))
        last = asyncio.create_task(worker.do(owner.job(2)))
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


def test_a_failed_way_back_does_not_end_the_thread() -> None:
    """The database is gone, or somebody else's: every caller is told, and it is tried again with the next."""

    async def story(worker: MachineThread, owner: Owner) -> None:
        def fail() -> None:
            raise StorageError("no way back")

        owner.fails, recover, owner.recover = 1, owner.recover, fail
        async with asyncio.timeout(10):
            for _ in range(3):
                with pytest.raises(StorageError, match="no way back"):
                    await worker.do(owner.job(1))
            owner.recover = recover
            assert await worker.do(owner.job(2)) == 2

    owner = with_worker(story)
    assert owner.recovered == 1
    assert owner.durable[-1] == [2]


def test_too_many_jobs_are_put_off() -> None:
    async def story(worker: MachineThread, owner: Owner) -> None:
        gate = threading.Event()
        tasks = [asyncio.create_task(worker.do(gate.wait))]
        await asyncio.sleep(0.05)
        tasks += [asyncio.create_task(worker.do(gate.wait)) for _ in range(2)]
        await asyncio.sleep(0.05)
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
