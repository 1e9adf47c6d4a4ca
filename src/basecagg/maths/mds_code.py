"""The T-private MDS code: it shares a mask among N holders, so that any U answers open a sum of masks.

A mask is cut into U − T sub-masks. With T uniform *padding rows* they are the coefficients of a polynomial of
degree < U for each column, and holder j gets its value at a point β_j, Eq. (encoding):

    share_j = Σ_u row_u·β_j^u,   rows 0…U−T−1 the sub-masks, rows U−T…U−1 the padding rows.

Any U shares determine the polynomial. Any T of them are uniform, whatever the mask, because the
points are distinct *and nonzero*: what the padding rows add to T shares is a Vandermonde matrix with its rows
scaled by β_j^(U−T) ≠ 0, hence invertible, times the padding rows. A weighted sum of shares of masks is the
share of the weighted sum of the masks; so holders add up shares and the server decodes only the sum.

The points are cosets of roots of unity if q = 2³² − 5, where polynomials are evaluated fast at those
(kernels/roots.py says which), and 1…N for every other prime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np

from basecagg.errors import DataError, DecodingError, ParameterError
from basecagg.maths.elements import Elements, checked, checked_shape, destination
from basecagg.maths.interpolation import (
    Numbers,
    coefficient_rows,
    locate_errors,
    value_rows,
    vandermonde,
)
from basecagg.maths.kernels import roots
from basecagg.maths.kernels.compiler import Addresses, addresses_of
from basecagg.maths.kernels.cosets import CosetEvaluation
from basecagg.maths.kernels.dot import Product
from basecagg.maths.kernels.modular_sums import inner_product
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import FieldStream, new_seed

# With this many holders or more, evaluation at large cosets is faster (measured).
_MANY_HOLDERS = 300
_KEPT_CODES = 8
_KEPT_DECODERS = 8
# Random combinations of the columns in which errors are looked for. A wrong share is missed by both
# with probability q⁻²; then the comparison of all columns still finds it, one column at a time.
_COMBINATIONS = 2

Shares = Mapping[int, Elements]
"""Holder to share of a mask, or to a weighted sum of shares."""

_Kernel = Callable[[Addresses, Addresses, int, int], int]


class MaskCode:
    """Encode masks for N holders, decode their sums from U of them. Holders are 0…N−1."""

    def __init__(
        self,
        num_holders: int,
        recovery_threshold: int,
        max_colluders: int,
        modulus: int = PAPER_MODULUS,
        *,
        threads: int | None = None,
    ) -> None:
        """The code for N, U, T and q. Long rows are shared by `threads` threads, or by all cores."""
        self.field = PrimeField(modulus, threads=threads)
        _check_parameters(num_holders, recovery_threshold, max_colluders, modulus)
        self.num_holders = num_holders
        self.recovery_threshold = recovery_threshold
        self.max_colluders = max_colluders
        self._points, self._encoder = _evaluation(num_holders, recovery_threshold, modulus)
        self._decoder = lru_cache(_KEPT_DECODERS)(self._make_decoder)

    def __repr__(self) -> str:
        return (
            f"MaskCode(num_holders={self.num_holders}, recovery_threshold={self.recovery_threshold},"
            f" max_colluders={self.max_colluders}, modulus={self.field.modulus})"
        )

    def __reduce__(self) -> tuple[Callable[..., MaskCode], tuple[int, int, int, int]]:
        """Pickle the parameters: the rest is made of them."""
        numbers = self.num_holders, self.recovery_threshold, self.max_colluders, self.field.modulus
        return partial(MaskCode, threads=self.field.threads), numbers

    @property
    def points(self) -> Elements:
        """β_j of every holder."""
        return self._points.astype(np.uint32)

    @property
    def submasks(self) -> int:
        """U − T: the pieces of a mask."""
        return self.recovery_threshold - self.max_colluders

    def encode(self, mask: Elements, noise: Elements, out: Elements | None = None) -> Elements:
        """The shares of a mask: m elements for each of the N holders.

        The mask holds m·(U − T) elements: the caller fills it up with zeros. `noise` are the T padding
        rows of m elements, uniform and drawn afresh for every mask.
        """
        mask = checked(mask, "mask")
        if mask.ndim != 1 or not mask.size or mask.size % self.submasks:
            raise DataError(
                f"mask has shape {mask.shape} but must be a vector of m·(U − T) elements, m ≥ 1,"
                f" U − T = {self.submasks}: pad it"
            )
        columns = mask.size // self.submasks
        noise = checked_shape(noise, "noise", (self.max_colluders, columns))
        out = destination(out, (self.num_holders, columns), mask, noise)
        pieces = addresses_of(mask.reshape(self.submasks, columns))
        rows = np.concatenate([pieces, addresses_of(noise)])
        if self._run(self._encoder, rows, addresses_of(out), columns):
            self.field.check(mask, "mask")
            self.field.check(noise, "noise")
        return out

    def decode(self, shares: Shares) -> Elements:
        """The mask, or the weighted sum of masks, that these are the shares of: m·(U − T) elements.

        Any U shares will do. Of more, only those of the U smallest holders are looked at; `correct`
        looks at all.
        """
        answers = self._checked(shares)
        basis = tuple(answers)[: self.recovery_threshold]
        return self._open(answers, basis, ())[0]

    def correct(
        self, shares: Shares, agreeing: int | None = None
    ) -> tuple[Elements, tuple[int, ...]]:
        """Decode n ≥ U shares, up to e = ⌊(n − U)/2⌋ of them wrong; also tell whose are wrong.

        Every share that is not named agrees with the result in every column. At least `agreeing` shares
        (default U + T) must agree. With the default, U of those come from honest holders, whichever T
        holders lie, so the result is right whatever the liars forge together. With a smaller `agreeing` it
        is right only if at most e shares are wrong: whoever forges n − U − e + 1 or more can make them fit
        another mask, so that e right shares look wrong, and nobody could tell which mask is the real one.
        Raises `DecodingError` if the shares cannot be decoded.
        """
        needed = self.recovery_threshold + self.max_colluders if agreeing is None else agreeing
        answers = self._checked(shares)
        for holder, answer in answers.items():
            self.field.check(answer, f"the share of holder {holder}")
        wrong: set[int] = set()
        if len(answers) > self.recovery_threshold:
            for values in self._random_combinations(answers):
                wrong |= self._locate(answers, tuple(answers), values, wrong)
        while True:
            trusted = tuple(holder for holder in answers if holder not in wrong)
            basis, rest = trusted[: self.recovery_threshold], trusted[self.recovery_threshold :]
            mask, expected = self._open(answers, basis, rest)
            column = _first_difference(expected, [answers[holder] for holder in rest])
            if column is None:
                _require_agreement(len(answers), len(wrong), needed)
                return mask, tuple(sorted(wrong))
            values = np.array([answers[holder][column] for holder in trusted], np.uint64)
            wrong |= self._locate(answers, trusted, values, wrong)

    def _open(
        self, answers: Shares, basis: tuple[int, ...], others: tuple[int, ...]
    ) -> tuple[Elements, Elements]:
        """The mask that the shares of `basis` determine, and the shares that `others` should have."""
        columns = answers[basis[0]].size
        mask = np.empty((self.submasks, columns), np.uint32)
        expected = np.empty((len(others), columns), np.uint32)
        out = np.concatenate([addresses_of(mask), addresses_of(expected)])
        rows = addresses_of([answers[holder] for holder in basis])
        if self._run(self._decoder(basis, others), rows, out, columns):
            for holder in basis:
                self.field.check(answers[holder], f"the share of holder {holder}")
        return mask.reshape(-1), expected

    def _make_decoder(self, basis: tuple[int, ...], others: tuple[int, ...]) -> Product:
        """The matrix from the shares of `basis` to the sub-masks and to the shares of `others`."""
        points, q = self._points[list(basis)], self.field.modulus
        to_submasks = coefficient_rows(points, self.submasks, q)
        to_others = value_rows(points, self._points[list(others)], q)
        return Product(np.concatenate([to_submasks, to_others]), q)

    def _random_combinations(self, answers: Shares) -> Iterator[Numbers]:
        """Σ_c r_c·share[c] of every share; the coins r are drawn now, when all shares are in."""
        columns = next(iter(answers.values())).size
        addresses, q = addresses_of(list(answers.values())), np.uint64(self.field.modulus)
        for _ in range(_COMBINATIONS):
            coins = FieldStream(new_seed(), self.field.modulus).draw(columns)
            at = np.uint64(coins.ctypes.data)
            sums = [inner_product(address, at, columns, q) for address in addresses]
            yield np.array(sums, np.uint64)

    def _locate(
        self, answers: Shares, holders: Sequence[int], values: Numbers, known: set[int]
    ) -> set[int]:
        """The holders whose values, one from each, are not on a polynomial with the others'."""
        points = self._points[list(holders)]
        found = locate_errors(points, values, self.recovery_threshold, self.field.modulus)
        limit = (len(answers) - self.recovery_threshold) // 2
        wrong = {holders[index] for index in found or ()}
        if found is None or len(known | wrong) > limit:
            raise DecodingError(
                f"more than {limit} of {len(answers)} shares are wrong; U ="
                f" {self.recovery_threshold} right ones and two more for each wrong one are needed:"
                " ask more holders for the same sum, or burn the buffer",
                wrong=limit + 1,
            )
        return wrong

    def _run(self, kernel: _Kernel, rows: Addresses, out: Addresses, columns: int) -> bool:
        """Run a kernel; whether it has met a word ≥ q."""
        return kernel(rows, out, columns, self.field.threads) >= self.field.modulus

    def _checked(self, shares: Shares) -> dict[int, Elements]:
        """The shares by holder, in order: known holders, at least U of them, of one length."""
        if not isinstance(shares, Mapping):
            raise DataError(f"shares must be a dict from holder to share, not {type(shares)}")
        for holder in shares:
            known = isinstance(holder, int | np.integer) and 0 <= holder < self.num_holders
            if not known:
                raise DataError(
                    f"holder {holder!r} is unknown: holders are 0…{self.num_holders - 1}"
                )
        if len(shares) < self.recovery_threshold:
            raise DecodingError(
                f"{len(shares)} shares are too few, U = {self.recovery_threshold} are needed:"
                " wait for more answers to the same request, or burn the buffer"
            )
        answers = {int(h): checked(shares[h], f"the share of holder {h}") for h in sorted(shares)}
        size = next(iter(answers.values())).size
        for holder, answer in answers.items():
            checked_shape(answer, f"the share of holder {holder}", (size,))
        if not size:
            raise DataError("the shares are empty: a share holds m ≥ 1 elements")
        return answers


