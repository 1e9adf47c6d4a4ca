"""What all tests share."""

from __future__ import annotations

import gc

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
