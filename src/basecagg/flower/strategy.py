"""The strategy: a ServerApp that trains asynchronously and learns sums only."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info

from basecagg.errors import LocalProtocolError, ParameterError
from basecagg.flower.coordinator import LOG, Coordinator, Workload
from basecagg.flower.enrolment import OwnOperator
from basecagg.flower.in_clear import ClearCoordinator
from basecagg.flower.layout import Layout
from basecagg.flower.loop import Courier, Loop, is_simulated
from basecagg.flower.masked import MaskedCoordinator
from basecagg.flower.settings import Settings, as_keywords
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.server_store import ServerStore

_TASKS = ("train", "evaluate")


class _ConfigOnly:
    """Stands for the grid when a subclass is asked for a version's config: nothing can be sent by it."""

    def __init__(self, arrays: ArrayRecord) -> None:
        self.arrays = arrays
        self.config: ConfigRecord | None = None
        """What `configure_train` or `configure_evaluate` handed on."""

    def __getattr__(self, name: str) -> Any:
        """Refuse every method of a grid: say what the hook is for."""
        raise _config_only()


def _config_only() -> LocalProtocolError:
    return LocalProtocolError(
        "configure_train and configure_evaluate of a BufferedSecAgg can change the config and nothing else:"
        " change it and return super().configure_train(server_round, arrays, config, grid)"
    )


def _refusal(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{name} was called on BufferedSecAgg: it cannot be wrapped or run in rounds, because updates"
        " would leave the nodes in clear. Do not wrap it; call its start()"
    )


def _refusing(name: str) -> Any:
    def refuse(self: BufferedSecAgg, *_: Any, **__: Any) -> Any:
        """Refuse: there are no replies in clear."""
        raise _refusal(name)

    return refuse


