"""The planner finds what the rules allow, the cheapest of it, and says what else would be possible."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.costs import Network, wire_seconds
from basecagg.errors import ParameterError
from basecagg.maths.approved_rings import KEY_MODULI
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.staleness import constant, hinge, polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.planning.budget import Budget
from basecagg.planning.planner import Wishes, choose

PAPER = Wishes(num_holders=100, max_dropouts=30, model_size=1_000_000)


def test_the_papers_federation_gets_the_default_parameters() -> None:
    chosen = choose(PAPER).parameters
    assert (chosen.max_colluders, chosen.recovery_threshold, chosen.buffer_size) == (8, 62, 10)
    assert chosen.answers_needed == 70
    assert (chosen.weights, chosen.weight_levels) == ("own", 1)
    assert chosen.quorum == 55
    assert choose(replace(PAPER, weights="field")).parameters.weight_levels == 2**6


def test_wishes_are_kept() -> None:
    wishes = replace(PAPER, max_colluders=20, buffer_size=40, liars=5, clip=0.5, max_staleness=3)
    chosen = choose(wishes).parameters
    assert chosen.max_colluders == 20
    assert chosen.buffer_size == 40
    assert chosen.clip == 0.5
    assert chosen.max_staleness == 3
    assert (chosen.liars, chosen.correctness) == (5, "agreed")


def test_holders_that_are_taken_to_be_honest_leave_more_room() -> None:
    """The paper's own assumption, by name: any U answers open a sum."""
    chosen = choose(replace(PAPER, masks="long", correctness="honest-holders")).parameters
    assert (chosen.max_colluders, chosen.recovery_threshold) == (8, 70)
    assert chosen.answers_needed == 70


@pytest.mark.parametrize(
    ("colluders", "liars", "threshold"), [(8, 3, 59), (3, 3, 64), (None, 8, 54)]
)
def test_liars_are_planned_for_by_the_rule(colluders, liars, threshold) -> None:
    """U = N − D − T − E, and T is at least E."""
    wishes = replace(PAPER, masks="long", max_colluders=colluders, liars=liars)
    chosen = choose(wishes).parameters
    assert chosen.recovery_threshold == threshold
    assert chosen.max_colluders == (colluders or 8)
    assert chosen.liars == liars


def test_the_buffer_grows_with_the_colluders_when_the_server_may_cheat() -> None:
    many = replace(PAPER, max_colluding_contributors=30)
    assert choose(many).parameters.buffer_size == 32
    assert choose(many).parameters.least_per_version == 32
    assert choose(replace(PAPER, max_colluders=30)).parameters.buffer_size == 10
    assert choose(replace(many, consistency="honest-server")).parameters.buffer_size == 10


def test_members_of_each_version() -> None:
    assert choose(PAPER).parameters.least_per_version == 3
    assert choose(replace(PAPER, consistency="honest-server")).parameters.least_per_version == 1
    trusting = replace(PAPER, min_per_version=1, max_colluding_contributors=0, weights="field")
    assert choose(trusting).parameters.least_per_version == 1
    with pytest.raises(ParameterError, match="at least two must be honest"):
        choose(replace(PAPER, min_per_version=2))
    many = choose(replace(PAPER, min_per_version=12)).parameters
    assert (many.least_per_version, many.buffer_size) == (12, 12)


@pytest.mark.parametrize(
    ("staleness", "max_staleness", "levels"),
    [
        (constant(), 10, 1),
        (polynomial(1), 0, 1),
        (hinge(10, 4), 4, 1),
        (polynomial(1), 10, 64),  # 64/11 is the first above 4
        (polynomial(1), 15, 64),  # 64/16 is exactly 4
        (polynomial(1), 16, 128),
        (hinge(10, 4), 10, 256),  # s = 1/61
    ],
)
def test_weights_are_exact_or_not_too_coarse(staleness, max_staleness, levels) -> None:
    wishes = replace(PAPER, staleness=staleness, max_staleness=max_staleness, weights="field")
    assert choose(wishes).parameters.weight_levels == levels


def test_the_update_levels_are_the_finest_that_cannot_wrap_around() -> None:
    chosen = choose(PAPER)
    p = chosen.parameters
    assert p.buffer_size * p.field_levels * (p.update_levels * p.clip + 1) <= (p.modulus - 3) / 2
    assert 0 <= chosen.spare_bits < 1
    with pytest.raises(ParameterError, match="a sum may reach"):
        replace(p, update_levels=2 * p.update_levels)


NARROW, WIDE = KEY_MODULI


