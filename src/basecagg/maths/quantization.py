"""From real updates to field elements and back: stochastic rounding Q_c, and φ for the sign.

An element x of an update becomes φ(c·Q_c(x)), Eq. (def_w_bar): c·x is rounded down or up at random
so that its mean is kept, and a negative integer k is written as q + k. Integers up to ±(q − 3)/2
come back with their sign; larger ones are refused, for a wrapped number looks like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError, ParameterError
from basecagg.maths.elements import Elements, check_values, checked, checked_shape, destination
from basecagg.maths.kernels.rounding import clip_and_count, round_and_mask, unmask_and_scale
from basecagg.maths.primes import require_modulus
from basecagg.maths.randomness import Words

Reals = npt.NDArray[np.float32 | np.float64]

_SEGMENT = 1 << 20
"""Elements that are brought back at a time."""


def clip_update(x: Reals, clip: float, *, out: Reals | None = None) -> tuple[Reals, int]:
    """x with every element clipped to ±B, and how many elements that changed.

    NaN and ±Inf are refused, not clipped: they say that training went wrong. After an error `out`
    holds nothing of use.
    """
    x = checked_reals(x)
    if not 0 < clip < float("inf"):
        raise ParameterError(
            f"clip B = {clip} must be a positive, finite number", rule="B > 0 and finite"
        )
    out = np.empty_like(x) if out is None else out
    if (out.shape, out.dtype) != (x.shape, x.dtype) or not out.flags.c_contiguous:
        raise DataError(f"out must be a contiguous vector: np.empty({x.size}, np.{x.dtype})")
    count = int(clip_and_count(x, _round_towards_zero(clip, x.dtype), out))
    if count < 0:
        require_finite(x)
    return out, count


def require_finite(x: Reals) -> None:
    """Refuse NaN and ±Inf, and say how many there are and where the first is."""
    finite = np.isfinite(x)
    if not finite.all():
        raise DataError(
            f"x is NaN or infinite at {_where(~finite)}: training diverged;"
            " discard this update and train afresh"
        )


def quantize(
    x: Reals, levels: int, modulus: int, random_words: Words, *, wrap: bool = False
) -> Elements:
    """φ(c·Q_c(x)), Eqs. (sto_round), (def_w_bar), (phi), with c = `levels` and a word per element.

    c·x is computed in float64, and rounded up iff its word is below frac(c·x)·2³².
    Differs from the paper: the probability of rounding up is the fraction raised to a multiple of
    2⁻³². |c·x| > (q − 3)/2 is an error, unless `wrap` asks for the integer mod q; that is for the
    experiment that shows what wrap-around does.
    """
    if wrap:
        return _quantize_wrapped(x, levels, modulus, random_words)
    return quantize_and_mask(x, levels, modulus, random_words, np.zeros(np.size(x), np.uint32))


def quantize_and_mask(
    x: Reals,
    levels: int,
    modulus: int,
    random_words: Words,
    mask: Elements,
    *,
    out: Elements | None = None,
) -> Elements:
    """φ(c·Q_c(x)) + z mod q, Eq. (masked_update): what a contributor uploads, made in one pass.

    After an error `out` holds nothing of use.
    """
    x, words = _checked_inputs(x, levels, modulus, random_words)
    mask = checked_shape(mask, "mask", x.shape)
    out = destination(out, x.shape)
    limit = float((modulus - 3) // 2)
    if not round_and_mask(x, float(levels), limit, np.uint32(modulus), words, mask, out):
        check_values(mask, "mask", modulus)
        raise _refusal(x, levels, limit)
    return out


def dequantize(values: Elements, levels: int, modulus: int) -> npt.NDArray[np.float64]:
    """φ⁻¹(values)/c with c = `levels`. For a weighted sum of updates c = c_l·Σ s̄."""
    _check_levels(levels)
    require_modulus(modulus, least=3)
    check_values(checked(values, "values"), "values", modulus)
    out = np.empty(values.shape)
    for part, numbers in zip(_segments(out), _segments(values), strict=True):
        np.divide(signed(numbers, modulus), float(levels), out=part)
    return out


def unmask(
    total: Elements,
    mask: Elements,
    levels: int,
    modulus: int,
    *,
    out: npt.NDArray[np.float64],
) -> int:
    """Take a mask off a sum, in place; out = φ⁻¹(total)/c with c = `levels`. Returns the largest |φ⁻¹(total)|.

    One pass does what `PrimeField.sub`, `magnitude` and `dequantize` do.
    """
    _check_levels(levels)
    require_modulus(modulus, least=3)
    destination(total, total.shape)
    mask = checked_shape(mask, "mask", total.shape)
    if out.shape != total.shape or out.dtype != np.float64 or not out.flags.c_contiguous:
        raise DataError(f"out must be a contiguous vector: np.empty({total.size})")
    largest = int(unmask_and_scale(total, mask, np.uint32(modulus), float(levels), out))
    if largest < 0:
        check_values(mask, "mask", modulus)
        raise DataError(f"total holds a value that is not below q = {modulus}: reduce it mod q")
    return largest


def magnitude(values: Elements, modulus: int) -> int:
    """The largest |φ⁻¹(value)|."""
    return max(int(np.abs(signed(part, modulus)).max()) for part in _segments(values))


def squared_norm(values: Elements, modulus: int) -> int:
    """Σ φ⁻¹(value)², exactly."""
    return sum(_sum_of_squares(signed(part, modulus)) for part in _segments(values))


def _sum_of_squares(numbers: npt.NDArray[np.int64]) -> int:
    # k = h·2¹⁶ + l with |h| ≤ 2¹⁵ and 0 ≤ l < 2¹⁶: 2²⁰ products of any two are below 2⁵².
    high, low = numbers >> 16, numbers & 0xFFFF
    return (int(high @ high) << 32) + (int(high @ low) << 17) + int(low @ low)


def signed(values: Elements, modulus: int) -> npt.NDArray[np.int64]:
    """φ⁻¹, Eq. (inv_phi): a value below (q − 1)/2 is positive, any other stands for value − q."""
    require_modulus(modulus, least=3)
    check_values(checked(values, "values"), "values", modulus)
    numbers = values.astype(np.int64)
    # Subtracting q or 0 from all of them is faster than q from some.
    numbers -= np.multiply(values >= (modulus - 1) // 2, modulus, dtype=np.int64)
    return numbers


def _segments(values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Views of a vector: what is made of them is never there as a whole."""
    return (values[at : at + _SEGMENT] for at in range(0, len(values), _SEGMENT))


