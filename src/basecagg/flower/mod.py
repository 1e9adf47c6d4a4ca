"""The mod: what a node does with the strategy's messages, around the app's own training function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from basecagg.errors import BASecAggError, DataError
from basecagg.flower import detached
from basecagg.flower.flat import Layout, only_arrays
from basecagg.flower.metrics import MetricSlots
from basecagg.flower.node import Job, Node
from basecagg.flower.node_folder import NodeFolder, in_simulation, locate
from basecagg.flower.visits import (
    LETTERS,
    METRICS,
    ORDER,
    SLOTS,
    Order,
    Report,
    read_order,
    reply,
    unpack_letters,
)
from basecagg.protocol.global_model import Model, model_hash
from basecagg.protocol.messages import Message as Letter

_LOG = logging.getLogger("flwr")
_OURS = (ORDER, LETTERS, METRICS, SLOTS)
Answer: TypeAlias = tuple[Report, list[Letter]]


def basecagg_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mask what the app trains, keep shares for others, and answer recoveries: ClientApp(mods=[basecagg_mod]).

    Messages of any other strategy pass unchanged. A node keeps its keys, masks and shares under the folder that
    its node config names: flower-supernode --node-config "state-dir='/var/lib/…'". On the simulation engine the
    run config's `basecagg-state-dir` is used if there is one, else a folder among the temporary files.

    Of the app's own reply only the arrays are used, and leave masked. Metrics that the strategy asks for leave
    inside the masked update; every other record stays here, for it would tell of this client alone.
    """
    if ORDER not in message.content:
        return call_next(message, context)
    order = read_order(message.content)
    call = Call(message, context, call_next, order, locate(context, order.federation))
    report, letters = _STAGES[order.stage](call)
    return Message(reply(report, letters), reply_to=message)


@dataclass(frozen=True)
class Call:
    """One message that the node was given."""

    message: Message
    context: Context
    call_next: ClientAppCallable
    order: Order
    folder: NodeFolder

    @property
    def detach(self) -> bool:
        """Whether to train in a process of its own. On Ray nodes do not wait for one another anyway."""
        return self.order.detach and not in_simulation()

    def ask_app(self) -> RecordDict:
        """Let the app's own function handle its part of the message."""
        content = self.message.content
        own = RecordDict({key: record for key, record in content.items() if key not in _OURS})
        answer = self.call_next(_with(self.message, own), self.context)
        if answer.has_error():
            raise DataError(f"the app answered with error {answer.error.code}")
        return answer.content


def _with(message: Message, content: RecordDict) -> Message:
    """The same message with other content."""
    return Message(metadata=message.metadata, content=content)  # type: ignore[call-overload,no-any-return]


# --- the stages of a visit ------------------------------------------------------------------------


def _hello(call: Call) -> Answer:
    """Show this node's public keys; they are made when first asked for."""
    with Node(call.folder) as node:
        node.sit_down()
        return node.introduce(str(call.context.node_id), call.order.operator_key), []


def _goodbye(call: Call) -> Answer:
    """The federation is over: nothing of it is kept."""
    with Node(call.folder) as node:
        node.sit_down()
        node.erase()
    return Report(), []


def _visit(call: Call) -> Answer:
    """Take the letters, collect what was trained meanwhile, deal masks; then do what was ordered."""
    report, letters = _exchange(call)
    task = call.order.task
    if not task or not report.epoch or report.activity == "running":
        return report, letters
    if task == "evaluate":
        return _evaluate(call, report), letters
    if not report.ready:
        return replace(report, activity="no mask"), letters
    report, more = _train(call)
    return report, [*letters, *more]


_STAGES: Mapping[str, Callable[[Call], Answer]] = {
    "hello": _hello,
    "visit": _visit,
    "goodbye": _goodbye,
}


def _exchange(call: Call) -> Answer:
    with Node(call.folder) as node:
        letters = node.sit_down(resume=call.order.resume)
        letters += node.take(unpack_letters(call.message.content))
        report, collected = _collect(node)
        letters += [*collected, *node.deal(call.order.version)]
        return replace(node.report(), activity=report.activity, problem=report.problem), letters


