"""Every rule of the table has parameters that just meet it, and parameters that break it and are told why."""

import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basecagg import ProtocolParameters
from basecagg.errors import ParameterError
from basecagg.maths.primes import PAPER_MODULUS, is_prime
from basecagg.maths.staleness import constant, hinge, polynomial
from basecagg.parameters import RULES, usual_tolerance

PAPER = {
    "num_holders": 100,
    "recovery_threshold": 62,
    "max_colluders": 8,
    "max_dropouts": 30,
    "buffer_size": 10,
    "model_size": 1000,
}


def parameters(**changes):
    return ProtocolParameters(**(PAPER | changes))


# Of each rule: changes to the paper's set-up that break it, and what the error must say.
BROKEN = {
    "q is a prime below 2³²": [
        ({"modulus": 2**32 - 1}, ["q = 4294967295", "prime"]),
        ({"modulus": 2**32 + 15}, ["q = 4294967311", "2³²"]),
        ({"modulus": 1}, ["q = 1 "]),
        ({"modulus": -7}, ["q = -7 "]),
    ],
    "2 ≤ N ≤ q − 1": [
        ({"num_holders": 1}, ["N = 1 ", "2…4294967290"]),
        ({"num_holders": 7, "modulus": 7}, ["N = 7 ", "2…6", "nonzero"]),
    ],
    "T ≥ 1": [({"max_colluders": 0}, ["T = 0", "at least 1"])],
    "D ≥ 0": [({"max_dropouts": -1}, ["D = -1", "negative"])],
    "U ≥ T + 1": [({"recovery_threshold": 8}, ["U = 8", "T + 1 = 9"])],
    "U ≤ N − D": [({"recovery_threshold": 71}, ["U = 71", "100 − 30 = 70"])],
    "certified mode: quorum ⌊(N + T)/2⌋ + 1 ≤ N − D": [
        ({"max_dropouts": 46, "recovery_threshold": 9}, ["= 55", "N − D = 54", "honest-server"]),
    ],
    "max_colluding_contributors ≥ 0": [
        ({"max_colluding_contributors": -1}, ["max_colluding_contributors = -1"]),
    ],
    "K ≥ 2": [({"buffer_size": 1, "consistency": "honest-server"}, ["K = 1", "at least 2"])],
    "certified mode: K ≥ max_colluding_contributors + 2": [
        ({"buffer_size": 9}, ["K = 9", "+ 2 = 10", "8 friends"]),
        ({"max_colluding_contributors": 9}, ["K = 10", "+ 2 = 11"]),
    ],
    "d ≥ 1": [({"model_size": 0}, ["d = 0"])],
    "τ_max ≥ 0": [({"max_staleness": -1}, ["τ_max = -1"])],
    "B > 0 and finite": [
        ({"clip": 0.0}, ["B = 0.0"]),
        ({"clip": -1}, ["B = -1.0"]),
        ({"clip": math.inf}, ["B = inf"]),
        ({"clip": math.nan}, ["B = nan"]),
    ],
    "c_l ≥ 1": [({"update_levels": 0}, ["c_l = 0"])],
    "c_g ≥ 1": [({"weight_levels": 0}, ["c_g = 0"])],
    "c_g·s(τ_max) ≥ 1": [
        ({"weight_levels": 10, "staleness": polynomial(1)}, ["c_g = 10", "= 10 ", "0.909"]),
        ({"staleness": polynomial(2)}, ["c_g = 64", "0.529"]),
        ({"weight_levels": 60, "staleness": hinge(10, 4)}, ["c_g = 60", "0.984"]),
    ],
    "K·c_g < q": [
        (
            {"modulus": 641, "allow_wraparound": True, "weight_levels": 65},
            ["10·65 = 650", "q = 641"],
        ),
    ],
    "K·c_g·(c_l·B + 1) ≤ (q − 3)/2": [
        ({"clip": 51.2}, ["10·64·(65536·51.2 + 1)", "(q − 3)/2 = 2,147,483,644"]),
        ({"clip": 1e308}, ["65536·1e+308"]),
        ({"update_levels": 2**20}, ["1048576·4", "lower K, c_g, c_l or B"]),
    ],
    "answers that agree: 0 ≤ E ≤ T": [
        ({"liars": -1}, ["E = -1 ", "possible: E = 0"]),
        ({"liars": 9}, ["E = 9 ", "0…T = 8", "possible: E = 8, or T = 9"]),
    ],
    "answers that agree: U + T + E ≤ N − D": [
        (
            {"recovery_threshold": 63},
            ["U + T = 63 + 8", "100 − 30 − 0 = 70", "U = 62 or T = 7 or D = 29 or N = 101"],
        ),
        ({"liars": 3}, ["100 − 30 − 3 = 67", "U = 59 or T = 5 or D = 27 or E = 0 or N = 103"]),
        (
            {"num_holders": 2, "recovery_threshold": 2, "max_colluders": 1, "max_dropouts": 0},
            ["U + T = 2 + 1", "possible: N = 3, or correctness='honest-holders'"],
        ),
        (
            {"recovery_threshold": 63, "consistency": "honest-server", "correctness": "agreed"},
            ["U + T = 63 + 8"],
        ),
    ],
    "honest holders: E = 0": [
        ({"liars": 1, "correctness": "honest-holders"}, ["E = 1 ", "correctness='agreed'"]),
        ({"liars": 1, "consistency": "honest-server"}, ["E = 1 ", "correctness='agreed'"]),
    ],
    "1 ≤ min_per_version ≤ K": [
        ({"min_per_version": 0}, ["min_per_version = 0"]),
        ({"min_per_version": 11}, ["min_per_version = 11", "K = 10"]),
    ],
    "mask_lifetime > τ_max": [({"mask_lifetime": 10}, ["mask_lifetime = 10", "τ_max = 10"])],
    "mask_quota ≥ 1": [({"mask_quota": 0}, ["mask_quota = 0"])],
}