@pytest.mark.parametrize(
    ("changes", "masks", "modulus", "levels", "reason"),
    [
        ({}, "keys", NARROW, 2**17, "more than a key"),
        ({"model_size": 2049}, "keys", NARROW, 2**17, "more than a key"),
        ({"model_size": 2048}, "long", PAPER_MODULUS, 2**25, "no more than a key"),
        ({"model_size": 2**30}, "long", PAPER_MODULUS, 2**25, "2³⁰ words"),
        ({"weights": "field"}, "long", PAPER_MODULUS, 2**19, "weights are in the field"),
        ({"masks": "long"}, "long", PAPER_MODULUS, 2**25, "as asked for"),
        ({"masks": "keys", "model_size": 100}, "keys", NARROW, 2**17, "as asked for"),
        # 63·(2¹⁵·4 + 17) is the last that fits into 24 bits; 64 members have 32 bits, and finer levels.
        ({"buffer_size": 63}, "keys", NARROW, 2**15, "more than a key"),
        ({"buffer_size": 64}, "keys", WIDE, 2**22, "more than a key"),
        ({"clip": 32.0}, "keys", WIDE, 2**22, "more than a key"),
        # Levels by name take 24 bits if they fit.
        ({"buffer_size": 63, "update_levels": 2**14}, "keys", NARROW, 2**14, "more than a key"),
        ({"buffer_size": 64, "update_levels": 2**14}, "keys", NARROW, 2**14, "more than a key"),
        ({"update_levels": 2**18}, "keys", WIDE, 2**18, "more than a key"),
        ({"masks": "long", "update_levels": 1000}, "long", PAPER_MODULUS, 1000, "as asked for"),
    ],
)
def test_masks_and_width_follow_from_model_weights_and_room(
    changes: dict[str, object], masks: str, modulus: int, levels: int, reason: str
) -> None:
    found = choose(replace(PAPER, **changes))
    p = found.parameters
    assert (p.masks, p.modulus, p.update_levels) == (masks, modulus, levels)
    assert reason in found.why_masks
    assert (
        p.buffer_size * p.field_levels * (p.update_levels * p.clip + 1 + 16 * (masks == "keys"))
        <= (p.modulus - 3) // 2
    )


def test_levels_without_room_are_refused() -> None:
    with pytest.raises(ParameterError, match="a sum may reach"):
        choose(replace(PAPER, update_levels=2**26))


def test_levels_by_name_serve_sums_with_noise() -> None:
    budget = Budget(epsilon=8.0, delta=1e-6, clip_norm=1.0, max_uses=10)
    found, named = (
        choose(replace(PAPER, budget=budget, update_levels=levels)).parameters
        for levels in (None, 2**6)
    )
    assert found.update_levels != named.update_levels == 2**6


def test_a_mask_outlives_the_oldest_update() -> None:
    chosen = choose(replace(PAPER, max_staleness=500)).parameters
    assert chosen.mask_lifetime > 500


wishes = st.builds(
    Wishes,
    num_holders=st.integers(2, 40),
    max_dropouts=st.integers(0, 20),
    max_colluders=st.none() | st.integers(1, 25),
    buffer_size=st.none() | st.integers(2, 30),
    liars=st.integers(0, 4),
    correctness=st.sampled_from([None, "agreed", "honest-holders"]),
    model_size=st.integers(1, 3000),
    consistency=st.sampled_from(["certified", "honest-server"]),
    network=st.builds(Network, up=st.sampled_from([0.1, 10.0]), down=st.sampled_from([0.1, 50.0])),
)


def all_allowed(w: Wishes) -> list[ProtocolParameters]:
    """Every (T, K, U) that the rules allow, by brute force over T and U; K as wished or very large."""
    found = []
    for colluders in range(1, w.num_holders + 1) if w.max_colluders is None else [w.max_colluders]:
        for threshold in range(1, w.num_holders - w.max_dropouts + 1):
            try:
                p = ProtocolParameters(
                    num_holders=w.num_holders,
                    recovery_threshold=threshold,
                    max_colluders=colluders,
                    max_dropouts=w.max_dropouts,
                    buffer_size=w.buffer_size or 1000,
                    model_size=w.model_size,
                    update_levels=1,
                    consistency=w.consistency,
                    correctness=w.correctness,
                    liars=w.liars,
                )
            except ParameterError:
                continue
            found.append(p)
    return found


@given(wishes)
def test_a_plan_is_found_exactly_when_there_is_one(w: Wishes) -> None:
    allowed = all_allowed(w)
    try:
        chosen = choose(w).parameters
    except ParameterError:
        assert not allowed
        return
    assert any(
        (p.max_colluders, p.recovery_threshold) == (chosen.max_colluders, chosen.recovery_threshold)
        for p in allowed
    )


@given(wishes)
def test_no_other_threshold_is_cheaper_and_no_smaller_one_as_cheap(w: Wishes) -> None:
    try:
        chosen = choose(w).parameters
    except ParameterError:
        return
    cost = wire_seconds(chosen, w.network)
    for threshold in range(chosen.max_colluders + 1, w.largest_threshold(chosen.max_colluders) + 1):
        other = wire_seconds(replace(chosen, recovery_threshold=threshold), w.network)
        assert other >= cost
        assert other > cost or threshold >= chosen.recovery_threshold


