"""Protection 'none' on Flower: FedBuff, for any ClientApp as it is. The server sees every update."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import MetricRecord, RecordDict

from basecagg.errors import DataError
from basecagg.flower.coordinator import Coordinator, Errand, View, Workload
from basecagg.flower.flat import only_arrays
from basecagg.flower.settings import Settings
from basecagg.protocol.effects import Released, Send, Store
from basecagg.protocol.global_model import Model, model_bytes
from basecagg.protocol.messages import MaskName, PlainUpdate
from basecagg.protocol.plain import PlainOpening
from basecagg.protocol.server import Server, ServerSettings

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
_SERIAL_BYTES = 16


@dataclass
class Lesson:
    """What a node was given to train, and what it said about it."""

    version: int
    start: Model
    evaluated: RecordDict | None = None
    trained: RecordDict | None = None


class PlainCoordinator(Coordinator):
    """The nodes as contributors in clear."""

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        store: Store,
        averages: tuple[MetricsFunction, MetricsFunction],
    ) -> None:
        """Start the machine at once: there are no keys to wait for."""
        super().__init__(settings, workload, store)
        initial = workload.initial
        self._averages = averages
        self._lessons: dict[int, Lesson] = {}
        self._summed: dict[MaskName, Lesson] = {}
        opening = PlainOpening(initial.size, settings.weighing, store, initial.dtype.str)
        rules = ServerSettings(
            settings.buffer_size, settings.weighing, learning_rate=settings.global_rate
        )
        self.machine = Server(rules, opening, store, initial)
        self.perform(self.machine.start())

    def may_train(self, view: View) -> bool:
        """Anybody may, once enough nodes are there."""
        present = sum(each.present for each in self.nodes.values())
        return present >= self.settings.min_available_nodes

    def errand(self, view: View, now: float) -> Errand | None:
        """A message as Flower's own strategies send it."""
        if not view.task:
            return None
        view.doing, view.task = view.task, ""
        known = self._lessons.get(view.node_id)
        if view.doing == "evaluate" or known is None or known.evaluated is None:
            self._lessons[view.node_id] = Lesson(self.running.version, self.running.model)
        else:
            known.version, known.start = self.running.version, self.running.model
        content = self.lesson(view.doing) | {self.settings.arrays_key: self.arrays}
        return view.node_id, RecordDict(dict(content)), view.doing

    def hear(self, view: View, content: RecordDict, now: float) -> None:
        """Metrics of an evaluation, or a trained model."""
        lesson = self._lessons[view.node_id]
        if view.doing == "evaluate":
            lesson.evaluated = content
            view.doing, view.task = "", "train"
            return
        view.doing = ""
        try:
            trained = self.layout.flatten(only_arrays(content))
        except DataError as error:
            view.lapse(now, str(error))
            return
        del self._lessons[view.node_id]
        lesson.trained = RecordDict(dict(content.metric_records))
        update = self.layout.difference(lesson.start, trained, self.settings.max_staleness)
        self._submit(view, lesson, update)

    def _submit(self, view: View, lesson: Lesson, update: Model) -> None:
        machine, name = self.running, MaskName(view.name, os.urandom(_SERIAL_BYTES))
        digest = machine.hash_of(lesson.version) or bytes(32)  # too old: the machine refuses it
        self._summed[name] = lesson
        message = PlainUpdate(name, lesson.version, digest, model_bytes(update))
        self.perform(machine.receive(view.name, message))
        waiting = {waiting.name for waiting in machine.buffer.waiting}
        self._summed = {name: kept for name, kept in self._summed.items() if name in waiting}

    def post(self, send: Send) -> None:
        """Verdicts are for machines on the nodes, and there are none."""

    def metrics(self, released: Released) -> tuple[MetricRecord | None, MetricRecord | None]:
        """The averages of what the members reported, as Flower's own strategies compute them."""
        members = [self._summed[name] for name in released.members if name in self._summed]
        train, evaluate = self._averages
        return (
            self._average(train, [member.trained for member in members]),
            self._average(evaluate, [member.evaluated for member in members]),
        )

    def _average(
        self, average: MetricsFunction, found: Sequence[RecordDict | None]
    ) -> MetricRecord | None:
        weight = self.settings.weighted_by_key
        records = [record for record in found if record is not None]
        weighted = all(
            weight in metrics for record in records for metrics in record.metric_records.values()
        )
        reported = records and all(record.metric_records for record in records)
        return average(records, weight) if reported and weighted else None
