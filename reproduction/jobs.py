"""Many independent runs: side by side in processes, each written down when it is over, with the time left.

A run is a function of one argument at the top of a module, so that a process of its own can be given it. Its
result is a mapping; the seconds that it took are added, from which the time of the others is estimated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from reproduction.ledger import Ledger

Size = Literal["full", "quick", "smoke"]
"""Hours; minutes; seconds on a data set that needs no file."""
SEEDS: Mapping[Size, tuple[int, ...]] = {"full": (1, 2, 3), "quick": (1,), "smoke": (1,)}
"""Of most experiments."""


@dataclass(frozen=True)
class Progress:
    """How far an experiment is."""

    done: int
    total: int
    now: str
    """The run that was just begun or finished."""
    seconds_left: float | None = None
    """None while nothing is known about the speed of this machine."""


@dataclass(frozen=True)
class Order:
    """What was asked for: how much, from which data, and with how many processes."""

    size: Size = "full"
    data_dir: Path = Path("data")
    workers: int = 1
    tell: Callable[[Progress], None] = field(default=lambda progress: None)
    unfinished: Path = Path("unfinished")
    """Where runs are kept that are not over."""


@dataclass(frozen=True)
class Job:
    """One run: what the ledger calls it, what is done, and how much that is compared with the others."""

    key: str
    work: Callable[[Any], dict[str, Any]]
    argument: Any
    cost: float = 1.0


def run_jobs(jobs: Sequence[Job], order: Order, ledger: Ledger) -> None:
    """Do what the ledger lacks, in the order given; each result is in the ledger as soon as it is there."""
    waiting = [job for job in jobs if job.key not in ledger]
    _tell(jobs, order, ledger, waiting[0].key if waiting else "nothing to do")
    for job, result in _finished(waiting, order.workers):
        ledger.add(job.key, result)
        _tell(jobs, order, ledger, job.key)


def _finished(jobs: Iterable[Job], workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Every job with its result. One worker is this process itself."""
    if workers <= 1:
        yield from ((job, _timed(job)) for job in jobs)
        return
    from basecagg.simulation.trainers import serve_parent

    with ProcessPoolExecutor(workers, get_context("spawn"), serve_parent) as pool:
        yield from _as_completed({pool.submit(_timed, job): job for job in jobs})


def _as_completed(
    running: dict[Future[dict[str, Any]], Job],
) -> Iterator[tuple[Job, dict[str, Any]]]:
    try:
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    finally:  # Ctrl-C or a failed run: the others that wait are not begun
        for future in running:
            future.cancel()


def _timed(job: Job) -> dict[str, Any]:
    started = time.perf_counter()
    result = job.work(job.argument)
    return {**result, "seconds": round(time.perf_counter() - started, 2)}


def _tell(jobs: Sequence[Job], order: Order, ledger: Ledger, now: str) -> None:
    done = sum(job.key in ledger for job in jobs)
    left = seconds_left(jobs, ledger, order.workers)
    order.tell(Progress(done, len(jobs), now, left))


def seconds_left(jobs: Sequence[Job], ledger: Ledger, workers: int) -> float | None:
    """What the finished ones took for their cost, extended to the others; None before the first."""
    results = ledger.results
    done = [job for job in jobs if "seconds" in results.get(job.key, ())]
    if not done:
        return None
    spent: float = sum(results[job.key]["seconds"] for job in done)
    left = sum(job.cost for job in jobs if job.key not in results)
    return spent / sum(job.cost for job in done) * left / workers