# --- training and evaluation ----------------------------------------------------------------------


def _train(call: Call) -> Answer:
    """Train here and now, or in a process that a later visit collects from."""
    with Node(call.folder) as node:
        lesson = Lesson.of(call, node)
        if call.detach:
            node.note_job(lesson.job)
    if call.detach:
        detached.launch(call.folder.path, lesson.learn)
        return _standing(call, Report(activity="running"))
    try:
        update = lesson.learn()
    except Exception as error:
        _LOG.exception("training failed")
        return _standing(call, _failure(error))
    with Node(call.folder) as node:
        node.sit_down()
        report, letters = _submit(node, update, lesson.job)
        letters += node.deal(call.order.version)
        return replace(node.report(), activity=report.activity, problem=report.problem), letters


def _collect(node: Node) -> Answer:
    """The update of a process that has ended, if there was one."""
    job = node.job
    if job is None:
        return Report(), []
    outcome = detached.look(node.folder.path)
    if outcome.state == "running":
        return Report(activity="running"), []
    answer: Answer = Report(activity="failed", problem=outcome.problem), []
    if outcome.update is not None:
        answer = _submit(node, outcome.update, job)
    node.drop_job()
    return answer


def _submit(node: Node, update: Model, job: Job) -> Answer:
    """Mask an update. One that cannot be masked is dropped: the node trains afresh."""
    try:
        return Report(activity="done"), node.submit(update, job)
    except BASecAggError as error:
        _LOG.warning("an update is dropped: %s", error)
        return _failure(error), []


def _evaluate(call: Call, report: Report) -> Report:
    """Let the app evaluate the model, and keep what it found for the next update."""
    try:
        metrics = _numbers(call.ask_app())
    except Exception as error:
        _LOG.exception("evaluation failed")
        return replace(report, activity="failed", problem=type(error).__name__)
    with Node(call.folder) as node:
        node.note_evaluation(metrics)
    return replace(report, activity="done")


def _standing(call: Call, report: Report) -> Answer:
    with Node(call.folder) as node:
        node.sit_down()
        return replace(node.report(), activity=report.activity, problem=report.problem), []


def _failure(error: Exception) -> Report:
    return Report(activity="failed", problem=type(error).__name__)


def _numbers(content: RecordDict) -> dict[str, Any]:
    return {name: v for record in content.metric_records.values() for name, v in record.items()}


@dataclass(frozen=True)
class Lesson:
    """All that training needs, without an open store."""

    call: Call
    layout: Layout
    start: Model
    job: Job
    train_slots: MetricSlots
    evaluate_slots: MetricSlots
    evaluation: Mapping[str, float] | None
    clip: float

    @classmethod
    def of(cls, call: Call, node: Node) -> Lesson:
        """Read the model from the message; its hash is computed here."""
        node.sit_down()
        content, version = call.message.content, call.order.version
        arrays: Any = content[call.order.arrays_key]
        slots: Any = content[SLOTS]
        metrics: Any = content[METRICS]
        layout = Layout.of(arrays)
        start = layout.flatten(arrays)
        whole = np.concatenate([start, slots["slots"].numpy()])
        return cls(
            call,
            layout,
            start,
            Job(version=version, model_hash=model_hash(version, whole)),
            MetricSlots.read(metrics, "train"),
            MetricSlots.read(metrics, "evaluate"),
            node.evaluation,
            node.seat.agreement.parameters.clip,
        )

    def learn(self) -> Model:
        """Δ = x − x_i after the app's own training, and behind it the metrics that are averaged."""
        answer = self.call.ask_app()
        trained = self.layout.flatten(only_arrays(answer))
        slots = (
            self.train_slots.encode(_numbers(answer), self.clip),
            self.evaluate_slots.encode(self.evaluation, self.clip),
        )
        return np.concatenate([self.start - trained, *slots]).astype(self.layout.dtype)
