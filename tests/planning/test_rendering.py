"""Numbers as people read them."""

from __future__ import annotations

import pytest

from basecagg.planning.rendering import _bytes, _power, _seconds


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "–"),
        (999, "999 B"),
        (1000, "1 kB"),
        (6_461_728, "6.46 MB"),
        (999_999_999, "1,000 MB"),
        (40 * 10**12, "40,000 GB"),
    ],
)
def test_bytes(number: int, shown: str) -> None:
    assert _bytes(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (2e-9, "0.002 µs"),
        (8e-5, "80 µs"),
        (0.0534, "53.4 ms"),
        (9.17, "9.17 s"),
        (333, "5.55 min"),
        (33400, "9.28 h"),
    ],
)
def test_seconds(number: float, shown: str) -> None:
    assert _seconds(number) == shown


@pytest.mark.parametrize(("number", "shown"), [(1, "2^0"), (64, "2^6"), (65, "65")])
def test_powers_of_two(number: int, shown: str) -> None:
    assert _power(number) == shown
