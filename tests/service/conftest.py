"""The puppets of the protocol's tests serve here too, and a test may be a coroutine."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "protocol"))

_LONGEST, _LONGEST_SOAK = 600.0, 7200.0
"""Seconds after which a story in an event loop has failed: it may wait for what never comes."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.fixture(autouse=True)
def nobody_waits_for_ever(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whoever runs a story here, a coroutine or not, gives it up at last."""
    is_long = request.node.get_closest_marker("soak") is not None
    bounded = partial(_bounded, _LONGEST_SOAK if is_long else _LONGEST)
    run = asyncio.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", lambda story, **more: run(bounded(story), **more))
        yield


async def _bounded(seconds: float, story: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await story


@pytest.fixture
def limits_without_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's bucket fills up again, however long a test takes."""
    still = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("basecagg.service.server.limits.time", still)
