"""A participant's line to the server: it calls out only, signs every request, and does not give up."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import httpx

from basecagg.errors import ChannelError
from basecagg.service.problems import Problem
from basecagg.service.signing import TIME_HEADER, Caller, sign_request

_LOG = logging.getLogger("basecagg.agent")
_PASSING = (408, 429, 500, 502, 503, 504)
Result = TypeVar("Result")


class Unreachable(ChannelError):  # noqa: N818 - a state of affairs that may pass
    """The server does not answer; it may later."""


class Connection:
    """One caller's requests, under one name and key."""

    def __init__(
        self, url: str, ca: str, caller: Caller, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Trust the private CA (PEM), or the public ones if it is empty. `transport` is for tests."""
        context = ssl.create_default_context(cadata=ca or None)
        timeout = httpx.Timeout(30.0, connect=10.0)
        self._client = httpx.AsyncClient(
            base_url=url, verify=context, timeout=timeout, transport=transport
        )
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
        body: bytes = b"",
        *,
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = 0.0,
    ) -> httpx.Response:
        """One signed request; `patience` is how long the server may let us wait. Errors are typed."""
        target = path if not query else f"{path}?{httpx.QueryParams(query)}"
        for attempt in (0, 1):
            signature = sign_request(self._caller, method, target, body, self.now_ms())
            reply = await self._exchange(
                method, target, body, {**(headers or {}), "authorization": signature}, patience
            )
            self._set_clock(reply)
            problem = _problem_in(reply)
            if problem is None:
                return reply
            if problem.code != "WrongTime" or attempt:
                raise problem
        raise AssertionError("unreachable")

    async def enrol(self, body: bytes) -> None:
        """The one request that is not signed: there is no enrolled key yet."""
        reply = await self._exchange("POST", "/v1/enrolment", body, {}, 0.0)
        problem = _problem_in(reply)
        if problem is not None:
            raise problem

    def now_ms(self) -> int:
        """The server's time, as far as we know it."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    async def _exchange(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], patience: float
    ) -> httpx.Response:
        timeout = httpx.Timeout(30.0 + patience, connect=10.0)
        try:
            return await self._client.request(
                method, target, content=body, headers=headers, timeout=timeout
            )
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise Unreachable(f"the server does not answer ({type(error).__name__})") from None

    def _set_clock(self, reply: httpx.Response) -> None:
        stamp = reply.headers.get(TIME_HEADER, "")
        if reply.status_code == 401 and stamp.isdigit():
            self._ahead_ms = int(stamp) - time.time_ns() // 1_000_000 + 1


class Patience:
    """Tries again, ever more slowly and never in step with others, while a fault may pass by itself."""

    def __init__(self, shortest: float = 0.2, longest: float = 30.0) -> None:
        """Wait between these two times."""
        self._shortest = shortest
        self._longest = longest

    async def persist(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Call until it works or fails for good."""
        ceiling = self._shortest
        while True:
            try:
                return await attempt()
            except Unreachable as fault:
                _LOG.info("retry", extra={"fields": {"reason": str(fault)}})
                asked = 0.0
            except Problem as problem:
                if problem.status not in _PASSING or problem.code == "EpochClosing":
                    raise
                _LOG.info(
                    "retry", extra={"fields": {"reason": problem.reason, "status": problem.status}}
                )
                asked = min(problem.retry_after or 0.0, self._longest)
            # Jitter spreads callers out; nothing secret depends on it.
            await asyncio.sleep(max(asked, random.uniform(0, ceiling)))  # noqa: S311
            ceiling = min(2 * ceiling, self._longest)


def _problem_in(reply: httpx.Response) -> Problem | None:
    if reply.status_code < 400:
        return None
    try:
        said = reply.json()
        code, reason = str(said["code"]), str(said["reason"])
    except (ValueError, KeyError, TypeError):
        code, reason = "Http", f"status {reply.status_code}"
    wait = reply.headers.get("retry-after", "")
    after = float(wait) if wait.isdigit() else None
    return Problem(reply.status_code, code, reason, retry_after=after)
