"""A participant's line to the server: it calls out only, signs every request, and does not give up.

What comes back is never believed to be well-formed: a torn, endless or absurd reply is as good as none.
"""

import asyncio
import logging
import random
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from basecagg.channels.wire import MAX_CONTROL_BYTES
from basecagg.errors import ChannelError, TurnedAway, quoted
from basecagg.service import framing, line_faults
from basecagg.service.logs import Log
from basecagg.service.problems import Problem
from basecagg.service.signing import TIME_HEADER, Caller, sign_request

_LOG = Log("basecagg.agent")
_PASSING = (408, 429, 500, 502, 503, 504)
_LASTING = ("Revoked", "InvitationExpired")
"""What only the operator can lift. A 403 of a proxy, or of a server that was set back, may pass by itself."""
_GRACE, _CONNECT = 30.0, 10.0
"""Seconds."""
_SLOWEST = 16_000
"""Bytes a second: a reply that takes longer is given up."""
_TELL_AGAIN = 600.0
"""Seconds after which a fault that lasts is told again."""
_UNCHANGED = 304
_CODING, _PLAIN = "accept-encoding", "identity"
_NUMBER = re.compile(r"[0-9]{1,15}")
Result = TypeVar("Result")


class Unreachable(ChannelError):  # noqa: N818 - a state of affairs that may pass
    """The server does not answer; it may later."""


class UntrustedServer(Unreachable):
    """Somebody answers, but shows no certificate that could be believed."""


class Greeting(NamedTuple):
    """What a stranger learns from a server."""

    ahead_ms: int
    """By how much the server's clock is ahead of ours."""
    certificate_ends: float | None
    """In seconds since 1970."""


class Reply(NamedTuple):
    """What came back. Everything in it is read on the assumption that it is not what it should be."""

    status: int
    headers: httpx.Headers
    content: bytes

    def problem(self) -> Problem | None:
        """What the server says instead of what was asked."""
        if self.status < 300 or self.status == _UNCHANGED:
            return None
        try:
            said = msgspec.json.decode(self.content, type=_Said)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            said = _Said(code="Http", reason=f"status {self.status}")
        after = _digits(self.headers.get("retry-after", ""))
        return Problem(self.status, quoted(said.code), quoted(said.reason), retry_after=after)

    def number(self, header: str) -> int:
        """A header that is a number."""
        value = _digits(self.headers.get(header, ""))
        if value is None:
            raise Unreachable(f"the server does not say {header}")
        return value

    def frames(self) -> list[framing.Numbered]:
        """The frames in the body."""
        try:
            return framing.split(self.content)
        except ChannelError as error:
            raise Unreachable(f"the server's reply is torn: {error}") from None


class _Said(msgspec.Struct):
    code: str
    reason: str


