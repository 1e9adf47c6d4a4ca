"""Laws that tie the schedules to each other and to plain gradient descent, with masks wherever K allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg.learning import LocalTraining, train_locally
from basecagg.maths.staleness import polynomial
from basecagg.schedules.buffered import Synchronous
from basecagg.schedules.mixing import Immediate, Tiered, split_by_speed, tier_weights
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.beginning import Beginning, Devices
from basecagg.simulation.build import build, make_sums
from basecagg.simulation.clock import IdleUsers
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.simulate import play

SIZE = 12
PROTECTIONS = pytest.mark.parametrize("method", ["fedbuff", "basecagg"])


def make_aggregator(config: SimulationConfig, model: Vector) -> Aggregator:
    devices = Devices.draw(config, np.random.default_rng(0))
    step = config.step_rule(SIZE, SIZE)
    return Aggregator(Beginning(config, model, step, devices), make_sums)


def rounding_of(config: SimulationConfig) -> float:
    """How far one secure step may be from the plain one: < 1/c_l, and float32 keeps 24 bits of the model."""
    return (1 / config.update_levels if config.method == "basecagg" else 0) + 2.0**-22


def submit_all(aggregator: Aggregator, updates: Sequence[Vector], base: int = 0) -> None:
    for user, update in enumerate(updates):
        aggregator.sums.prepare(user)
        aggregator.submit(user, update, base)
    aggregator.advance(float("inf"))


def everyone() -> IdleUsers:
    return IdleUsers(range(8), 1.0, np.random.default_rng(0))


def some_updates(count: int, seed: int = 3) -> list[Vector]:
    draws = np.random.default_rng(seed).normal(0, 0.5, (count, SIZE))
    return list(draws.astype(np.float32))


def test_a_buffer_of_one_applies_the_updates_one_by_one() -> None:
    config = tiny_config("fedbuff", buffer_size=1, global_rate=0.5)
    model = np.ones(SIZE, np.float32)
    aggregator, expected = make_aggregator(config, model), model
    for user, update in enumerate(some_updates(5)):
        aggregator.submit(user, update, aggregator.version)
        aggregator.advance(float("inf"))
        expected = (expected.astype(np.float64) - 0.5 * update).astype(np.float32)
        np.testing.assert_array_equal(aggregator.model, expected)
    assert aggregator.version == 5


@PROTECTIONS
def test_constant_staleness_weights_are_plain_averaging(method: str) -> None:
    config = tiny_config(method, staleness="constant")
    aggregator = make_aggregator(config, np.zeros(SIZE, np.float32))
    updates = [*some_updates(4), *some_updates(3, seed=4), *some_updates(1, seed=5)]
    submit_all(aggregator, updates[:4])
    before = aggregator.model
    for user, base in zip(range(4, 8), (0, 1, 0, 1), strict=True):
        aggregator.sums.prepare(user)
        aggregator.submit(user, updates[user], base)
    aggregator.advance(float("inf"))
    mean = np.mean(np.asarray(updates[4:], np.float64), axis=0)
    np.testing.assert_allclose(aggregator.model, before - mean, atol=rounding_of(config), rtol=0)
    assert aggregator.version == 2


@PROTECTIONS
def test_older_updates_count_less_by_the_staleness_function(method: str) -> None:
    config = tiny_config(
        method, min_per_version=1, weights="field"
    )  # s(1) = 1/2 is a multiple of 1/c_g
    aggregator = make_aggregator(config, np.zeros(SIZE, np.float32))
    submit_all(aggregator, some_updates(4))
    before, updates = aggregator.model, some_updates(4, seed=4)
    for user, base in zip(range(4, 8), (0, 1, 1, 1), strict=True):
        aggregator.sums.prepare(user)
        aggregator.submit(user, updates[user - 4], base)
    aggregator.advance(float("inf"))
    mean = np.average(np.asarray(updates, np.float64), axis=0, weights=[0.5, 1, 1, 1])
    np.testing.assert_allclose(aggregator.model, before - mean, atol=rounding_of(config), rtol=0)


@PROTECTIONS
def test_k_users_with_one_example_each_are_one_user_with_k(method: str) -> None:
    """The mean of K gradients of one example is the gradient of the mean loss, so the rates are equal."""
    task, config = tiny_task(), tiny_config(method)
    scratch = task.build_model(seed=1)
    start = scratch.vector()
    step = LocalTraining(learning_rate=0.3, steps=1, batch_size=config.buffer_size)

    def update(examples: list[int]) -> Vector:
        indices = np.asarray(examples)
        return train_locally(task, scratch, start, indices, step, seed=0, user=0).delta

    aggregator = make_aggregator(config, start)
    submit_all(aggregator, [update([example]) for example in range(config.buffer_size)])
    together = start - update(list(range(config.buffer_size)))
    assert np.abs(together - start).max() > 0.01
    np.testing.assert_allclose(aggregator.model, together, atol=rounding_of(config), rtol=0)


def test_fedasync_mixes_by_age_as_computed_by_hand() -> None:
    schedule = Immediate(np.array([8.0], np.float32), 2, 0.5, polynomial(1.0), max_staleness=1)
    first = schedule.starting_point(0)
    schedule.finish(0, np.array([4.0], np.float32), first)  # ½·8 + ½·(8 − 4)
    assert (schedule.version, schedule.model[0]) == (1, 6.0)
    schedule.finish(1, np.array([-4.0], np.float32), first)  # τ = 1: α = ¼, ¾·6 + ¼·(8 + 4)
    assert (schedule.version, schedule.model[0]) == (2, 7.5)
    schedule.finish(0, np.array([1.0], np.float32), first)  # τ = 2 > τ_max: dropped
    assert (schedule.version, schedule.model[0]) == (2, 7.5)


def test_fedat_averages_tiers_as_computed_by_hand() -> None:
    schedule = Tiered(np.array([0.0], np.float32), [0, 0, 1, 1], cohort=2)

    def round_of(users: tuple[int, int], updates: tuple[float, float]) -> None:
        starts = [schedule.starting_point(user) for user in users]
        for user, update, start in zip(users, updates, starts, strict=True):
            schedule.finish(user, np.array([update], np.float32), start)

    round_of((0, 1), (-1.0, -3.0))  # fast tier: 2; T = (1, 0), so all weight is on the slow one: 0
    assert (schedule.version, schedule.model[0]) == (1, 0.0)
    slow_start = schedule.starting_point(2)
    round_of((2, 3), (-5.0, -7.0))  # slow tier: 0 + 6; T = (1, 1): ½·2 + ½·6
    assert (schedule.version, schedule.model[0]) == (2, 4.0)
    round_of((0, 1), (0.0, 2.0))  # fast, from version 1: 0 − 1; T = (2, 1): ⅓·(−1) + ⅔·6
    assert schedule.version == 3
    assert schedule.model[0] == pytest.approx(11 / 3)
    schedule.finish(2, np.array([100.0], np.float32), slow_start)  # its round is over
    assert schedule.version == 3


def test_tiers_are_formed_by_speed_and_weighed_by_their_mirror() -> None:
    assert split_by_speed([4, 3, 2, 1], 2) == [1, 1, 0, 0]
    np.testing.assert_allclose(tier_weights([6, 3, 1]), [0.1, 0.3, 0.6])
    np.testing.assert_allclose(tier_weights([0, 0]), [0.5, 0.5])


def test_a_late_update_of_a_round_is_dropped() -> None:
    config = tiny_config("fedbuff", buffer_size=2)
    aggregator = make_aggregator(config, np.zeros(SIZE, np.float32))
    schedule = Synchronous(aggregator, concurrency=3)
    start = schedule.starting_point(0)
    for user, update in enumerate(some_updates(3)):
        schedule.finish(user, update, start)
        aggregator.advance(float("inf"))
    assert schedule.version == 1
    mean = np.mean(np.asarray(some_updates(3)[:2], np.float64), axis=0)
    np.testing.assert_allclose(aggregator.model, -mean, atol=1e-6)
    assert aggregator.waiting() == set()


@pytest.mark.parametrize("protection", ["none", "secagg", "secagg+", "lightsecagg", "basecagg"])
@pytest.mark.parametrize("cryptography", ["full", "arithmetic"])
def test_a_round_has_no_stale_members_however_long_its_sum_takes_to_open(
    protection: str, cryptography: str
) -> None:
    """Eight users begin a round, four are enough; others finish while the sum is being opened."""
    config = tiny_config(
        schedule="synchronous",
        protection=protection,
        cryptography=cryptography,
        concurrency=8,
        versions=12,
        latency=5.0,
        dropout=0.1,
    )
    records = play(build(config, tiny_task(), {}))
    ages = [age for record in records for age in record.staleness]
    assert ages == [0] * (4 * 12)


def test_nobody_begins_a_round_that_is_over() -> None:
    """While the sum of a round is being opened there is no model to begin with."""
    config = tiny_config("basecagg", buffer_size=3)
    aggregator = make_aggregator(config, np.zeros(SIZE, np.float32))
    schedule, idle = Synchronous(aggregator, concurrency=4), everyone()
    first, start = schedule.choose(idle, []), schedule.starting_point(0)
    assert len(first) == 4
    for user, update in zip(first, some_updates(4), strict=True):
        aggregator.sums.prepare(user)
        schedule.finish(user, update, start)
    assert (aggregator.version, schedule.choose(idle, [])) == (0, [])
    aggregator.advance(float("inf"))
    assert (aggregator.version, len(schedule.choose(idle, []))) == (1, 4)
