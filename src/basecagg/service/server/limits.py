"""How much a caller may ask for: requests per second, bytes in memory, and how slowly."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from basecagg.protocol.operator import OPERATOR
from basecagg.service.problems import Problem, busy

_REMEMBERED_CALLERS = 10_000
_RESERVED = 8
"""One part of so many of the budget is the operator's alone, and one is what any member may have."""


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
    """Lines of callers that have not shown yet that they may call."""
    lines: int = 7040
    """Lines of all members."""
    member_lines: int = 32
    """Lines of one member: an agent needs about five."""


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

    def give_back(self, caller: str) -> None:
        """The token that was just taken does not count."""
        tokens, since = self._buckets[caller]
        self._buckets[caller] = tokens + 1, since


class ByteBudget:
    """Bytes of bodies that may be in memory at once. No member can take all, and some are the operator's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._held: Counter[str] = Counter()

    @property
    def room(self) -> int:
        """What members and strangers may use together."""
        return self.limit - self.limit // _RESERVED

    def memory_for(self, count: int) -> int:
        """The option `--memory` (MB) of a server with room for so many bytes."""
        return -(-count * _RESERVED // ((_RESERVED - 1) * 2**20))

    def require_possible(self, owner: str, count: int) -> None:
        """Refuse a body, for good, that is larger than all that its sender could ever have."""
        most = self.limit if owner == OPERATOR else self.room
        if count > most:
            wanted = self.memory_for(count)
            raise Problem(
                413,
                "TooLarge",
                f"{count} bytes never fit into the {most} that this server has for bodies: it has to be started"
                f" with --memory {wanted} or more",
            )

    @contextmanager
    def account(self, owner: str, largest: int) -> Iterator[Callable[[int], None]]:
        """Give a function that takes bytes for an owner; they are all given back at the end.

        The largest body that the owner may send fits into its share.
        """
        taken = 0
        share = max(self.limit // _RESERVED, largest)
        most, share = (self.limit, self.limit) if owner == OPERATOR else (self.room, share)

        def take(count: int) -> None:
            nonlocal taken
            if self._held[owner] + count > share:
                raise busy("too many bytes of yours are on their way here")
            if self.used + count > most:
                raise busy("too many bytes are on their way here")
            self.used += count
            self._held[owner] += count
            taken += count

        try:
            yield take
        finally:
            self.used -= taken
            self._held[owner] -= taken
            if not self._held[owner]:
                del self._held[owner]


class BodyReader:
    """Reads bodies of a declared length, no faster than the budget and no slower than the patience."""

    def __init__(self, grace: float = 10.0, slowest: float = 16_384.0) -> None:
        """A body may take `grace` seconds, and one more for every `slowest` bytes."""
        self._grace = grace
        self._slowest = slowest

    async def read(
        self,
        chunks: AsyncIterator[bytes],
        expected: int,
        take: Callable[[int], None],
    ) -> tuple[bytes, bytes]:
        """The body of this length and its SHA-256, or 413, 408, 503."""
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


def declared(length: str | None, limit: int) -> int:
    """How long a body will be, by its head, or 411, 413."""
    if length is None or not (length.isascii() and length.isdigit()) or len(length) > 15:
        raise Problem(411, "LengthRequired", "declare the Content-Length")
    if int(length) > limit:
        raise Problem(413, "TooLarge", f"{length} bytes are more than {limit}")
    return int(length)
