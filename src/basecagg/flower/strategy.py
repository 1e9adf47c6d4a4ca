"""The strategy: a ServerApp that trains asynchronously and learns sums only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from basecagg.maths.staleness import StalenessFunction, polynomial
from basecagg.parameters import Consistency

Protection = Literal["basecagg", "none"]
Training = Literal["detached", "attached"]
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


class BufferedSecAgg(FedAvg):
    """Buffered asynchronous training (FedBuff), its updates masked and opened as sums of K (BASecAgg).

    A node trains whenever the server has room for it; whoever is ready is summed. `start` has Flower's own
    signature, and `num_rounds` counts versions of the model.
    """

    def __init__(
        self,
        *,
        buffer_size: int = 10,
        concurrency: int | None = None,
        max_staleness: int = 10,
        staleness: StalenessFunction | None = None,
        global_rate: float = 0.5,
        protection: Protection = "basecagg",
        holders: int | Sequence[int] | None = None,
        holders_train: bool = True,
        recovery_threshold: int | None = None,
        max_colluders: int | None = None,
        max_dropouts: int | None = None,
        consistency: Consistency = "honest-server",
        clip: float = 4.0,
        update_levels: int = 2**16,
        weight_levels: int = 2**6,
        train_metrics: Mapping[str, float] | None = None,
        evaluate_metrics: Mapping[str, float] | None = None,
        training: Training = "detached",
        collect_interval: float = 5.0,
        answer_timeout: float = 60.0,
        retries: int = 20,
        server_state: str | Path | None = None,
        erase_state: bool = True,
        poll_interval: float = 0.1,
        seed: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
    ) -> None:
        """Choose how to train and how to protect. Everything has a default that works.

        Training
            `buffer_size` is K. `concurrency` is C, the nodes that train at the same time; without it C is
            what FedAvg would sample by `fraction_train` and `min_train_nodes`. `max_staleness` is τ_max,
            `staleness` s(τ), `global_rate` η_g.
        Protection
            "basecagg" hides updates in sums of K; "none" is FedBuff in clear, which needs no mod. `holders`:
            None for everyone who is there at the start (the paper), a number for a committee, or node ids;
            `holders_train=False` keeps the committee's nodes free for answering. `recovery_threshold` is U,
            `max_colluders` T, `max_dropouts` D; `clip` B, `update_levels` c_l, `weight_levels` c_g.
        Metrics
            `train_metrics` and `evaluate_metrics` name what is averaged inside the secure sum, each with the
            largest value it can have, e.g. {"num-examples": 5000, "train_loss": 10.0}; anything else that a
            client reports stays there. `fraction_evaluate=1.0` lets every node evaluate the model it is about
            to train; fractions between 0 and 1 would single out nodes and are refused.
        Nodes
            `training`: "detached" trains in a process beside the SuperNode's, which can answer meanwhile, and
            is collected every `collect_interval` seconds; "attached" trains within the message. On the
            simulation engine training is always attached.
        Time and state
            After `answer_timeout` seconds silent holders are asked again, `retries` times. `server_state` is a
            file that a restarted ServerApp goes on from. `erase_state=False` keeps what nodes have stored when
            the run is over. `seed` makes the choice of nodes repeatable (never the masks).
        """
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )

    def start(
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

        `timeout` is the time to live of every message to a node, in seconds.
        """
        raise NotImplementedError
