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
_RECENT = 10
"""Versions by which the noise in both measures is judged."""
_CAUTION, _QUIETEST = 2.0, 0.1
"""σ of the noise is taken to be this many times the median deviation, and at least so much. For a Gaussian 1.48
would do."""
_ENOUGH = 4
"""Buckets of one base version, from which on they are compared."""
_REMEMBERED = 200
"""Versions. Who was honest long ago may lie today."""
_SWEEPS = 10
_MOST_ODDS = 50.0


class Said(NamedTuple):
    """What the buckets of one version say: a line for each, a column for each measure."""

    members: list[tuple[str, ...]]
    measures: Reals
    noise: Reals
    """σ of both measures."""


class Suspects:
    """What is known of all contributors, from the buckets of all versions so far."""

    def __init__(self) -> None:
        """Nobody is suspected yet."""
        self._said: deque[Said] = deque(maxlen=_REMEMBERED)
        self._recent: deque[Reals] = deque(maxlen=_RECENT)

    @property
    def has_seen_any(self) -> bool:
        """Whether any version had several buckets."""
        return bool(self._recent)

    def learn(self, buckets: Sequence[Bucket]) -> None:
        """Another version was made of these. They are compared with others of the same base version only."""
        alike = Counter(bucket.base_version for bucket in buckets)
        base, count = alike.most_common(1)[0] if buckets else (0, 0)
        compared = [bucket for bucket in buckets if bucket.base_version == base]
        if count < _ENOUGH:
            return
        measures = _compared(compared)
        spread = np.median(np.abs(measures), axis=0)
        self._recent.append(spread)
        # What this version says may be noisier than what the last ones said: towards the end of a training
        # honest updates agree on little.
        usual = np.median(np.stack(self._recent), axis=0)
        noise = np.maximum(_CAUTION * np.maximum(spread, usual), _QUIETEST)
        members = [tuple(name.contributor for name in bucket.members) for bucket in compared]
        self._said.append(Said(members, np.clip(measures, _LOW, _HIGH), noise))

    def probabilities(self) -> dict[str, float]:
        """For each contributor that was in a bucket, how probable it is that it sends bad updates."""
        lines = [
            (members, measure, said.noise)
            for said in self._said
            for members, measure in zip(said.members, said.measures, strict=True)
        ]
        if not lines:
            return {}
        found: dict[str, list[int]] = {}
        for place, (members, _, _) in enumerate(lines):
            for name in members:
                found.setdefault(name, []).append(place)
        share = np.array([[1 / len(members)] for members, _, _ in lines])
        # Of each line and measure: the weight of an unknown, and what is not explained so far.
        weight = share / np.stack([noise for _, _, noise in lines]) ** 2
        left = np.stack([measure for _, measure, _ in lines])
        return _posterior(found, share, weight, left)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"said": [list(each) for each in self._said], "recent": list(self._recent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for members, measures, noise in state["said"]:
            self._said.append(Said([tuple(each) for each in members], measures, noise))
        self._recent.extend(state["recent"])


def _compared(buckets: Sequence[Bucket]) -> Reals:
    """Agreement and squared distance of each bucket, as parts of those of the middle one, minus 1."""
    found = np.array([(each.agreement, each.distance**2) for each in buckets])
    middle = np.median(found, axis=0)
    # Where sums point nowhere in common, agreement says nothing.
    agreement = found[:, 0] / middle[0] - 1 if middle[0] > 0 else np.zeros(len(buckets))
    distance = found[:, 1] / middle[1] - 1 if middle[1] > 0 else np.zeros(len(buckets))
    return np.stack([agreement, distance], axis=1)


def _posterior(
    found: Mapping[str, Sequence[int]], share: Reals, weight: Reals, left: Reals
) -> dict[str, float]:
    """One contributor after the other explains what the others leave, until all agree."""
    known = {name: places for name, places in found.items() if len(places) >= _LEAST}
    means = {name: np.zeros(2) for name in known}
    probable = dict.fromkeys(found, _PRIOR)
    for _ in range(_SWEEPS):
        for name, places in known.items():
            own = left[places] + share[places] * means[name]
            precision = (share[places] * weight[places]).sum(axis=0)
            pull = (weight[places] * own).sum(axis=0)
            lying, if_lying = _evidence(_LYING, precision, pull)
            honest, if_honest = _evidence(_HONEST, precision, pull)
            evidence = lying - honest
            if pull[1] < 0:
                evidence[1] = 0.0  # to be nearer than others is no sign of a lie
            odds = math.log(_PRIOR / (1 - _PRIOR)) + float(evidence.sum())
            probable[name] = 1 / (1 + math.exp(-max(-_MOST_ODDS, min(odds, _MOST_ODDS))))
            means[name] = probable[name] * if_lying + (1 - probable[name]) * if_honest
            left[places] = own - share[places] * means[name]
    return probable


def _evidence(variance: Reals, precision: Reals, pull: Reals) -> tuple[Reals, Reals]:
    """How well an unknown of this variance explains what is left (a logarithm), and its mean if so."""
    exact = precision + 1 / variance
    return (pull**2 / exact - np.log1p(variance * precision)) / 2, pull / exact
