"""Ten hospitals train a model of a million numbers together, over TLS, by the commands of the how-to."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hospitals import Federation
from traveller import Traveller
from year import Year

WAITING = {"401"}
"""What an agent is told until the operator has admitted it. Afterwards no request is in vain."""


def tell(
    traveller: Traveller, figures: dict[str, Any], *, size: int, names: list[str], versions: int,
    plan: str, database: str = "",
) -> Federation:  # fmt: skip
    """All join, the operator starts, versions come, and no request was in vain."""
    federation = Federation(traveller, size, database)
    federation.found()
    federation.invite(*names)
    for name in names:
        federation.join(name)
    federation.wait_until_enrolled(*names)
    joined = time.monotonic()
    federation.start(len(names), plan)
    before = federation.refusals()
    federation.reach(1)
    figures["seconds to the first version"] = round(time.monotonic() - joined, 1)
    federation.reach(versions)
    figures["versions"] = versions
    figures["seconds for all versions"] = round(time.monotonic() - joined, 1)
    found = federation.figures.read()
    figures["MB received"] = round(found["received_bytes_total"] / 1e6)
    figures["MB sent"] = round(found["sent_bytes_total"] / 1e6)
    figures["refused before all were admitted"] = before
    figures["refused afterwards"] = afterwards = federation.refusals() - before
    assert set(before) <= WAITING, before
    assert not afterwards
    return federation


def test_four_hospitals(traveller: Traveller) -> None:
    """Versions come; then one more comes, one goes, and the rest begin another epoch: a year in short."""
    names = [f"hospital-{index}" for index in range(1, 5)]
    plan = "--max-dropouts 1 --buffer-size 3"
    federation = tell(traveller, {}, size=10**5, names=names, versions=2, plan=plan)
    year = Year(federation)
    year.welcome("hospital-5")
    year.dismiss("hospital-4")
    year.rotate()
    federation.export_and_verify()


@pytest.mark.journey
def test_ten_hospitals(traveller: Traveller, figures: dict[str, Any], database: str) -> None:
    names = [f"hospital-{index}" for index in range(1, 11)]
    plan = "--max-dropouts 2 --buffer-size 5"
    federation = tell(
        traveller, figures, size=10**6, names=names, versions=20, plan=plan, database=database
    )
    federation.export_and_verify()
