"""What a strategy of Flower has beside `start`, none of which may train: those methods are for rounds in clear.

Flower's wrappers (differential privacy, say) have a loop of their own and call these four methods of the
strategy inside. One that inherited FedAvg would then run FedAvg, and every update would leave in clear.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from basecagg.errors import LocalProtocolError, ParameterError

_IGNORED = ("aggregate_train", "aggregate_evaluate")


class ConfigOnly(Grid):
    """What stands for the grid when a strategy is asked for a version's config: nothing can be sent by it."""

    def __init__(self, arrays: ArrayRecord) -> None:
        """For a version with these arrays."""
        self.arrays = arrays
        self.config: ConfigRecord | None = None
        """What `configure_train` or `configure_evaluate` handed on."""

    def refuse(self, *_: Any, **__: Any) -> Any:
        """Whatever is asked of the grid: say what the hook is for."""
        raise LocalProtocolError(
            "configure_train and configure_evaluate of a BufferedSecAgg can change the config and nothing else:"
            " change it and return super().configure_train(server_round, arrays, config, grid)"
        )

    set_run = create_message = get_node_ids = get_nodes = refuse
    push_messages = pull_messages = send_and_receive = refuse
    run = property(refuse)


def _refusal(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{name} was called on BufferedSecAgg: it cannot be wrapped or run in rounds, because updates"
        " would leave the nodes in clear. Do not wrap it; call its start()"
    )


def _refusing(name: str) -> Any:
    def refuse(self: OwnLoop, *_: Any, **__: Any) -> Any:
        """Refuse: there are no replies in clear."""
        raise _refusal(name)

    return refuse


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
        for name in _IGNORED:
            if getattr(cls, name) is not getattr(OwnLoop, name):
                raise ParameterError(
                    f"{cls.__name__} has its own {name}, which would never be called: BufferedSecAgg runs"
                    " no rounds, and the server sees no single reply that it could aggregate",
                    rule="no override is ignored",
                )

    @property
    def _changing(self) -> frozenset[str]:
        """The tasks whose config a subclass may change from version to version."""
        tasks = ("train", "evaluate")
        own = [getattr(type(self), f"configure_{task}") for task in tasks]
        plain = [getattr(OwnLoop, f"configure_{task}") for task in tasks]
        found = zip(tasks, own, plain, strict=True)
        return frozenset(task for task, mine, usual in found if mine is not usual)

    def _configured(
        self, task: str, version: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> ConfigRecord:
        """The config of a version, as `configure_train` or `configure_evaluate` of a subclass want it."""
        configure = {"train": self.configure_train, "evaluate": self.configure_evaluate}[task]
        grid = ConfigOnly(arrays)
        if list(configure(version + 1, arrays, config, grid)) or grid.config is None:
            grid.refuse()
        assert grid.config is not None
        return grid.config

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Hand a version's config on. Outside of `start` refuse: a round's replies would come in clear.

        A subclass may override this to change `config` and return what this returns, as with Flower's FedAvg.
        """
        return _hand_on("configure_train", server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `configure_train`, for the evaluation before training."""
        return _hand_on("configure_evaluate", server_round, arrays, config, grid)

    aggregate_train = _refusing("aggregate_train")
    aggregate_evaluate = _refusing("aggregate_evaluate")
    # What `flwr.server`, Flower's older loop, and its wrappers would call.
    initialize_parameters = configure_fit = aggregate_fit = evaluate = _refusing(
        "a method of flwr.server's strategies"
    )


def _hand_on(
    name: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
) -> Iterable[Message]:
    if not isinstance(grid, ConfigOnly):
        raise _refusal(name)
    if arrays is not grid.arrays:
        grid.refuse()
    config["server-round"] = server_round
    grid.config = config
    return []


def _is_other(kind: type) -> bool:
    return issubclass(kind, Strategy) and kind is not Strategy and not issubclass(kind, OwnLoop)
