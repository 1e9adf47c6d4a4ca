"""Predict processor time on this machine: do each step on a narrow piece of the model, then scale up.

A step costs a fixed part (a decoding matrix, a key exchange) and a part that grows with the model: two
models, smaller than the one that is asked about, tell them apart. A prediction, not a benchmark: a busy
machine, or a model far larger than the caches, takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from timeit import timeit

import numpy as np

from basecagg.channels.sealing import SealingSecret, X25519Sealer
from basecagg.maths.key_masks import unmask_with
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.packing import pack, sum_packed
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import quantize_and_mask
from basecagg.maths.randomness import FieldStream, Words, WordStream, new_seed
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.masking import mask_of, masks_of

STEPS = {
    "encode": "contributor: draw a mask or its key, and noise; encode it for N holders",
    "seal": "contributor: agree on a key with every holder, seal its share",
    "mask": "contributor: quantise the update and add the mask",
    "answer": "holder: weighted sum of K shares",
    "decode": "server: weighted sum of K updates, decode the mask's, subtract",
}
"""Each step: who does it, and what it is."""
_GROWING = {"long": tuple(STEPS), "keys": ("mask", "decode")}
"""Steps that take longer for longer models. A share of a key is as long for all of them."""
NARROW, WIDE = 2**16, 2**20
"""Elements of all N shares together in the two trials; with keys those of all K uploads."""
REPEATS, LONG_ENOUGH = 3, 0.02
"""Repeats of a step, and the seconds after which there are no more."""
_EPOCH = bytes(32)


def predict(p: ProtocolParameters, steps: Iterable[str] = STEPS) -> dict[str, float]:
    """Time steps for two models; extend the line through them to the one of `p`. In seconds."""
    steps = tuple(steps)
    growing = [step for step in steps if step in _GROWING[p.masks or "long"]]
    every = p.num_holders if p.masks == "long" else p.buffer_size
    length = p.share_size if p.masks == "long" else p.padded_size
    wide = min(length, max(2, WIDE // every))
    high = _measure(_Trial(p, wide), steps)
    if wide == length or not growing:
        return high
    narrow = min(wide - 1, max(1, NARROW // every))
    low, further = _measure(_Trial(p, narrow), growing), (length - wide) / (wide - narrow)
    return high | {step: high[step] + further * max(0.0, high[step] - low[step]) for step in low}


def _measure(trial: _Trial, steps: Iterable[str]) -> dict[str, float]:
    return {step: _time(getattr(trial, step)) for step in steps}


def _time(step: Callable[[], object]) -> float:
    """Take the least of a few repeats: noise only ever adds. A slow step is not repeated."""
    times = [timeit(step, number=1)]
    while len(times) < REPEATS and sum(times) < LONG_ENOUGH:
        times.append(timeit(step, number=1))
    return min(times)


class _Trial:
    """Everything that the steps need, for one length of what grows; one method for each of `STEPS`."""

    def __init__(self, p: ProtocolParameters, length: int) -> None:
        """`length` is that of a share of a long mask; with keys that of an upload."""
        keys = p.masks == "keys"
        self.p, self.width = p, p.share_size if keys else length
        self.shared, self.size = p.submasks * self.width, length if keys else p.submasks * length
        self.field = PrimeField(p.field_size, threads=1)
        self.code = MaskCode(
            p.num_holders, p.recovery_threshold, p.max_colluders, p.field_size, threads=1
        )
        self.stream, self.coins = FieldStream(new_seed(), p.field_size), WordStream(new_seed())
        self.update = np.linspace(-p.clip, p.clip, self.size, dtype=np.float32)
        self.secret = self.stream.draw(self.shared)
        uploads = self._draw(p.buffer_size, self.size)
        self.uploads = [pack(words, p.field_size).tobytes() for words in uploads]
        self.shares = self._draw(max(p.num_holders, p.buffer_size), self.width)
        self.codeword = self.code.encode(self.secret, self._draw(p.max_colluders, self.width))
        self.weights = np.full(p.buffer_size, p.field_levels, np.uint32)
        self.first_holder = count()
        self.keys = [SealingSecret.create().public_key] * p.num_holders

    def encode(self) -> None:
        noise = self._draw(self.p.max_colluders, self.width)
        self.code.encode(self.stream.draw(self.shared), noise)

    def seal(self) -> None:
        sealer = X25519Sealer()
        locks = sealer.locks(self.keys, [b"names"] * self.p.num_holders)
        for lock, share in zip(locks, self.shares, strict=False):
            sealer.seal(lock, b"names", pack(share, self.p.field_size).data)

    def mask(self) -> None:
        coins = self.coins.draw(self.size)
        mask = mask_of(bytes(new_seed()), bytes(new_seed()), _EPOCH, self.p).draw(self.size)
        words = quantize_and_mask(self.update, self.p.update_levels, self.p.field_size, coins, mask)
        pack(words, self.p.field_size)

    def answer(self) -> None:
        self.field.weighted_sum(self.shares[: self.p.buffer_size], self.weights)

    def decode(self) -> None:
        # Other holders each time, as in life: the code remembers how it decoded for the last ones.
        first = next(self.first_holder)
        holders = [(first + i) % self.p.num_holders for i in range(self.p.answers_needed)]
        answers = {holder: self.codeword[holder] for holder in holders}
        total = sum_packed(self.field, self.uploads, self.weights.tolist())
        masks = masks_of(self.code.correct(answers, self.p.answers_needed)[0], _EPOCH, self.p)
        unmask_with(masks, total, self.p.update_levels, self.p.field_size)

    def _draw(self, rows: int, width: int) -> Words:
        return self.stream.draw(rows * width).reshape(rows, width)
