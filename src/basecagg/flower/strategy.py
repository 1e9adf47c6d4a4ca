"""The strategy: a ServerApp that trains asynchronously and learns sums only."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords, log_strategy_start_info

from basecagg.errors import ParameterError
from basecagg.flower.coordinator import LOG, Coordinator, Workload
from basecagg.flower.flat import Layout
from basecagg.flower.line import Line, is_simulated
from basecagg.flower.loop import Loop
from basecagg.flower.masked import MaskedCoordinator
from basecagg.flower.metrics import Charge, MetricSlots
from basecagg.flower.own_loop import OwnLoop
from basecagg.flower.own_operator import OwnOperator
from basecagg.flower.plain import MetricsFunction, PlainCoordinator
from basecagg.flower.settings import Protection, Settings, Training
from basecagg.maths.staleness import StalenessFunction, polynomial
from basecagg.parameters import Consistency, Correctness
from basecagg.protocol.step_rule import USUAL_RATES, Optimiser, StepRule
from basecagg.storage.memory import MemoryStore

if TYPE_CHECKING:
    from basecagg.storage.server import ServerStore


class BufferedSecAgg(OwnLoop):
    """Buffered asynchronous training (FedBuff), its updates masked and opened as sums of K (BASecAgg).

    A node trains whenever the server has room for it; whoever is ready is summed. `start` has Flower's own
    signature, and `num_rounds` counts versions of the model.
    """

    def __init__(
        self,
        *,
        buffer_size: int | None = None,
        concurrency: int | None = None,
        max_staleness: int = 10,
        staleness: StalenessFunction | None = None,
        server_optimiser: Optimiser = "sgd",
        global_rate: float | None = None,
        server_momentum: float = 0.9,
        server_second_momentum: float = 0.99,
        server_epsilon: float = 1e-3,
        examples_per_node: float | None = None,
        protection: Protection = "basecagg",
        holders: int | Sequence[int] | None = None,
        holders_train: bool = True,
        recovery_threshold: int | None = None,
        max_colluders: int | None = None,
        max_dropouts: int | None = None,
        consistency: Consistency = "honest-server",
        correctness: Correctness | None = None,
        liars: int = 0,
        min_per_version: int | None = None,
        clip: float = 4.0,
        update_levels: int = 2**16,
        weight_levels: int = 2**6,
        train_metrics: Mapping[str, float] | None = None,
        evaluate_metrics: Mapping[str, float] | None = None,
        training: Training = "detached",
        collect_interval: float = 5.0,
        answer_timeout: float = 60.0,
        retries: int = 20,
        max_burns: int = 1,
        max_failures: int = 5,
        server_state: str | Path | None = None,
        erase_state: bool = True,
        poll_interval: float | None = None,
        seed: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
    ) -> None:
        """Choose how to train and how to protect. Everything has a default that works.

        Training
            `buffer_size` is K; without it, half of the nodes that are there at the start, from 2 (certified: 3)
            to 10. `concurrency` is C, the nodes that train at the same time; without it C is
            what FedAvg would sample by `fraction_train` and `min_train_nodes`. `max_staleness` is τ_max,
            `staleness` s(τ). `server_optimiser` is "sgd", "momentum" (FedAvgM) or "adam" (FedAdam): how the
            mean update moves the model, in clear and masked alike. `global_rate` is its η_g (None: 0.5, 0.05,
            0.003), `server_momentum` β₁, `server_second_momentum` β₂, `server_epsilon` τ. BatchNorm's running
            statistics move by the mean update itself under momentum and adam. Updates count alike; with
            `examples_per_node` each counts n_i / examples_per_node times, n_i being the app's
            `weighted_by_key`. It is multiplied in on a node and never sent, and over many buffers it is
            FedAvg's weighting.
        Protection
            "basecagg" hides updates in sums of K; "none" is FedBuff in clear, which needs no mod (and with the
            mod, that each node is told so: basecagg-protection="none" in its config or the run's). `holders`:
            None for everyone who is there at the start (the paper), a number for a committee, or node ids;
            `holders_train=False` keeps the committee's nodes free for answering. `recovery_threshold` is U,
            `max_colluders` T, `max_dropouts` D; `min_per_version` is m, the members that each version in a sum
            must have: without it 3 if `consistency` is "certified", else 1; `clip` B, `update_levels` c_l,
            `weight_levels` c_g.
            `correctness`: "agreed" opens a sum when U + T answers agree, so that T lying holders cannot write
            it, and with `liars` E so many cannot stop it either; "honest-holders" opens from any U (the paper).
            Without it "agreed" if `consistency` is "certified".
        Metrics
            `train_metrics` and `evaluate_metrics` name what is averaged inside the secure sum, each with the
            largest value it can have, e.g. {"train_loss": 10.0}; anything else that a client reports stays
            there. Every member of a buffer counts alike (times s(τ)), and the epoch binds names and limits.
            With any `fraction_evaluate` above 0 every node evaluates the model it is about to train: a sum in
            which only some had would be about them alone. So K nodes evaluate in each version.
        Nodes
            `training`: "detached" trains in a process beside the SuperNode's, which can answer meanwhile, and
            is asked for every `collect_interval` seconds once it may have ended, judging by the node's last
            one; "attached" trains within the message. On the simulation engine training is always attached.
        Time and state
            After `answer_timeout` seconds silent holders are asked the same again, for as long as it takes.
            Only answers that disagree give a sum up, after `retries` such times. In each version another sum
            may take its place `max_burns` times, for each tells of the same model; then the run ends, and says
            so. What a node fails at
            is dropped, counted, and named in the log, and the node is asked again after a pause; after
            `max_failures` in a row it trains no more until it reconnects, and when fewer than K nodes are left
            the run ends. `server_state` is a
            file that a restarted ServerApp goes on from. `erase_state=False` keeps what nodes have stored when
            the run is over. `poll_interval` is the pause between two looks for replies, in seconds: without it
            0.1 on the simulation engine, and 1 on the deployment engine, where the SuperLink pays for each.
            `seed` makes the choice of nodes repeatable (never the masks).
        """
        _require_evaluation(
            fraction_evaluate, min_evaluate_nodes, protection, evaluate_metrics, buffer_size
        )
        _require_training(fraction_train, examples_per_node)
        self.settings = Settings(
            buffer_size=buffer_size,
            concurrency=concurrency,
            max_staleness=max_staleness,
            staleness=staleness or polynomial(),
            step=StepRule(
                server_optimiser,
                rate=USUAL_RATES.get(server_optimiser, 1.0) if global_rate is None else global_rate,
                momentum=server_momentum,
                second_momentum=server_second_momentum,
                epsilon=server_epsilon,
            ),
            protection=protection,
            holders=holders,
            holders_train=holders_train,
            recovery_threshold=recovery_threshold,
            max_colluders=max_colluders,
            max_dropouts=max_dropouts,
            consistency=consistency,
            correctness=correctness,
            liars=liars,
            min_per_version=min_per_version,
            clip=clip,
            update_levels=update_levels,
            weight_levels=weight_levels,
            charge=Charge(
                MetricSlots.of(weighted_by_key, train_metrics),
                MetricSlots.of(weighted_by_key, evaluate_metrics if fraction_evaluate else None),
                examples_per_node or 0.0,
                weighted_by_key,
            ),
            evaluate=fraction_evaluate > 0,
            training=training,
            collect_interval=collect_interval,
            answer_timeout=answer_timeout,
            retries=retries,
            max_burns=max_burns,
            max_failures=max_failures,
            server_state=Path(server_state) if server_state else None,
            erase_state=erase_state,
            min_available_nodes=min_available_nodes,
            arrays_key=arrayrecord_key,
            config_key=configrecord_key,
            weighted_by_key=weighted_by_key,
        )
        self._poll_interval = poll_interval
        self._chooser = random.Random(seed)  # noqa: S311 - whom to ask first is no secret
        self.fraction_train = fraction_train
        self.fraction_evaluate = fraction_evaluate
        self.min_train_nodes = min_train_nodes
        self._averages = (
            train_metrics_aggr_fn or aggregate_metricrecords,
            evaluate_metrics_aggr_fn or aggregate_metricrecords,
        )

    def summary(self) -> None:
        """Log how this trains and protects, as Flower's own strategies do."""
        settings = self.settings
        nodes = settings.concurrency or f"{self.fraction_train:.2f} of all nodes"
        LOG.info("\t├──> Protection: %s", settings.protection)
        size = settings.buffer_size or "to be chosen"
        LOG.info("\t├──> Buffer: K = %s updates in a sum", size)
        LOG.info("\t├──> Concurrency: %s", nodes)
        LOG.info("\t├──> Server: %s, rate %g", settings.step.optimiser, settings.step.rate)
        LOG.info(
            "\t├──> Evaluation: %s", "every member of a buffer" if settings.evaluate else "none"
        )
        LOG.info("\t└──> Keys in records:")
        LOG.info("\t\t├── Weighted by: '%s'", settings.weighted_by_key)
        LOG.info("\t\t├── ArrayRecord key: '%s'", settings.arrays_key)
        LOG.info("\t\t└── ConfigRecord key: '%s'", settings.config_key)

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
            layout, layout.flatten(initial_arrays), *configs, self._configured, timeout
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
                self._concurrency,
                evaluate_fn,
                self._chooser,
                self._poll_interval,
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
            return PlainCoordinator(self.settings, workload, store, self._averages)
        operator = OwnOperator(self._open("operator", opened))
        return MaskedCoordinator(self.settings, workload, store, operator, self._chooser)

    def _open(self, namespace: str, opened: ExitStack) -> MemoryStore | ServerStore:
        path = self.settings.server_state
        if path is None:
            return MemoryStore()
        # Here, because every message starts a process that imports this module, and SQLAlchemy takes long.
        from basecagg.storage.server import ServerStore

        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = ServerStore(f"sqlite:///{path}", namespace)
        self._stores.append(store)
        return opened.enter_context(closing(store))

    def _concurrency(self, present: int) -> int:
        """C: as told, or as many as FedAvg would sample."""
        sampled = max(int(present * self.fraction_train), self.min_train_nodes)
        return self.settings.concurrency or sampled


def _require_training(fraction: float, examples: float | None) -> None:
    if not 0 < fraction <= 1:
        raise ParameterError(
            f"fraction_train = {fraction} must be above 0 and at most 1",
            rule="0 < fraction_train ≤ 1",
        )
    if examples is not None and not 0 < examples < float("inf"):
        raise ParameterError(
            f"examples_per_node = {examples} must be positive, or None for updates that count alike",
            rule="examples_per_node > 0",
        )


def _require_evaluation(
    fraction: float,
    least: int,
    protection: Protection,
    metrics: Mapping[str, float] | None,
    buffer_size: int | None,
) -> None:
    """All members of a buffer evaluate, or none: of a sum of some, the server would learn about them alone."""
    if not 0 <= fraction <= 1:
        raise ParameterError(
            f"fraction_evaluate = {fraction} must be between 0 and 1",
            rule="0 ≤ fraction_evaluate ≤ 1",
        )
    if fraction and protection == "basecagg" and not metrics:
        raise ParameterError(
            f"fraction_evaluate = {fraction} needs evaluate_metrics: name what is to be averaged inside the"
            " sum, e.g. {'eval_loss': 10.0}",
            rule="evaluation has metrics",
        )
    if fraction and buffer_size is not None and least > buffer_size:
        raise ParameterError(
            f"min_evaluate_nodes = {least} is more than the K = {buffer_size} nodes that evaluate in a version",
            rule="min_evaluate_nodes ≤ K",
        )
    if 0 < fraction < 1:
        LOG.info(
            "fraction_evaluate = %.2f: every node evaluates what it trains, so that none is singled out",
            fraction,
        )
