"""The patients of 67 dialysis centres, centre by centre; or made-up ones of the same shape.

The real ones are the data set `Dialysis` of the package SurvSet (GPLv3), from R's RcmdrPlugin.survival: months
on dialysis, whether the patient died, the disease that led there, age, and the month of the beginning.
"""

from __future__ import annotations

import numpy as np

from basecagg.statistics import Covariate

MONTHS = tuple(range(1, 45))
MOST = 256
"""Patients of one centre, at most: what everybody agrees on before anybody looks."""
DISEASES = ("diabetes", "renal", "other", "congen")
"""Compared with hypertension, which most patients have."""
COVARIATES = (
    Covariate("age", 0, 110),
    Covariate("begin", 0, 48),
    *(Covariate(name, 0, 1) for name in DISEASES),
)
LABELS = {
    "age": "age, ten years more",
    "begin": "began a year later",
    "diabetes": "diabetes",
    "renal": "renal disease",
    "other": "another disease",
    "congen": "congenital disease",
}
"""The last four are compared with hypertension."""
UNITS = {"age": 10.0, "begin": 12.0}
"""Of which a hazard ratio speaks; 1 for the others."""
COLUMNS = ("time", "event", *(each.name for each in COVARIATES))

Rows = dict[str, np.ndarray]


def real() -> dict[str, Rows]:
    """All centres of the data set, each with its own rows."""
    from SurvSet.data import SurvLoader

    table = SurvLoader().load_dataset("Dialysis")["df"]
    table = table.rename(columns={"num_age": "age", "num_begin": "begin"})
    for name in DISEASES:
        table[name] = (table["fac_disease"] == name).astype(int)
    return {
        f"centre-{int(number):04}": {name: part[name].to_numpy() for name in COLUMNS}
        for number, part in table.groupby("fac_center", observed=True)
    }


def made_up(centres: int = 12, seed: int = 1) -> dict[str, Rows]:
    """Nobody's data: so that the study can be tried without the package, and tested."""
    rng = np.random.default_rng(seed)
    return {
        f"centre-{index:04}": _centre(rng, int(rng.integers(20, 200))) for index in range(centres)
    }


def _centre(rng: np.random.Generator, size: int) -> Rows:
    age, begin = rng.integers(18, 95, size), rng.integers(1, 45, size)
    disease = rng.choice(5, size, p=(0.19, 0.21, 0.17, 0.03, 0.40))
    rows = {name: (disease == index).astype(int) for index, name in enumerate(DISEASES)}
    log_risk = 0.035 * (age - 53) + 0.4 * rows["diabetes"] + rng.normal(0, 0.3)
    death, end = rng.exponential(70 / np.exp(log_risk)), 45 - begin
    time = np.ceil(np.minimum(death, end)).astype(int)
    return {"time": time, "event": (death <= end).astype(int), "age": age, "begin": begin, **rows}


def pooled(centres: dict[str, Rows]) -> Rows:
    """What no one may have: all rows in one place, with the centre that each is of."""
    rows = {name: np.concatenate([each[name] for each in centres.values()]) for name in COLUMNS}
    return rows | {"centre": np.repeat(list(centres), [len(c["time"]) for c in centres.values()])}
