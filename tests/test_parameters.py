"""Every rule of the table has parameters that just meet it, and parameters that break it and are told why."""

import contextlib
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
from basecagg.privacy import Privacy

PAPER = {
    "num_holders": 100,
    "recovery_threshold": 62,
    "max_colluders": 8,
    "max_dropouts": 30,
    "buffer_size": 10,
    "model_size": 1000,
    "weights": "field",
}


def parameters(**changes):
    return ProtocolParameters(**(PAPER | changes))


def private(*, levels=2**10, staleness=constant(), **changes):  # noqa: B008 - frozen
    """Changes to the paper's set-up: C = 1, z = 2, three uploads, ε = 4.1 at δ = 10⁻⁵; σ_i is 1455 steps."""
    usual = {"clip_norm": 1.0, "noise": 2.0, "epsilon": 4.1, "delta": 1e-5, "max_uses": 3}
    privacy = Privacy(**(usual | changes))
    own = {"weights": "own", "staleness": staleness, "max_colluding_contributors": 8}
    return {"privacy": privacy, "update_levels": levels} | own


def bounded(**changes):
    """The same without noise."""
    return private(**({"noise": 0, "epsilon": None} | changes))


def of_records(**changes):
    """One hundred uploads, each record in one of twenty; d = 1000, so Δ̃ is 3 % more than C."""
    usual = {"unit": "record", "sampling_rate": 0.05, "max_records": 200, "max_uses": 100}
    made = private(**(usual | {"clip_norm": 0.5, "epsilon": 1.25, "levels": 2**11} | changes))
    return made | {"clip": 100.0}


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
        ({"buffer_size": 2}, ["K = 2", "+ 2 = 3", "1 friends"]),
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
    "own weights: c_g = 1": [
        ({"weights": "own", "weight_levels": 64}, ["c_g = 64", "weights='field'"]),
    ],
    "keys: own weights": [({"masks": "keys"}, ["tells the keys", "masks = 'long'"])],
    "keys: n and q are a row of approved rings, at most 2³⁰ words a key": [
        ({"masks": "keys", "weights": "own", "modulus": 2**31 - 1}, ["n = 2048", "16760833"]),
        ({"masks": "keys", "weights": "own", "model_size": 2**30 - 1}, ["2³⁰"]),
    ],
    "own weights: s(τ_max) > 2⁻³²": [
        ({"weights": "own", "max_staleness": 2**32 - 1, "staleness": polynomial()}, ["2.33e-10"]),
        (bounded(staleness=polynomial(1e300)), ["the weight 0, which is nothing"]),
    ],
    "field weights: c_g·s(τ_max) ≥ 1": [
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
    "K·c_g·(c_l·B + 1) ≤ (q − 3)/2, with keys K·(c_l·B + 17)": [
        ({"clip": 51.2}, ["10·64·(65536·51.2 + 1)", "(q − 3)/2 = 2,147,483,644"]),
        ({"clip": 1e308}, ["65536·1e+308"]),
        ({"update_levels": 2**20}, ["1048576·4", "lower K, c_g, c_l or B"]),
    ],
    "privacy: 10⁻³⁰ ≤ C, M·C ≤ B": [
        (private(clip_norm=4.5), ["C = 4.5", "B = 4", "possible: clip B = 4.5"]),
        (bounded(clip_norm=0), ["C = 0"]),
        (of_records(max_records=201), ["B/M = 0.497512", "possible: clip B = 100.5"]),
        (private(clip_norm=math.nan), ["C = nan"]),
    ],
    "privacy: unit user: sampling_rate = 1, M = 1": [
        (private(sampling_rate=0.5), ["sampling_rate = 0.5", "unit = 'record'"]),
        (bounded(max_records=2), ["M = 2"]),
    ],
    "privacy: unit record: z > 0, 0 < sampling_rate ≤ 1, M ≥ 1": [
        (bounded(unit="record"), ["z = 0", "hidden by noise alone"]),
        (of_records(sampling_rate=0), ["sampling_rate = 0"]),
        (of_records(sampling_rate=1.5), ["sampling_rate = 1.5"]),
        (of_records(sampling_rate=math.nan), ["sampling_rate = nan"]),
        (of_records(max_records=0), ["M = 0"]),
    ],
    "privacy: own weights": [
        (private() | {"weights": "field"}, ["weigh the noise", "weights = 'own'"]),
    ],
    "privacy: z ≥ 0, and ε > 0 if and only if z > 0": [
        (private(noise=-1), ["z = -1"]),
        (private(noise=math.nan), ["z = nan"]),
        (private(noise=0), ["z = 0", "ε = 4.1", "nothing is promised"]),
        (private(epsilon=None), ["ε = None"]),
        (private(epsilon=0), ["ε = 0"]),
        (private(epsilon=math.inf), ["ε = inf"]),
    ],
    "privacy: 0 < δ < 1": [(private(delta=0), ["δ = 0"]), (private(delta=1), ["δ = 1"])],
    "privacy: k_max ≥ 1": [(private(max_uses=0), ["k_max = 0"])],
    "privacy: with noise 1 ≤ T_c < K": [
        (private() | {"max_colluding_contributors": 0}, ["T_c = 0", "1…K − 1 = 9"]),
        (
            private() | {"max_colluding_contributors": 10, "consistency": "honest-server"},
            ["T_c = 10", "everyone knows its own noise"],
        ),
    ],
    "privacy: with noise 3 ≤ σ_i ≤ 2¹³ steps": [
        (private(levels=2**13), ["σ_i", "lower update_levels c_l = 8192"]),
        (private(levels=1, clip_norm=0.01, noise=0.1), ["outside 3…8192", "raise update_levels"]),
    ],
    "privacy: c_l·C·s(τ_max) ≥ 1": [
        (bounded(levels=7, staleness=polynomial()), ["τ_max = 10", "0.875 steps", "c_l = 7"]),
    ],
    "privacy: δ > 2e^ε·k_max·K·d·2⁻¹²⁷": [
        (private(delta=1e-33), ["δ = 1e-33", "raise δ"]),
        (private(epsilon=1e6), ["ε = 1000000"]),
    ],
    "privacy: k_max uploads cost at most ε at δ": [
        (private(epsilon=4.0), ["k_max = 3", "z = 2", "ε = 4.0", "k_max = 2"]),
        (private(max_uses=4), ["k_max = 4", "possible: ε = 4.7", "k_max = 3"]),
    ],
    "privacy: K·(⌈c_l·M·C⌉ + 1) + σ_i·√(2K·ln(2d·2⁴⁰)) ≤ (q − 3)/2": [
        (bounded(levels=2**28), ["c_l = 268435456", "(q − 3)/2 = 2,147,483,644"]),
        (private() | {"modulus": 65537}, ["K = 10", "σ_i = 1.45e+03"]),
        (bounded(levels=2**28) | {"allow_wraparound": True}, ["c_l = 268435456"]),
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
    "own weights, certified: min_per_version ≥ max_colluding_contributors + 2": [
        ({"weights": "own", "min_per_version": 2}, ["min_per_version = 2", "+ 2 = 3"]),
        (
            {"weights": "own", "min_per_version": 3, "max_colluding_contributors": 2},
            ["min_per_version = 3", "+ 2 = 4"],
        ),
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
    "own weights: c_g = 1": [{"weights": "own", "weight_levels": 1}, {"weights": "own"}],
    "keys: own weights": [{"masks": "keys", "weights": "own"}],
    "keys: n and q are a row of approved rings, at most 2³⁰ words a key": [
        {"masks": "keys", "weights": "own", "model_size": 2**30 - 2},
        {"masks": "keys", "weights": "own", "modulus": 16760833, "update_levels": 2**17},
    ],
    "own weights: s(τ_max) > 2⁻³²": [
        {
            "weights": "own",
            "max_staleness": 2**32 - 2,
            "mask_lifetime": 2**32,
            "staleness": polynomial(),
        }
    ],
    "own weights, certified: min_per_version ≥ max_colluding_contributors + 2": [
        {"weights": "own", "max_colluding_contributors": 2, "min_per_version": 4},
        {"weights": "own", "min_per_version": 1, "consistency": "honest-server"},
        {"weights": "own", "min_per_version": 1, "repeated_versions": True},
    ],
    "d ≥ 1": [{"model_size": 1}],
    "τ_max ≥ 0": [{"max_staleness": 0}],
    "B > 0 and finite": [{"clip": 5e-324}, {"clip": 1}],
    "c_l ≥ 1": [{"update_levels": 1}],
    "c_g ≥ 1": [{"weight_levels": 1}],
    "field weights: c_g·s(τ_max) ≥ 1": [
        {"weight_levels": 11, "staleness": polynomial(1)},
        {"weight_levels": 61, "staleness": hinge(10, 4)},
    ],
    "K·c_g < q": [{"modulus": 641, "allow_wraparound": True}],
    "K·c_g·(c_l·B + 1) ≤ (q − 3)/2, with keys K·(c_l·B + 17)": [
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
    "privacy: 10⁻³⁰ ≤ C, M·C ≤ B": [
        bounded(clip_norm=4),
        bounded(clip_norm=1e-30, levels=2**100),
    ],
    "privacy: unit user: sampling_rate = 1, M = 1": [private(sampling_rate=1, max_records=1)],
    "privacy: unit record: z > 0, 0 < sampling_rate ≤ 1, M ≥ 1": [
        of_records(),
        of_records(sampling_rate=1, max_records=1, max_uses=1, epsilon=3),
    ],
    "privacy: own weights": [private(staleness=polynomial())],
    "privacy: z ≥ 0, and ε > 0 if and only if z > 0": [private(), bounded()],
    "privacy: 0 < δ < 1": [private(delta=0.99), private(delta=1e-6, epsilon=5)],
    "privacy: k_max ≥ 1": [private(max_uses=1)],
    "privacy: with noise 1 ≤ T_c < K": [
        private() | {"max_colluding_contributors": 1},
        private() | {"max_colluding_contributors": 9, "consistency": "honest-server"},
        bounded() | {"max_colluding_contributors": 0},
    ],
    "privacy: with noise 3 ≤ σ_i ≤ 2¹³ steps": [private(levels=2**12), private(levels=2)],
    "privacy: c_l·C·s(τ_max) ≥ 1": [bounded(levels=8, staleness=polynomial())],
    "privacy: δ > 2e^ε·k_max·K·d·2⁻¹²⁷": [private(delta=1e-28, epsilon=12)],
    "privacy: k_max uploads cost at most ε at δ": [private(epsilon=4.02), private(max_uses=3)],
    "privacy: K·(⌈c_l·M·C⌉ + 1) + σ_i·√(2K·ln(2d·2⁴⁰)) ≤ (q − 3)/2": [
        bounded(levels=2**27),
        private() | {"modulus": 262147},
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
        "repeated_versions": [True],
        "clip": [3.5],
        "correctness": [None],
        "weight_levels": [None],
        "masks": [None],
        "modulus": [None],
        "min_per_version": [None],
        "privacy": [None],
    }
    if value in fits.get(name, []):
        assert parameters(**{name: value}) is not None
        return
    with pytest.raises(ParameterError) as caught:
        parameters(**{name: value})
    assert str(caught.value).startswith(f"{name} = {value!r} must be ")
    assert caught.value.rule.startswith(f"{name} is ")


def test_one_level_more_than_just_met_wraps_around():
    last = JUST_MET["K·c_g·(c_l·B + 1) ≤ (q − 3)/2, with keys K·(c_l·B + 17)"][1]
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
    assert made.max_colluding_contributors == 1
    assert (made.weight_levels, made.weighs_alike) == (64, True)  # with s(τ) = 1
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
        ({"max_colluding_contributors": 4}, 6),
        ({"weights": "own"}, 3),
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_norm", "1"),
        ("noise", True),
        ("epsilon", "4"),
        ("max_uses", 1.5),
        ("unit", "patient"),
        ("delta", None),
    ],
)
def test_a_wrong_type_in_the_privacy_is_named(name, value):
    with pytest.raises(ParameterError, match=f"{name} = .* of the privacy must be"):
        private(**{name: value})


def test_what_a_privacy_means():
    """C̃² = n² + d/4 + √(80 ln 2)(n + √d/2) with n = 1024, and σ_i² = z²·C̃²/(K − T_c)."""
    mechanism = parameters(**private(staleness=polynomial())).mechanism
    square = 1024**2 + 250 + math.sqrt(80 * math.log(2)) * (1024 + math.sqrt(1000) / 2)
    assert mechanism.squared_bound(0) == int(square)
    assert mechanism.variance == math.ceil(4 * int(square) / 2)
    assert mechanism.deviation == pytest.approx(math.sqrt(2 * square), rel=1e-6)
    assert mechanism.weight(3) == 0.25
    assert mechanism.cost(0) == pytest.approx(1 / 8, rel=1e-6)
    # What rounding adds is not weighed: more than 1/16 of the cost.
    assert mechanism.cost(3) > 1.02 * mechanism.cost(0) / 16
    assert mechanism.epsilon == pytest.approx(4.01, abs=0.005)
    assert mechanism.budget >= 3 * mechanism.cost(0)


EXTREMES = [0.0, -0.0, 5e-324, 1e-300, 1e-30, 1.0, 1e30, 1e300, 1.7e308, math.inf, math.nan]


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    numbers=st.fixed_dictionaries(
        {name: st.sampled_from(EXTREMES) for name in ("clip_norm", "noise", "epsilon", "delta")}
    ),
    uses=st.sampled_from([1, 2**63]),
    records=st.one_of(
        st.just({}),
        st.fixed_dictionaries(
            {
                "unit": st.just("record"),
                "sampling_rate": st.sampled_from([1e-300, 0.01, 1.0]),
                "max_records": st.sampled_from([1, 2**63]),
            }
        ),
    ),
    sizes=st.fixed_dictionaries(
        {
            "update_levels": st.sampled_from([1, 2**10, 2**63]),
            "buffer_size": st.sampled_from([10, 2**31, 2**63]),
            "model_size": st.sampled_from([1, 2**63]),
            "clip": st.sampled_from([4.0, 1e308]),
        }
    ),
)
def test_whatever_a_stranger_sends_is_taken_or_refused_by_a_rule(numbers, uses, records, sizes):
    """Epochs are decoded before their signature is checked: nothing may overflow, or take for ever."""
    privacy = Privacy(**numbers, max_uses=uses, **records)
    with contextlib.suppress(ParameterError):
        parameters(privacy=privacy, weights="own", **sizes)


def test_what_a_privacy_of_records_means():
    """Δ̃ = n + √d of one record, which is what the noise is measured by; M of them are in an upload."""
    p = parameters(**of_records())
    mechanism = p.mechanism
    change = (1024 + math.sqrt(1000)) ** 2
    assert mechanism.squared_change(0) == int(change)
    assert mechanism.variance == math.ceil(4 * int(change) / 2)
    assert mechanism.squared_bound(0) == int((200 * 1024 + math.sqrt(1000)) ** 2)
    assert mechanism.largest_element == 200 * 1024 + 1
    assert mechanism.cost(0) == pytest.approx(1 / 8, rel=1e-6)
    everywhere = dataclasses.replace(p.privacy, sampling_rate=1.0, epsilon=40.0)
    assert 1.2 < mechanism.epsilon < 1.25
    assert dataclasses.replace(mechanism, privacy=everywhere).epsilon > 20
    assert mechanism.uses_within >= 100
    assert dataclasses.replace(mechanism, privacy=everywhere).order in range(2, 257)


def test_no_sum_with_noise_wraps_around():
    """Even where every share of noise reaches as far as its table: far less than one in 2⁴⁰ sums does."""
    made = parameters(**private())
    reach = math.sqrt(20 * made.mechanism.variance * math.log(2000 * 2**40))
    assert made.largest_sum == 10 * 1025 + math.ceil(reach)
    assert made.largest_sum <= made.room_for_sum


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
