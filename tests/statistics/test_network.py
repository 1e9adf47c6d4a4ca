"""A study over the network: the same results as in one process, and nobody is believed without a signature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import service_harness
from made_up import made_up, pooled
from network import NetworkStudy, protocol_text

from basecagg.errors import QuestionRefused
from basecagg.statistics import count, mean

COLUMNS = """
[columns.time]
unit = ""
low = 0
high = 40
[columns.event]
levels = [0, 1]
[columns.age]
low = 0
high = 100
[columns.diabetes]
levels = [0, 1]
"""
ASKED = """
[[ask]]
name = "how many"
compute = "count"
column = "age"
[[ask]]
name = "age"
compute = "mean"
column = "age"
[[ask]]
name = "time"
compute = "mean"
column = "time"
[[ask]]
name = "who dies"
compute = "cox"
covariates = ["age", "diabetes"]
[[ask]]
name = "noisy"
compute = "count"
column = "time"
noise = true
"""
BUDGET = """
[budget]
epsilon = 3.0
delta = 1e-5
uses = 2
"""
MOST = 64


@asynccontextmanager
async def network(folder: Path, centres: int = 6) -> AsyncIterator[NetworkStudy]:
    rows = made_up(centres, least=10)
    text = protocol_text(rows, most=MOST, columns=COLUMNS, asked=ASKED, more=BUDGET)
    # Whoever waits for what never comes gives it up at last.
    async with asyncio.timeout(600), service_harness.federation(folder) as federation:
        yield NetworkStudy(federation, rows, text)


def test_a_study_over_the_network(tmp_path: Path) -> None:
    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin()
            rows = pooled(study.centres)

            def work(remote: Any) -> None:
                assert remote.ask(count("age", most=MOST)) == rows["age"].size
                found = remote.ask(mean("age", 0, 100, most=MOST))
                assert found == pytest.approx(
                    (rows["age"].size, rows["age"].mean(), rows["age"].std())
                )
                noisy = remote.ask_privately(count("time", most=MOST))
                assert noisy != rows["age"].size
                assert abs(noisy - rows["age"].size) < 60
                assert remote.ask_privately(count("time", most=MOST)) == noisy
                assert remote.uses_left == 1
                assert remote.audit().smallest == 6
                with pytest.raises(QuestionRefused, match="not in the study protocol"):
                    remote.ask(count("event", most=MOST))

            await study.ask(work)

    asyncio.run(tell())
