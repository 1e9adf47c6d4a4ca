"""Schedules and protections that fit together, and the reason when they do not."""

from __future__ import annotations

import pytest

from basecagg import SimulationConfig
from basecagg.errors import ParameterError
from basecagg.simulation.protections import (
    PRESETS,
    PROTECTIONS,
    Pair,
    preset,
    require_compatible,
)
from basecagg.simulation.timing import SCHEDULES


def test_every_preset_fits_together() -> None:
    for name, pair in PRESETS.items():
        assert preset(name) == require_compatible(*pair)


@pytest.mark.parametrize("protection", ["secagg", "secagg+"])
def test_pairwise_masks_in_a_buffer_are_refused_with_the_papers_reason(protection: str) -> None:
    with pytest.raises(ParameterError, match=r"t_i ≠ t_j.*Incompatibility.*basecagg"):
        require_compatible("buffered", protection)


@pytest.mark.parametrize(
    "protection", ["secagg", "secagg+", "lightsecagg", "basecagg", "basecagg-dp"]
)
@pytest.mark.parametrize("schedule", ["immediate", "tiered"])
def test_no_secure_sum_without_a_common_sum(schedule: str, protection: str) -> None:
    with pytest.raises(ParameterError, match=schedule):
        require_compatible(schedule, protection)


def test_the_table_of_all_pairs() -> None:
    possible = set()
    for schedule in SCHEDULES:
        for protection in PROTECTIONS:
            try:
                possible.add(require_compatible(schedule, protection))
            except ParameterError:
                continue
    open_to_all = {Pair(s, p) for s in SCHEDULES for p in ("none", "local-dp")}
    summed = {Pair("buffered", p) for p in ("central-dp", "basecagg", "basecagg-dp")}
    in_rounds = {Pair("synchronous", p) for p in PROTECTIONS}
    assert possible == open_to_all | in_rounds | summed


@pytest.mark.parametrize(("schedule", "protection"), [("never", "none"), ("buffered", "magic")])
def test_unknown_names_are_refused(schedule: str, protection: str) -> None:
    with pytest.raises(ParameterError, match="unknown"):
        require_compatible(schedule, protection)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ParameterError, match="unknown"):
        preset("fedmagic")


def test_what_is_named_beside_a_method_counts() -> None:
    """Who asks for protection gets it, or an error: never a run without."""
    with pytest.raises(ParameterError, match="cannot protect the immediate schedule"):
        SimulationConfig(method="fedasync", protection="basecagg")
    config = SimulationConfig(method="fedbuff", protection="basecagg")
    assert config.pair == preset("basecagg")
    assert config.label == "buffered+basecagg"
    assert SimulationConfig(method="fedbuff").label == "fedbuff"
    plain = SimulationConfig(schedule="synchronous", protection="none")
    assert plain.pair == preset("fedavg")
