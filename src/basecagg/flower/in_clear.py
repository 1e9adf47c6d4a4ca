"""Protection 'none' on Flower: FedBuff, for any ClientApp as it is. The server sees every update."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from basecagg.errors import DataError, StaleUpdate
from basecagg.flower.contract import numbers
from basecagg.flower.coordinator import LOG, Coordinator, Errand, Workload
from basecagg.flower.layout import as_app_reads, only_arrays
from basecagg.flower.node_view import NodeView
from basecagg.flower.settings import MetricsFunction, Settings
from basecagg.flower.visits import bounded, reading
from basecagg.parties.epoch_server import EpochServer, ServerSettings
from basecagg.protocol.effects import Released, Send, Store
from basecagg.protocol.global_model import Model, model_bytes
from basecagg.protocol.messages import MaskName, PlainUpdate
from basecagg.protocol.opening import PlainOpening

_SERIAL_BYTES = 16


@dataclass
class ClearLesson:
    """What a node was given to train, and what it said about it."""

    version: int
    start: Model
    evaluated: RecordDict | None = None
    trained: RecordDict | None = None


class ClearCoordinator(Coordinator):
    """Nodes that train and send their updates in clear."""

    def __init__(self, settings: Settings, workload: Workload, store: Store) -> None:
        """Wait for the nodes."""
        super().__init__(settings, workload, store)
        self._initial = workload.initial
        self._lessons: dict[int, ClearLesson] = {}
        self._summed: dict[MaskName, ClearLesson] = {}

    def tick(self, now: float) -> None:
        """Begin once enough nodes are there: K may have to fit them."""
        present = len(self.present)
        if self.server is None and present >= self.nodes_needed:
            self._begin(present)
        super().tick(now)

    def _begin(self, present: int) -> None:
        settings = self.settings = self.settings.fitting(present)
        initial, store = self._initial, self._store
        opening = PlainOpening(initial.size, settings.weighing, store, initial.dtype.str)
        rules = ServerSettings(settings.chosen_buffer_size, settings.weighing, step=self.step_rule)
        self.server = EpochServer(rules, opening, store, initial, post=self._post, tell=self._tell)
        self.server.start()

    def may_train(self, view: NodeView) -> bool:
        """Every node may: there are no masks to wait for."""
        return True

    def errand(self, view: NodeView, now: float) -> Errand | None:
        """A message as Flower's own strategies send it."""
        if not view.task:
            return None
        view.doing, view.task = view.task, ""
        known, machine = self._lessons.get(view.node_id), self.running.machine
        if view.doing == "evaluate" or known is None or known.evaluated is None:
            self._lessons[view.node_id] = ClearLesson(machine.version, machine.model)
        else:
            known.version, known.start = machine.version, machine.model
        content, key = RecordDict(dict(self.lesson(view.doing))), self.settings.arrayrecord_key
        content[key] = as_app_reads(content.array_records[key])
        return view.node_id, content, view.doing

    def hear(self, view: NodeView, content: RecordDict, now: float) -> None:
        """Metrics of an evaluation, or a trained model."""
        lesson = self._lessons[view.node_id]
        with reading():
            metrics = RecordDict(dict(content.metric_records))
            update = None if view.doing == "evaluate" else self._update(lesson, content)
        if update is None:
            lesson.evaluated = metrics
            view.doing, view.task = "", "train"
            return
        view.finish(now)
        del self._lessons[view.node_id]
        lesson.trained = metrics
        self._submit(view, lesson, update)

    def _update(self, lesson: ClearLesson, content: RecordDict) -> Model:
        trained = self.layout.flatten(only_arrays(content))
        factor = self.settings.contract.factor(numbers(content))
        staleness = self.settings.max_staleness
        update = self.layout.difference(lesson.start, trained, staleness, factor)
        if not np.isfinite(update).all():
            raise DataError("the trained model has numbers that are not finite")
        return update

    def _submit(self, view: NodeView, lesson: ClearLesson, update: Model) -> None:
        machine, name = self.running.machine, MaskName(view.name, os.urandom(_SERIAL_BYTES))
        digest = machine.head_of(lesson.version) or bytes(32)  # too old: the machine refuses it
        self._summed[name] = lesson
        message = PlainUpdate.unsigned(name, lesson.version, digest, model_bytes(update))
        refusal = self.running.receive(view.name, message)
        if isinstance(refusal, StaleUpdate):
            LOG.info("an update of node %d is dropped: %s", view.node_id, refusal)
        elif refusal is not None:
            raise refusal
        waiting = {waiting.name for waiting in machine.buffer.waiting}
        self._summed = {name: kept for name, kept in self._summed.items() if name in waiting}

    def _post(self, sends: Sequence[Send]) -> None:
        """Send nothing: verdicts are for machines on the nodes, and in clear there are none."""

    def metrics(self, released: Released) -> tuple[MetricRecord | None, MetricRecord | None]:
        """The averages of what the members reported, as Flower's own strategies compute them."""
        members = [self._summed[name] for name in released.members if name in self._summed]
        settings = self.settings
        return (
            self._average(settings.train_metrics_aggr_fn, [each.trained for each in members]),
            self._average(settings.evaluate_metrics_aggr_fn, [each.evaluated for each in members]),
        )

    def _average(
        self, average: MetricsFunction | None, found: Sequence[RecordDict | None]
    ) -> MetricRecord | None:
        """The mean over the members that report the same numbers as most do; others are left out."""
        weight = self.settings.weighted_by_key
        shapes = [_shape(record, weight) for record in found]
        ((usual, _),) = Counter(shapes).most_common(1) or [(None, 0)]
        if usual is None:
            return None
        alike = [
            r for r, shape in zip(found, shapes, strict=True) if shape == usual and r is not None
        ]
        if len(alike) < len(found):
            LOG.warning(
                "%d of %d members are left out of the mean: they do not report the numbers %s",
                *(len(found) - len(alike), len(found)),
                bounded(str(sorted(name for _, name in usual))),
            )
        return (average or aggregate_metricrecords)(alike, weight)


def _shape(record: RecordDict | None, weight: str) -> frozenset[tuple[str, str]] | None:
    """Which numbers a member reports; None if some are not finite, or none is the weight."""
    metrics = {} if record is None else record.metric_records
    named = [(key, name, value) for key, each in metrics.items() for name, value in each.items()]
    weighted = bool(metrics) and all(weight in each for each in metrics.values())
    if not weighted or not all(np.isfinite(value).all() for *_, value in named):
        return None
    return frozenset((key, name) for key, name, _ in named)
