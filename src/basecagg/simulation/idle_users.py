"""The users that do not train at present. To draw some takes no longer when there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np


def _anyone(user: int) -> bool:
    return True


class IdleUsers:
    """A set of users kept as an array: drawing shuffles its beginning, leaving swaps with its end."""

    def __init__(
        self,
        users: Iterable[int],
        availability: float,
        generator: np.random.Generator,
        may_train: Callable[[int], bool] = _anyone,
    ) -> None:
        """A user that is looked at is there with probability `availability`, if it `may_train` at all."""
        self._users = list(users)
        self._place = {user: index for index, user in enumerate(self._users)}
        self._availability = availability
        self._generator = generator
        self._may_train = may_train

    def draw(self, count: int, allowed: Callable[[int], bool] = _anyone) -> list[int]:
        """So many users, at random; fewer if fewer are allowed and there."""
        drawn: list[int] = []
        for index in range(len(self._users)):
            if len(drawn) >= count:
                break
            self._swap(index, int(self._generator.integers(index, len(self._users))))
            user = self._users[index]
            if allowed(user) and self._may_train(user) and self._is_there():
                drawn.append(user)
        return drawn

    def leave(self, user: int) -> None:
        """The user trains now."""
        self._swap(self._place[user], len(self._users) - 1)
        self._users.pop()
        del self._place[user]

    def join(self, user: int) -> None:
        """The user is idle again."""
        self._place[user] = len(self._users)
        self._users.append(user)

    def in_order(self) -> list[int]:
        """All of them, in the order that the next draw depends on."""
        return list(self._users)

    def _is_there(self) -> bool:
        return self._availability == 1 or self._generator.random() < self._availability

    def _swap(self, one: int, other: int) -> None:
        users, place = self._users, self._place
        users[one], users[other] = users[other], users[one]
        place[users[one]], place[users[other]] = one, other
