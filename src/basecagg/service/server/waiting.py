"""Callers who wait for mail, or for a change that concerns everybody: they sleep in the event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict

_LINGER = 0.15
"""Seconds that letters without urgency wait for others to go with."""


class WaitingRoom:
    """Who is to be woken, and when. `notify` and `change_soon` may be called from any thread."""

    def __init__(self) -> None:
        """Start with nobody, inside the event loop."""
        self._loop = asyncio.get_running_loop()
        self._mail: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._soon: set[str] = set()
        self._changed = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed = True
        self.change()

    # --- something happened -----------------------------------------------------------------------

    def notify(self, recipient: str, urgent: bool) -> None:
        """Somebody has mail. It is durable by the time a woken reader gets its turn in the machine's thread."""
        self._loop.call_soon_threadsafe(self._wake, recipient, urgent)

    def change_soon(self) -> None:
        """There is a new model or a new epoch."""
        self._loop.call_soon_threadsafe(self.change)

    def change(self) -> None:
        """The same, from within the event loop."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _wake(self, recipient: str, urgent: bool) -> None:
        if urgent:
            self._mail[recipient].set()
        elif recipient not in self._soon and not self._mail[recipient].is_set():
            self._soon.add(recipient)
            self._loop.call_later(_LINGER, self._wake_late, recipient)

    def _wake_late(self, recipient: str) -> None:
        self._soon.discard(recipient)
        self._mail[recipient].set()

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, seconds: float) -> float:
        """The moment up to which somebody who comes now wants to wait."""
        return self._loop.time() + seconds

    async def mail(self, recipient: str, deadline: float) -> bool:
        """Wait for mail, or for a change; False when it is time to go."""
        woken = await self.news(deadline, self._mail[recipient])
        if woken:
            self._mail[recipient].clear()
        return woken

    async def news(self, deadline: float, *events: asyncio.Event) -> bool:
        """Wait for a change, or for one of the events; False when it is time to go."""
        left = deadline - self._loop.time()
        if left <= 0 or self._closed:
            return False
        tasks = [asyncio.ensure_future(event.wait()) for event in (self._changed, *events)]
        try:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        return True
