"""How much a caller may ask for: requests per second, bytes in memory, how slowly, and on how many lines."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from basecagg.service.problems import Problem, busy

_REMEMBERED_CALLERS = 10_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is too much. Rates are requests per second."""

    memory: int = 192 * 2**20
    """Bytes of all bodies on their way in."""
    member_rate: float = 50.0
    stranger_rate: float = 5.0
    body_grace: float = 10.0
    """Seconds that a body may take, besides those for its length."""
    header_seconds: float = 15.0
    strangers: int = 1024
    """Connections of callers that have not shown a key yet; far fewer than there may be in all."""


class RateLimit:
    """A bucket of tokens per caller: `rate` a second in the long run; at once `burst`, or ten times as many."""

    def __init__(self, rate: float, burst: float = 0.0) -> None:
        self._rate = rate
        self._burst = burst or 10 * rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def require(self, caller: str) -> None:
        """Take one token, or raise 429 with the time until there is one."""
        now = time.monotonic()
        tokens, since = self._buckets.pop(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        allowed = tokens >= 1
        self._buckets[caller] = (tokens - allowed, now)
        if len(self._buckets) > _REMEMBERED_CALLERS:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = (1 - tokens) / self._rate
            raise Problem(429, "TooMany", "slow down", retry_after=wait)


class Strangers:
    """Connections whose caller has shown no key yet. If they are too many, the greediest address gives way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._lines: dict[str, dict[Hashable, Callable[[], None]]] = {}

    def enter(self, address: str, line: Hashable, hang_up: Callable[[], None]) -> None:
        """Somebody connects; if there is no room, the oldest line of the address with most is cut."""
        self._lines.setdefault(address, {})[line] = hang_up
        self._count += 1
        if self._count > self._most:
            greediest = max(self._lines, key=lambda each: len(self._lines[each]))
            oldest, cut = next(iter(self._lines[greediest].items()))
            self.leave(greediest, oldest)
            cut()

    def leave(self, address: str, line: Hashable) -> None:
        """The line is closed, or its caller is known now."""
        lines = self._lines.get(address, {})
        if lines.pop(line, None) is not None:
            self._count -= 1
            if not lines:
                del self._lines[address]


class ByteBudget:
    """Bytes of bodies that may be in memory at one time, over all callers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """Give a function that takes bytes from the budget; they are all given back at the end."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.used + count > self.limit:
                raise busy("too many bytes are on their way here")
            self.used += count
            taken += count

        try:
            yield take
        finally:
            self.used -= taken


class BodyReader:
    """Reads bodies of a declared length, no faster than the budget and no slower than the patience."""

    def __init__(self, grace: float = 10.0, slowest: float = 16_384.0) -> None:
        """A body may take `grace` seconds, and one more for every `slowest` bytes."""
        self._grace = grace
        self._slowest = slowest

    async def read(
        self,
        chunks: AsyncIterator[bytes],
        length: str | None,
        limit: int,
        take: Callable[[int], None],
    ) -> tuple[bytes, bytes]:
        """The body and its SHA-256, or 411, 413, 408, 503."""
        expected = _declared(length, limit)
        digest, parts, received = hashlib.sha256(), list[bytes](), 0
        try:
            async with asyncio.timeout(self._grace + expected / self._slowest):
                async for chunk in chunks:
                    received += len(chunk)
                    if received > expected:
                        raise Problem(413, "TooLarge", f"more than the declared {expected} bytes")
                    take(len(chunk))
                    digest.update(chunk)
                    parts.append(chunk)
        except TimeoutError:
            raise Problem(408, "TooSlow", f"{received} of {expected} bytes came in time") from None
        if received != expected:
            raise Problem(400, "Truncated", f"{received} of {expected} bytes came")
        return b"".join(parts), digest.digest()


def _declared(length: str | None, limit: int) -> int:
    if length is None or not (length.isascii() and length.isdigit()) or len(length) > 15:
        raise Problem(411, "LengthRequired", "declare the Content-Length")
    if int(length) > limit:
        raise Problem(413, "TooLarge", f"{length} bytes are more than {limit}")
    return int(length)
