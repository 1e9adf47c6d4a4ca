"""Lines to callers: uvicorn's fast protocol, but what a caller owes is bounded in time and in bytes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from basecagg.service.server.app import GIVE
from basecagg.service.server.open_connections import Lines

_HEAD_BYTES = 64 * 2**10
"""The parser itself would take a head without end."""


def impatient(seconds: float, lines: Lines) -> type[HttpToolsProtocol]:
    """A protocol that gives callers so many seconds for what they owe, and has its lines among the others."""

    class Impatient(HttpToolsProtocol):
        """Hangs up on callers who begin a request and do not get on with it."""

        _timer: asyncio.TimerHandle | None = None
        _is_within = False
        """Whether a request has begun whose last byte has not come."""
        _awaits_head = True
        _head = 0
        """Bytes of a head that is not complete."""

        def connection_made(self, transport: Any) -> None:
            """Somebody calls. A request from a caller who may call gives it this line."""
            super().connection_made(transport)
            self.app_state = self.app_state | {GIVE: partial(lines.give, self)}
            lines.open(self, self.client[0] if self.client else "")
            self._watch()

        @property
        def is_idle(self) -> bool:
            """Whether no request waits for its answer."""
            return self.cycle is None or self.cycle.response_complete

        def cut(self) -> None:
            """Hang up at once."""
            self.transport.abort()

        def data_received(self, data: bytes) -> None:
            """Bytes came. The time runs from the first byte that is owed: one more byte wins no more time."""
            if self._awaits_head:
                self._head += len(data)
            super().data_received(data)
            if self._head > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")
            self._watch()

        def on_message_begin(self) -> None:
            """The first byte of a request."""
            self._is_within = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            """Whatever comes before the next request is body, which `BodyReader` bounds."""
            self._awaits_head, self._head = False, 0
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            """The last byte of a request."""
            self._is_within, self._awaits_head = False, True
            super().on_message_complete()

        def on_response_complete(self) -> None:
            """A request was answered, perhaps before all of its body was there."""
            super().on_response_complete()
            if self._is_within:
                self._watch()

        def shutdown(self) -> None:
            """The server stops. An idle line is cut: its caller does not read, so TLS would never end."""
            if self.is_idle and not self.transport.get_write_buffer_size():
                self.cut()
            else:
                super().shutdown()

        def connection_lost(self, exc: Exception | None) -> None:
            """The line is gone."""
            self._stop_timer()
            lines.close(self)
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Run the clock while the caller owes a head, or a body that nobody waits for any more.

            A body that somebody waits for has the clock of `BodyReader`.
            """
            if not self.is_idle:
                self._stop_timer()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self.transport.close)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Impatient