def _quantize_wrapped(x: Reals, levels: int, modulus: int, random_words: Words) -> Elements:
    x, words = _checked_inputs(x, levels, modulus, random_words)
    out, limit = np.empty(x.shape, np.uint32), float((modulus - 3) // 2)
    unmasked = np.zeros(x.shape, np.uint32)
    if round_and_mask(x, float(levels), limit, np.uint32(modulus), words, unmasked, out):
        return out  # nothing had to wrap: most updates of most runs, and ten times as fast
    scaled = _scale(x, levels)
    require_finite(scaled)
    floor = np.floor(scaled)
    up = words < (scaled - floor) * 2.0**32
    # fmod is exact: a number beyond 2⁵³ too is reduced to what it is mod q.
    return ((np.fmod(floor, modulus).astype(np.int64) + up) % modulus).astype(np.uint32)


def _scale(x: Reals, levels: int) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore"):  # too large becomes infinite, and that is refused
        return x.astype(np.float64) * float(levels)


def _round_towards_zero(clip: float, dtype: np.dtype[np.floating]) -> np.floating:
    """The largest number of this dtype that is at most B: float32(51.2) is above 51.2."""
    bound = dtype.type(min(clip, float(np.finfo(dtype).max)))
    return bound if float(bound) <= clip else np.nextafter(bound, dtype.type(0))


def _checked_inputs(
    x: Reals, levels: int, modulus: int, random_words: Words
) -> tuple[Reals, Words]:
    _check_levels(levels)
    require_modulus(modulus, least=3)
    x = checked_reals(x)
    return x, checked_shape(random_words, "random_words", x.shape)


def checked_reals(x: Reals) -> Reals:
    """The vector, if it is one of floats; copied if a kernel could not read it where it lies."""
    if not isinstance(x, np.ndarray):
        raise DataError(f"x must be a numpy array of floats, not {type(x).__name__}")
    if x.dtype not in (np.float32, np.float64) or x.ndim != 1:
        raise DataError(
            f"x is {x.dtype}{list(x.shape)} but must be a vector of float32 or float64:"
            " x.ravel().astype(np.float32)"
        )
    return np.require(x, requirements=["C", "ALIGNED"])


def _check_levels(levels: int) -> None:
    if not isinstance(levels, int | np.integer) or levels < 1:
        raise ParameterError(f"levels c = {levels} must be a whole number ≥ 1", rule="c ≥ 1")


def _refusal(x: Reals, levels: int, limit: float) -> DataError:
    """Which numbers of the update the kernel found bad. The values themselves are not told."""
    require_finite(x)
    outside = np.abs(_scale(x, levels)) > limit
    return DataError(
        f"|c·x| is above (q − 3)/2 = {limit:.0f} at {_where(outside)}: clip the update to"
        f" ±{limit / levels:g} with clip_update, or lower levels c = {levels}"
    )


def _where(found: npt.NDArray[np.bool_]) -> str:
    return f"{np.count_nonzero(found)} of {found.size} indices, first at {np.argmax(found)}"
