"""Suspects: attackers stand out of sums in which nobody stands alone; honest contributors do not."""

from __future__ import annotations

import numpy as np
import pytest

from basecagg.auditing.suspects import Suspects
from basecagg.protocol.buckets import Bucket, agreements
from basecagg.protocol.messages import MaskName

USERS, BUCKETS, SIZE, DIMENSIONS = 40, 6, 4, 300
ATTACKERS = ("user-0", "user-1")


def versions(count, lie, seed=0, spread=2.0, attackers=2):
    """Buckets of made-up versions: updates are a common direction and each user's own noise."""
    generator = np.random.default_rng(seed)
    direction = np.ones(DIMENSIONS) / np.sqrt(DIMENSIONS)
    for version in range(count):
        users = generator.permutation(USERS)[: BUCKETS * SIZE].reshape(BUCKETS, SIZE)
        noise = generator.normal(0, spread / np.sqrt(DIMENSIONS), (USERS, DIMENSIONS))
        updates = direction + noise
        for attacker in range(attackers):
            updates[attacker] = lie(updates[attacker], generator)
        means = [updates[group].mean(axis=0) for group in users]
        centre = np.median(means, axis=0)
        said = zip(users, means, agreements(means), strict=True)
        yield [
            Bucket(
                tuple(MaskName(f"user-{user}", bytes(16)) for user in group),
                version,
                agreement,
                float(np.linalg.norm(mean - centre)),
            )
            for group, mean, agreement in said
        ]


def learned(count=50, lie=lambda update, generator: update, **changes):
    suspects = Suspects()
    for buckets in versions(count, lie, **changes):
        suspects.learn(buckets)
    return suspects


LIES = {
    "turned round": lambda update, generator: -update,
    "a hundred times as long": lambda update, generator: 100 * update,
    "noise": lambda update, generator: generator.normal(size=update.size),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_attackers_are_found_and_nobody_else(lie, seed):
    probable = learned(lie=LIES[lie], seed=seed).probabilities()
    assert min(probable[name] for name in ATTACKERS) > 0.9
    assert max(p for name, p in probable.items() if name not in ATTACKERS) < 0.5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("times", [-20, 100])
def test_many_strong_attackers_bring_nobody_else_under_suspicion(seed, times):
    """Several of them are often in one bucket, and what that bucket says has a limit."""
    lie = lambda update, generator: times * update  # noqa: E731
    probable = learned(lie=lie, seed=seed, attackers=4).probabilities()
    accused = {name for name, each in probable.items() if each > 0.5}
    assert accused <= {f"user-{user}" for user in range(4)}
    assert len(accused) >= 2


@pytest.mark.parametrize("seed", range(5))
def test_where_nobody_lies_nobody_is_suspected_at_any_time(seed):
    suspects = Suspects()
    for buckets in versions(40, lambda update, generator: update, seed=seed):
        suspects.learn(buckets)
        assert max(suspects.probabilities().values(), default=0.0) < 0.5


def test_nobody_is_suspected_for_a_few_buckets():
    probable = learned(3, LIES["a hundred times as long"]).probabilities()
    assert max(probable.values()) < 0.1


def test_updates_that_agree_on_nothing_accuse_nobody():
    """Where a training is over, an update that is turned round cannot be told from others."""
    probable = learned(lie=LIES["turned round"], spread=200.0).probabilities()
    assert max(probable.values()) < 0.5


def test_one_sum_a_version_says_nothing_of_anybody():
    suspects = Suspects()
    for buckets in versions(30, LIES["turned round"]):
        suspects.learn(buckets[:1])
        suspects.learn(())
    assert suspects.probabilities() == {}
    assert not suspects.has_seen_any


def test_it_goes_on_from_a_saved_state():
    half, whole = Suspects(), Suspects()
    for number, buckets in enumerate(versions(30, LIES["turned round"])):
        if number == 15:
            half, before = Suspects(), half
            half.restore(before.state())
        half.learn(buckets)
        whole.learn(buckets)
    assert half.probabilities() == whole.probabilities()
