"""Flower's SecAgg+, one round in this process: its own workflow and its own client code, timed party by party.

Only the network is ours: a grid that hands each message to the node's `secaggplus_mod` at once. Mind, beside
any figure, that Flower's PRG folds its 32-byte seeds to 32 bits (`pseudo_rand_gen`): its masks can be guessed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from basecagg.errors import DecodingError
from basecagg.extras import require
from reproduction.cycle import Vector

_CLIP = 8.0
_EXAMPLES = 1


@dataclass
class PeerRound:
    """What a round of Flower's SecAgg+ cost and gave."""

    users: int
    user_seconds: float = 0.0
    """CPU of all users together."""
    total_seconds: float = 0.0
    """CPU of everyone."""
    mean: Vector = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    @property
    def seconds_per_user(self) -> float:
        """CPU of one user."""
        return self.user_seconds / self.users

    @property
    def server_seconds(self) -> float:
        """CPU of the server."""
        return self.total_seconds - self.user_seconds


def run_flower_round(
    updates: Sequence[Vector], threshold: int, num_shares: int, gone: Iterable[int] = ()
) -> PeerRound:
    """One round with these updates; users in `gone` vanish before they upload."""
    flower = _Flower()
    grid = _Grid(flower, updates, set(gone))
    context = flower.server_context(updates[0].size, len(updates))
    workflow = flower.workflow(
        num_shares=num_shares,
        reconstruction_threshold=threshold,
        max_weight=float(_EXAMPLES),
        clipping_range=_CLIP,
    )
    started = time.process_time()
    with _quiet():
        workflow(grid, context)
    grid.cost.total_seconds = time.process_time() - started - grid.copying_seconds
    if context.strategy.mean is None:
        raise DecodingError("Flower's SecAgg+ round gave no sum")
    grid.cost.mean = context.strategy.mean
    return grid.cost


@contextmanager
def _quiet() -> Iterator[None]:
    """Its log goes to the terminal otherwise."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


class _Grid:
    """Delivers messages by calling the node; counts the users' time."""

    def __init__(self, flower: _Flower, updates: Sequence[Vector], gone: set[int]) -> None:
        self._flower = flower
        self._updates = updates
        self._gone = gone
        self._contexts = [flower.node_context(node + 1) for node in range(len(updates))]
        self.cost = PeerRound(len(updates))
        self.copying_seconds = 0.0

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        replies = [self._deliver(message) for message in messages]
        return [reply for reply in replies if reply is not None]

    def _deliver(self, message: Any) -> Any:
        node = message.metadata.dst_node_id - 1
        uploads = "fitins.parameters" in message.content.array_records
        if uploads and node in self._gone:
            return None
        arrived = time.process_time()
        # A real network makes a copy for each node, and the mod takes its copy apart.
        message = self._flower.copy_of(message)
        started = time.process_time()
        reply = self._flower.handle(message, self._contexts[node], self._updates[node])
        self.cost.user_seconds += time.process_time() - started
        self.copying_seconds += started - arrived
        return reply


class _Flower:
    """The names of flwr that a round needs, imported when it is run."""

    def __init__(self) -> None:
        self._flwr = require("flwr", extra="flower", needed_for="the comparison with Flower")
        from flwr import app, common
        from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
        from flwr.compat.common import recorddict_compat
        from flwr.server.compat.legacy_context import LegacyContext
        from flwr.server.workflow import constant
        from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        # Flower's types know only what its users make: not a message with the metadata of another.
        self._app: Any = app
        self._legacy_context: Any = LegacyContext
        self._common, self._compat, self._constant = common, recorddict_compat, constant
        self._mod = secaggplus_mod
        self.workflow: Any = SecAggPlusWorkflow

    def copy_of(self, message: Any) -> Any:
        """The message with records of its own; their values are shared."""
        records = message.content
        copies = self._app.RecordDict(
            {
                **records.array_records,
                **{k: self._app.ConfigRecord(dict(v)) for k, v in records.config_records.items()},
            }
        )
        return self._app.Message(copies, metadata=message.metadata)

    def node_context(self, node_id: int) -> Any:
        """An empty state for one party."""
        return self._app.Context(
            run_id=1,
            node_id=node_id,
            node_config={},
            state=self._app.RecordDict(),
            run_config={},
            series_id=1,
        )

    def server_context(self, size: int, users: int) -> Any:
        """A server whose strategy samples everyone and keeps the mean."""
        constant, context = self._constant, self.node_context(0)
        parameters = self._common.ndarrays_to_parameters([np.zeros(1, np.float32)])
        context.state.array_records[constant.MAIN_PARAMS_RECORD] = (
            self._compat.parameters_to_arrayrecord(parameters, False)
        )
        context.state.config_records[constant.MAIN_CONFIGS_RECORD] = self._app.ConfigRecord(
            {constant.Key.CURRENT_ROUND: 1}
        )
        return self._legacy_context(
            context, strategy=_Strategy(self._common, users), client_manager=_Everyone(users)
        )

    def handle(self, message: Any, context: Any, update: Vector) -> Any:
        """What a node does with a message: Flower's mod around a client that has its update ready."""

        def client(message: Any, context: Any) -> Any:
            result = self._common.FitRes(
                status=self._common.Status(self._common.Code.OK, ""),
                parameters=self._common.ndarrays_to_parameters([update]),
                num_examples=_EXAMPLES,
                metrics={},
            )
            return self._app.Message(
                self._compat.fitres_to_recorddict(result, False), reply_to=message
            )

        return self._mod(message, context, client)


@dataclass
class _Proxy:
    node_id: int


@dataclass
class _Everyone:
    users: int

    def num_available(self) -> int:
        return self.users


class _Strategy:
    """Samples everyone; keeps the aggregate."""

    def __init__(self, common: Any, users: int) -> None:
        self._common = common
        self._users = users
        self.mean: Vector | None = None

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        instructions = self._common.FitIns(parameters, {})
        return [(_Proxy(node + 1), instructions) for node in range(self._users)]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        arrays = self._common.parameters_to_ndarrays(results[0][1].parameters)
        self.mean = np.asarray(arrays[0], np.float32)
        return None, {}
