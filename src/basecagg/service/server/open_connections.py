"""Whose lines there are: strangers', members' and the operator's. Each kind has a room of its own."""

from __future__ import annotations

from typing import Protocol

from basecagg.protocol.operator import OPERATOR
from basecagg.service.problems import Problem, busy
from basecagg.service.server.limits import Limits

OPERATOR_LINES = 64
"""Reserved: neither members nor strangers can take them."""


class CallerLine(Protocol):
    """A connection, as far as others may decide about it."""

    @property
    def is_idle(self) -> bool:
        """Whether no request on it waits for its answer."""

    def cut(self) -> None:
        """Hang up at once."""


class Crowd:
    """Lines by their owners. If there are too many, the oldest of the owner that has most gives way."""

    def __init__(self, most: int, most_each: int | None = None, *, spare_busy: bool = True) -> None:
        """So many in all, and so many for each owner; a line with a request under way may be spared."""
        self._most = most
        self._most_each = most if most_each is None else most_each
        self._spare_busy = spare_busy
        self._count = 0
        self._lines: dict[str, dict[CallerLine, None]] = {}

    def enter(self, owner: str, line: CallerLine) -> None:
        """One more line. If nothing can give way: 429 to an owner that has too many, else 503."""
        if len(self._lines.get(owner, ())) >= self._most_each:
            said = f"{self._most_each} lines of yours are in use: wait for their answers"
            self._make_room(owner, Problem(429, "TooManyLines", said, retry_after=1.0))
        elif self._count >= self._most:
            self._make_room(self._greediest(), busy("all lines are in use"))
        self._lines.setdefault(owner, {})[line] = None
        self._count += 1

    def _greediest(self) -> str:
        """The owner with most lines, if it can be one that has an idle line."""
        may_cut = (
            owner
            for owner, lines in self._lines.items()
            if not self._spare_busy or any(line.is_idle for line in lines)
        )
        return max(
            may_cut, key=lambda each: len(self._lines[each]), default=next(iter(self._lines))
        )

    def _make_room(self, owner: str, refusal: Problem) -> None:
        lines = self._lines[owner]
        line = next((each for each in lines if each.is_idle or not self._spare_busy), None)
        if line is None:
            raise refusal
        self.leave(owner, line)
        line.cut()

    def leave(self, owner: str, line: CallerLine) -> None:
        """The line is closed, or another's now."""
        lines = self._lines.get(owner, {})
        if line in lines:
            del lines[line]
            self._count -= 1
            if not lines:
                del self._lines[owner]

    def of(self, owner: str) -> list[CallerLine]:
        """An owner's lines, the oldest first."""
        return list(self._lines.get(owner, ()))


class Lines:
    """All lines. One is a stranger's until its caller has shown that it may call, and then that caller's."""

    def __init__(self, limits: Limits) -> None:
        # A stranger owes a head or a body all the time: none of its lines is idle.
        self._strangers = Crowd(limits.strangers, spare_busy=False)
        self._members = Crowd(limits.lines, limits.member_lines)
        self._operator = Crowd(OPERATOR_LINES)
        self._places: dict[CallerLine, tuple[Crowd, str]] = {}

    def open(self, line: CallerLine, address: str) -> None:
        """Somebody connects."""
        self._strangers.enter(address, line)
        self._places[line] = self._strangers, address

    def give(self, line: CallerLine, name: str) -> None:
        """The request that came on the line is a known caller's. A proxy may send the next one for another."""
        place = (self._operator if name == OPERATOR else self._members), name
        before = self._places.get(line)
        if before is None or before == place:  # None: it was closed meanwhile
            return
        place[0].enter(name, line)
        before[0].leave(before[1], line)
        self._places[line] = place

    def close(self, line: CallerLine) -> None:
        """The line is gone."""
        if line in self._places:
            crowd, owner = self._places.pop(line)
            crowd.leave(owner, line)

    def cut(self, name: str) -> None:
        """Hang up on a member, whatever is on its way."""
        for line in self._members.of(name):
            line.cut()
