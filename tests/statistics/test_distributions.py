"""Tail probabilities are SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from basecagg.statistics.distributions import (
    chi_squared_tail,
    f_tail,
    normal_tail,
    student_tail,
)

VALUES = (0.0, 1e-6, 0.1, 0.7, 1.0, 2.5, 9.0, 40.0, 300.0)
FREEDOMS = (1, 2, 3.7, 12, 150, 20_000)


@pytest.mark.parametrize("value", VALUES)
def test_tails_are_those_of_scipy(value: float) -> None:
    assert normal_tail(-value) == pytest.approx(2 * stats.norm.sf(value), rel=1e-10, abs=1e-300)
    for freedom in FREEDOMS:
        near = {"rel": 1e-8, "abs": 1e-280}  # small tails are exact, too
        assert chi_squared_tail(value, freedom) == pytest.approx(
            stats.chi2.sf(value, freedom), **near
        )
        assert student_tail(-value, freedom) == pytest.approx(
            2 * stats.t.sf(value, freedom), **near
        )
        for above in FREEDOMS:
            assert f_tail(value, above, freedom) == pytest.approx(
                stats.f.sf(value, above, freedom), **near
            )


def test_what_is_no_number_has_no_tail() -> None:
    assert np.isnan(student_tail(np.nan, 5))
