"""Private runs: budgets are kept and end a run, the noise is as large as it says, a lie is not applied."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, SimulationResult, simulate
from basecagg.auditing.leakage import audit
from basecagg.auditing.recorder import Recorder
from basecagg.auditing.transcript import Transcript
from basecagg.errors import ParameterError
from basecagg.maths.accounting import epsilon_of
from basecagg.planning.budget import noise_of, private_sums
from basecagg.simulation import private_sums as arithmetic
from basecagg.simulation.build import build
from basecagg.simulation.simulate import play

NOISY = ("ldp", "cdp", "basecagg-dp")


def private(method: str = "basecagg-dp", **changes: object) -> SimulationConfig:
    usual = {
        "staleness": "constant",
        "max_colluders": 1,
        "max_uses": 3,
        "noise": 2.0,
        "cryptography": "arithmetic",
    }
    return tiny_config(method, **usual | changes)


def run(config: SimulationConfig) -> SimulationResult:
    return simulate(config, task=tiny_task())


# --- budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", NOISY)
@pytest.mark.parametrize("clock", ["devices", "uniform-staleness"])
def test_a_budget_ends_the_run_and_says_so(method: str, clock: str) -> None:
    """Eight users with three uploads each fill six buffers of four at most."""
    config = private(method, versions=50, clock=clock)
    ended = run(config)
    assert ended.versions[-1].version in (5, 6)
    assert "budget of privacy" in ended.totals["stopped"]
    assert ended.totals["epsilon"] <= epsilon_of(3 / (2 * 2.0**2), config.delta) + 1e-9
    longer = run(replace(config, max_uses=100, versions=8))
    assert longer.versions[-1].version == 8
    assert "stopped" not in longer.totals


@pytest.mark.parametrize("cryptography", ["full", "arithmetic"])
def test_epsilon_is_that_of_the_user_who_sent_the_most(cryptography: str) -> None:
    config = private(cryptography=cryptography, clock="uniform-staleness")
    parts = build(config, tiny_task(), {})
    records = play(parts)
    mechanism = private_sums(config, parts.model_size, 1)
    most = max(parts.clock.trainings)
    expected = epsilon_of(most * mechanism.cost(0), mechanism.conversion_delta)
    assert records[-1].epsilon == pytest.approx(expected, abs=1e-12)
    assert [r.epsilon for r in records] == sorted(r.epsilon for r in records)
    assert records[0].epsilon == 0


@pytest.mark.parametrize("method", NOISY)
def test_noise_follows_from_epsilon_and_epsilon_from_noise(method: str) -> None:
    config = private(method, noise=None, epsilon=4.0, delta=1e-5)
    assert noise_of(config) == 2.005  # three uploads, neighbours that become zero
    ended = run(replace(config, versions=50))
    assert 3.9 < ended.totals["epsilon"] <= 4.0
    with pytest.raises(ParameterError, match=r"epsilon = 4\.0 must be left out while noise = 2"):
        replace(config, noise=2.0)


def test_without_noise_nothing_is_promised_and_everybody_goes_on() -> None:
    found = run(private(noise=0.0, max_uses=1, versions=6))
    assert found.versions[-1].version == 6
    assert found.versions[-1].epsilon is None
    assert "epsilon" not in found.totals


def test_old_updates_cost_less_but_never_nothing() -> None:
    config = private(staleness="polynomial", clock="uniform-staleness")
    parts = build(config, tiny_task(), {})
    play(parts)
    fresh = private_sums(config, parts.model_size, 1)
    uploads = max(parts.clock.trainings)
    spent = parts.aggregator.sums.state()["spent"]
    assert uploads * fresh.cost(10) < spent < uploads * fresh.cost(0)


# --- weights and noise --------------------------------------------------------------------------


@pytest.mark.parametrize("cryptography", ["full", "arithmetic"])
def test_contributors_weigh_and_the_server_does_not(cryptography: str) -> None:
    config = private(staleness="polynomial", clock="uniform-staleness")
    config = replace(config, cryptography=cryptography)
    p = config.protocol_parameters(12)
    assert (p.weights, p.weight_levels) == ("own", 1)
    weighed = run(config).versions[1:]
    assert any(len(set(record.weights)) > 1 for record in weighed)
    for record in weighed:
        assert record.weights == tuple(2.0 ** -int(math.log2(1 + age)) for age in record.staleness)


def measured(config: SimulationConfig) -> float:
    """The variance of what sums had on top of the updates, in (z·C)²."""
    noise = run(config).totals["opened noise"]
    central = (noise_of(config) * config.clip_norm) ** 2
    return noise["squared"] / noise["elements"] / central


def test_the_opened_noise_is_that_of_a_trusted_server_and_of_silent_contributors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K/(K − T_c) times z²C², with 12 · 25 elements: within 3 standard deviations of 8 % each."""
    config = private(
        clock="uniform-staleness", users=40, holders=8, versions=25, private_levels=2**11
    )
    exact = 4 / 3
    assert measured(config) == pytest.approx(exact, rel=0.25)

    real = arithmetic.hide_with_noise

    def half(update, staleness, fresh, parameters, mask):  # type: ignore[no-untyped-def]
        quiet = replace(parameters, privacy=replace(parameters.privacy, noise=1.0, epsilon=20.0))
        return real(update, staleness, fresh, quiet, mask)

    monkeypatch.setattr(arithmetic, "hide_with_noise", half)
    assert measured(config) < 0.5 * exact


