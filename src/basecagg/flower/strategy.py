"""The strategy: a ServerApp that trains asynchronously and learns sums only."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info

from basecagg.flower.coordinator import LOG, Coordinator, Workload
from basecagg.flower.flat import Layout
from basecagg.flower.line import Line, is_simulated
from basecagg.flower.loop import Loop
from basecagg.flower.masked import MaskedCoordinator
from basecagg.flower.own_loop import OwnLoop
from basecagg.flower.own_operator import OwnOperator
from basecagg.flower.plain import PlainCoordinator
from basecagg.flower.settings import Settings, as_keywords
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.server_store import ServerStore


class BufferedSecAgg(OwnLoop):
    """Buffered asynchronous training (FedBuff), its updates masked and opened as sums of K (BASecAgg).

    A node trains whenever the server has room for it; whoever is ready is summed. `start` has Flower's own
    signature, and `num_rounds` counts versions of the model.
    """

    @as_keywords(Settings)
    def __init__(self, settings: Settings) -> None:
        """Choose how to train and protect. The keywords are the fields of `Settings`, which explains them."""
        self.settings = settings
        self._chooser = random.Random(settings.seed)  # noqa: S311 - whom to ask first is no secret

    def summary(self) -> None:
        """Log how this trains and protects, as Flower's own strategies do."""
        settings = self.settings
        nodes = settings.concurrency or f"{settings.fraction_train:.2f} of all nodes"
        LOG.info("\t├──> Protection: %s", settings.protection)
        size = settings.buffer_size or "to be chosen"
        LOG.info("\t├──> Buffer: K = %s updates in a sum", size)
        LOG.info("\t├──> Concurrency: %s", nodes)
        if settings.privacy is not None:
            LOG.info("\t├──> Privacy: %s", settings.privacy)
        LOG.info("\t├──> Server: %s, rate %g", settings.step.optimiser, settings.step.rate)
        LOG.info(
            "\t├──> Evaluation: %s",
            "every member of a buffer, so that none is singled out"
            if settings.evaluate
            else "none",
        )
        LOG.info("\t└──> Keys in records:")
        LOG.info("\t\t├── Weighted by: '%s'", settings.weighted_by_key)
        LOG.info("\t\t├── ArrayRecord key: '%s'", settings.arrayrecord_key)
        LOG.info("\t\t└── ConfigRecord key: '%s'", settings.configrecord_key)

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
        configs = ConfigRecord(dict(train_config or {})), ConfigRecord(dict(evaluate_config or {}))
        workload = Workload(
            layout,
            layout.flatten(initial_arrays),
            *configs,
            self._configured,
            timeout,
            self._changing,
        )
        LOG.info("Starting %s strategy:", type(self).__name__)
        log_strategy_start_info(num_rounds, initial_arrays, train_config, evaluate_config)
        self.summary()
        with ExitStack() as opened:
            self._stores: list[ServerStore] = []
            coordinator = self._coordinator(workload, opened)
            loop = Loop(
                num_rounds,
                coordinator,
                Line(grid, self._time_to_live(grid, timeout)),
                self.settings.concurrency_among,
                evaluate_fn,
                self._chooser,
                self.settings.poll_interval,
                sleep=self._rest,
            )
            return loop.run(initial_arrays)

    def _rest(self, seconds: float) -> None:
        """Pause. Who only waits for nodes writes nothing, and must say that it still has its state."""
        for store in self._stores:
            store.renew()
        time.sleep(seconds)

    def _time_to_live(self, grid: Grid, timeout: float) -> float:
        """A node that was killed and is back at once never looks lost: only this ends its last message."""
        if self.settings.training == "attached" or is_simulated(grid):
            return timeout  # in a simulation training is attached too
        return min(timeout, 2 * self.settings.answer_timeout)

    def _coordinator(self, workload: Workload, opened: ExitStack) -> Coordinator:
        store = self._open("server", opened)
        if self.settings.protection == "none":
            return PlainCoordinator(self.settings, workload, store)
        operator = OwnOperator(self._open("operator", opened))
        return MaskedCoordinator(self.settings, workload, store, operator, self._chooser)

    def _open(self, namespace: str, opened: ExitStack) -> MemoryStore | ServerStore:
        if not self.settings.server_state:
            return MemoryStore()
        path = Path(self.settings.server_state)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = ServerStore(f"sqlite:///{path}", namespace)
        self._stores.append(store)
        return opened.enter_context(closing(store))