# Of each rule: changes that just meet it.
JUST_MET = {
    "q is a prime below 2³²": [{"modulus": 2**32 - 5}, {"modulus": 2**32 - 17}],
    "2 ≤ N ≤ q − 1": [
        {
            "num_holders": 6,
            "modulus": 7,
            "recovery_threshold": 2,
            "max_colluders": 1,
            "max_dropouts": 2,
            "buffer_size": 3,
            "weight_levels": 1,
            "update_levels": 1,
            "allow_wraparound": True,
        },
        {
            "num_holders": 2,
            "recovery_threshold": 2,
            "max_colluders": 1,
            "max_dropouts": 0,
            "correctness": "honest-holders",
        },
    ],
    "T ≥ 1": [{"max_colluders": 1}],
    "D ≥ 0": [{"max_dropouts": 0}],
    "U ≥ T + 1": [{"recovery_threshold": 9}],
    "U ≤ N − D": [{"recovery_threshold": 70, "correctness": "honest-holders"}],
    "certified mode: quorum ⌊(N + T)/2⌋ + 1 ≤ N − D": [
        {"max_dropouts": 45, "recovery_threshold": 47},
        {"max_dropouts": 90, "recovery_threshold": 10, "consistency": "honest-server"},
    ],
    "max_colluding_contributors ≥ 0": [{"max_colluding_contributors": 0}],
    "K ≥ 2": [
        {"buffer_size": 2, "max_colluding_contributors": 0},
        {"buffer_size": 2, "consistency": "honest-server"},
    ],
    "certified mode: K ≥ max_colluding_contributors + 2": [{"max_colluding_contributors": 8}],
    "d ≥ 1": [{"model_size": 1}],
    "τ_max ≥ 0": [{"max_staleness": 0}],
    "B > 0 and finite": [{"clip": 5e-324}, {"clip": 1}],
    "c_l ≥ 1": [{"update_levels": 1}],
    "c_g ≥ 1": [{"weight_levels": 1}],
    "c_g·s(τ_max) ≥ 1": [
        {"weight_levels": 11, "staleness": polynomial(1)},
        {"weight_levels": 61, "staleness": hinge(10, 4)},
    ],
    "K·c_g < q": [{"modulus": 641, "allow_wraparound": True}],
    "K·c_g·(c_l·B + 1) ≤ (q − 3)/2": [
        {"clip": 51.19998},
        # 2·1·(c_l·1 + 1) = (q − 3)/2 exactly
        {
            "buffer_size": 2,
            "max_colluding_contributors": 0,
            "weight_levels": 1,
            "update_levels": (PAPER_MODULUS - 3) // 4 - 1,
            "clip": 1,
        },
        {"clip": 1000, "allow_wraparound": True},
    ],
    "answers that agree: 0 ≤ E ≤ T": [
        {"liars": 0},
        {"liars": 8, "recovery_threshold": 54},
    ],
    "answers that agree: U + T + E ≤ N − D": [
        {"recovery_threshold": 62},
        {"recovery_threshold": 58, "liars": 4},
        {"recovery_threshold": 70, "consistency": "honest-server"},
    ],
    "honest holders: E = 0": [{"correctness": "honest-holders"}, {"liars": 8, "max_dropouts": 22}],
    "1 ≤ min_per_version ≤ K": [{"min_per_version": 1}, {"min_per_version": 10}],
    "mask_lifetime > τ_max": [{"mask_lifetime": 11}],
    "mask_quota ≥ 1": [{"mask_quota": 1}],
}


