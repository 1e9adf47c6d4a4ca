"""Idle callers wait here, in the event loop, for mail or for a change that concerns everybody.

Letters that are not urgent ripen: they wait a moment for others to go with them, and a caller that has just
fetched some waits a little longer for the next ones. An urgent letter wakes its caller at once, and takes along
what is there.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

_LINGER = 0.15
"""Seconds that a letter waits for others to go with it, if it is not urgent."""
_PACE = 0.5
"""Seconds between two times that the same caller fetches letters, if none is urgent."""
_Sleeper: TypeAlias = "asyncio.Future[bool]"


class WaitingRoom:
    """Who is to be woken, and when. Any thread may call `wake_soon`, `renew_soon` and `change_soon`."""

    def __init__(self) -> None:
        """Start with nobody, inside the event loop."""
        self._loop = asyncio.get_running_loop()
        self._for_mail: defaultdict[str, set[_Sleeper]] = defaultdict(set)
        self._for_news: set[_Sleeper] = set()
        self._ripe: set[str] = set()
        """Callers with mail who were away when it came."""
        self._ripening: dict[str, asyncio.TimerHandle] = {}
        self._fetched: dict[str, float] = {}
        self.is_closed = False

    def close(self) -> None:
        """Let nobody wait any longer."""
        self.is_closed = True
        self.change()

    # --- something happened -----------------------------------------------------------------------

    def wake_soon(self, woken: Mapping[str, bool]) -> None:
        """These have mail, and whether it is urgent. It must be durable by now: they fetch it at once."""
        self._loop.call_soon_threadsafe(self._wake_all, woken)

    def renew_soon(self) -> None:
        """There is a new model."""
        self._loop.call_soon_threadsafe(_wake, self._for_news)

    def change_soon(self) -> None:
        """`change`, from any thread."""
        self._loop.call_soon_threadsafe(self.change)

    def change(self) -> None:
        """There is a new epoch, or another change that concerns everybody. Call it in the event loop."""
        for sleepers in (self._for_news, *self._for_mail.values()):
            _wake(sleepers)

    def _wake_all(self, woken: Mapping[str, bool]) -> None:
        now = self._loop.time()
        for recipient, urgent in woken.items():
            if urgent:
                self._ring(recipient)
            elif recipient not in self._ripe and recipient not in self._ripening:
                due = max(now + _LINGER, self._fetched.get(recipient, 0.0) + _PACE)
                self._ripening[recipient] = self._loop.call_at(due, self._ring, recipient)

    def _ring(self, recipient: str) -> None:
        timer = self._ripening.pop(recipient, None)
        if timer is not None:
            timer.cancel()
        self._ripe.add(recipient)
        _wake(self._for_mail[recipient])

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, seconds: float) -> float:
        """The deadline of a caller that comes now and wants to wait this many seconds."""
        return self._loop.time() + seconds

    def is_ripening(self, recipient: str) -> bool:
        """Whether a caller's letters wait for others, so that `mail` is certain to return soon."""
        return recipient in self._ripening

    async def mail(self, recipient: str, deadline: float) -> bool:
        """Wait for mail, or for a change; False when it is time to go."""
        if recipient not in self._ripe and not await self._sleep(
            self._for_mail[recipient], deadline
        ):
            return False
        self._ripe.discard(recipient)
        self._fetched[recipient] = self._loop.time()
        return True

    async def news(self, deadline: float) -> bool:
        """Wait for a new model, or for a change; False when it is time to go."""
        return await self._sleep(self._for_news, deadline)

    async def _sleep(self, sleepers: set[_Sleeper], deadline: float) -> bool:
        if self.is_closed or deadline <= self._loop.time():
            return False
        sleeper: _Sleeper = self._loop.create_future()
        timer = self._loop.call_at(deadline, _end, sleeper, False)
        sleepers.add(sleeper)
        try:
            return await sleeper
        finally:
            timer.cancel()
            sleepers.discard(sleeper)


def _wake(sleepers: set[_Sleeper]) -> None:
    for sleeper in sleepers:
        _end(sleeper, True)


def _end(sleeper: _Sleeper, woken: bool) -> None:
    if not sleeper.done():
        sleeper.set_result(woken)
