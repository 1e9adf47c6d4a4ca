"""The corrected bound holds over a grid; the printed one does not hold; the lemma's parts are what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from reproduction.jobs import Order
from reproduction.theorem import EXTENTS, GAPS, PROBLEMS, THEOREM, cases, report
from reproduction.theorem_bounds import (
    Setting,
    corrected_bound,
    corrected_condition,
    noise_term,
    printed_bound,
    printed_condition,
    rounding_variance,
    start_term,
)
from reproduction.theorem_problems import (
    Logistic,
    Problem,
    Quadratic,
    Seen,
    logistic,
    quadratic,
    uneven_quadratic,
)
from reproduction.theorem_runs import ergodic_norm, ergodic_norms, measured_variance

GRID = list(product((1, 3, 10), (0, 4), (1, 4), (2**2, 2**16)))


@pytest.mark.parametrize("make", [quadratic, logistic, uneven_quadratic])
def test_the_corrected_bound_holds_over_a_grid(make: Callable[[], Problem]) -> None:
    problem = make()
    for buffer_size, staleness, steps, levels in GRID:
        setting = Setting(
            users=problem.users,
            buffer_size=buffer_size,
            max_staleness=staleness,
            local_steps=steps,
            update_levels=levels,
            local_rate=0.2,
            versions=60,
        )
        measured, constants = ergodic_norm(problem, setting, repeats=20)
        assert corrected_condition(setting, constants)
        assert measured <= corrected_bound(setting, constants), setting


@pytest.mark.parametrize("name", GAPS)
def test_the_printed_bound_is_exceeded_where_its_condition_holds(name: str) -> None:
    gap = GAPS[name]
    measured, constants = ergodic_norm(PROBLEMS[gap.problem](), gap.setting, repeats=5)
    assert printed_condition(gap.setting, constants)
    assert corrected_condition(gap.setting, constants)
    assert measured > 1.5 * printed_bound(gap.setting, constants)
    assert measured <= corrected_bound(gap.setting, constants)


def test_the_trial_of_one_number() -> None:
    """x ← 0.9·x: the mean of x² over J = 1000 versions is 1/(0.19·1000), whatever K is."""
    gap = GAPS["K in the first term"]
    measured, constants = ergodic_norm(PROBLEMS[gap.problem](), gap.setting, repeats=1)
    assert measured == pytest.approx(1 / 190, rel=1e-4)
    assert printed_bound(gap.setting, constants) == pytest.approx(0.001, rel=1e-6)
    assert corrected_bound(gap.setting, constants) == pytest.approx(0.01, rel=1e-6)


def test_the_noise_term_is_attained() -> None:
    """With η·L = 1 the model is the last noise itself, so no smaller factor than 1 would do."""
    gap = GAPS["½ in the noise term"]
    norms, constants = ergodic_norms(PROBLEMS[gap.problem](), gap.setting, repeats=5)
    assert norms.mean() > 0.99 * noise_term(gap.setting, constants)
    assert norms == pytest.approx(1 - 1 / gap.setting.versions, rel=1e-5)  # in every run


def test_the_start_term_is_at_most_twice_what_is_measured() -> None:
    """Without noise and with a small step, so a bound with one more factor K must fail for K > 2."""
    problem = Quadratic(np.ones((2, 1)), np.zeros((2, 1)), np.ones(1))
    setting = Setting(users=2, buffer_size=2, local_rate=0.01, versions=1000, update_levels=2**24)
    measured, constants = ergodic_norm(problem, setting, repeats=1)
    assert 0.49 < measured / start_term(setting, constants) < 0.51


@pytest.mark.parametrize("make", [quadratic, logistic])
@pytest.mark.parametrize("levels", [1, 2**4, 2**12])
def test_the_lemma(make: Callable[[], Problem], levels: int) -> None:
    problem = make()
    variance = measured_variance(problem, levels, samples=20_000)
    known = problem.constants(Seen())
    assert variance.rounding <= rounding_variance(problem.start.size, levels)
    assert variance.gradient <= known.local_variance * 1.001
    assert variance.total == pytest.approx(variance.gradient + variance.rounding, rel=0.03)


def test_rounding_to_the_lattice_attains_the_lemma() -> None:
    """Half-way between two levels nothing is gained: the variance is d/(4c²) itself."""
    halves = Quadratic(np.ones((1, 4)), np.zeros((1, 4)), np.full(4, 0.5))
    assert measured_variance(halves, 1, samples=1000).rounding == rounding_variance(4, 1)


def test_the_constants_of_logistic_regression_hold_on_the_path() -> None:
    problem = logistic()
    assert isinstance(problem, Logistic)
    setting = Setting(users=20, buffer_size=5, local_rate=0.5, versions=50)
    _, known = ergodic_norm(problem, setting, repeats=3)
    points = np.random.default_rng(1).standard_normal((200, problem.start.size)) * 3
    seen = Seen()
    everyone = np.tile(np.arange(problem.users), (len(points), 1))
    seen.look(problem.gradient(everyone, np.repeat(points[:, None], problem.users, axis=1)))
    assert seen.gradient_bound <= known.gradient_bound
    assert seen.global_variance == pytest.approx(known.global_variance)
    assert (
        np.linalg.norm(problem.gradient(everyone[0], np.tile(problem.minimum, (20, 1))).mean(0))
        < 1e-9
    )


def test_the_gradients_are_those_of_the_values() -> None:
    for problem in (quadratic(), logistic(), uneven_quadratic()):
        point = problem.start + 0.3
        everyone = np.arange(problem.users)
        slope = problem.gradient(everyone, np.tile(point, (problem.users, 1))).mean(axis=0)
        steps = 1e-6 * np.eye(point.size)
        numeric = [(problem.value(point + s) - problem.value(point - s)) / 2e-6 for s in steps]
        assert slope == pytest.approx(np.array(numeric), abs=1e-6)


def test_a_step_that_is_too_long_is_outside_both_theorems() -> None:
    """The negative control of the conditions: past 2/L a quadratic diverges, bound or not."""
    problem = PROBLEMS["trial"]()
    setting = replace(GAPS["K in the first term"].setting, local_rate=2.1, versions=60)
    measured, constants = ergodic_norm(problem, setting, repeats=1)
    assert not corrected_condition(setting, constants)
    assert measured > corrected_bound(setting, constants)


def test_the_experiment_in_seconds(tmp_path: Path) -> None:
    publication = THEOREM.run(Order("smoke"), tmp_path)
    assert all(line["measured"] <= line["corrected"] for line in publication.lines)
    gaps = publication.tables["Where the printed bound fails"]
    assert {line["what is missing"] for line in gaps} == set(GAPS)
    assert all(line["printed"] < line["measured"] <= line["corrected"] for line in gaps)
    assert set(publication.figures) == {"theorem-sweeps", "theorem-gaps"}
    assert publication.claims
    assert all("standard error" in line for line in publication.lines)
    assert not any("no standard error" in note for note in publication.notes)


# --- the verdict follows the figures --------------------------------------------------------------

SYMBOLS = {"K": "buffer_size", "τ_max": "max_staleness", "c_l": "update_levels", "E": "local_steps"}


def results(**gap: float) -> dict[str, Any]:
    """The whole experiment: every setting far below both bounds, every counterexample as given."""
    found: dict[str, Any] = {}
    for key, case in cases(EXTENTS["full"]):
        setting = {symbol: getattr(case.setting, name) for symbol, name in SYMBOLS.items()}
        values = {"measured": 0.12345, "printed": 2.0, "corrected": 1.0}
        if key.startswith("gap/"):
            values |= {"printed": 0.01} | gap
        found[key] = {"problem": case.problem, **setting, **values}
    found["lemma/quadratic/1"] = dict.fromkeys(
        ("problem", "c", "total", "gradient", "rounding", "rounding at most"), 1.0
    )
    return found


def test_different_settings_that_meet_the_condition_are_counted() -> None:
    publication = report(results(), "full")
    assert len(publication.lines) == 46
    outside = [
        (line["problem"], line["E"]) for line in publication.lines if not line["η_l·η_g·K·E ≤ 1/L"]
    ]
    assert outside == [("quadratic", 5), ("quadratic", 10), ("logistic", 10)]
    found = publication.claims[0].found
    assert "Of 43 different settings" in found
    assert "43 are below the corrected bound and 43 below the printed one too" in found
    assert "of 5 counterexamples, constructed" in found
    assert "J = 1000 throughout" in found


@pytest.mark.parametrize(
    ("key", "change", "verdict"),
    [
        ("sweep/quadratic/buffer_size/1", {}, "corrected"),
        ("sweep/quadratic/buffer_size/1", {"measured": 1.5}, "not reproduced"),
        ("sweep/logistic/local_steps/5", {"measured": 1.5}, "not reproduced"),
        ("sweep/logistic/local_steps/10", {"measured": 1.5}, "corrected"),  # outside the condition
        ("sweep/quadratic/local_steps/1", {"measured": 1.5}, "not reproduced"),  # one of four
        ("sweep/quadratic/buffer_size/10", {"measured": 1.5}, "not reproduced"),
        ("gap/choice of users", {"measured": 1.5}, "not reproduced"),
    ],
)
def test_the_verdict_follows_a_setting(key: str, change: dict[str, float], verdict: str) -> None:
    found = results()
    found[key] |= change
    assert report(found, "full").claims[0].verdict == verdict


def test_without_a_counterexample_the_printed_bound_stands() -> None:
    assert report(results(printed=0.5), "full").claims[0].verdict == "reproduced"


def test_the_lemmas_verdict_follows_the_rounding() -> None:
    found = results()
    assert report(found, "full").claims[1].verdict == "reproduced"
    found["lemma/quadratic/1"]["rounding"] = 1.01
    assert report(found, "full").claims[1].verdict == "not reproduced"


def test_three_digits_are_shown_only_with_a_standard_error() -> None:
    found = results()
    old = report(found, "full")
    assert {line["measured"] for line in old.lines} == {0.12}
    assert any("no standard error" in note for note in old.notes)
    new = report({key: line | {"standard error": 1e-3} for key, line in found.items()}, "full")
    assert {(line["measured"], line["standard error"]) for line in new.lines} == {(0.12345, 1e-3)}
    assert not any("no standard error" in note for note in new.notes)
