"""The bars: ratios of two times of one run, and the value that each must reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Bar(NamedTuple):
    """One line of the result: dividend / divisor, by the names under which they were timed."""

    ratio: str
    sign: str
    bar: float
    dividend: str
    divisor: str


BARS = (
    Bar("encode: FedML / ours, N = 100", "≥", 50, "FedML encode, N = 100", "encode, N = 100"),
    Bar("encode: FedML / ours, N = 500", "≥", 250, "FedML encode, N = 500", "encode, N = 500"),
    Bar("encode: FedML / ours, N = 1000", "≥", 900, "FedML encode, N = 1000", "encode, N = 1000"),
    Bar(
        "encode: FedML / ours on all cores, N = 100",
        "≥",
        100,
        "FedML encode, N = 100",
        "encode on all cores, N = 100",
    ),
    Bar("decode: FedML / ours, N = 100", "≥", 10, "FedML decode, N = 100", "decode, N = 100"),
    Bar("decode: FedML / ours, N = 500", "≥", 30, "FedML decode, N = 500", "decode, N = 500"),
    Bar("decode: FedML / ours, N = 1000", "≥", 60, "FedML decode, N = 1000", "decode, N = 1000"),
    Bar(
        "PRG + encode / copy of the shares, N = 100",
        "≤",
        12,
        "PRG + encode, N = 100",
        "copy of the shares, N = 100",
    ),
    Bar("weighted sum / read bandwidth, K = 70", "≥", 0.85, "read of 70 rows", "weighted sum"),
    Bar("PRG / raw AES-CTR", "≥", 0.8, "raw AES-CTR", "PRG"),
    Bar("quantise + mask / copy bandwidth", "≥", 0.5, "copy of as much", "quantise + mask"),
    Bar(
        "encode, N = 1000 / N = 100", "≤", 2, "encode in turn, N = 1000", "encode in turn, N = 100"
    ),
)


class Result(NamedTuple):
    """What a bar came to in this run."""

    ratio: str
    bar: str
    reached: float
    ok: bool


def at_most(ratio: str, most: float, reached: float) -> Result:
    """A bar that must not be exceeded."""
    return Result(ratio, f"≤ {most:g}", reached, reached <= most)


def at_least(ratio: str, least: float, reached: float) -> Result:
    """A bar that must be reached."""
    return Result(ratio, f"≥ {least:g}", reached, reached >= least)


_JUDGES = {"≤": at_most, "≥": at_least}


def results(seconds: Mapping[str, float]) -> Iterator[Result]:
    """Every bar whose two times were taken."""
    for ratio, sign, bar, dividend, divisor in BARS:
        if dividend in seconds and divisor in seconds:
            yield _JUDGES[sign](ratio, bar, seconds[dividend] / seconds[divisor])
