"""Sums are handed to the record of the version that they made, no sooner and no later."""

from __future__ import annotations

import numpy as np

from basecagg.protocol.effects import Abandoned, Released
from basecagg.protocol.messages import MaskName
from basecagg.simulation.step_log import StepLog

MEMBERS = (MaskName("user-1", bytes(16)),)


def opened(version: int) -> Released:
    return Released(version, MEMBERS, (version,), (1.0,), np.ones(3))


def burned(version: int) -> Abandoned:
    return Abandoned(version, MEMBERS, "it was torn")


def test_a_sum_that_is_not_published_yet_stays() -> None:
    first, second = opened(0), opened(1)
    log = StepLog([burned(0), first, second, burned(2)])
    assert log.take(1) == (first, 2)
    assert log == [second]
    assert log.take(2) == (second, 0)
    assert log.take(3) == (None, 0)


def test_steps_of_both_kinds_survive_a_checkpoint() -> None:
    log = StepLog.restored(StepLog([burned(0), opened(0)]).state())
    torn, sound = log
    assert torn == burned(0)
    assert isinstance(sound, Released)
    assert (sound.members, sound.base_versions, sound.weights) == (MEMBERS, (0,), (1.0,))
    assert np.array_equal(sound.weighted_sum, np.ones(3))
