"""Centres of made-up patients, and the pooled analyses, written once more and without a thought for sums."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize

from basecagg.statistics import Covariate

MOST = 64
COVARIATES = (Covariate("age", 0, 100), Covariate("diabetes", 0, 1))
MONTHS = tuple(range(1, 25))


def made_up(centres: int = 9, seed: int = 1, least: int = 3) -> dict[str, dict[str, np.ndarray]]:
    """Whole months, so that there are ties; centres differ in size and in their patients' chances."""
    rng = np.random.default_rng(seed)
    return {
        f"centre-{index:02}": _rows(rng, int(rng.integers(least, 40))) for index in range(centres)
    }


def _rows(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    age, diabetes = rng.integers(20, 95, count), rng.integers(0, 2, count)
    risk = np.exp(0.03 * (age - 55) + 0.5 * diabetes + rng.normal(0, 0.3))
    death, leaving = rng.exponential(20 / risk), rng.uniform(0, 30, count)
    time = np.ceil(np.minimum(death, leaving)).astype(int)
    return {"time": time, "event": (death <= leaving).astype(int), "age": age, "diabetes": diabetes}


def pooled(centres) -> dict[str, np.ndarray]:
    """All rows in one place, with the centre that each is of."""
    rows = {name: np.concatenate([c[name] for c in centres.values()]) for name in ("time", "event")}
    rows |= {c.name: np.concatenate([r[c.name] for r in centres.values()]) for c in COVARIATES}
    sizes = [len(c["time"]) for c in centres.values()]
    return rows | {"centre": np.repeat(np.arange(len(sizes)), sizes)}


def survival(rows, months=MONTHS) -> np.ndarray:
    """Kaplan and Meier, month by month."""
    left, curve = 1.0, []
    for month in months:
        at_risk = sum(t >= month for t in rows["time"])
        died = sum(t == month and e for t, e in zip(rows["time"], rows["event"], strict=True))
        left *= 1 - died / at_risk if at_risk else 1
        curve.append(left)
    return np.array(curve)


def efron(rows, beta) -> float:
    """Minus the log partial likelihood, stratified by centre: one death at a time, as it stands in books."""
    total = 0.0
    x = np.stack([rows[c.name] for c in COVARIATES], axis=1).astype(float)
    for centre in set(rows["centre"]):
        here = rows["centre"] == centre
        x_here, time, event = x[here], rows["time"][here], rows["event"][here]
        for month in set(time[event == 1]):
            dying = [i for i in range(len(time)) if time[i] == month and event[i]]
            at_risk = sum(math.exp(x_here[i] @ beta) for i in range(len(time)) if time[i] >= month)
            tied = sum(math.exp(x_here[i] @ beta) for i in dying)
            for number, i in enumerate(dying):
                total += x_here[i] @ beta - math.log(at_risk - number / len(dying) * tied)
    return -total


def cox(rows) -> np.ndarray:
    """By a general optimiser, from scaled covariates."""
    scale = np.array([0.01, 1.0])
    options = {"xatol": 1e-9, "fatol": 1e-11, "maxiter": 2000}
    found = minimize(
        lambda b: efron(rows, b * scale), np.zeros(2), method="Nelder-Mead", options=options
    )
    return found.x * scale
