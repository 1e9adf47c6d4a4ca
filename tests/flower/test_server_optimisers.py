"""Server optimisers on Flower: the model that comes out is where the opened sums lead, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_sums
from fake_grid import make_grid
from small_app import initial_arrays, make_app, small_strategy

from basecagg.errors import ParameterError, StorageError
from basecagg.flower import basecagg_mod
from basecagg.protocol import step_rule
from basecagg.protocol.step_rule import USUAL_RATES, StepRule

OPTIMISERS = pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
PROTECTIONS = pytest.mark.parametrize("protection", ["basecagg", "none"])


def flat(arrays: Any) -> Any:
    return np.concatenate(arrays.to_numpy_ndarrays())


def stepped(rule: StepRule, sums: list[Any]) -> Any:
    """What these sums make of the first model; behind it lie the metrics, if there are any."""
    size = sums[0].weighted_sum.size
    model = np.zeros(size, np.float32)
    model[:6] = flat(initial_arrays())
    state = rule.fresh_state(model)
    for released in sums:
        model, state = rule.step(model, state, released.weighted_sum, sum(released.weights))
    return model[:6]


@OPTIMISERS
@PROTECTIONS
def test_the_model_follows_from_the_sums_also_after_a_restart(
    tmp_path: Path, optimiser: Any, protection: Any
) -> None:
    mods = [basecagg_mod] if protection == "basecagg" else []
    grid = make_grid(6, make_app(mods), tmp_path)
    options = {
        "protection": protection,
        "server_optimiser": optimiser,
        "server_state": tmp_path / "server.db",
        "erase_state": False,
    }
    with noting_sums() as sums:
        for rounds in (2, 4):
            result = small_strategy(**options).start(
                grid=grid, initial_arrays=initial_arrays(), num_rounds=rounds
            )
            grid.outstanding.clear()
    assert [released.version for released in sums] == [0, 1, 2, 3]
    rule = StepRule(optimiser, rate=USUAL_RATES[optimiser])
    assert flat(result.arrays).tobytes() == stepped(rule, sums).tobytes()
    assert flat(result.arrays).any()


def test_another_optimiser_does_not_go_on_with_a_stored_run(tmp_path: Path) -> None:
    grid = make_grid(6, make_app([]), tmp_path)
    options = {"protection": "none", "server_state": tmp_path / "server.db"}
    first = {"grid": grid, "initial_arrays": initial_arrays(), "num_rounds": 1}
    small_strategy(server_optimiser="adam", **options).start(**first)
    with pytest.raises(StorageError, match="go on with the optimiser that was stored"):
        small_strategy(**options).start(**first | {"num_rounds": 2})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"server_optimiser": "adagrad"}, "optimiser = 'adagrad'"),
        ({"global_rate": 0.0}, "rate = 0.0"),
        ({"server_optimiser": "momentum", "server_momentum": 1.0}, "momentum = 1.0"),
        ({"server_second_momentum": -1.0}, "second_momentum = -1.0"),
        ({"server_epsilon": 0.0}, "epsilon = 0.0"),
    ],
)
def test_a_rate_out_of_range_is_refused_before_any_node_is_asked(options: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        small_strategy(**options)


def test_each_optimiser_has_a_rate_of_its_own() -> None:
    for optimiser, rate in USUAL_RATES.items():
        assert small_strategy(server_optimiser=optimiser).settings.step.rate == rate
    assert small_strategy(global_rate=0.7).settings.step.rate == 0.7


def test_an_optimiser_of_ones_own_has_its_rate_too(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(step_rule.OPTIMISERS["sgd"], usual_rate=0.125)
    monkeypatch.setitem(step_rule.OPTIMISERS, "own", own)
    assert small_strategy(server_optimiser="own").settings.step.rate == 0.125
