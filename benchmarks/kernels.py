"""Time what the bars compare. One thread, if the name does not say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import quantize_and_mask
from basecagg.maths.randomness import FieldStream, WordStream
from benchmarks import dense, fedml_peer, limits
from benchmarks.sizes import MODULUS, Sizes
from benchmarks.timing import REPEATS, Task, minima

MEMBERS = 70
"""K: rows of the weighted sum."""
FEDML_REPEATS = {100: REPEATS, 200: 3, 500: 3, 1000: 2}
"""A call of FedML takes about 10 s for 500 users and 40 s for 1000."""
HOW = (
    f"minima of {REPEATS} interleaved repeats, each of 50 ms or one call; of FedML and the dense product "
    + ", ".join(f"{repeats} at N = {n}" for n, repeats in FEDML_REPEATS.items() if n > 100)
)


def code_seconds(sizes: Sizes, fedml: ModuleType) -> dict[str, float]:
    """Encode and decode one mask for N users: FedML, a dense product, ours."""
    case = _Case(sizes)
    repeats = FEDML_REPEATS[sizes.n]
    seconds = minima(
        [
            Task("FedML encode", fedml_peer.encoder(fedml, sizes), repeats),
            Task("FedML decode", fedml_peer.decoder(fedml, sizes), repeats),
            Task("dense encode", case.dense_encoder(), repeats),
            Task("encode", case.encode),
            Task("encode on all cores", case.encode_on_all_cores),
            Task("decode", case.decode),
            Task("decode with its matrix at hand", case.decode_again),
            Task("PRG + encode", case.draw_and_encode),
            Task("copy of the shares", limits.copier(case.shares.nbytes)),
        ]
    )
    return {f"{name}, N = {sizes.n}": time for name, time in seconds.items()}


def stream_seconds(d: int) -> dict[str, float]:
    """The operations that go once through memory, and what memory and AES allow."""
    stream = FieldStream(bytes(32), MODULUS)
    words, mask, out = WordStream(bytes(32)).draw(d), stream.draw(d), np.ones(d, np.uint32)
    update = np.linspace(-4, 4, d, dtype=np.float32)
    rows = stream.draw(MEMBERS * d).reshape(MEMBERS, d)
    weights = np.arange(1, MEMBERS + 1, dtype=np.uint32)
    field = PrimeField(MODULUS, threads=1)
    moved = update.nbytes + words.nbytes + mask.nbytes + out.nbytes
    return minima(
        [
            Task("PRG", lambda: stream.draw(d, out)),
            Task("raw AES-CTR", limits.aes(out.nbytes)),
            Task(
                "quantise + mask",
                lambda: quantize_and_mask(update, 2**16, MODULUS, words, mask, out=out),
            ),
            # A copy reads and writes, so half the bytes move as much.
            Task("copy of as much", limits.copier(moved // 2)),
            Task("weighted sum", lambda: field.weighted_sum(rows, weights, out=out)),
            Task(f"read of {MEMBERS} rows", limits.reader(rows)),
        ]
    )


def growth_seconds(d: int) -> dict[str, float]:
    """Encoding for few and for many users in turn: what is compared must meet the same machine."""
    few, many = (_Case(Sizes(n, d)) for n in (100, 1000))
    return minima(
        [
            Task("encode in turn, N = 100", few.encode),
            Task("encode in turn, N = 1000", many.encode),
        ]
    )


class _Case:
    """One mask and its shares, in memory that has been touched before."""

    def __init__(self, sizes: Sizes) -> None:
        self.parameters = sizes.n, sizes.u, sizes.t, MODULUS
        self.code = MaskCode(*self.parameters, threads=1)
        self.parallel_code = MaskCode(*self.parameters)
        self.stream = FieldStream(bytes(32), MODULUS)
        self.rows = self.stream.draw(sizes.u * sizes.width).reshape(sizes.u, sizes.width)
        self.mask, self.noise = self.rows[: -sizes.t].reshape(-1), self.rows[-sizes.t :]
        self.shares = self.code.encode(self.mask, self.noise)
        survivors = range(sizes.n - sizes.u, sizes.n)
        self.answers = {user: self.shares[user].copy() for user in survivors}

    def encode(self) -> None:
        self.code.encode(self.mask, self.noise, out=self.shares)

    def encode_on_all_cores(self) -> None:
        self.parallel_code.encode(self.mask, self.noise, out=self.shares)

    def draw_and_encode(self) -> None:
        self.stream.draw(self.rows.size, self.rows.reshape(-1))
        self.encode()

    def decode(self) -> None:
        # A fresh code: the matrix for these survivors is made anew, as FedML makes its own.
        MaskCode(*self.parameters, threads=1).decode(self.answers)

    def decode_again(self) -> None:
        self.code.decode(self.answers)

    def dense_encoder(self) -> Callable[[], np.ndarray]:
        """The dense product, after a look that it gives the same shares."""
        encode = dense.encoder(self.code.points, self.rows, MODULUS, np.empty_like(self.shares))
        assert np.array_equal(encode(), self.shares)
        return encode
