"""What a strategy of Flower has beside `start`, none of which may train: those methods are for rounds in clear.

Flower's wrappers (differential privacy, say) have a loop of their own and call these four methods of the
strategy inside. One that inherited FedAvg would then run FedAvg, and every update would leave in clear.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from basecagg.errors import LocalProtocolError, ParameterError

_ROUNDS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


class OwnLoop(Strategy):
    """A strategy that trains by its own `start` only."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass with a method that would never be called, or whose bases bring one."""
        super().__init_subclass__(**kwargs)
        others = [each for each in cls.__mro__ if _is_other(each)]
        if others:
            raise ParameterError(
                f"{cls.__name__} inherits from {others[0].__name__} too, which trains in clear:"
                " BufferedSecAgg has to be its only strategy",
                rule="one strategy",
            )
        for name in _ROUNDS:
            if getattr(cls, name) is not getattr(OwnLoop, name):
                raise ParameterError(
                    f"{cls.__name__} has its own {name}, which would never be called: BufferedSecAgg runs"
                    " no rounds, and the server sees no single reply that it could aggregate",
                    rule="no override is ignored",
                )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse: the messages of a round would bring every update back in clear."""
        raise _refusal("configure_train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse: there are no replies in clear."""
        raise _refusal("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse: nodes evaluate the model that they are about to train."""
        raise _refusal("configure_evaluate")

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Refuse: there are no replies in clear."""
        raise _refusal("aggregate_evaluate")


def _is_other(kind: type) -> bool:
    return issubclass(kind, Strategy) and kind is not Strategy and not issubclass(kind, OwnLoop)


def _refusal(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{name} of BufferedSecAgg was called: it cannot be wrapped or run in rounds, because updates"
        " would leave the nodes in clear. Do not wrap it; call its start()"
    )
