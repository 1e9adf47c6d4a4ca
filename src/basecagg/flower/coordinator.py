"""The nodes as the server deals with them under either protection: who is there, and who trains."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from msgspec.structs import replace

from basecagg.errors import DataError, LocalProtocolError, Refused
from basecagg.flower.layout import Layout, as_app_reads
from basecagg.flower.node_view import NodeView
from basecagg.flower.settings import Settings
from basecagg.flower.visits import Task
from basecagg.parties.epoch_server import EpochServer
from basecagg.protocol.effects import Abandoned, News, Released, Send, Store
from basecagg.protocol.global_model import Model
from basecagg.protocol.step_rule import StepRule

LOG = logging.getLogger("flwr")
_NAMED = 5
"""The most nodes that an error names; there may be hundreds."""
OVER = "over"
"""The record of a run that has ended."""
Errand: TypeAlias = tuple[int, RecordDict, str]
"""A node, what to send it, and the message's type."""
NewVersion: TypeAlias = tuple[int, MetricRecord | None, MetricRecord | None]
"""A version that the model moved on to, with the metrics of training and of evaluation behind it."""
Configured: TypeAlias = Callable[[str, int, ArrayRecord, ConfigRecord], ConfigRecord]
"""The config of a task ("train", "evaluate") in a version, from its arrays and the config of the one before."""


class Workload(NamedTuple):
    """What the app wants trained."""

    layout: Layout
    initial: Model
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    configured: Configured
    """What the app makes of them for each version."""
    patience: float
    """Seconds that a node may take."""
    changing: frozenset[str] = frozenset()
    """The tasks whose config changes from version to version."""


