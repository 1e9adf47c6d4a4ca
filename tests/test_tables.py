"""One object in one table is enough: whatever names, checks, explains or uses it derives from there."""

from __future__ import annotations

import importlib
from typing import Any, get_args

import msgspec
import pytest
from click.testing import CliRunner

from basecagg import SimulationConfig
from basecagg.cli import main
from basecagg.commands.run import explained_settings
from basecagg.errors import DataError, ParameterError
from basecagg.maths.staleness import SHAPES, StalenessFunction
from basecagg.parameters import RULES, ProtocolParameters, Rule
from basecagg.protocol.messages import encode
from basecagg.protocol.step_rule import OPTIMISERS, StepRule
from basecagg.simulation.protections import PROTECTIONS, Masks, Protection


def explained(setting: str) -> str:
    return next(meaning for name, _, meaning in explained_settings() if name == setting)


def basecagg(*arguments: object) -> str:
    return CliRunner().invoke(main, [str(each) for each in arguments]).output


PLAN = (
    "plan",
    "--holders",
    20,
    "--max-dropouts",
    4,
    "--model-size",
    100,
    "--no-cpu",
    "--staleness",
)


def test_a_staleness_function(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="must be constant, polynomial:α or hinge:a:b"):
        SimulationConfig(staleness="late")
    assert "is not constant, polynomial:α or hinge:a:b" in basecagg(*PLAN, "late:2")
    late = SHAPES["hinge"].value
    shape = type(SHAPES["hinge"])(lambda tau, a, b: late(tau, a, a), "late {a:g}", {"a": 3.0})
    monkeypatch.setitem(SHAPES, "late", shape)
    config = SimulationConfig(staleness="late:2")
    assert config.staleness_function == StalenessFunction("late", 2.0)
    assert config.protocol_parameters(10).staleness(4) == 1 / 5
    assert "late" in explained("staleness")
    assert "late 2" in basecagg(*PLAN, "late:2")
    with pytest.raises(ParameterError, match="staleness = 'late:-1'"):
        SimulationConfig(staleness="late:-1")


def test_a_server_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="optimiser = 'heavy' of the step is unknown"):
        StepRule("heavy")
    heavy = OPTIMISERS["momentum"]
    monkeypatch.setitem(OPTIMISERS, "heavy", type(heavy)("us", heavy.move, 0.25, heavy.first))
    config = SimulationConfig(server_optimiser="heavy", server_momentum=0.7)
    assert config.server_rate == 0.25
    assert StepRule("heavy").moves_by.about == "us"
    assert "heavy (us; η_g 0.25)" in explained("server_optimiser")
    wire = encode(StepRule("heavy"))
    assert msgspec.msgpack.decode(wire, type=StepRule) == StepRule("heavy")
    monkeypatch.undo()  # whoever does not have it refuses the step
    with pytest.raises(msgspec.ValidationError, match="'heavy' of the step is unknown"):
        msgspec.msgpack.decode(wire, type=StepRule)


@pytest.mark.parametrize(("table", "setting"), [("DATASETS", "dataset"), ("MODELS", "model")])
def test_a_data_set_and_a_model(table: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learning = importlib.import_module("basecagg.learning")
    names = {"dataset": "digits", "model": "mlp"} | {setting: "mine"}
    with pytest.raises(DataError, match="is called 'mine'"):
        learning.built_in_task(names["model"], names["dataset"]).model()
    entries: dict[str, Any] = getattr(learning, table)
    monkeypatch.setitem(entries, "mine", next(iter(entries.values())))
    assert learning.built_in_task(names["model"], names["dataset"]).model() is not None
    assert "mine" in explained(setting)


def test_a_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="protection 'mine' is unknown"):
        SimulationConfig(protection="mine")
    mine = Protection(saw="nothing.", masks="coded", refuses={"tiered": "it is mine"})
    monkeypatch.setitem(PROTECTIONS, "mine", mine)
    config = SimulationConfig(protection="mine")
    assert config.pair.guard is mine
    assert "mine" in explained("protection")
    with pytest.raises(ParameterError, match="'mine' cannot protect the tiered schedule: it is"):
        SimulationConfig(schedule="tiered", protection="mine")
    with pytest.raises(ParameterError, match="holders"):  # as all coded masks
        SimulationConfig(protection="mine", holders=1)


def test_all_kinds_of_masks_can_be_summed() -> None:
    build = importlib.import_module("basecagg.simulation.build")
    assert set(build._SUMS) == set(get_args(Masks))


def test_a_rule_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Rule("d ≤ 9", lambda p: p.model_size <= 9, lambda p: f"d = {p.model_size} is large")
    values = {"num_holders": 9, "recovery_threshold": 4, "max_colluders": 1, "max_dropouts": 2}
    assert ProtocolParameters(**values, buffer_size=3, model_size=10)
    monkeypatch.setattr("basecagg.parameters.RULES", [*RULES, small])
    with pytest.raises(ParameterError, match="d = 10 is large"):
        ProtocolParameters(**values, buffer_size=3, model_size=10)
    assert "d = 100 is large" in basecagg(*PLAN, "constant")
