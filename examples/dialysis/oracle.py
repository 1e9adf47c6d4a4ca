"""The pooled analyses, for comparison only: lifelines on all rows in one place, which no centre would allow."""

from __future__ import annotations

import warnings

import numpy as np
from patients import COVARIATES, MONTHS, MOST, Rows, pooled

from basecagg.statistics import fit_cox, kaplan_meier

Answer = dict[str, list[float]]


def by_lifelines(centres: dict[str, Rows]) -> Answer:
    """Kaplan–Meier, and Cox stratified by centre."""
    import pandas as pd
    from lifelines import CoxPHFitter, KaplanMeierFitter

    table = pd.DataFrame(pooled(centres))
    names = [each.name for each in COVARIATES]
    curve = KaplanMeierFitter().fit(table["time"], table["event"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # pandas' about what lifelines does
        columns = ["time", "event", "centre", *names]
        fit = CoxPHFitter().fit(table[columns], "time", "event", strata=["centre"])
    return {
        "survival": curve.survival_function_at_times(MONTHS).tolist(),
        "coefficients": fit.params_[names].tolist(),
        "errors": fit.standard_errors_[names].tolist(),
    }


def in_clear(centres: dict[str, Rows]) -> Answer:
    """The same sums without masks, where lifelines is not installed: no oracle, but a comparison."""

    def ask(statistic):
        return statistic.of_sum(
            np.sum([statistic.of_rows(rows) for rows in centres.values()], axis=0)
        )

    fit = fit_cox(ask, COVARIATES, most=MOST)
    return {
        "survival": ask(kaplan_meier(MONTHS, most=MOST)).survival.tolist(),
        "coefficients": fit.coefficients.tolist(),
        "errors": fit.errors.tolist(),
    }
