"""Attacks by name: attackers send what the attack says, others are left alone; a resumed run goes on alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiny import CLASSES, tiny_config, tiny_task

from basecagg import simulate
from basecagg.cli import main
from basecagg.errors import DataError, ParameterError
from basecagg.simulation.attackers import Attackers
from basecagg.simulation.attacks import ATTACKS

OWN, OTHERS = np.array([3.0, -4.0], np.float32), np.array([[1.0, 2.0], [3.0, 2.0]], np.float32)


def attackers(attack: str, share: float = 0.25, **changes: Any) -> Attackers:
    return Attackers(tiny_config(attack=attack, attackers=share, **changes))


def sent(lies: Attackers, user: int = 0) -> list[float]:
    for other, update in zip((5, 6), OTHERS, strict=True):
        assert lies.sent(other, update, (1,)) is update
    return lies.sent(user, OWN, (1, 2)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("attack", "strength", "lie"),
    [
        ("scaled", None, [300.0, -400.0]),
        ("scaled", 2.0, [6.0, -8.0]),
        ("sign-flip", None, [-3.0, 4.0]),
        ("label-flip", None, [3.0, -4.0]),
        ("alie", None, [0.5, 2.0]),  # mean (2, 2), deviation (1, 0)
        ("ipm", 10.0, [-20.0, -20.0]),
        ("false-staleness", None, [3.0, -4.0]),
    ],
)
def test_what_an_attacker_sends(attack: str, strength: float | None, lie: list[float]) -> None:
    assert sent(attackers(attack, attack_strength=strength)) == pytest.approx(lie)


def test_noise_is_as_long_as_the_update_times_the_strength() -> None:
    lies = attackers("gaussian", attack_strength=7.0)
    update = np.ones(10_000, np.float32)
    noise = lies.sent(0, update, (1, 2))
    assert np.linalg.norm(noise) == pytest.approx(700, rel=0.03)
    assert abs(float(noise @ update)) < 5 * 700
    assert not np.array_equal(noise, lies.sent(0, update, (1, 3)))


@pytest.mark.parametrize("attack", ["alie", "ipm"])
def test_who_has_seen_nobody_cannot_lie_yet(attack: str) -> None:
    assert attackers(attack).sent(0, OWN, (1,)) is OWN


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.25, 2), (0.5, 4)])
def test_how_many_lie(share: float, count: int) -> None:
    lies = attackers("scaled", share)
    assert [user for user in range(8) if user in lies] == list(range(count))


def test_labels_of_attackers_are_turned_round_and_no_others() -> None:
    task, examples = tiny_task(), [np.arange(6), np.arange(6, 12), *[np.array([12])] * 6]
    taught = attackers("label-flip").task(task, examples).dataset
    before, after = task.dataset.train_y.numpy(), taught.train_y.numpy()
    assert (after[:12] == CLASSES - 1 - before[:12]).all()
    assert (after[12:] == before[12:]).all()
    assert (task.dataset.test_y == taught.test_y).all()
    assert attackers("scaled").task(task, examples) is task


def test_what_has_no_labels_cannot_be_flipped() -> None:
    task = tiny_task()
    without = replace(task, dataset=replace(task.dataset, num_classes=0))
    with pytest.raises(DataError, match="needs labels"):
        attackers("label-flip").task(without, [np.arange(6)] * 8)


def test_an_attacker_tells_the_newest_version_and_others_the_true_one() -> None:
    lies = attackers("false-staleness")
    assert (lies.told(0, 3, 7), lies.told(5, 3, 7)) == (7, 3)
    assert attackers("scaled").told(0, 3, 7) == 3
    fresh = run("fedbuff", attack="false-staleness", attackers=0.9, speed_spread=3.0)
    honest = run("fedbuff", speed_spread=3.0)
    assert mean_age(fresh) < mean_age(honest)


def run(method: str = "basecagg", **changes: Any) -> Any:
    usual = {"cryptography": "arithmetic", "versions": 8} | changes
    return simulate(tiny_config(method, **usual), task=tiny_task())


def mean_age(result: Any) -> float:
    return float(np.mean([age for each in result.versions for age in each.staleness]))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("method", ["fedbuff", "basecagg", "fedavg"])
def test_every_attack_changes_the_model(attack: str, method: str) -> None:
    honest = run(method).model
    lied = run(method, attack=attack, attackers=0.3).model
    if (attack, method) != ("false-staleness", "fedavg"):  # in rounds there is nothing to lie about
        assert not np.array_equal(honest, lied)
    idle = run(method, attack=attack).model
    assert np.array_equal(honest, idle)


@pytest.mark.parametrize("attack", ["alie", "gaussian"])
def test_a_resumed_run_attacks_alike(attack: str, tmp_path: Path) -> None:
    config = tiny_config(
        "basecagg",
        cryptography="arithmetic",
        attack=attack,
        attackers=0.3,
        versions=6,
        checkpoint_every=3,
    )
    whole, folder = simulate(config, task=tiny_task()), tmp_path / "run"

    def stop(record: Any) -> None:
        if record.version == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        simulate(config, task=tiny_task(), folder=folder, progress=stop)
    resumed = simulate(config, task=tiny_task(), folder=folder, resume=True)
    assert np.array_equal(whole.model, resumed.model)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attack": "scald"}, "attack = 'scald' must be one of scaled, sign-flip"),
        ({"attackers": 0.1}, "attack = None must be given"),
        ({"attack": "scaled", "attack_strength": 0.0}, "attack_strength = 0.0 must be finite"),
        ({"attack": "label-flip", "attack_strength": 2.0}, "must be left out"),
        ({"attack": "scaled", "attackers": 1.0}, "attackers = 1.0 must be"),
    ],
)
def test_what_cannot_be_an_attack_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        tiny_config(**changes)


def test_an_attack_on_the_command_line(tmp_path: Path) -> None:
    asked = "run --method fedbuff --attack sign-flip --attackers 0.1 --versions 2 --set users=12"
    done = CliRunner().invoke(main, [*asked.split(), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    written = next((tmp_path / "out").rglob("config.*")).read_text()
    assert "sign-flip" in written
