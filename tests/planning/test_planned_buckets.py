"""How many buckets a plan asks for: against a count by hand and by trial."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from basecagg import ProtocolParameters, plan
from basecagg.cli import main
from basecagg.costs import share_bytes
from basecagg.errors import ParameterError
from basecagg.planning.buckets import Buckets, choose_buckets

ASKED = (
    "plan",
    "--holders",
    "100",
    "--model-size",
    "1e6",
    "--no-cpu",
    "--liars-among-contributors",
)


def parameters(**changes: int) -> ProtocolParameters:
    usual = {"num_holders": 30, "recovery_threshold": 10, "max_colluders": 2, "max_dropouts": 5}
    return ProtocolParameters(**usual | {"buffer_size": 20, "model_size": 100} | changes)


def test_ten_buckets_of_five_against_five_percent() -> None:
    """The arithmetic of the design: 2.3 of ten dirty on average, five or more in 5 % of versions."""
    ten = Buckets(0.05, 5, 10)
    assert ten.dirty * 10 == pytest.approx(2.26, abs=0.01)
    assert ten.withstands == 4
    assert ten.spoiled == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(("share", "size", "count"), [(0.05, 5, 9), (0.1, 3, 11), (0.3, 5, 4)])
def test_as_many_versions_are_spoiled_as_in_trials(share: float, size: int, count: int) -> None:
    attacks = np.random.default_rng(1).random((20_000, count, size)) < share
    dirty = attacks.any(axis=2).sum(axis=1)
    buckets = Buckets(share, size, count)
    assert buckets.spoiled == pytest.approx((dirty > (count - 1) // 2).mean(), abs=0.012)
    assert buckets.dirty == pytest.approx(dirty.mean() / count, abs=0.01)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.08])
def test_one_bucket_fewer_would_not_do(share: float) -> None:
    chosen = choose_buckets(parameters(), share)
    assert chosen.size == 5
    assert chosen.spoiled <= 0.05
    fewer = [Buckets(share, 5, count) for count in range(3, chosen.count)]
    assert all(each.spoiled > 0.05 for each in fewer)
    assert chosen.most_attackers >= share


def test_the_crowd_is_as_large_as_the_rules_of_a_sum_ask() -> None:
    assert choose_buckets(parameters(min_per_version=7), 0.02).size == 7
    friends = parameters(max_colluding_contributors=6, min_per_version=8)
    assert choose_buckets(friends, 0.02).size == 8


def test_too_many_attackers_are_refused_with_how_many_would_do() -> None:
    with pytest.raises(ParameterError, match=r"Possible instead: a share of 0\.102"):
        choose_buckets(parameters(), 0.3)


def test_what_the_command_says() -> None:
    printed = CliRunner().invoke(main, [*ASKED, "0.05"]).output
    assert "Several sums for one version" in printed
    assert "simulations only" in " ".join(printed.split())
    told = json.loads(CliRunner().invoke(main, [*ASKED, "0.05", "--json"]).output)["buckets"]
    chosen = plan(num_holders=100, max_dropouts=30, model_size=10**6, liars_among_contributors=0.05)
    assert chosen.buckets is not None
    assert (told["size"], told["count"]) == (5, chosen.buckets.count)
    assert told["answer_bytes"] == chosen.buckets.count * share_bytes(chosen.parameters)
    assert "buckets" not in json.loads(CliRunner().invoke(main, [*ASKED[:-1], "--json"]).output)
