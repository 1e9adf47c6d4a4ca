"""Three public data sets in one shape, each split into eight centres. They need the dependency group `study`.

Columns have the same names in all of them, whatever they are about: `time` and `event`, a number `y`, a number
of times `times`, a yes or no `yes`, a `treated`, a `group`, and the covariates `age` and `other`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from basecagg.statistics import Category, Covariate

CENTRES = 8
Rows = dict[str, np.ndarray]


class PublicData(NamedTuple):
    """One of them."""

    rows: Rows
    y: Covariate
    times: Covariate
    covariates: tuple[Covariate, ...]
    group: Category
    step: float
    """How closely `y` is measured."""

    @property
    def most(self) -> int:
        return len(self.rows["y"]) // CENTRES + 10

    @property
    def ends(self) -> tuple[float, ...]:
        """Every time at which something happens."""
        return tuple(np.unique(self.rows["time"]).tolist())

    @property
    def centres(self) -> dict[str, Rows]:
        """Each with its own rows: sorted by nothing, dealt one by one."""
        return {
            f"centre-{index}": {name: values[index::CENTRES] for name, values in self.rows.items()}
            for index in range(CENTRES)
        }

    @property
    def centre_of(self) -> np.ndarray:
        return np.arange(len(self.rows["y"])) % CENTRES


def heart_attacks() -> PublicData:
    """Of SurvSet (GPLv3): patients after a heart attack in Worcester, Massachusetts."""
    from SurvSet.data import SurvLoader

    found = SurvLoader().load_dataset("whas500")["df"]
    return _shaped(
        found,
        {
            **{"time": "time", "event": "event", "y": "num_sysbp", "times": "num_los"},
            **{"yes": "fac_chf", "treated": "fac_gender", "group": "fac_year"},
            **{"age": "num_age", "other": "num_bmi"},
        },
        (Covariate("age", 20, 110), Covariate("other", 10, 50)),
        Category("group", (1, 2, 3)),
    )


def marriages() -> PublicData:
    """Of statsmodels: Fair's survey of 1974. The "event" is an affair, the "time" years of marriage."""
    from statsmodels.api import datasets

    found = datasets.fair.load_pandas().data[::4].copy()
    found["event"] = (found.affairs > 0).astype(int)
    found["many"] = (found.children >= 2).astype(int)
    found["count"] = np.floor(found.children)
    return _shaped(
        found,
        {
            **{"time": "yrs_married", "event": "event", "y": "educ", "times": "count"},
            **{"yes": "event", "treated": "many", "group": "rate_marriage"},
            **{"age": "age", "other": "religious"},
        },
        (Covariate("age", 15, 45), Covariate("other", 1, 4)),
        Category("group", (1, 2, 3, 4, 5)),
    )


def recidivism() -> PublicData:
    """Of lifelines: Rossi's convicts of 1980."""
    from lifelines.datasets import load_rossi

    return _shaped(
        load_rossi(),
        {
            **{"time": "week", "event": "arrest", "y": "age", "times": "prio"},
            **{"yes": "arrest", "treated": "fin", "group": "wexp"},
            **{"age": "age", "other": "prio"},
        },
        (Covariate("age", 15, 50), Covariate("other", 0, 20)),
        Category("group", (0, 1)),
    )


def _shaped(
    found: Any,
    columns: dict[str, str],
    covariates: tuple[Covariate, ...],
    group: Category,
) -> PublicData:
    rows = {name: found[of].to_numpy().astype(float) for name, of in columns.items()}
    high = {name: float(rows[name].max()) for name in ("y", "times")}
    return PublicData(
        rows,
        Covariate("y", float(rows["y"].min()), high["y"]),
        Covariate("times", 0, high["times"]),
        covariates,
        group,
        0.5,
    )


_LOADERS: dict[str, Callable[[], PublicData]] = {
    each.__name__: each for each in (heart_attacks, marriages, recidivism)
}
DATA = tuple(_LOADERS)


def load(name: str) -> PublicData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these packages say of each other's age
        return _LOADERS[name]()
