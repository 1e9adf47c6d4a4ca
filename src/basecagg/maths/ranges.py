"""How large updates are, told so that only a sum becomes known, and which clip B and levels follow from it.

To choose the clip B and the levels c_l one must know how large the elements of updates get. So each contributor
appends a report to its update: one number for every octave 2^(e−1) ≤ max |Δ| < 2^e, 1 for its own and 0 for
the others, each turned around by a coin. The report is masked and summed with the update: no message is added,
and the server learns the weighted sum over the K members of a buffer.

Why coins: the weights s̄ of a sum are known and differ, so a sum of few zeros and ones can be solved for who
sent which. With every number turned around with probability ¼, one report is by itself differentially private
with ε = ln 9 ≈ 2.2 (any two octaves differ in two numbers), whatever the server makes of the sum.

The numbers are whole in the field, whatever c_l is, for they enter as 1/c_l: they are not rounded where c_l is
too small, and do not wrap around where it is too large. (c_l·B ≥ 1, or they would be clipped.)

Differs from Bonawitz et al. (2019), to whom the paper points: they rotate updates at random, which makes the
distribution of their elements predictable, and tune by that. Here nothing about the distribution is assumed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from basecagg.maths.quantization import Reals
from basecagg.maths.randomness import Seed, WordStream, derive_seed
from basecagg.parameters import ProtocolParameters

OCTAVES = range(-23, 9)
"""e of every octave; the first also takes what is smaller, the last what is larger."""
REPORT_SIZE = len(OCTAVES)
"""Numbers that a report adds to an update."""
FLIP = 0.25
"""Probability that a coin turns a number of a report around."""
EPSILON = 2 * math.log((1 - FLIP) / FLIP)
"""ε of one report."""
HEADROOM = 4.0
"""The clip beyond the octave that most updates are in."""
_EVIDENCE = 5.0
"""Standard deviations by which an octave must stand out: chance alone does so once in 10⁵ decisions."""
_FITS = (2.0, 16.0)
"""A clip within these factors of the octave stays: a new epoch costs the updates that are under way."""


def with_report(update: Reals, levels: int, secret: Seed) -> Reals:
    """The update Δ and its report, as the vector to mask. `levels` is c_l.

    The coins follow from the secret and the update: the same update has the same report, so a contributor still
    recognises what it has sent before.
    """
    report = _own_octave(update) ^ _coins(update, secret)
    return np.concatenate([update, report.astype(update.dtype) / update.dtype.type(levels)])


def without_report(model: Reals) -> Reals:
    """The model itself, of a model with as many more numbers as a report has."""
    return model[:-REPORT_SIZE]


def _own_octave(update: Reals) -> npt.NDArray[np.bool_]:
    largest = float(np.abs(update).max(initial=0.0))
    exponent = math.frexp(largest)[1] if largest else OCTAVES[0]
    nearest = min(max(exponent, OCTAVES[0]), OCTAVES[-1])
    own: npt.NDArray[np.bool_] = np.array(OCTAVES) == nearest
    return own


def _coins(update: Reals, secret: Seed) -> npt.NDArray[np.bool_]:
    # Numbers that agree to float32 are the same update to its contributor, with either sign of zero.
    with np.errstate(over="ignore"):
        numbers = np.add(update, 0.0, dtype=np.float32)
    digest = hashlib.sha256(numbers.data).hexdigest()
    words = WordStream(derive_seed(secret, f"range-report/{digest}")).draw(REPORT_SIZE)
    turned: npt.NDArray[np.bool_] = words < np.uint32(FLIP * 2**32)
    return turned


@dataclass
class RangeTally:
    """What the sums opened so far say about the size of updates."""

    sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(REPORT_SIZE))
    """Σ s̄·report"""
    weight: float = 0.0
    """Σ s̄"""
    squared_weight: float = 0.0
    """Σ s̄²"""

    def add(
        self, weighted_sum: npt.NDArray[np.float64], weights: tuple[float, ...], levels: int
    ) -> None:
        """Count an opened sum Σ s̄·Δ, reports and all, made with `levels` (c_l)."""
        self.sums = self.sums + weighted_sum[-REPORT_SIZE:] * levels
        self.weight += sum(weights)
        self.squared_weight += sum(weight**2 for weight in weights)

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The estimated share of updates in every octave, free of the coins' bias."""
        return (self.sums / self.weight - FLIP) / (1 - 2 * FLIP)

    @property
    def deviation(self) -> float:
        """The standard deviation of an estimated share that is 0."""
        noise = math.sqrt(FLIP * (1 - FLIP) * self.squared_weight)
        return noise / (self.weight * (1 - 2 * FLIP))

    def octave(self) -> int | None:
        """e of the octave that most updates are in; None while the coins could have made it up."""
        if not self.weight:
            return None
        best = int(self.shares.argmax())
        return OCTAVES[best] if self.shares[best] > _EVIDENCE * self.deviation else None


def fitting(parameters: ProtocolParameters, octave: int) -> ProtocolParameters:
    """Parameters for updates of this octave: these if they fit, else a new clip B and the finest c_l."""
    if _fit(parameters, octave):
        return parameters
    return parameters.clipped_to(HEADROOM * 2.0**octave)


def _fit(p: ProtocolParameters, octave: int) -> bool:
    """Little is clipped, little room is wasted, and no sum wraps around."""
    least, most = (factor * 2.0**octave for factor in _FITS)
    fine = p.clipped_to(p.clip).update_levels <= 2 * p.update_levels
    return least <= p.clip <= most and fine and p.largest_sum <= p.room_for_sum