def test_a_trusted_server_adds_noise_once_to_every_sum() -> None:
    """The model moves by noise alone where nothing is learned: 12 elements, 25 steps, σ/K each."""
    config = private("cdp", local_rate=1e-9, users=40, clock="uniform-staleness")
    parts = build(config, tiny_task(), {})
    models = [parts.schedule.model]
    for _ in range(25):
        parts.clock.tick()
        models.append(parts.schedule.model)
    steps = np.diff(np.stack(models), axis=0)
    assert steps.std() == pytest.approx(2.0 / 4, rel=0.2)


# --- lies ---------------------------------------------------------------------------------------


def test_a_sum_with_a_lie_is_not_applied() -> None:
    lie = {"attack": "scaled", "attackers": 0.1, "attack_strength": 1e4}
    config = private(noise=0.0, clip_norm=0.1, clock="uniform-staleness", **lie)
    lied = build(config, tiny_task(), {})
    honest = build(replace(config, attackers=0.0), tiny_task(), {})
    for parts in (lied, honest):
        for _ in range(8):
            before = parts.schedule.model
            parts.clock.tick()
            step, _ = parts.aggregator.take_step()
            assert step is not None
            members = {name.contributor for name in step.members}
            assert step.applied == (parts is honest or "user-0" not in members)
            assert step.applied != np.array_equal(before, parts.schedule.model)
    assert lied.aggregator.counts["sums not applied"] > 0


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_a_liar_just_below_the_bound_is_not_seen(noise: float) -> None:
    lie = {"attack": "sign-flip", "attackers": 0.1}
    config = private(noise=noise, clock="uniform-staleness", **lie)
    config = replace(config, users=40, holders=8, versions=20, max_uses=9)
    hidden = run(config).totals["counts"].get("sums not applied", 0)
    assert hidden <= 2
    blunt = run(replace(config, attack_strength=1e6)).totals["counts"]
    assert blunt["sums not applied"] > hidden


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"cryptography": "full", "attackers": 0.1, "attack": "scaled"},
            "attackers = 0.1 must be 0 unless cryptography",
        ),
        ({"noise": -2.0}, "noise = -2.0 must be"),
        ({"max_uses": 0}, "max_uses = 0 must be at least 1"),
        ({"max_colluding_contributors": 4}, "T_c = 4"),
        ({"schedule": "tiered"}, "cannot protect the tiered schedule"),
    ],
)
def test_what_cannot_be_private_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        private(**{"method": "basecagg-dp"} | changes)


# --- the audit counts again ---------------------------------------------------------------------


def test_the_audit_comes_to_every_contributors_own_account(tmp_path: Path) -> None:
    """Counted from tickets, with updates that were burned or never summed."""
    config = private(cryptography="full", staleness="polynomial", clock="devices", versions=3)
    transcript, networks = Transcript(), []

    def watch(agreement, network, signer):  # type: ignore[no-untyped-def]
        recorder = Recorder(agreement, transcript.add)
        network.observers.append(lambda letter: recorder.see(letter.sender, letter.message))
        networks.append(network)

    result = simulate(config, task=tiny_task(), watch=watch)
    report = audit(transcript)
    machines = {name: m.participant.contributor for name, m in networks[0].members.items()}
    ledgers = {name: each.ledger for name, each in machines.items() if each is not None}
    spent = {name: (own.uses, own.spent) for name, own in ledgers.items() if own.uses}
    assert {each.contributor: (each.uploads, each.spent) for each in report.spent} == spent
    assert report.spent[0].epsilon == result.totals["epsilon"]
    assert sum(each.uploads for each in report.spent) >= 3 * 4
    assert report.over_budget == []
    assert f"ε = {report.spent[0].epsilon:.3g} at δ = 1e-06" in " ".join(str(report).split())