@pytest.mark.parametrize("examples", [BROKEN, JUST_MET], ids=["broken", "just met"])
def test_every_rule_has_its_examples(examples):
    assert sorted(examples) == sorted(rule.text for rule in RULES)


@pytest.mark.parametrize(
    ("rule", "changes", "words"),
    [(rule, *example) for rule, examples in BROKEN.items() for example in examples],
)
def test_a_broken_rule_is_named_with_its_values(rule, changes, words):
    with pytest.raises(ParameterError) as caught:
        parameters(**changes)
    assert caught.value.rule == rule
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "changes", [c for examples in JUST_MET.values() for c in examples], ids=str
)
def test_a_rule_that_is_just_met_holds(changes):
    made = parameters(**changes)
    assert all(rule.holds(made) for rule in RULES)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(ProtocolParameters)])
@pytest.mark.parametrize("value", ["3", 3.5, True, None, b"", [1]], ids=repr)
def test_a_wrong_type_is_named(name, value):
    fits = {
        "allow_wraparound": [True],
        "clip": [3.5],
        "correctness": [None],
        "max_colluding_contributors": [None],
        "min_per_version": [None],
    }
    if value in fits.get(name, []):
        assert parameters(**{name: value}) is not None
        return
    with pytest.raises(ParameterError) as caught:
        parameters(**{name: value})
    assert str(caught.value).startswith(f"{name} = {value!r} must be ")
    assert caught.value.rule.startswith(f"{name} is ")


def test_one_level_more_than_just_met_wraps_around():
    last = JUST_MET["K·c_g·(c_l·B + 1) ≤ (q − 3)/2"][1]
    assert parameters(**last).largest_sum == parameters(**last).room_for_sum
    with pytest.raises(ParameterError, match="lower K"):
        parameters(**last | {"update_levels": last["update_levels"] + 1})


@settings(derandomize=True)
@given(
    buffer_size=st.integers(10, 1000),
    weight_levels=st.integers(1, 1000),
    update_levels=st.integers(1, 2**20),
    share_of_room=st.floats(0.01, 1.01),
)
def test_what_is_accepted_cannot_wrap_around(
    buffer_size, weight_levels, update_levels, share_of_room
):
    """The largest honest sum is K·c_g·⌈c_l·B⌉, here in exact arithmetic."""
    room = (PAPER_MODULUS - 3) // 2
    clip = share_of_room * room / (buffer_size * weight_levels * update_levels)
    largest = buffer_size * weight_levels * math.ceil(update_levels * Fraction(clip))
    sizes = {"buffer_size": buffer_size, "weight_levels": weight_levels}
    try:
        made = parameters(**sizes, update_levels=update_levels, clip=clip)
    except ParameterError:
        assert largest + buffer_size * weight_levels >= room  # refused within a level of the bound
    else:
        assert largest <= made.largest_sum <= room


def test_derived_numbers_of_the_papers_setup():
    made = parameters(correctness="honest-holders", recovery_threshold=70)
    assert made.quorum == 55
    assert made.colluding_contributors == 8
    assert made.least_per_version == 3
    assert made.submasks == 62
    assert made.share_size == 17
    assert made.padded_size == 17 * 62
    assert (made.answers_needed, made.recovery_margin) == (70, 0)
    assert made.room_for_sum == 2**31 - 4
    assert made.staleness == constant()