def test_a_tiny_model_needs_no_large_threshold() -> None:
    """Two numbers and a pad fill three pieces: a larger U would only wait for more holders."""
    chosen = choose(replace(PAPER, model_size=2)).parameters
    assert chosen.submasks == 3


def test_the_table_spans_the_range_and_holds_the_chosen_row() -> None:
    chosen = choose(PAPER)
    thresholds = [option.recovery_threshold for option in chosen.options]
    assert thresholds == sorted(set(thresholds))
    assert thresholds[0] == chosen.parameters.max_colluders + 1
    assert thresholds[-1] == PAPER.largest_threshold(chosen.parameters.max_colluders) == 62
    assert chosen.parameters in chosen.options
    costs = [wire_seconds(option, PAPER.network) for option in chosen.options]
    assert costs == sorted(costs, reverse=True)


def test_storage_counts_the_quota_of_all_contributors() -> None:
    few, many = choose(PAPER), choose(replace(PAPER, contributors=1000))
    p = few.parameters
    assert few.holder_bytes == 100 * 2 * p.mask_quota * 3 * p.share_size
    assert many.holder_bytes == 10 * few.holder_bytes


def test_modes_say_what_is_possible_and_why_not() -> None:
    assert choose(PAPER).modes == {"certified": "", "honest-server": ""}
    modes = choose(replace(PAPER, max_colluders=50, consistency="honest-server")).modes
    assert modes["honest-server"] == ""
    assert "quorum" in modes["certified"]


def ways_out(w: Wishes) -> dict[str, str]:
    with pytest.raises(ParameterError) as caught:
        choose(w)
    listed = str(caught.value).rpartition("Possible instead")[2]
    return dict(re.findall(r"(\S+) = (\S+)", listed))


IMPOSSIBLE = {
    "quorum": replace(PAPER, max_colluders=50, correctness="honest-holders"),
    "dropouts and colluders": replace(PAPER, max_dropouts=60, max_colluders=50),
    "liars": replace(PAPER, liars=40),
    "more liars than colluders": replace(PAPER, liars=3, max_colluders=2),
    "liars among honest holders": replace(PAPER, liars=3, correctness="honest-holders"),
    "answers that agree": replace(PAPER, max_dropouts=10, max_colluders=45),
    "buffer": replace(PAPER, max_colluding_contributors=20, buffer_size=10),
    "nobody colludes": replace(PAPER, max_colluders=0),
    "one holder": replace(PAPER, num_holders=1, max_dropouts=0),
    "clip": replace(PAPER, clip=1e9),
    "staleness": replace(PAPER, max_staleness=10**10),
    "members of a version": replace(PAPER, buffer_size=10, min_per_version=11),
}
FIELDS = {
    "T": ("max_colluders", int),
    "D": ("max_dropouts", int),
    "E": ("liars", int),
    "N": ("num_holders", int),
    "K": ("buffer_size", int),
    "T_c": ("max_colluding_contributors", int),
    "m": ("min_per_version", int),
    "B": ("clip", float),
    "τ_max": ("max_staleness", int),
    "consistency": ("consistency", str),
    "correctness": ("correctness", str),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_every_way_out_works_and_is_the_nearest(case: str) -> None:
    wishes = IMPOSSIBLE[case]
    found = ways_out(wishes)
    assert found
    for symbol, text in found.items():
        name, kind = FIELDS[symbol]
        value = kind(text)
        choose(replace(wishes, **{name: value}))
        if kind is int and symbol != "τ_max":
            closer = value + (1 if value < getattr(wishes, name) else -1)
            with pytest.raises(ParameterError):
                choose(replace(wishes, **{name: closer}))


def test_the_quorums_ways_out_are_those_of_the_rule() -> None:
    """⌊(N + T)/2⌋ + 1 ≤ N − D, solved for each letter by hand."""
    assert ways_out(IMPOSSIBLE["quorum"]) == {
        "T": "39",
        "D": "24",
        "N": "111",
        "consistency": "honest-server",
    }


def test_the_ways_out_of_too_few_answers_that_agree() -> None:
    """T + 1 ≤ U ≤ N − D − T, solved for each letter by hand."""
    assert ways_out(IMPOSSIBLE["answers that agree"]) == {
        "T": "44",
        "D": "9",
        "N": "101",
        "correctness": "honest-holders",
        "consistency": "honest-server",
    }


def test_when_no_single_change_helps_the_planner_takes_over_t_and_k() -> None:
    hopeless = replace(PAPER, max_dropouts=200, max_colluding_contributors=9, buffer_size=10)
    with pytest.raises(ParameterError, match="with T and K left to the planner: D = 49 or N = "):
        choose(hopeless)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_size": 0}, "model_size d = 0"),
        ({"clip": -1.0}, "clip B = -1.0"),
        ({"clip": float("nan")}, "clip B = nan"),
        ({"max_staleness": -1}, "negative"),
    ],
)
def test_nonsense_gets_its_rule(change, words) -> None:
    with pytest.raises(ParameterError, match=words):
        choose(replace(PAPER, **change))
