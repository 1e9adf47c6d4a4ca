"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A busy machine is not a failing test.
settings.register_profile("basecagg", deadline=None)
settings.load_profile("basecagg")

LONG = (
    *("test_wheel.py", "test_chaos.py", "test_failover.py", "test_ground.py"),
    *("test_deployment_example.py", "test_deployment_howto.py", "test_schedules.py"),
    *("test_reproduce.py", "test_agent_fuzz.py", "test_site.py"),
)
"""Files that take a worker twenty seconds or more: whoever comes to one last would be waited for by all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)
