"""Callers' connections: who has how many, which gives way when there are too many, and how slow each may be.

The protocol is uvicorn's fast one. What a caller owes (the head of a request, a body) is bounded in time and in
bytes.
"""

import asyncio
from functools import partial
from typing import Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from basecagg.protocol.operator import OPERATOR
from basecagg.service.problems import Problem, busy
from basecagg.service.server.limits import Limits

OPERATOR_CONNECTIONS = 64
"""Reserved: neither members nor strangers can take them."""
GIVE = "basecagg-give"
"""In a request's state: a function that gives the connection to the member or operator of this name."""
_HEAD_BYTES = 64 * 2**10
"""The parser itself would take a head without end."""
_Line: TypeAlias = "CallerConnection"


class Crowd:
    """Connections by their owners. If there are too many, the oldest one of the owner with most gives way."""

    def __init__(self, most: int, most_each: int | None = None, *, spare_busy: bool = True) -> None:
        """`most` in all and `most_each` for each owner. A connection with a request under way may be spared."""
        self._most = most
        self._most_each = most if most_each is None else most_each
        self._spare_busy = spare_busy
        self._count = 0
        self._owned: dict[str, dict[_Line, None]] = {}

    def enter(self, owner: str, connection: _Line) -> None:
        """One more. If none can give way: 429 to an owner that has too many itself, else 503."""
        if len(self._owned.get(owner, ())) >= self._most_each:
            said = f"{self._most_each} lines of yours are in use: wait for their answers"
            self._make_room(owner, Problem(429, "TooManyLines", said, retry_after=1.0))
        elif self._count >= self._most:
            self._make_room(self._greediest(), busy("all lines are in use"))
        self._owned.setdefault(owner, {})[connection] = None
        self._count += 1

    def _greediest(self) -> str:
        """The owner with most connections, among those of which one can be cut."""
        can_yield = [who for who, owned in self._owned.items() if any(map(self._may_cut, owned))]
        return max(can_yield or self._owned, key=lambda owner: len(self._owned[owner]))

    def _may_cut(self, connection: _Line) -> bool:
        return connection.is_idle or not self._spare_busy

    def _make_room(self, owner: str, refusal: Problem) -> None:
        oldest = next(filter(self._may_cut, self._owned[owner]), None)
        if oldest is None:
            raise refusal
        self.leave(owner, oldest)
        oldest.cut()

    def leave(self, owner: str, connection: _Line) -> None:
        """The connection is closed, or another owner has it now."""
        owned = self._owned.get(owner, {})
        if connection in owned:
            del owned[connection]
            self._count -= 1
            if not owned:
                del self._owned[owner]

    def of(self, owner: str) -> list[_Line]:
        """An owner's connections, the oldest first."""
        return list(self._owned.get(owner, ()))


class OpenConnections:
    """All connections. Each is a stranger's until its caller has shown that it may call, then that caller's."""

    def __init__(self, limits: Limits) -> None:
        # A stranger always owes a head or a body: no connection of a stranger is idle.
        self._strangers = Crowd(limits.strangers, spare_busy=False)
        self._members = Crowd(limits.connections, limits.member_connections)
        self._operator = Crowd(OPERATOR_CONNECTIONS)
        self._places: dict[_Line, tuple[Crowd, str]] = {}

    def open(self, connection: _Line, address: str) -> None:
        """A stranger connects from this address."""
        self._strangers.enter(address, connection)
        self._places[connection] = self._strangers, address

    def give(self, connection: _Line, name: str) -> None:
        """The request on it is of a known caller. A proxy may send the next request for another caller."""
        place = (self._operator if name == OPERATOR else self._members), name
        before = self._places.get(connection)
        if before is None or before == place:  # None: it was closed meanwhile
            return
        place[0].enter(name, connection)
        before[0].leave(before[1], connection)
        self._places[connection] = place

    def close(self, connection: _Line) -> None:
        """It is gone."""
        if connection in self._places:
            crowd, owner = self._places.pop(connection)
            crowd.leave(owner, connection)

    def cut(self, name: str) -> None:
        """Hang up on a member, whatever is on its way."""
        for connection in self._members.of(name):
            connection.cut()


class CallerConnection(HttpToolsProtocol):
    """Hangs up on callers that begin a request and do not get on with it."""

    def __init__(self, seconds: float, others: OpenConnections, **given: Any) -> None:
        """A caller gets this many seconds for what it owes; everything `given` is uvicorn's."""
        super().__init__(**given)
        self._seconds = seconds
        self._others = others
        self._timer: asyncio.TimerHandle | None = None
        self._is_within = False
        """Whether a request has begun whose last byte has not come."""
        self._awaits_head = True
        self._head = 0
        """Bytes of a head that is not complete."""

    def connection_made(self, transport: Any) -> None:
        """Somebody calls. A request of a caller that may call gives the connection to that caller."""
        super().connection_made(transport)
        self.app_state = self.app_state | {GIVE: partial(self._others.give, self)}
        self._others.open(self, self.client[0] if self.client else "")
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
        """What comes before the next request is body, which `read_body` bounds."""
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
        """The server stops. An idle connection is cut: its caller does not read, so TLS would never end."""
        if self.is_idle and not self.transport.get_write_buffer_size():
            self.cut()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_timer()
        self._others.close(self)
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Run the clock while the caller owes a head, or a body that no handler waits for any more.

        A body that a handler waits for has the clock of `read_body`.
        """
        if not self.is_idle:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
