"""Four users whose trainings take 4, 3, 2 and 1 seconds, against the timeline worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
from test_laws import make_aggregator
from tiny import tiny_config

from basecagg.baselines.local_noise import AtUser
from basecagg.schedules.buffered import Buffered, Synchronous
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.beginning import user_number
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.event_clock import DeviceClock

DURATIONS = (4.0, 3.0, 2.0, 1.0)


class Stage:
    """Users that take scripted times, and a server that opens in none; transfers cost nothing."""

    protection = AtUser()  # nobody has a budget

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator

    def begin(self, user: int, training: int, start: Vector) -> Callable[[], Vector]:
        return lambda: np.full_like(start, 0.25 * user + 0.01 * training)

    def affords(self, user: int) -> bool:
        return True

    @property
    def sums(self) -> Stage:
        return self

    def begun(self, user: int, base_version: int) -> None:
        """Nobody waits for company here."""

    def seconds(self, user: int) -> float:
        self._aggregator.sums.prepare(user)
        return DURATIONS[user]

    def advance(self, now: float) -> float:
        due = self._aggregator.advance(inf)
        self._aggregator.now = now
        return due


def play(
    config: SimulationConfig,
    kind: type[Buffered] | type[Synchronous],
    versions: int,
    seed: int = 0,
) -> list[tuple[float, dict[int, int]]]:
    """The time of each version, and the staleness of every member of its sum."""
    aggregator = make_aggregator(config, np.zeros(12, np.float32))
    schedule = kind(aggregator, config.users_at_once)
    stage = Stage(aggregator)
    clock = DeviceClock(config, schedule, stage, stage, np.random.default_rng(seed))
    story: list[tuple[float, dict[int, int]]] = []
    while len(story) < versions:
        clock.tick()
        step, _ = aggregator.take_step()
        if step is not None:
            ages = {
                user_number(name.contributor): step.version - base
                for name, base in zip(step.members, step.base_versions, strict=True)
            }
            story.append((clock.now, ages))
    return story


BY_HAND = [
    (2.0, {3: 0, 2: 0}),  # user 3 is done at 1 and waits, user 2 at 2
    (3.0, {1: 1, 3: 0}),  # user 1 has trained since 0; user 3 started again at 2 from version 1
    (4.0, {0: 2, 2: 1}),  # user 0 has trained since 0, user 2 since 2
    (6.0, {3: 1, 1: 1}),  # user 3 was done at 4, just after version 3; user 1 started at 3
]


def four_users(method: str = "fedbuff", **changes: object) -> SimulationConfig:
    values = {"users": 4, "concurrency": 4, "buffer_size": 2, "min_per_version": 1}
    values |= {"consistency": "honest-server"}
    return tiny_config(method, **(values | changes))


def test_buffers_of_two_fill_as_worked_out_by_hand() -> None:
    for seed in range(5):  # whoever is drawn first, the durations decide
        assert play(four_users(), Buffered, 4, seed) == BY_HAND


def test_masks_do_not_change_the_timeline() -> None:
    masked = four_users("basecagg", cryptography="arithmetic", max_dropouts=1, max_colluders=1)
    assert play(masked, Buffered, 4) == BY_HAND


def test_rounds_take_as_long_as_their_slowest_needed_user() -> None:
    story = play(four_users(buffer_size=4), Synchronous, 2)
    assert story == [(4.0, dict.fromkeys(range(4), 0)), (8.0, dict.fromkeys(range(4), 0))]


def test_a_round_of_two_out_of_four_drops_the_slow() -> None:
    first, *_ = play(four_users(), Synchronous, 1)
    assert first == (2.0, {3: 0, 2: 0})