class BufferedSecAgg(Strategy):
    """Buffered asynchronous training (FedBuff), its updates masked and opened as sums of K (BASecAgg).

    A node trains whenever the server has room for it, and the next K nodes that are ready are summed. `start`
    has Flower's own signature, and `num_rounds` counts versions of the model.

    Flower's wrappers (differential privacy, say) have a loop of their own and call methods of the strategy
    inside. If this inherited FedAvg's, they would run FedAvg, and every update would leave in clear. So all of
    them refuse but `configure_train` and `configure_evaluate`, in which a subclass may change the config.
    """

    @as_keywords(Settings)
    def __init__(self, settings: Settings) -> None:
        """Choose how to train and protect. The keywords are the fields of `Settings`, which explains them."""
        self.settings = settings
        self._chooser = random.Random(settings.seed)  # noqa: S311 - the order of nodes is no secret

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass with a method that would never be called, or whose bases bring one."""
        super().__init_subclass__(**kwargs)
        for kind in cls.__mro__:
            # Not issubclass: that of abstract classes would remember a class that is refused here.
            if Strategy in kind.__mro__[1:] and BufferedSecAgg not in kind.__mro__:
                raise ParameterError(
                    f"{cls.__name__} inherits from {kind.__name__} too, which trains in clear:"
                    " BufferedSecAgg has to be its only strategy",
                    rule="one strategy",
                )
        if ignored := _overridden(cls, "aggregate"):
            raise ParameterError(
                f"{cls.__name__} has its own aggregate_{ignored[0]}, which would never be called:"
                " BufferedSecAgg runs no rounds, and the server sees no single reply that it could aggregate",
                rule="no override is ignored",
            )

    def summary(self) -> None:
        """Log how this trains and protects, as Flower's own strategies do."""
        settings = self.settings
        nodes = settings.concurrency or f"{settings.fraction_train:.2f} of all nodes"
        evaluators = "every member of a buffer, so that none is singled out"
        lines = [
            f"├──> Protection: {settings.protection}",
            f"├──> Buffer: K = {settings.buffer_size or 'to be chosen'} updates in a sum",
            f"├──> Concurrency: {nodes}",
            *([f"├──> Privacy: {settings.privacy}"] if settings.privacy is not None else []),
            f"├──> Server: {settings.step.optimiser}, rate {settings.step.rate:g}",
            f"├──> Evaluation: {evaluators if settings.evaluate else 'none'}",
            "└──> Keys in records:",
            f"\t├── Weighted by: '{settings.weighted_by_key}'",
            f"\t├── ArrayRecord key: '{settings.arrayrecord_key}'",
            f"\t└── ConfigRecord key: '{settings.configrecord_key}'",
        ]
        for line in lines:
            LOG.info("\t%s", line)

    def start(  # noqa: PLR0917 - Flower's own signature
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train until the model has reached version `num_rounds`; the arguments are Flower's own.

        `timeout` is what training may take, in seconds, and the time to live of a message that waits for it.
        Where training is detached a message is a short visit: it is given up after twice `answer_timeout`.
        """
        layout = Layout.of(initial_arrays)
        workload = Workload(
            layout,
            layout.flatten(initial_arrays),
            ConfigRecord(dict(train_config or {})),
            ConfigRecord(dict(evaluate_config or {})),
            self._configured,
            timeout,
            frozenset(_overridden(type(self), "configure")),
        )
        LOG.info("Starting %s strategy:", type(self).__name__)
        log_strategy_start_info(num_rounds, initial_arrays, train_config, evaluate_config)
        self.summary()
        with ExitStack() as opened:
            self._stores: list[ServerStore] = []
            loop = Loop(
                num_rounds,
                self._coordinator(
                    self.settings.placed(simulated=is_simulated(grid)), workload, opened
                ),
                Courier(grid, self._time_to_live(grid, timeout)),
                self.settings.concurrency_among,
                evaluate_fn,
                self._chooser,
                self.settings.poll_interval,
                sleep=self._rest,
            )
            return loop.run(initial_arrays)

    def _rest(self, seconds: float) -> None:
        """Pause. A server that only waits writes nothing, so it must say that it still has its state."""
        for store in self._stores:
            store.renew()
        time.sleep(seconds)

    def _time_to_live(self, grid: Grid, timeout: float) -> float:
        """A node that was killed and is back at once never looks lost: only this ends its last message."""
        if self.settings.training == "attached" or is_simulated(grid):
            return timeout  # in a simulation training is attached too
        return min(timeout, 2 * self.settings.answer_timeout)

    def _coordinator(
        self, settings: Settings, workload: Workload, opened: ExitStack
    ) -> Coordinator:
        store = self._open("server", opened)
        if settings.protection == "none":
            return ClearCoordinator(settings, workload, store)
        operator = OwnOperator(self._open("operator", opened))
        return MaskedCoordinator(settings, workload, store, operator, self._chooser)

    def _open(self, namespace: str, opened: ExitStack) -> MemoryStore | ServerStore:
        if not self.settings.server_state:
            return MemoryStore()
        path = Path(self.settings.server_state)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = ServerStore(f"sqlite:///{path}", namespace)
        self._stores.append(store)
        return opened.enter_context(closing(store))

    # --- Flower's hooks ---------------------------------------------------------------------------

    def _configured(
        self, task: str, version: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> ConfigRecord:
        """The config of a version, as `configure_train` or `configure_evaluate` of a subclass want it."""
        grid = _ConfigOnly(arrays)
        configure = getattr(self, f"configure_{task}")
        messages = list(configure(version + 1, arrays, config, grid))
        if messages or grid.config is None:
            raise _config_only()
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


def _overridden(kind: type[BufferedSecAgg], what: str) -> list[str]:
    """The tasks for which a subclass has its own method of this kind."""
    names = {task: f"{what}_{task}" for task in _TASKS}
    usual = BufferedSecAgg
    return [task for task in names if getattr(kind, names[task]) is not getattr(usual, names[task])]


def _hand_on(
    name: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: object
) -> list[Message]:
    if not isinstance(grid, _ConfigOnly):
        raise _refusal(name)
    if arrays is not grid.arrays:
        raise _config_only()
    config["server-round"] = server_round
    grid.config = config
    return []
