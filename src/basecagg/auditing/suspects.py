"""Suspects: who sends bad updates, found from sums alone. For each contributor a probability.

Where a version is made of several sums, each says two things of itself: how well it agrees with the others,
and how far it is from their robust mean. Both are means over its members: a contributor that turns its update
round brings the agreement of every bucket that it is in down by 2/b. Nobody sees a member by itself; but each
time it sits with others, so all buckets together are a linear regression, with one unknown for each
contributor and measure.

An unknown is either small, as of honest contributors, whose data differ too, or large. The probability of
"large" is a posterior by mean-field inference (Carbonetto and Stephens 2012). Its priors stand below; they
were chosen by trials on MNIST, with other seeds than those that the results page shows. It is a reason to look
at somebody, not a proof: nothing is revoked because of it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.protocol.buckets import Bucket

Reals: TypeAlias = npt.NDArray[np.float64]
_PRIOR = 0.02
"""Before anything is known: one of fifty lies."""
_LEAST = 6
"""Nobody is suspected for fewer buckets than this."""
_HONEST = np.array([0.2, 1.5]) ** 2
_LYING = np.array([2.0, 5.0]) ** 2
"""Variances of the unknowns of agreement and of squared distance."""
_LOW, _HIGH = np.array([-1.5, -1.5]), np.array([1.5, 3.0])
"""A bucket says no more than this: one that is far off must not outweigh many others."""
_RECENT = 40
"""Buckets of one age by which the noise in both measures is judged."""
_TO_DEVIATION, _QUIETEST = 1.5, 0.1
"""σ of the noise is this many times the median deviation, as of a Gaussian, and at least so much."""
_ENOUGH = 4
"""Buckets of one kind, from which on they are compared."""
_REMEMBERED = 200
"""Versions. Who was honest long ago may lie today."""
_SWEEPS, _FIRST, _FREEDOM = 10, 5, 4.0
"""Sweeps over all contributors; from the fifth on noise is as of Student's t, with these degrees of freedom."""
_MOST_ODDS = 50.0


class Said(NamedTuple):
    """What one bucket says of its members."""

    members: tuple[str, ...]
    measures: Reals
    """Agreement and squared distance, as parts of the usual ones, minus 1."""
    noise: Reals
    """σ of both."""


