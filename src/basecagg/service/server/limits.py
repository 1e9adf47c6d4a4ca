"""How much a caller may take: requests per second, bytes in memory, and the time for a body either way."""

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from basecagg.options import ServingOptions
from basecagg.protocol.operator import OPERATOR
from basecagg.service import framing
from basecagg.service.problems import Problem, busy

_REMEMBERED_CALLERS = 10_000
_RESERVED = 8
"""An eighth of the budget is the operator's alone, and an eighth is what any member may have."""
_SLOWEST = 16_384.0
"""Bytes a second: the slowest that a body may come or go."""
_ANSWER_GRACE = 20.0
"""Seconds that an answer may take, besides those for its length."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is too much. Rates are requests per second."""

    memory: int = 192 * 2**20
    """Bytes of all bodies on their way in."""
    member_rate: float = ServingOptions.member_rate
    stranger_rate: float = 5.0
    body_grace: float = 10.0
    """Seconds that a body may take, besides those for its length."""
    header_seconds: float = 15.0
    strangers: int = 1024
    """Connections of callers that have not shown yet that they may call."""
    connections: int = 7040
    """Connections of all members."""
    member_connections: int = 32
    """Connections of one member: an agent needs about five."""


class RateLimit:
    """A bucket of tokens per caller: it takes `burst` (10 · `rate` unless given), and gains `rate` a second."""

    def __init__(self, rate: float, burst: float = 0.0) -> None:
        self._rate = rate
        self._burst = burst or 10 * rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def require(self, caller: str) -> None:
        """Take one token, or raise 429 with the time until there is one again."""
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
        """Put the token back that was just taken."""
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
        """The `--memory` (MB) of a server with room for `count` bytes."""
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
        """Give a function that takes bytes for an owner; all of them are given back at the end.

        The `largest` body that the owner may send fits into its share.
        """
        taken = 0
        most, share = self.room, max(self.limit // _RESERVED, largest)
        if owner == OPERATOR:
            most = share = self.limit

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


async def read_body(
    chunks: AsyncIterator[bytes], expected: int, take: Callable[[int], None], grace: float = 10.0
) -> tuple[bytes, bytes]:
    """The body of the expected length and its SHA-256, or 400, 408, 413, 503.

    `take` takes its bytes from the budget. It may take `grace` seconds, besides those for its length.
    """
    digest, parts, received = hashlib.sha256(), list[bytes](), 0
    try:
        async with asyncio.timeout(grace + expected / _SLOWEST):
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
    """How long a body will be, by the head of its request, or 411, 413."""
    if length is None or not (length.isascii() and length.isdigit()) or len(length) > 15:
        raise Problem(411, "LengthRequired", "declare the Content-Length")
    if int(length) > limit:
        raise Problem(413, "TooLarge", f"{length} bytes are more than {limit}")
    return int(length)


class Pieces(Response):
    """An answer of several byte strings: it is never joined, and a caller that does not read is dropped."""

    media_type = "application/octet-stream"

    def __init__(self, pieces: framing.Body, headers: Mapping[str, str]) -> None:
        self._pieces = pieces
        self._length = framing.length_of(pieces)
        super().__init__(headers={**headers, "content-length": str(self._length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send. When the caller takes too long, the connection is closed in the middle."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        async with asyncio.timeout(_ANSWER_GRACE + self._length / _SLOWEST):
            await send({"type": "http.response.start", **start})
            for body in framing.portions(self._pieces):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body"})
