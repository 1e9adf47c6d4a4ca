"""An operator's year: people come and go, machines fail, keys are renewed, and training goes on."""

from __future__ import annotations

from typing import Any

import pytest
from hospitals import Federation
from traveller import Traveller
from year import Year


@pytest.mark.journey
def test_the_operators_year(traveller: Traveller, figures: dict[str, Any], database: str) -> None:
    del traveller.environment["XDG_CACHE_HOME"]  # nor a cache
    year = Year(Federation(traveller, 10**4, database))
    year.begin(6)
    head = year.read_the_logs()
    year.welcome("hospital-7")
    year.dismiss("hospital-6")
    year.rotate()
    year.replace("hospital-4")
    year.rotate()
    year.federation.export_and_verify()
    year.lose_the_server([f"hospital-{index}" for index in (1, 2, 3, 4, 5, 7)])
    year.renew_the_servers_key()
    year.restore_the_operator(people=6)
    year.operator(f"log --contains {head}")
    assert "is closed" in year.operator("close")
    year.federation.export_and_verify()
    figures["epochs"], figures["versions"] = year.epoch, year.federation.figures.version
    figures["refused"] = dict(year.federation.refusals())
