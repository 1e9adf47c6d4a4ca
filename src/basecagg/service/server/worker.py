"""The one thread that owns the machine and its store, so that the event loop never waits for a disk.

Jobs that arrive while it is busy are done in one go and made durable in one transaction; only then are
their callers answered. When disk or database fails for a while (full, gone), the thread goes back to what is
durable as soon as it can, and callers are put off meanwhile. A failure that does not pass ends the process.
"""

import asyncio
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from basecagg.errors import BASecAggError, PassingFault, StorageError
from basecagg.service.logs import Log
from basecagg.service.problems import STORE_FAULT, Problem, busy

_MOST_AT_ONCE = 64
_SHORTEST, _LONGEST = 0.1, 5.0
"""Seconds between two attempts to go back to what is durable."""
Result = TypeVar("Result")
_LOG = Log("basecagg.service")


class Defect(BASecAggError):  # noqa: N818 - it names what is broken
    """The machine cannot be built from its store: the process has to end, and a person may have to look."""


class _Job(NamedTuple):
    run: Callable[[], Any]
    future: asyncio.Future[Any]


class MachineThread:
    """Does jobs in order. A `Problem` is an answer like any other; any other exception undoes its batch."""

    def __init__(
        self, flush: Callable[[], None], recover: Callable[[], None], most_waiting: int = 512
    ) -> None:
        """Start the thread; `close` ends it.

        `flush` makes the jobs done so far durable; if it or a job fails, `recover` goes back to what is.
        """
        self._flush = flush
        self._go_back = recover
        self._most_waiting = most_waiting
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self.fault: PassingFault | None = None
        """Why nothing can be done at present; the thread gets over it by itself."""
        self.defect: BASecAggError | None = None
        """Why nothing will ever be done again: the process has to end."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="machine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that wait for the thread."""
        return self._jobs.qsize()

    @property
    def can_go_on(self) -> bool:
        """Whether the thread is alive and stays so. It may be waiting for its disk."""
        return self.defect is None and self._thread.is_alive()

    async def do(self, run: Callable[[], Result], *, is_reserved: bool = False) -> Result:
        """Run the job in the thread; its effects are durable when this returns. 503 if it cannot be done now.

        There is always room for a reserved job: members' messages do not keep the operator out.
        """
        if self.fault is not None or self.defect is not None:
            raise self._put_off()
        if self.waiting >= self._most_waiting and not is_reserved:
            raise busy(f"{self.waiting} messages wait already")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put(_Job(run, future))
        return await future

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._closing.set()
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while self._do_next():
            pass  # and nothing of the last batch is kept in memory while waiting for the next

    def _do_next(self) -> bool:
        first = self._jobs.get()
        if first is None:
            return False
        self._do_batch([first, *self._take_more()])
        if self.fault is not None:
            self._get_over_it()
        return True

    def _do_batch(self, batch: list[_Job]) -> None:
        results = self._do_together([job.run for job in batch])
        self._loop.call_soon_threadsafe(_answer, batch, results)

    def _take_more(self) -> list[_Job]:
        """The jobs right behind the one that was taken."""
        batch = list[_Job]()
        while len(batch) < _MOST_AT_ONCE - 1:
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
        if self.fault is not None or self.defect is not None:
            return [self._put_off()] * len(runs)
        try:
            results = [_attempt(run) for run in runs]
            self._flush()
            return results
        except StorageError as failure:
            self._note(failure)
            return [self._put_off()] * len(runs)
        except Exception as error:
            self._recover()
            if len(runs) == 1:
                return [error]
            # One of them is to blame: alone, it fails alone.
            return [self._do_together([run])[0] for run in runs]

    # --- faults -----------------------------------------------------------------------------------

    def _get_over_it(self) -> None:
        """Try to go back to what is durable, ever more slowly; give up if it can never work, or at the end."""
        _LOG.error("the store fails", reason=str(self.fault))
        began, ceiling = time.monotonic(), _SHORTEST
        while self.fault is not None and not self._closing.wait(_jittered(ceiling)):
            self._recover()
            if late := self._take_more():  # came while the fault was not yet known
                self._do_batch(late)
            ceiling = min(2 * ceiling, _LONGEST)
        if self.fault is None and self.defect is None:
            _LOG.info("the store works again", seconds=round(time.monotonic() - began, 1))

    def _recover(self) -> None:
        """Go back to what is durable, or note why that cannot be done."""
        try:
            self._go_back()
        except StorageError as failure:
            self._note(failure)
        except Exception as error:
            _LOG.error("the machine cannot be built again", error=repr(error))
            self.fault = None
            self.defect = Defect(
                f"the machine cannot be built again from its store ({type(error).__name__}): its last words are"
                " in the log; it is tried once more when the server starts"
            )
        else:
            self.fault = None

    def _note(self, failure: StorageError) -> None:
        """One that passes is waited for. With any other the store is damaged, or another process has it."""
        if isinstance(failure, PassingFault):
            self.fault = failure
        else:
            self.fault, self.defect = None, failure

    def _put_off(self) -> Problem:
        if self.fault is None:
            return Problem(503, "Defect", "the server ends: its log says why", retry_after=5.0)
        said = f"the server waits for its store ({self.fault.reason}) and goes on by itself"
        return Problem(503, STORE_FAULT, said, retry_after=1.0)


def _jittered(seconds: float) -> float:
    """Keeps servers on one database out of step; nothing secret depends on it."""
    return random.uniform(seconds / 2, seconds)  # noqa: S311


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
