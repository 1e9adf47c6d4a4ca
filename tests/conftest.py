"""What all tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from hypothesis import settings

# A busy machine is not a failing test.
settings.register_profile("basecagg", deadline=None)
settings.load_profile("basecagg")

LONG = (
    *("test_reproduce.py", "test_simulation.py", "test_end_to_end.py", "test_chaos.py"),
    *("test_deployment_howto.py", "test_deployment_example.py", "test_run_command.py"),
    *("test_site.py", "test_runs.py", "test_wheel.py", "test_tuning.py", "test_protocols.py"),
    *("test_failover.py", "test_page.py", "test_participant_histories.py", "test_schedules.py"),
    *("test_silent_callers.py", "test_ground.py", "test_normed_apps.py", "test_faults.py"),
    "test_agent_fuzz.py",
)
"""Files that take a worker long, the longest first: whoever comes to one last would be waited for by all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay: nobody need look for garbage among them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tables_as_they_were() -> Iterator[None]:
    """A page may add to the tables; the next test finds them as they were."""
    learning, timing = (
        import_module("basecagg.learning"),
        import_module("basecagg.simulation.timing"),
    )
    tables: list[dict[str, Any]] = [learning.DATASETS, learning.MODELS, learning.PARTITIONS]
    tables += [learning.CLIENTS, learning.LOCAL_OPTIMISERS, timing.SCHEDULES, timing.CLOCKS]
    tables += [import_module("basecagg.maths.staleness").SHAPES]
    tables += [import_module("basecagg.protocol.step_rule").OPTIMISERS]
    tables += [import_module("basecagg.simulation.protections").PROTECTIONS]
    tables += [import_module("basecagg.simulation.attacks").ATTACKS]
    tables += [import_module("basecagg.maths.robust_means").ROBUST_MEANS]
    before = [dict(table) for table in tables]
    rules = import_module("basecagg.parameters").RULES
    rules_before = list(rules)
    yield
    rules[:] = rules_before
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