class Connection:
    """One caller's requests, under one name and key."""

    def __init__(
        self,
        url: str | Sequence[str],
        ca: str,
        caller: Caller,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Trust the private CA (PEM), or the public ones if it is empty. `transport` is for tests.

        Of several addresses the last that answered is called first.
        """
        context = ssl.create_default_context(cadata=ca or None)
        self._client = httpx.AsyncClient(
            verify=context, transport=transport, headers={_CODING: _PLAIN}
        )
        self._urls = deque([url] if isinstance(url, str) else url)
        self._caller = caller
        self._ahead_ms = 0
        """By how much the server's clock is ahead of ours."""

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: framing.Body = b"",
        *,
        query: Mapping[str, str | int] | None = None,
        patience: float = 0.0,
        limit: int = MAX_CONTROL_BYTES,
        is_signed: bool = True,
    ) -> Reply:
        """One signed request; the server may take `patience` seconds longer and reply with `limit` bytes.

        Every attempt has a signature of its own: two addresses may be one server, which takes each once.
        """
        target = path if not query else f"{path}?{httpx.QueryParams(query)}"
        size = framing.length_of(body)
        seconds = _GRACE + patience + max(limit, size) / _SLOWEST
        wait = httpx.Timeout(_GRACE + patience, connect=_CONNECT)

        async def attempt(url: str) -> Reply:
            headers = {"content-length": str(size)} if size else {}
            if is_signed:
                header = sign_request(self._caller, method, target, body, self.now_ms())
                headers["authorization"] = header
            content = _streamed(body) if size else None
            said: dict[str, Any] = {"content": content, "headers": headers, "timeout": wait}
            async with (
                asyncio.timeout(seconds),
                self._client.stream(method, f"{url}{target}", **said) as reply,
            ):
                return Reply(reply.status_code, reply.headers, await _read(reply, limit))

        reply = await self._somewhere(attempt)
        problem = reply.problem()
        if problem is not None and problem.code == "WrongTime":
            self._set_clock(reply)
            reply = await self._somewhere(attempt)
            problem = reply.problem()
        if problem is not None:
            raise problem
        return reply

    async def greet(self) -> Greeting:
        """Ask for nothing: whether somebody is there who can be believed, for how long, and what time it is."""
        stamp, shown = await self._somewhere(self._hear_greeting)
        if stamp is None:
            raise Unreachable(f"what answers at {self._urls[0]} is no server of basecagg")
        ends = ssl.cert_time_to_seconds(shown["notAfter"]) if shown else None
        return Greeting(stamp - time.time_ns() // 1_000_000, ends)

    async def _hear_greeting(self, url: str) -> tuple[int | None, Any]:
        async with (
            asyncio.timeout(_GRACE),
            self._client.stream("GET", f"{url}/healthz", timeout=_CONNECT) as reply,
        ):
            tls = reply.extensions["network_stream"].get_extra_info("ssl_object")
            shown = tls.getpeercert() if tls is not None else None
            return _digits(reply.headers.get(TIME_HEADER, "")), shown

    async def enrol(self, body: bytes) -> None:
        """The one request that is not signed: there is no enrolled key yet."""
        await self.call("POST", "/v1/enrolment", body, is_signed=False)

    def now_ms(self) -> int:
        """The server's time, as far as we know it."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    async def _somewhere(self, attempt: Callable[[str], Awaitable[Result]]) -> Result:
        """Try all addresses, each once, beginning with the one that answered last."""
        fault = Unreachable("no address of the server is known")
        for url in list(self._urls):
            try:
                return await attempt(url)
            except Exception as error:  # whatever a library makes of what came from outside
                fault = _fault(url, error)
                if self._urls[0] == url:  # else another call has moved on already
                    self._urls.rotate(-1)
        raise fault

    def _set_clock(self, reply: Reply) -> None:
        stamp = _digits(reply.headers.get(TIME_HEADER, ""))
        if reply.status == 401 and stamp is not None:
            self._ahead_ms = stamp - time.time_ns() // 1_000_000 + 1


def _fault(url: str, error: Exception) -> Unreachable:
    certificate = line_faults.certificate_fault(error)
    if certificate:
        return UntrustedServer(f"the server at {url} is not believed: {certificate}")
    return Unreachable(f"the server at {url} does not answer ({line_faults.other_fault(error)})")


def _digits(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


async def _streamed(body: framing.Body) -> AsyncIterator[bytes | memoryview]:
    for portion in framing.portions(body):
        yield portion


async def _read(reply: httpx.Response, limit: int) -> bytes:
    if reply.headers.get("content-encoding", _PLAIN) != _PLAIN:
        raise ChannelError("a reply is not packed: a few bytes would become any number of them")
    pieces, size = [], 0
    async for piece in reply.aiter_bytes():
        size += len(piece)
        if size > limit:
            raise ChannelError(f"a reply has {limit} bytes at most")
        pieces.append(piece)
    return b"".join(pieces)


class Patience:
    """Tries again, ever more slowly and never in step with others, while a fault may pass by itself."""

    def __init__(self, shortest: float = 0.2, longest: float = 30.0) -> None:
        self._shortest = shortest
        self._longest = longest

    async def persist(self, attempt: Callable[[], Awaitable[Result]], *final: str | int) -> Result:
        """Call until it works, or fails with one of the `final` codes or statuses, on which the caller acts.

        `TurnedAway` where the operator has to do something first. The same fault is told once in ten minutes.
        """
        ceiling, told = self._shortest, _Told()
        while True:
            try:
                return await attempt()
            except Unreachable as fault:
                needs_people = isinstance(fault, UntrustedServer)
                told(logging.WARNING if needs_people else logging.INFO, reason=str(fault))
                asked = 0.0
            except Problem as problem:
                if problem.code in final or problem.status in final:
                    raise
                if problem.code in _LASTING:
                    raise TurnedAway(
                        f"the server says: {problem.reason} ({problem.code}). Ask the operator; nothing here"
                        " was deleted, and started again this agent asks again"
                    ) from None
                level = logging.INFO if problem.status in _PASSING else logging.WARNING
                told(level, reason=problem.reason, code=problem.code, status=problem.status)
                asked = min(problem.retry_after or 0.0, self._longest)
            # Jitter spreads callers out; nothing secret depends on it.
            await asyncio.sleep(max(asked, random.uniform(0, ceiling)))  # noqa: S311
            ceiling = min(2 * ceiling, self._longest)


class _Told:
    """Says why a call is made again: at once when the reason is another, else once in ten minutes."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}
        self._since = 0.0

    def __call__(self, level: int, **said: Any) -> None:
        now = time.monotonic()
        if said != self._said or now - self._since > _TELL_AGAIN:
            self._said, self._since = said, now
            _LOG(level, "retry", **said)
