"""The one thread that owns the machine and its store, so that the event loop never waits for a disk.

Jobs that arrive while it is busy are done in one go and made durable in one transaction; only then are
their callers answered.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from basecagg.service.problems import Problem, busy

_MOST_AT_ONCE = 64
Result = TypeVar("Result")


class Owner(Protocol):
    """What the thread owns."""

    def flush(self) -> None:
        """Make the jobs done so far durable."""
        ...

    def recover(self) -> None:
        """A job or `flush` failed: go back to what is durable."""
        ...


class _Job(NamedTuple):
    run: Callable[[], Any]
    future: asyncio.Future[Any]


class MachineThread:
    """Does jobs in order. A `Problem` is an answer like any other; every other exception undoes its batch."""

    def __init__(self, owner: Owner, most_waiting: int = 512) -> None:
        """Start the thread; `close` ends it."""
        self._owner = owner
        self._most_waiting = most_waiting
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._is_behind = False
        """Whether the owner could not go back to what is durable, and has to before anything else."""
        self._thread = threading.Thread(target=self._work, name="machine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that wait for the thread."""
        return self._jobs.qsize()

    async def do(self, run: Callable[[], Result]) -> Result:
        """Run the job in the thread; its effects are durable when this returns. 503 if too many wait."""
        if self.waiting >= self._most_waiting:
            raise busy(f"{self.waiting} messages wait already")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put(_Job(run, future))
        return await future

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while self._do_next():
            pass  # and nothing of the last batch is kept in memory while waiting for the next

    def _do_next(self) -> bool:
        batch = self._take()
        if batch is None:
            return False
        results = self._do_together([job.run for job in batch])
        self._loop.call_soon_threadsafe(_answer, batch, results)
        return True

    def _take(self) -> list[_Job] | None:
        """The next job and those right behind it; None at the end."""
        first = self._jobs.get()
        if first is None:
            return None
        batch = [first]
        while len(batch) < _MOST_AT_ONCE:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)
                break
            batch.append(job)
        return batch

    def _do_together(self, runs: list[Callable[[], Any]]) -> list[Any]:
        try:
            self._catch_up()
            results = [_attempt(run) for run in runs]
            self._owner.flush()
            return results
        except Exception as error:
            failure = self._recover() or error
            if len(runs) == 1 or self._is_behind:
                return [failure] * len(runs)
            # One of them is to blame: alone, it fails alone.
            return [self._do_together([run])[0] for run in runs]

    def _catch_up(self) -> None:
        if self._is_behind:
            self._owner.recover()
            self._is_behind = False

    def _recover(self) -> Exception | None:
        """Go back to what is durable. If even that fails, the thread lives on and tries before the next job."""
        try:
            self._owner.recover()
        except Exception as error:
            self._is_behind = True
            return error
        return None


def _attempt(run: Callable[[], Result]) -> Result | Problem:
    try:
        return run()
    except Problem as problem:
        return problem


def _answer(batch: list[_Job], results: list[Any]) -> None:
    for job, result in zip(batch, results, strict=True):
        if job.future.done():  # its caller has hung up
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
