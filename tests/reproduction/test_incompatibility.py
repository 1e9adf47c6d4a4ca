"""SecAgg in a buffer: exact only when all versions agree. BASecAgg: exact always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from reproduction import incompatibility
from reproduction.incompatibility import forced_secagg, measure, versions_of


def test_the_share_of_mixed_versions_is_what_it_says() -> None:
    for mixed in range(6):
        versions = versions_of(mixed, 6)
        assert len(versions) == 6
        most_common = max(versions.count(version) for version in versions)
        assert 6 - most_common == mixed


def test_masks_cancel_when_all_versions_agree() -> None:
    updates = [np.arange(50) * (-1) ** user for user in range(4)]
    assert np.array_equal(forced_secagg(updates, [3, 3, 3, 3]), np.sum(updates, axis=0))


@pytest.mark.parametrize("versions", [[3, 3, 3, 2], [1, 2, 3, 4], [3, 3, 2, 2]])
def test_one_other_version_spoils_every_element(versions: list[int]) -> None:
    updates = [np.arange(50) for _ in range(4)]
    assert np.all(forced_secagg(updates, versions) != np.sum(updates, axis=0))


def test_basecagg_has_no_error_at_any_mixture() -> None:
    for mixed in (0, 1, 4):
        point = measure(mixed, repeats=1, members=5, size=40)
        assert point.basecagg == 0
        assert point.basecagg_wrong == 0
        assert (point.secagg == 0) == (mixed == 0)
        assert point.secagg_wrong == (1.0 if mixed else 0.0)


def results() -> dict[str, dict[str, Any]]:
    points = [incompatibility.Point(m, m / 3, 1e5 * (m > 0), float(m > 0), 0, 0) for m in range(3)]
    return {str(point.mixed): point._asdict() for point in points}


def test_the_report_draws_and_tells() -> None:
    publication = incompatibility.report(results(), "full")
    assert [line["SecAgg: share of wrong elements"] for line in publication.lines] == [0, 1, 1]
    assert "incompatibility" in publication.figures
    for words in ("K = 10", "d = 1,000", "older version of its own", "mean is shown: 10"):
        assert words in publication.lead


@pytest.mark.parametrize(
    ("mixed", "change", "verdict"),
    [
        ("1", {}, "reproduced"),
        ("1", {"secagg_wrong": 0.98}, "not reproduced"),
        ("2", {"secagg_wrong": 0.5}, "not reproduced"),
        ("0", {"basecagg_wrong": 0.001}, "not reproduced"),
        ("2", {"basecagg": 1e-6}, "not reproduced"),
    ],
)
def test_the_verdict_follows_the_figures(
    mixed: str, change: dict[str, float], verdict: str
) -> None:
    found = results()
    found[mixed] |= change
    assert incompatibility.report(found, "full").claims[0].verdict == verdict
