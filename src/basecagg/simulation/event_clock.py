"""The clock of devices: users start when the schedule says so, and are done when their devices are."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from basecagg.errors import BudgetSpent, LocalProtocolError
from basecagg.schedules.schedule import StartingPoint, Vector
from basecagg.simulation.clock import Clock, IdleUsers

_RETRY_SECONDS = 1.0
"""When nobody who is idle is available, the server looks again after this."""
_NOBODY = -1


@dataclass(order=True)
class Event:
    """At this time a user is done with its n-th training, or (user −1) there is something to look at."""

    at: float
    sequence: int
    user: int = field(compare=False, default=_NOBODY)
    training: int = field(compare=False, default=0)
    start: StartingPoint | None = field(compare=False, default=None)
    result: Callable[[], Vector] | None = field(compare=False, default=None)


class DeviceClock(Clock):
    """Simulated time, one event after the other."""

    def __post_init__(self) -> None:
        """Begin with no event."""
        super().__post_init__()
        self._idle = self._idle_users(range(self.config.users))
        self._running: dict[int, None] = {}  # a set in the order of starting
        self._events: list[Event] = []
        self._sequence = 0

    def tick(self) -> None:
        """Start whoever may start, then let the next event happen."""
        self._start_users()
        if not self._events:
            if not all(map(self._may_train, self._idle.in_order())):
                raise BudgetSpent("too few users have a budget of privacy left to fill a buffer")
            raise LocalProtocolError(
                "nobody trains and nobody may start: fewer users than the buffer needs?"
            )
        event = heapq.heappop(self._events)
        self.now = event.at
        if event.user != _NOBODY:
            del self._running[event.user]
            self._idle.join(event.user)
        self._await_publication()
        if event.result is not None and event.start is not None:
            self.schedule.finish(event.user, event.result(), event.start)
            self._await_publication()
        elif event.start is not None:
            self.aggregator.over(event.user)

    def _start_users(self) -> None:
        for user in self.schedule.choose(self._idle, self._running):
            self._idle.leave(user)
            self._running[user] = None
            self._start(user)
        if not self._events and self.config.availability < 1 and self._somebody_could_start():
            self._push(Event(self.now + _RETRY_SECONDS, 0))

    def _somebody_could_start(self) -> bool:
        """If only it were there."""
        waiting = self.aggregator.waiting()
        return any(user not in waiting and self._may_train(user) for user in self._idle.in_order())

    def _idle_users(self, users: Iterable[int]) -> IdleUsers:
        return IdleUsers(users, self.config.availability, self.generator, self._may_train)

    def seconds(self, user: int) -> float:
        """From now to the arrival of the update of a user that starts now."""
        return self.workshop.seconds(user)

    def _start(self, user: int) -> None:
        start, seconds = self.schedule.starting_point(user), self.seconds(user)
        training = self._count_training(user)
        self.aggregator.begun(user, start.version)
        if self.generator.random() < self.config.dropout:
            lost_after = seconds * self.generator.random()
            self._push(Event(self.now + lost_after, 0, user, training, start))
        else:
            result = self.workshop.begin(user, training, start.model)
            self._push(Event(self.now + seconds, 0, user, training, start, result))

    def _await_publication(self) -> None:
        due = self.aggregator.advance(self.now)
        if due < inf and not any(event.at == due for event in self._events):
            self._push(Event(due, 0))

    def _push(self, event: Event) -> None:
        self._sequence += 1
        event.sequence = self._sequence
        heapq.heappush(self._events, event)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs. Trainings under way are begun again from their seeds."""
        starts = {id(event.start): event.start for event in self._events if event.start}
        models = {id(start.model): start.model for start in starts.values()}
        position = {key: index for index, key in enumerate(models)}
        return super().state() | {
            "now": self.now,
            "sequence": self._sequence,
            "idle": self._idle.in_order(),
            "running": list(self._running),
            "models": list(models.values()),
            "agenda": [
                [event.at, event.sequence, event.user, event.training, event.result is None]
                + ([start.version, position[id(start.model)], start.round] if start else [])
                for event, start in ((event, event.start) for event in sorted(self._events))
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        super().restore(state)
        self.now, self._sequence = state["now"], state["sequence"]
        self._idle = self._idle_users(state["idle"])
        self._running = dict.fromkeys(state["running"])
        self._events = [self._restored(state["models"], *saved) for saved in state["agenda"]]
        heapq.heapify(self._events)
        for event in self._events:
            if event.start is not None:
                self.aggregator.begun(event.user, event.start.version)

    def _restored(self, models: list[Vector], *saved: Any) -> Event:
        at, sequence, user, training, lost, *start = saved
        event = Event(at, sequence, user, training)
        if start:
            version, position, round_ = start
            event.start = StartingPoint(version, models[position], round_)
            if not lost:
                event.result = self.workshop.begin(user, training, event.start.model)
        return event
