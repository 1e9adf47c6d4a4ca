"""The operator's folder and its line to the server, open for as long as a command works."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from basecagg.service.operator.office import Office
from basecagg.storage.lease import acquire_within

_PATIENCE = 2.0
"""Seconds to open a folder that `enrol --watch` may have open for a moment."""


class Place(NamedTuple):
    """Where the operator's things are."""

    folder: Path
    anchors: Path | None
    passphrase: Callable[..., str]
    """Asks for it once, when it is needed; a fresh one twice, because nobody could correct a slip."""


def connected(work: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a command of a coroutine of the office and the command's options."""

    @click.pass_obj
    @wraps(work)
    def run(place: Place, /, **options: Any) -> None:
        at_work(place, work, **options)

    return run


def at_work(place: Place, work: Callable[..., Awaitable[None]], **options: Any) -> None:
    """Open the folder, do the work, hang up."""

    async def whole() -> None:
        office = acquire_within(_PATIENCE, lambda: Office(*place))
        try:
            await work(office, **options)
        finally:
            await office.line.close()
            office.close()

    asyncio.run(whole())