@lru_cache(_KEPT_CODES)
def _evaluation(num_holders: int, coefficients: int, modulus: int) -> tuple[Numbers, _Kernel]:
    """The points, and the kernel that takes coefficients to values at the points."""
    if modulus == PAPER_MODULUS:
        coset = roots.SMALL_COSET if num_holders < _MANY_HOLDERS else roots.LARGE_COSET
        points = np.array(roots.points(coset, num_holders), np.uint64)
        if num_holders > roots.SMALL_COSET:
            return points, CosetEvaluation(coset, num_holders, coefficients)
    else:
        points = np.arange(1, num_holders + 1, dtype=np.uint64)
    return points, Product(vandermonde(points, coefficients, modulus), modulus)


def _require_agreement(answers: int, wrong: int, needed: int) -> None:
    if answers - wrong < needed:
        raise DecodingError(
            f"{answers - wrong} of {answers} shares agree, and {needed} have to: ask more holders for the"
            " same sum, or burn the buffer",
            wrong=wrong,
        )


def _first_difference(expected: Elements, shares: Sequence[Elements]) -> int | None:
    """A column in which a share is not what it should be."""
    for row, share in zip(expected, shares, strict=True):
        different = row != share
        if different.any():
            return int(different.argmax())
    return None


def _check_parameters(N: int, U: int, T: int, q: int) -> None:
    if any(type(number) is not int for number in (N, U, T)) or not 1 <= T < U <= N < q:
        raise ParameterError(
            f"N = {N!r}, U = {U!r}, T = {T!r} and q = {q} must be whole numbers with 1 ≤ T < U ≤ N < q: with T"
            " = 0 a single holder reads a piece of every mask, a mask is cut into U − T pieces, U holders must"
            " exist, and each needs a nonzero point of its own in the field",
            rule="1 ≤ T < U ≤ N < q",
        )
