"""Predict processor time on this machine: do each step on a narrow piece of the model, then scale up.

A step costs a fixed part (a decoding matrix, a key exchange) and a part that grows with the length
of a share; two widths tell them apart. A prediction, not a benchmark: a busy machine, or a model far
larger than the caches, takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from timeit import timeit

import numpy as np

from basecagg.channels.sealing import SealingSecret, X25519Sealer
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import quantize_and_mask
from basecagg.maths.randomness import FieldStream, Words, WordStream, new_seed
from basecagg.parameters import ProtocolParameters

STEPS = {
    "encode": "contributor: draw a mask and its noise, encode them for N holders",
    "seal": "contributor: agree on a key with every holder, seal its share",
    "mask": "contributor: quantise the update and add the mask",
    "answer": "holder: weighted sum of K shares",
    "decode": "server: weighted sum of K updates, decode the mask's, subtract",
}
"""Each step: who does it, and what it is."""
NARROW, WIDE = 2**16, 2**20
"""Elements of all N shares together in the two trials."""
REPEATS, LONG_ENOUGH = 3, 0.02
"""Repeats of a step, and the seconds after which there are no more."""


def predict(p: ProtocolParameters, steps: Iterable[str] = STEPS) -> dict[str, float]:
    """Time steps at two widths; extend the line through them to the share size of `p`. In seconds."""
    wide = min(p.share_size, max(2, WIDE // p.num_holders))
    narrow = min(wide - 1, max(1, NARROW // p.num_holders))
    if wide == p.share_size:
        return _measure(_Trial(p, wide), steps)
    low, high = _measure(_Trial(p, narrow), steps), _measure(_Trial(p, wide), steps)
    further = (p.share_size - wide) / (wide - narrow)
    return {step: high[step] + further * max(0.0, high[step] - low[step]) for step in high}


def _measure(trial: _Trial, steps: Iterable[str]) -> dict[str, float]:
    return {step: _time(getattr(trial, step)) for step in steps}


def _time(step: Callable[[], object]) -> float:
    """Take the least of a few repeats: noise only ever adds. A slow step is not repeated."""
    times = [timeit(step, number=1)]
    while len(times) < REPEATS and sum(times) < LONG_ENOUGH:
        times.append(timeit(step, number=1))
    return min(times)


class _Trial:
    """Everything that the steps need, for shares of one width; one method for each of `STEPS`."""

    def __init__(self, p: ProtocolParameters, width: int) -> None:
        self.p, self.width, self.size = p, width, p.submasks * width
        self.field = PrimeField(p.field_size, threads=1)
        self.code = MaskCode(
            p.num_holders, p.recovery_threshold, p.max_colluders, p.field_size, threads=1
        )
        self.stream, self.coins = FieldStream(new_seed(), p.field_size), WordStream(new_seed())
        self.update = np.linspace(-p.clip, p.clip, self.size, dtype=np.float32)
        self.secret = self.stream.draw(self.size)
        self.uploads = self._draw(p.buffer_size, self.size)
        self.shares = self._draw(max(p.num_holders, p.buffer_size), width)
        self.codeword = self.code.encode(self.secret, self._draw(p.max_colluders, width))
        self.weights = np.full(p.buffer_size, p.field_levels, np.uint32)
        self.first_holder = count()
        self.keys = [SealingSecret.create().public_key] * p.num_holders

    def encode(self) -> None:
        noise = self._draw(self.p.max_colluders, self.width)
        self.code.encode(self.stream.draw(self.size), noise)

    def seal(self) -> None:
        sealer = X25519Sealer()
        locks = sealer.locks(self.keys, [b"names"] * self.p.num_holders)
        for lock, share in zip(locks, self.shares, strict=False):
            sealer.seal(lock, b"names", share.tobytes())

    def mask(self) -> None:
        coins = self.coins.draw(self.size)
        quantize_and_mask(self.update, self.p.update_levels, self.p.field_size, coins, self.secret)

    def answer(self) -> None:
        self.field.weighted_sum(self.shares[: self.p.buffer_size], self.weights)

    def decode(self) -> None:
        # Other holders each time, as in life: the code remembers how it decoded for the last ones.
        first = next(self.first_holder)
        holders = [(first + i) % self.p.num_holders for i in range(self.p.answers_needed)]
        answers = {holder: self.codeword[holder] for holder in holders}
        masked = self.field.weighted_sum(self.uploads, self.weights)
        self.field.sub(masked, self.code.correct(answers, self.p.answers_needed)[0])

    def _draw(self, rows: int, width: int) -> Words:
        return self.stream.draw(rows * width).reshape(rows, width)
