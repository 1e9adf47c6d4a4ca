"""A budget gets the least noise that keeps it; one that cannot be kept gets the nearest that can."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from basecagg.commands._options import portion
from basecagg.commands.operator.epochs import _plan, start
from basecagg.commands.plan import command
from basecagg.errors import ParameterError
from basecagg.maths.accounting import epsilon_of
from basecagg.maths.staleness import constant, polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.planning.budget import Budget, hidden_lie, noise_in_mean, spend
from basecagg.planning.planner import Wishes, choose

MNIST = Wishes(
    num_holders=30,
    max_dropouts=9,
    model_size=7850,
    contributors=6000,
    buffer_size=600,
    budget=Budget(epsilon=4.0, delta=1e-5, max_uses=3, clip_norm=0.3),
)
HOSPITALS = Wishes(
    num_holders=10,
    max_dropouts=2,
    model_size=7850,
    buffer_size=5,
    max_colluding_contributors=1,
    budget=Budget(
        epsilon=3.0,
        delta=1e-5,
        max_uses=50,
        unit="record",
        sampling_rate=0.05,
        records=6000,
    ),
)
PHONES = Wishes(num_holders=100, max_dropouts=30, model_size=10**6, budget=Budget(epsilon=4.0))


def test_the_figures_of_the_lab():
    """K = 600, C = 0.3, three uploads at ε = 4, δ = 10⁻⁵: z = 2.005, 2¹¹ levels, σ_i ≈ 52."""
    p = choose(MNIST).parameters
    assert (p.privacy.noise, p.update_levels) == (2.005, 2**11)
    assert math.sqrt(p.mechanism.variance) == pytest.approx(52, abs=1.5)
    assert noise_in_mean(p.mechanism) == pytest.approx(2.005 * 0.3 / 600, rel=0.02)


@pytest.mark.parametrize("wishes", [MNIST, PHONES, replace(PHONES, max_colluding_contributors=1)])
def test_the_budget_is_kept_with_no_more_noise_than_it_takes(wishes):
    chosen = choose(wishes).parameters
    mechanism, budget = chosen.mechanism, wishes.budget
    assert epsilon_of(budget.max_uses * mechanism.cost(0), budget.delta) <= budget.epsilon
    less = replace(mechanism, privacy=replace(chosen.privacy, noise=chosen.privacy.noise * 0.995))
    assert less.epsilon > budget.epsilon
    assert chosen.largest_sum <= chosen.room_for_sum
    assert isinstance(chosen, ProtocolParameters)


def test_a_budget_of_records_is_kept_with_no_more_noise_than_it_takes():
    chosen = choose(HOSPITALS).parameters
    mechanism, privacy = chosen.mechanism, chosen.privacy
    assert (privacy.unit, privacy.sampling_rate, privacy.noise) == ("record", 0.05, 1.037)
    assert 300 < privacy.max_records < 450
    assert 2.98 < mechanism.epsilon <= 3
    less = replace(mechanism, privacy=replace(privacy, noise=privacy.noise * 0.995))
    assert less.epsilon > 3
    # Rounding costs a little: Δ̃ = n + √d is 1.1 % more than n here.
    assert noise_in_mean(mechanism) == pytest.approx(1.037 * math.sqrt(5 / 4) / 5, rel=0.015)


def test_records_need_more_than_a_name():
    with pytest.raises(ParameterError, match="both at 1 for users"):
        choose(replace(MNIST, budget=replace(MNIST.budget, records=10)))
    with pytest.raises(ParameterError, match="above 0 and up to 1"):
        choose(replace(HOSPITALS, budget=replace(HOSPITALS.budget, sampling_rate=0.0)))


def test_an_impossible_budget_of_records_gets_the_nearest_that_can_be():
    wishes = replace(HOSPITALS, budget=replace(HOSPITALS.budget, epsilon=0.001))
    with pytest.raises(ParameterError, match=r"Possible instead: .*ε = 0\.0"):
        choose(wishes)


def test_contributors_weigh_and_the_field_does_not():
    p = choose(replace(MNIST, staleness=polynomial(0.5))).parameters
    assert (p.weights, p.staleness, p.weight_levels) == ("own", polynomial(0.5), 1)
    assert p.mechanism.weight(3) == 0.5


def test_the_buffer_grows_so_that_silent_contributors_cost_half_at_most():
    many = replace(PHONES, max_colluding_contributors=8)
    assert choose(many).parameters.buffer_size == 16
    assert choose(replace(many, buffer_size=10)).parameters.buffer_size == 10
    assert choose(replace(many, budget=None)).parameters.buffer_size == 10
    assert choose(replace(many, contributors=12)).parameters.buffer_size == 12
    alone = choose(PHONES).parameters
    assert (alone.buffer_size, alone.max_colluding_contributors) == (10, 1)


def test_a_long_clip_needs_a_long_bound():
    assert (
        choose(replace(MNIST, budget=replace(MNIST.budget, clip_norm=9.0))).parameters.clip == 9.0
    )


@pytest.mark.parametrize(("members", "size"), [(100, 132), (10, 69)])
def test_what_a_liar_can_hide(members, size):
    """z = 2, d = 7850; the figures are for as many members without noise as the lab had: one."""
    budget = Budget(epsilon=4.01, delta=1e-5, max_uses=3)
    assert hidden_lie(spend(budget, members, 1, 7850, constant())) == pytest.approx(size, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "possible"),
    [
        ({"epsilon": 0.001}, "ε = 0.08"),
        ({"max_uses": 10**5, "epsilon": 1.0}, "k_max = "),
        ({"delta": 1e-31}, "δ = 1e-2[89]"),
        ({"clip_norm": 1e9}, "C = "),
    ],
)
def test_an_impossible_budget_gets_the_nearest_that_can_be(changes, possible):
    wishes = replace(PHONES, budget=replace(PHONES.budget, **changes))
    with pytest.raises(ParameterError, match=f"Possible instead: .*{possible}"):
        choose(wishes)


@pytest.mark.parametrize("changes", [{"epsilon": 0.0}, {"delta": 1.0}, {"max_uses": 0}])
def test_a_budget_that_is_none_is_refused(changes):
    with pytest.raises(ParameterError, match="must be positive"):
        choose(replace(MNIST, budget=replace(MNIST.budget, **changes)))


def test_more_silent_ones_than_members_get_fewer():
    with pytest.raises(ParameterError, match=r"T_c = 600 .*Possible instead: .*T_c = 598"):
        choose(replace(MNIST, max_colluding_contributors=600))


OPTIONS = "--holders 100 --max-dropouts 0.3 --model-size 1e5 --no-cpu --epsilon 4 --delta 1e-6 --max-uses 2"


def test_the_command_says_what_remains():
    shown = CliRunner().invoke(command, OPTIONS.split(), terminal_width=200)
    assert shown.exit_code == 0, shown.output
    for words in (
        "Privacy",
        "1.11 times the variance",
        "in an element of the mean",
        "may hide in the",
    ):
        assert words in shown.output
    told = CliRunner().invoke(command, [*OPTIONS.split(), "--json"])
    numbers = json.loads(told.output)
    assert numbers["privacy"]["epsilon"] <= 4
    assert numbers["parameters"]["privacy"]["max_uses"] == 2
    assert numbers["wrap_around"]["largest_sum"] <= numbers["wrap_around"]["room"]


def test_the_operator_begins_epochs_with_the_same_words():
    """And `--server-epsilon` is Adam's."""
    flags = {flag for each in start.params for flag in each.opts}
    assert {
        "--epsilon",
        "--server-epsilon",
        "--delta",
        "--max-uses",
        "--clip-norm",
        "--max-colluding-contributors",
    } <= flags
    typed = {"max_dropouts": portion("20%"), "max_colluders": None, "model_size": 1000}
    typed |= {"epsilon": 4.0, "delta": 1e-6, "max_uses": 1, "clip_norm": 1.0}
    typed |= {"unit": "user", "sampling_rate": 1.0, "records": 1}
    privacy = _plan(30, **typed).privacy
    assert (privacy.epsilon, privacy.delta, privacy.max_uses) == (4.0, 1e-6, 1)
    assert _plan(30, **typed | {"epsilon": None}).privacy is None


def test_the_command_speaks_of_records():
    typed = "--unit record --sampling-rate 0.01 --records 5000"
    told = CliRunner().invoke(command, [*OPTIONS.split(), *typed.split()], terminal_width=200)
    assert told.exit_code == 0, told.output
    for words in ("of one record", "each record's part", "records in an upload at most"):
        assert words in told.output
    flags = {flag for each in start.params for flag in each.opts}
    assert {"--unit", "--sampling-rate", "--records"} <= flags


def test_without_epsilon_nothing_is_said_about_privacy():
    shown = CliRunner().invoke(command, OPTIONS.split("--epsilon", maxsplit=1)[0].split())
    assert "Privacy" not in shown.output
