"""At every version the secure step is the plain step on the same updates and weights, up to rounding.

The bound. An element of an update, weighed by its contributor, is rounded to one of its two neighbouring
multiples of 1/c_l, so it is off by less than 1/c_l; the sum of K is off by K/c_l, the mean by that over Σ s.
With field weights it is 1/c_l. With masks from keys an element has an error of up to 16/c_l, too. The model
then keeps 24 bits: another 2⁻²⁴·|x|.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, simulate
from basecagg.errors import DataError
from basecagg.learning import load_dataset
from basecagg.maths.approved_rings import KEY_MODULI
from basecagg.protocol.effects import Released
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.beginning import user_number


class Witness:
    """Notes each update as it is submitted, and compares every step with one taken in clear."""

    def __init__(self, config: SimulationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[float] = []
        """Of each step, divided by K/Σ s with own weights: old updates are rounded more coarsely."""
        self.ages: list[int] = []
        self._config = config
        self._sent: dict[int, Vector] = {}
        original = Aggregator.submit

        def submit(secure: Aggregator, user: int, update: Vector, base: int) -> None:
            assert user not in secure.waiting()
            self._sent[user] = update.copy()
            before, known = secure.server.model, len(secure.pending)
            original(secure, user, update, base)
            if len(secure.pending) > known:
                opened = secure.pending[-1]
                assert opened.step is not None
                self._compare(opened.step, before, opened.model)

        monkeypatch.setattr(Aggregator, "submit", submit)

    def _compare(self, step: Released, before: Vector, after: Vector) -> None:
        members = [self._sent.pop(user_number(name.contributor)) for name in step.members]
        mean = np.average(np.asarray(members, np.float64), axis=0, weights=step.weights)
        expected = before.astype(np.float64) - self._config.server_rate * mean
        own = self._config.weights == "own"
        coarser = len(members) / sum(step.weights) if own else 1.0
        self.errors.append(float(np.abs(after - expected).max()) / coarser)
        self.ages += [step.version - base for base in step.base_versions]

    def bound(self, model: Vector) -> float:
        float32 = 2.0**-24 * float(np.abs(model).max() + 1)
        steps = 1 + self._config.protocol_parameters(model.size).error_reach
        return self._config.server_rate * steps / self._config.update_levels + float32


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cryptography": "arithmetic", "versions": 12},
        {"weights": "field", "cryptography": "arithmetic", "versions": 12},
        {"weights": "field", "versions": 3},
        {"consistency": "honest-server", "holder_dropout": 0.2},
        {"clock": "uniform-staleness", "max_staleness": 3, "versions": 8},
        {"update_levels": 2**8, "global_rate": 0.5, "cryptography": "arithmetic"},
        {"masks": "keys", "versions": 3},
        {"masks": "keys", "cryptography": "arithmetic"},
        {"masks": "keys", "modulus": KEY_MODULI[-1], "update_levels": 2**22, "versions": 3},
        {"method": "lightsecagg", "cryptography": "arithmetic"},
        {"method": "lightsecagg"},
        {"holders": 5, "max_dropouts": 1, "max_colluders": 1, "weigh_examples": "mean"},
    ],
    ids=lambda changes: ",".join(map(str, changes.values())) or "full",
)
def test_every_secure_step_is_the_plain_one(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(**({"method": "basecagg"} | changes))
    witness = Witness(config, monkeypatch)
    result = simulate(config, task=tiny_task())
    assert len(witness.errors) >= config.versions
    assert max(witness.errors) <= witness.bound(result.model)
    assert result.totals["counts"]["clipped elements"] == 0


def test_the_witness_would_notice_a_wrong_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(
        "basecagg", weights="field", min_per_version=1, cryptography="arithmetic", versions=8
    )
    witness = Witness(config, monkeypatch)
    original = witness._compare

    def unweighted(step: Released, before: Vector, after: Vector) -> None:
        ones = tuple(1.0 for _ in step.weights)
        forged = Released(step.version, step.members, step.base_versions, ones, step.weighted_sum)
        original(forged, before, after)

    monkeypatch.setattr(witness, "_compare", unweighted)
    result = simulate(config, task=tiny_task())
    assert len(set(witness.ages)) > 1
    assert max(witness.errors) > 10 * witness.bound(result.model)


def mean_score(method: str, seeds: int, settings: dict[str, Any]) -> float:
    configs = [SimulationConfig(method=method, seed=seed, **settings) for seed in range(seeds)]
    return float(np.mean([simulate(config).score for config in configs]))


def mean_scores(seeds: int = 5, **settings: Any) -> dict[str, float]:
    """With m = 1 and field weights, as FedBuff has it: what is compared is the masks."""
    once = {"evaluate_every": settings.get("versions", SimulationConfig.versions)} | settings
    once |= {"weights": "field", "min_per_version": 1}
    return {method: mean_score(method, seeds, once) for method in ("fedbuff", "basecagg")}


def test_masks_cost_no_accuracy_on_digits_in_a_small_federation() -> None:
    small = {"users": 10, "concurrency": 7, "buffer_size": 5, "versions": 20, "model": "logistic"}
    scores = mean_scores(cryptography="arithmetic", local_rate=0.5, local_epochs=5, **small)
    assert scores["fedbuff"] > 0.85
    assert abs(scores["fedbuff"] - scores["basecagg"]) <= 0.01


@pytest.mark.soak
def test_masks_cost_no_accuracy_on_digits() -> None:
    scores = mean_scores()
    assert scores["fedbuff"] > 0.9
    assert abs(scores["fedbuff"] - scores["basecagg"]) <= 0.01


@pytest.mark.soak
def test_masks_cost_no_accuracy_on_mnist() -> None:
    """With the paper's clock. The official files are looked for in $BASECAGG_DATA, else in ./data."""
    data_dir = os.environ.get("BASECAGG_DATA", "data")
    try:
        load_dataset("mnist", data_dir=Path(data_dir))
    except DataError as missing:
        pytest.skip(str(missing))
    scores = mean_scores(
        seeds=3,
        dataset="mnist",
        model="lenet5",
        data_dir=data_dir,
        clock="uniform-staleness",
        cryptography="arithmetic",
        versions=100,
        local_epochs=1,
    )
    assert scores["fedbuff"] > 0.9
    assert abs(scores["fedbuff"] - scores["basecagg"]) <= 0.005
