"""Weights are what the oracle says, the same for everyone, and right in the mean."""

import decimal
import json
import math

import pytest
from vectors_rounding import VECTORS

import basecagg.errors
from basecagg.errors import ParameterError
from basecagg.maths import staleness
from basecagg.maths.staleness import (
    SHAPES,
    StalenessFunction,
    constant,
    exact_value,
    expected_weight,
    forms,
    hinge,
    of_shape,
    polynomial,
    quantized_weight,
)

GOOD = json.loads((VECTORS / "staleness.json").read_text(encoding="utf-8"))
FUNCTIONS = [constant(), polynomial(1), polynomial(0.5), polynomial(0.1), hinge(), hinge(0.1, 0.3)]


def test_weights_match_the_vectors():
    for kind, a, b, tau, levels, coin, rounding, weight in GOOD["weights"]:
        function = StalenessFunction(kind, a, b)
        found = quantized_weight(function, tau, levels, bytes.fromhex(coin), rounding)
        assert found == weight, (function, tau, levels, coin, rounding)


@pytest.mark.parametrize("vector", GOOD["bad"], ids=lambda v: v["name"])
def test_bad_calls_are_refused(vector):
    call = dict(vector["call"])
    shape = {name: call.pop(name) for name in ("kind", "a", "b")}
    with pytest.raises(getattr(basecagg.errors, vector["error"])) as caught:
        quantized_weight(StalenessFunction(**shape), coin=b"", **call)
    assert vector["says"] in str(caught.value)


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_functions_that_would_grow_are_not_made(bad):
    for make in (
        lambda: polynomial(bad),
        lambda: hinge(bad, 1.0),
        lambda: hinge(1.0, bad),
        lambda: StalenessFunction("polynomial", bad),
    ):
        with pytest.raises(ParameterError, match="finite number ≥ 0") as caught:
            make()
        assert caught.value.rule == "s(τ) does not increase"


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_every_function_starts_at_1_and_does_not_increase(function):
    values = [function(tau) for tau in range(100)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] > 0


def test_functions_are_the_papers():
    for tau in range(50):
        assert constant()(tau) == 1.0
        assert polynomial(1)(tau) == pytest.approx(1 / (1 + tau), rel=1e-15)
        assert polynomial(0.3)(tau) == pytest.approx((1 + tau) ** -0.3, rel=1e-14)
        assert hinge(10, 4)(tau) == pytest.approx(
            1 if tau <= 4 else 1 / (10 * (tau - 4) + 1), rel=1e-15
        )


@pytest.mark.parametrize("tau", range(64))
def test_a_weight_that_is_whole_comes_out_whole(tau):
    """(1 + τ)·s(τ) = 1 exactly, though 1/3 has no last digit; no coin may make it 0."""
    assert expected_weight(polynomial(1), tau, tau + 1) == 1
    assert expected_weight(hinge(1, 0), tau, tau + 1) == 1
    assert {quantized_weight(polynomial(1), tau, tau + 1, bytes([c])) for c in range(50)} == {1}


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_the_callers_decimal_context_changes_nothing(function):
    def weights():
        exact_value.cache_clear()
        return [
            (expected_weight(function, tau, 999), quantized_weight(function, tau, 999, b"coin"))
            for tau in range(30)
        ]

    usual = weights()
    with decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP)):
        assert weights() == usual


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_the_mean_over_coins_is_the_expected_weight(function):
    tosses = 20_000
    for tau in (1, 5, 7):
        coins = (n.to_bytes(4, "little") for n in range(tosses))
        mean = sum(quantized_weight(function, tau, 64, coin) for coin in coins) / tosses
        expected = float(expected_weight(function, tau, 64))
        fraction = expected % 1
        assert abs(mean - expected) <= 4 * math.sqrt(fraction * (1 - fraction) / tosses)


def test_control_nearest_is_not_right_in_the_mean():
    expected = float(expected_weight(polynomial(1), 4, 64))
    assert expected == pytest.approx(12.8)
    assert quantized_weight(polynomial(1), 4, 64, b"", "nearest") == 13


def test_a_coin_is_tossed_for_every_name_and_staleness():
    def tosses(coin):
        return [quantized_weight(polynomial(0.5), tau, 1000, coin) for tau in range(1, 60)]

    names = [b"", b"\x00", b"\x00\x00", b"mask 1", b"mask 2"]
    assert len({tuple(tosses(name)) for name in names}) == len(names)
    assert tosses(b"mask 1") == tosses(b"mask 1")


def test_a_half_goes_up_when_rounded_to_the_nearest():
    assert quantized_weight(polynomial(1), 1, 3, b"", "nearest") == 2


def test_names_for_tables():
    names = [str(function) for function in (constant(), polynomial(0.5), hinge(10, 4))]
    assert names == ["1", "(1+τ)^-0.5", "1 if τ ≤ 4 else 1/(10·(τ-4)+1)"]


def test_a_function_that_is_not_in_the_table_weighs_nothing_at_all(monkeypatch):
    """A forgotten case raises wherever it is met; it does not weigh 1."""
    with pytest.raises(ParameterError, match="'steep' must be one of"):
        StalenessFunction("steep", 2.0)
    monkeypatch.setitem(staleness.SHAPES, "steep", staleness.SHAPES["polynomial"])
    known = StalenessFunction("steep", 2.0)
    assert known(3) == polynomial(2.0)(3)
    monkeypatch.undo()
    with pytest.raises(KeyError, match="steep"):
        known(4)


def test_every_shape_has_a_name_numbers_and_a_place_on_the_command_line():
    assert forms() == "constant, polynomial:α or hinge:a:b"
    assert [of_shape(kind) for kind in SHAPES] == [constant(), polynomial(), hinge()]
    assert of_shape("hinge", 2) == hinge(2, 4)
    with pytest.raises(ParameterError, match=r"constant takes 0 number\(s\), not 1"):
        of_shape("constant", 1.0)