class Suspects:
    """What is known of all contributors, from the buckets of all versions so far."""

    def __init__(self) -> None:
        """Nobody is suspected yet."""
        self._said: deque[list[Said]] = deque(maxlen=_REMEMBERED)
        self._recent: dict[int, deque[Reals]] = {}
        """What buckets said of late, by how much older they are than most of their version."""

    @property
    def has_seen_any(self) -> bool:
        """Whether any version had several buckets."""
        return bool(self._recent)

    def learn(self, buckets: Sequence[Bucket]) -> None:
        """Another version was made of these.

        They are compared with those of the base version that most have. Buckets of other versions agree with
        these by more or less, so each is compared with what buckets of its age said of late.
        """
        if not buckets:
            return
        base, count = Counter(bucket.base_version for bucket in buckets).most_common(1)[0]
        if count < _ENOUGH:
            return
        ages = [base - bucket.base_version for bucket in buckets]
        measures = _compared(buckets, [age == 0 for age in ages])
        # What this version says may be noisier than what the last ones said: towards the end of a training
        # honest updates agree on little.
        now = _spread(measures[np.equal(ages, 0)])
        said = list[Said]()
        for bucket, age, measure in zip(buckets, ages, measures, strict=True):
            recent = self._recent.setdefault(age, deque(maxlen=_RECENT))
            recent.append(measure)
            if len(recent) >= _ENOUGH:
                usual = np.median(recent, axis=0) if age else np.zeros(2)
                noise = _TO_DEVIATION * np.maximum(now, _spread(np.stack(recent)))
                members = tuple(name.contributor for name in bucket.members)
                off = np.clip(measure - usual, _LOW, _HIGH)
                said.append(Said(members, off, np.maximum(noise, _QUIETEST)))
        self._said.append(said)

    def probabilities(self) -> dict[str, float]:
        """For each contributor that was in a bucket, how probable it is that it sends bad updates."""
        lines = [line for said in self._said for line in said]
        if not lines:
            return {}
        found: dict[str, list[int]] = {}
        for place, line in enumerate(lines):
            for name in line.members:
                found.setdefault(name, []).append(place)
        share = np.array([[1 / len(line.members)] for line in lines])
        precise = np.stack([line.noise for line in lines]) ** -2
        said = np.stack([line.measures for line in lines])
        return _posterior(found, share, precise, said)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "said": [[list(line) for line in said] for said in self._said],
            "recent": {age: list(recent) for age, recent in self._recent.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for said in state["said"]:
            self._said.append([Said(tuple(names), *rest) for names, *rest in said])
        for age, recent in state["recent"].items():
            self._recent[age] = deque(recent, maxlen=_RECENT)


def _compared(buckets: Sequence[Bucket], usual: Sequence[bool]) -> Reals:
    """Agreement and squared distance of each bucket, as parts of those of the middle of the usual, minus 1."""
    found = np.array([(each.agreement, each.distance**2) for each in buckets])
    middle = np.median(found[np.array(usual)], axis=0)
    # Where sums point nowhere in common, agreement says nothing.
    says = middle > 0
    return np.where(says, found / np.where(says, middle, 1.0) - 1, 0.0)


def _spread(measures: Reals) -> Reals:
    """The median distance from the median."""
    spread: Reals = np.median(np.abs(measures - np.median(measures, axis=0)), axis=0)
    return spread


def _posterior(
    found: Mapping[str, Sequence[int]], share: Reals, precise: Reals, said: Reals
) -> dict[str, float]:
    """One contributor after the other explains what the others leave, until all agree."""
    left, lowest, highest = said.copy(), said <= _LOW, said >= _HIGH
    means = {name: np.zeros(2) for name in found}
    probable = dict.fromkeys(found, _PRIOR)
    for sweep in range(_SWEEPS):
        # Noise as of Student's t: where most buckets of a version are dirty, the clean ones seem to lie, and
        # what nobody can explain must not weigh.
        unlikely = left**2 * precise if sweep >= _FIRST else np.zeros_like(left)
        weight = share * precise * (_FREEDOM + 1) / (_FREEDOM + unlikely)
        for name, places in found.items():
            before = left[places] + share[places] * means[name]
            # What a bucket says at its limit may be any more: who explains too much of it has explained it.
            own = np.where(lowest[places], np.minimum(before, 0.0), before)
            own = np.where(highest[places], np.maximum(own, 0.0), own)
            precision = (share[places] * weight[places]).sum(axis=0)
            pull = (weight[places] * own).sum(axis=0)
            lying, if_lying = _evidence(_LYING, precision, pull)
            honest, if_honest = _evidence(_HONEST, precision, pull)
            evidence = lying - honest
            # To agree more than others, or to be nearer, is no sign of a lie.
            evidence[pull * (1.0, -1.0) > 0] = 0.0
            odds = math.log(_PRIOR / (1 - _PRIOR)) + float(evidence.sum())
            probable[name] = 1 / (1 + math.exp(-max(-_MOST_ODDS, min(odds, _MOST_ODDS))))
            means[name] = probable[name] * if_lying + (1 - probable[name]) * if_honest
            left[places] = before - share[places] * means[name]
    # Who is in few buckets may explain them, so that nobody else has to, but is not named yet.
    few = [name for name, places in found.items() if len(places) < _LEAST]
    return probable | {name: min(probable[name], _PRIOR) for name in few}


def _evidence(variance: Reals, precision: Reals, pull: Reals) -> tuple[Reals, Reals]:
    """How well an unknown of this variance explains what is left (a logarithm), and its mean if so."""
    exact = precision + 1 / variance
    return (pull**2 / exact - np.log1p(variance * precision)) / 2, pull / exact
