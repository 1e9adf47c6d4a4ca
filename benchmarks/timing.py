"""Minima of interleaved repeats: noise only adds time, and a slow minute slows all rivals alike.

A repeat of a short task is a row of calls: its first call pays for the caches and the clock that the task
before it has left behind, which a single call of a long rival does not feel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import NamedTuple

REPEATS = 9
AT_LEAST = 0.05
"""Seconds of one repeat."""


class Task(NamedTuple):
    """Something to time. Slow rivals take fewer repeats and no warm-up; they have nothing to compile."""

    name: str
    run: Callable[[], object]
    repeats: int = REPEATS

    @property
    def is_slow(self) -> bool:
        """Whether one call more would be felt."""
        return self.repeats < REPEATS


def minima(tasks: Iterable[Task]) -> dict[str, float]:
    """Seconds of each task: round after round through all of them, the best round of each counts."""
    tasks = list(tasks)
    for task in tasks:
        if not task.is_slow:
            task.run()
    best = dict.fromkeys((task.name for task in tasks), float("inf"))
    for round_number in range(max(task.repeats for task in tasks)):
        for task in tasks:
            if round_number < task.repeats:
                best[task.name] = min(best[task.name], _seconds(task.run))
    return best


def times(seconds: Mapping[str, float]) -> list[dict[str, object]]:
    """A table of them."""
    return [{"what": name, "ms": 1e3 * time} for name, time in seconds.items()]


def _seconds(run: Callable[[], object]) -> float:
    """The best call of one repeat."""
    best, begun = float("inf"), perf_counter()
    while True:
        start = perf_counter()
        run()
        end = perf_counter()
        best = min(best, end - start)
        if end - begun >= AT_LEAST:
            return best