class Coordinator(ABC):
    """The server of the epoch and the nodes it works with. It knows neither the clock nor Flower's grid."""

    def __init__(self, settings: Settings, workload: Workload, store: Store) -> None:
        """Start with no node."""
        self.settings = settings
        self.layout = workload.layout
        self.nodes: dict[int, NodeView] = {}
        self.server: EpochServer | None = None
        """The server of the epoch, once enough nodes are there to begin with."""
        self._configs = {"train": workload.train_config, "evaluate": workload.evaluate_config}
        self._configured = workload.configured
        self._configured_for = -1
        self._patience = workload.patience
        self._store = store
        self._news: list[NewVersion] = []
        self.negative_variances = 0
        """Running variances below zero, in all versions together."""

    @property
    def step_rule(self) -> StepRule:
        """How the server steps this model."""
        return replace(self.settings.step, averaged=self.layout.averaged)

    # --- who is there -----------------------------------------------------------------------------

    def meet(self, present: set[int]) -> None:
        """Note who can be reached now."""
        for node_id in sorted(present - self.nodes.keys()):
            self.nodes[node_id] = NodeView(node_id, str(node_id))
        for node_id, view in self.nodes.items():
            if view.present and node_id not in present:
                view.lose()
            elif not view.present and node_id in present:
                view.reconnect()
            view.present = node_id in present

    @property
    def present(self) -> list[NodeView]:
        """The nodes that can be reached."""
        return [view for view in self.nodes.values() if view.present]

    @property
    def hopeless(self) -> list[NodeView]:
        """The nodes that can be reached and have failed too often."""
        most = self.settings.max_failures
        return [view for view in self.present if view.is_hopeless(most)]

    def candidates(self, now: float) -> list[int]:
        """The nodes that could begin to train now."""
        if self.server is None:
            return []
        most, waiting = self.settings.max_failures, self.waiting
        return [
            view.node_id
            for view in self.present
            if not view.trains
            and max(view.rest_until, view.train_after) <= now
            and view.name not in waiting
            and not view.is_hopeless(most)
            and self.may_train(view)
        ]

    @property
    def waiting(self) -> set[str]:
        """The names of nodes whose updates are in the buffer."""
        updates = self.server.machine.buffer.stored if self.server else ()
        return {update.name.contributor for update in updates}

    @property
    def able(self) -> set[str]:
        """The names of nodes that may still train: all but those that are there and have failed too often."""
        contributing = {view.name for view in self.nodes.values() if self.contributes(view)}
        return contributing - {view.name for view in self.hopeless}

    def assign(self, node_id: int) -> None:
        """Let a node evaluate, if that is wanted, and train."""
        self.nodes[node_id].task = "evaluate" if self.settings.evaluate else "train"

    def room(self, concurrency: int) -> int:
        """How many more may begin to train.

        At most C train at a time. A sum takes a while to open, unlike FedBuff's; so that updates do not age in
        the queue behind it, no more of them are under way than FedBuff would have: C, and K − 1 in the buffer.
        """
        if self.server is None:
            return 0
        training = sum(view.trains for view in self.nodes.values())
        machine = self.server.machine
        queued = len(machine.buffer.stored) + len(machine.opening.outstanding())
        size = self.settings.chosen_buffer_size
        return min(concurrency, concurrency + size - 1 - queued) - training

    def shortage(self) -> str:
        """How many nodes are missing and why they are needed; empty if enough are there."""
        if self.server is None:
            here, needed, why = len(self.present), self.nodes_needed, "to begin with"
        else:
            here = len(
                {view.name for view in self.present if self.contributes(view)} | self.waiting
            )
            needed, why = self.settings.chosen_buffer_size, "to fill a buffer (K)"
        return f"{here} of {needed} nodes {why}" if here < needed else ""

    def require_enough_nodes(self) -> None:
        """End a run in which too few nodes are left to fill a buffer, because the others failed too often."""
        hopeless, needed = self.hopeless, self.settings.buffer_size or 1
        left = self.able | self.waiting | {v.name for v in self.nodes.values() if v.spent}
        if self.server is None or len(left) >= needed or not hopeless:
            return
        problems = "; ".join(f"node {view.node_id}: {view.problem}" for view in hopeless[:_NAMED])
        raise LocalProtocolError(
            f"{len(hopeless)} of {len(self.nodes)} nodes have failed max_failures ="
            f" {self.settings.max_failures} times in a row, and fewer than K = {needed} are left. {problems}"
        )

    def end(self) -> str:
        """Why no version can follow, though nothing is wrong; empty if one can."""
        return ""

    # --- what a protection does -------------------------------------------------------------------

    @property
    def nodes_needed(self) -> int:
        """How many nodes must be there before anything begins."""
        return self.settings.min_available_nodes

    def contributes(self, view: NodeView) -> bool:
        """Whether this node is one of those that train."""
        return True

    @abstractmethod
    def may_train(self, view: NodeView) -> bool:
        """Whether this node has what it needs."""

    @abstractmethod
    def errand(self, view: NodeView, now: float) -> Errand | None:
        """What to send a node that is there and free; None when there is no reason to."""

    @abstractmethod
    def hear(self, view: NodeView, content: RecordDict, now: float) -> None:
        """Handle a node's reply, or refuse it before anything is done."""

    @abstractmethod
    def metrics(self, released: Released) -> tuple[MetricRecord | None, MetricRecord | None]:
        """Training and evaluation metrics of the members of a sum."""

    def require_future(self, versions: int) -> None:
        """Refuse to go on with a run whose nodes were told to erase their keys: all would wait in vain."""
        if self._store.read(OVER, "") is not None and self.version < versions:
            raise DataError(
                f"server_state is of a run that ended at version {self.version}, and its nodes have erased"
                f" their keys: it cannot go on to version {versions}. Choose another file, and start from"
                " that run's model"
            )

    def farewell(self) -> list[Errand]:
        """What to tell the nodes when the run is over."""
        return []

    # --- errands and replies ----------------------------------------------------------------------

    def errands(self, free: Iterable[int], now: float) -> list[Errand]:
        """What to send to those nodes that have no message on its way."""
        views = [self.nodes[node_id] for node_id in free]
        rested = [view for view in views if view.present and view.rest_until <= now]
        found = [self.errand(view, now) for view in rested]
        return [errand for errand in found if errand is not None]

    def receive(self, node_id: int, reply: Message | None, now: float) -> None:
        """Handle a reply, an error in its place, or None if there will be no reply."""
        view = self.nodes[node_id]
        if reply is None:
            view.fail(now, "no reply within the time to live of the message")
        elif reply.has_error():
            view.fail(now, f"error {reply.error.code}: {str(reply.error.reason)!r:.500}")
        else:
            try:
                self.hear(view, reply.content, now)
                view.failures = 0
            except Refused as refusal:  # that node's failure, and nobody else's
                view.fail(now, str(refusal))

    def lesson(self, task: Task) -> dict[str, ArrayRecord | ConfigRecord]:
        """The app's own records of a message: the model, and the config with Flower's server-round.

        The numbers are the machine's own: a node hashes them before its app reads them.
        """
        arrays = self.layout.unflatten(self.running.machine.model[: self.layout.size])
        self._configure(arrays)
        config = ConfigRecord(dict(self._configs[task]))
        return {self.settings.arrayrecord_key: arrays, self.settings.configrecord_key: config}

    def _configure(self, arrays: ArrayRecord) -> None:
        """Make the configs, once for every version in order: as in Flower, each starts from the one before."""
        while self._configured_for < self.version:
            self._configured_for += 1
            for task, config in self._configs.items():
                self._configs[task] = self._configured(task, self._configured_for, arrays, config)

    # --- the server -------------------------------------------------------------------------------

    @property
    def running(self) -> EpochServer:
        """The server, where there is one."""
        assert self.server is not None
        return self.server

    @property
    def version(self) -> int:
        """t"""
        return self.server.machine.version if self.server else 0

    @property
    def arrays(self) -> ArrayRecord:
        """The present model as the app reads it."""
        return as_app_reads(self.layout.unflatten(self.running.machine.model[: self.layout.size]))

    def tick(self, now: float) -> None:
        """Ask silent holders again when they have had their time."""
        if self.server is not None:
            self.server.tick(now, self.settings.answer_timeout)

    def _tell(self, news: News) -> None:
        if isinstance(news, Released):
            self._news.append((news.version + 1, *self.metrics(news)))
            self._count_negative_variances(news.version + 1)
        elif isinstance(news, Abandoned):
            LOG.warning("version %d: a buffer was burned: %s", news.version, news.reason)

    def _count_negative_variances(self, version: int) -> None:
        found = self.layout.below_zero(self.running.machine.model)
        self.negative_variances += found
        if found:
            LOG.warning(
                "version %d: %d running variances of BatchNorm are below zero and read as zero, %d so far:"
                " lower global_rate, or use GroupNorm",
                *(version, found, self.negative_variances),
            )

    @abstractmethod
    def _post(self, sends: Sequence[Send]) -> None:
        """Put letters into the post."""

    def take_news(self) -> list[NewVersion]:
        """The versions since the last time."""
        news, self._news = self._news, []
        return news
