"""Numbers as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from basecagg.costs import message_bytes
from basecagg.planning.planner import plan
from basecagg.planning.rendering import _bytes, _power, _seconds, as_dict


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


@pytest.mark.parametrize(
    ("wished", "note"),
    [
        ({"min_per_version": 1, "weights": "field"}, "Updates of any versions."),
        ({}, "Updates of 3 versions at most, at least m = 3 of each."),
        ({"buffer_size": 5}, "of one and the same version, because K = 5 < 2m = 6"),
    ],
)
def test_who_meets_in_a_sum(wished: dict[str, Any], note: str) -> None:
    chosen = plan(num_holders=20, max_dropouts=4, model_size=100, **wished)
    (said,) = as_dict(chosen)["notes"]
    assert note in said


def test_an_upload_with_its_shares_beside_plain_fedbuff() -> None:
    chosen = plan(num_holders=12, max_dropouts=3, model_size=10**6)
    beside, sizes = as_dict(chosen)["beside_fedbuff"], message_bytes(chosen.parameters)
    assert beside["upload_with_shares"] == sizes["Contribution"]
    assert (beside["fedbuff_float32"], beside["fedbuff_equal_width"]) == (4 * 10**6, 3 * 10**6)
    assert beside["of_float32"] == pytest.approx(beside["upload_with_shares"] / 4e6)
    assert beside["of_float32"] < 0.8
    assert beside["of_equal_width"] == pytest.approx(beside["upload_with_shares"] / 3e6)
    shown = " ".join(str(chosen).split())
    assert "it is 0.76 of that, and 1.01 of an update in words of 3 bytes" in shown
    assert "K·c_g·(c_l·B + 17) = 10·1·(131072·4 + 17) = 5,243,050" in shown


def test_long_masks_say_that_sums_are_exact_and_keys_what_their_errors_are() -> None:
    long, keys = (
        " ".join(str(plan(num_holders=12, max_dropouts=3, model_size=10**4, masks=masks)).split())
        for masks in ("long", "keys")
    )
    assert "Sums are exact." in long
    assert "an error of σ = 2.83·√K = 8.94 steps" in keys
