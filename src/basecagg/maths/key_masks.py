"""Masks that grow from a key: INTT(a ⊙ ŝ) + e in Z_q[X]/(Xⁿ + 1), word after word.

What is shared is the key ŝ, n uniform words, however long the model is. a is public and follows from the
epoch. The error e hides the key: it comes from a fresh seed that is stored nowhere, and every word that is
sent has one. A sum of masks grows from the sum of their keys, but for the errors, which stay in the opened
sum.

A contributor draws from `mask_of_upload` where it draws a long mask from a `FieldStream`: `quantize_and_mask`
and `noise_and_mask` take its words as they are. Who opens a sum takes `mask_of_sum` off it with
`unmask_with`.

**Normative**, with kernels/ring.py: the key is drawn from derive_seed(seed, "key"); errors take one word each
from derive_seed(fresh, "errors"). The public a is drawn by chunks of `CHUNK` words, each from its own seed
derive_seed(epoch, "public a/n/q/i") for i = 0, 1, …, all numbers in decimals: so any chunk can be made alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from basecagg.errors import LocalProtocolError, ParameterError
from basecagg.maths.approved_rings import KEY_SIZE, MOST_WORDS
from basecagg.maths.elements import Elements, destination
from basecagg.maths.kernels.ring import GROUP
from basecagg.maths.quantization import unmask
from basecagg.maths.randomness import FieldStream, Seed, Words, WordStream, derive_seed
from basecagg.maths.ring import RingProduct

CHUNK = 8 * GROUP
"""Words that one seed of a makes: 2¹⁸."""


class MaskWords(Protocol):
    """Where the words of a mask come from, in order."""

    def draw(self, n: int, out: Words | None = None) -> Words:
        """The next n words, in `out` if given."""


def key_of(seed: Seed | bytes, modulus: int) -> Words:
    """ŝ: the values of the key that a mask's seed determines."""
    return FieldStream(derive_seed(seed, "key"), modulus).draw(KEY_SIZE)


def mask_of_upload(
    seed: Seed | bytes, fresh: Seed | bytes, epoch: bytes, modulus: int
) -> KeyStream:
    """The mask that hides one update. `fresh` is for this upload alone, and is kept nowhere.

    A second upload under the same key would tell the difference of the two: a mask is made once.
    """
    if bytes(fresh) == bytes(seed):
        raise LocalProtocolError(
            "the seed of a mask is stored; its errors need a fresh one that is not: new_seed()"
        )
    errors = WordStream(derive_seed(fresh, "errors"))
    return KeyStream(key_of(seed, modulus), epoch, modulus, errors=errors)


def mask_of_sum(key: Words, epoch: bytes, modulus: int, *, first_chunk: int = 0) -> KeyStream:
    """What grows from a sum of keys: the sum of their masks, less the sum of the errors.

    Such words must never be sent: n of them tell the key.
    """
    return KeyStream(key, epoch, modulus, first_chunk=first_chunk)


class KeyStream:
    """INTT(a ⊙ ŝ) + e, in order. For one thread only."""

    def __init__(
        self,
        key: Words,
        epoch: bytes,
        modulus: int,
        *,
        errors: WordStream | None = None,
        first_chunk: int = 0,
    ) -> None:
        self._product, self._errors = RingProduct(key, modulus), errors
        self._epoch, self._q = epoch, modulus
        self._groups = first_chunk * (CHUNK // GROUP)
        self._public = self._chunk(first_chunk)
        self._left = np.empty(0, np.uint32)
        # Fresh memory for every group would cost as much as what grows in it.
        self._coins = np.empty(GROUP if errors else 0, np.uint32)

    def __repr__(self) -> str:
        return "KeyStream(…)"

    def draw(self, n: int, out: Words | None = None) -> Words:
        """The next n words, in `out` if given. How a mask is cut into draws changes nothing."""
        out = np.empty(n, np.uint32) if out is None else destination(out, (n,))
        done = min(n, self._left.size)
        out[:done], self._left = self._left[:done], self._left[done:]
        while n - done >= GROUP:
            self._grow(out[done : done + GROUP])
            done += GROUP
        if done < n:
            group = np.empty(GROUP, np.uint32)
            self._grow(group)
            out[done:], self._left = group[: n - done], group[n - done :]
        return out

    def _grow(self, out: Words) -> None:
        if (self._groups + 1) * GROUP > MOST_WORDS:
            raise ParameterError(
                "more than 2³⁰ words must not grow from one key",
                rule="keys: at most 2³⁰ words a key",
            )
        if not self._groups * GROUP % CHUNK:
            self._public = self._chunk(self._groups * GROUP // CHUNK)
        self._public.draw(GROUP, out)
        if self._errors is None:
            self._product(out, out)
        else:
            self._product(out, out, self._errors.draw(GROUP, self._coins))
        self._groups += 1

    def _chunk(self, index: int) -> FieldStream:
        purpose = f"public a/{KEY_SIZE}/{self._q}/{index}"
        return FieldStream(derive_seed(self._epoch, purpose), self._q)


def unmask_with(
    masks: MaskWords, total: Elements, levels: int, modulus: int
) -> tuple[npt.NDArray[np.float64], int]:
    """Take the next words of a mask off a sum, in place; its numbers over `levels`, and the largest |number|.

    The mask is never there as a whole.
    """
    numbers, largest = np.empty(total.shape), 0
    memory = np.empty(min(GROUP, total.size), np.uint32)
    for at in range(0, total.size, GROUP):
        part = total[at : at + GROUP]
        mask = masks.draw(part.size, memory[: part.size])
        largest = max(largest, unmask(part, mask, levels, modulus, out=numbers[at : at + GROUP]))
    return numbers, largest