@pytest.mark.parametrize(
    ("changes", "correctness", "answers", "margin"),
    [
        ({}, "agreed", 70, 8),
        ({"liars": 3, "recovery_threshold": 59}, "agreed", 67, 11),
        ({"correctness": "honest-holders"}, "honest-holders", 62, 0),
        ({"consistency": "honest-server"}, "honest-holders", 62, 0),
        ({"consistency": "honest-server", "correctness": "agreed"}, "agreed", 70, 8),
    ],
)
def test_how_many_answers_open_a_sum(changes, correctness, answers, margin):
    made = parameters(**changes)
    assert made.correctness == correctness
    assert (made.answers_needed, made.recovery_margin) == (answers, margin)


@pytest.mark.parametrize(
    ("consistency", "chosen", "numbers"),
    [
        ("certified", {}, (30, 8, 62)),
        ("certified", {"liars": 4}, (30, 8, 58)),
        ("certified", {"correctness": "honest-holders"}, (30, 8, 70)),
        ("honest-server", {}, (30, 8, 70)),
        ("certified", {"max_dropouts": 10, "max_colluders": 20}, (10, 20, 70)),
        ("certified", {"recovery_threshold": 50}, (30, 8, 50)),
    ],
)
def test_what_is_not_chosen_gets_the_largest_numbers_that_fit(consistency, chosen, numbers):
    assert usual_tolerance(100, 10, consistency, **chosen) == numbers


@pytest.mark.parametrize("consistency", ["certified", "honest-server"])
@pytest.mark.parametrize("correctness", ["agreed", "honest-holders"])
@pytest.mark.parametrize("holders", range(3, 60))
def test_the_usual_tolerance_makes_parameters(consistency, correctness, holders):
    dropouts, colluders, threshold = usual_tolerance(holders, 10, consistency, correctness)
    made = ProtocolParameters(
        num_holders=holders,
        recovery_threshold=threshold,
        max_colluders=colluders,
        max_dropouts=dropouts,
        buffer_size=10,
        model_size=5,
        consistency=consistency,
        correctness=correctness,
    )
    assert made.answers_needed == holders - dropouts


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({}, 3),
        ({"consistency": "honest-server"}, 1),
        ({"consistency": "honest-server", "min_per_version": 3}, 3),
        ({"min_per_version": 1}, 1),
        ({"buffer_size": 2, "max_colluding_contributors": 0}, 2),
    ],
)
def test_how_many_of_each_version(changes, least):
    assert parameters(**changes).least_per_version == least
    assert parameters(**changes).min_per_version == least


@pytest.mark.parametrize("model_size", range(1, 200))
def test_a_mask_has_at_least_one_pad_and_less_than_a_share_more(model_size):
    made = parameters(model_size=model_size)
    assert made.padded_size % made.submasks == 0
    assert 1 <= made.padded_size - model_size <= made.submasks


def test_parameters_are_frozen_and_named():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameters().num_holders = 3
    with pytest.raises(TypeError):
        ProtocolParameters(100, 70, 8, 30, 10, 1000)


def test_primes_are_told_from_others():
    sieve = [True] * 20_000
    sieve[:2] = [False, False]
    for p in range(2, 142):
        sieve[p * p :: p] = [False] * len(sieve[p * p :: p])
    assert [is_prime(n) for n in range(-5, 20_000)] == [False] * 5 + sieve


@pytest.mark.parametrize("n", [2047, 1373653, 25326001, 3215031751, 4294967291 - 2])
def test_strong_pseudoprimes_are_not_primes(n):
    """The smallest that fool the bases 2; 2, 3; 2, 3, 5; 2, 3, 5, 7."""
    assert not is_prime(n)


@given(clip=st.floats(2.0**-40, 2.0**18), k=st.integers(2, 100))
def test_the_finest_levels_for_a_clip_do_not_wrap_and_twice_as_many_do(clip, k):
    found = parameters(buffer_size=k, max_colluding_contributors=0).clipped_to(clip)
    assert found.clip == clip
    assert found.largest_sum <= found.room_for_sum
    if found.update_levels < 2**31:
        with pytest.raises(ParameterError, match="lower K, c_g, c_l or B"):
            dataclasses.replace(found, update_levels=2 * found.update_levels)


def test_a_clip_that_no_levels_fit_is_refused():
    with pytest.raises(ParameterError, match="lower K, c_g, c_l or B"):
        parameters().clipped_to(2.0**22)
