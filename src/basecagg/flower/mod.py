"""The mod: what a node does with the strategy's messages, around the app's own training function."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from basecagg.errors import BASecAggError, LocalProtocolError, WrongModel
from basecagg.flower import detached, visits
from basecagg.flower import lesson as lessons
from basecagg.flower.contract import numbers
from basecagg.flower.lesson import Call, Lesson
from basecagg.flower.node import BegunTraining, OpenNode
from basecagg.flower.node_folder import BUDGET, permission
from basecagg.flower.visits import AppFailedError, NodeReport
from basecagg.protocol.global_model import Model
from basecagg.protocol.messages import Message as Letter

_LOG = logging.getLogger("flwr")
_PERMISSION = "basecagg-protection"
_HIDDEN = "an error that its own log has"
"""What the server hears of a failed training where a budget covers all that is told of it."""
Reply: TypeAlias = tuple[NodeReport, list[Letter]]


def basecagg_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mask what the app trains, keep shares for others, and answer recoveries: ClientApp(mods=[basecagg_mod]).

    Refuse other strategies' training and evaluation: an update would leave in clear, and a dozen plain
    evaluations give a gradient away. They are answered only if `basecagg-protection` is "none" in the node
    config or, where that is silent, in the run config; on a node with `max-epsilon` in its config, that config
    alone counts.

    A node keeps its keys, masks and shares under the folder that its node config names:
    flower-supernode --node-config "state-dir='/var/lib/…'". On the simulation engine the run config's
    `basecagg-state-dir` is used if there is one, else a temporary folder.

    Of the app's own reply only the arrays are used, and leave masked. Metrics that the strategy asks for leave
    inside the masked update; every other record stays here, for it would tell of this client alone. So does
    the text of an exception: Flower would put it into the reply.
    """
    if lessons.training is not None:
        return lessons.training(message, context, call_next)
    if visits.ORDER in message.content:
        with _keeping_texts(BASecAggError):
            call = Call(message, context, call_next)
            report, letters = _STAGES[call.order.stage](call)
            return Message(visits.reply(report, letters), reply_to=message)
    _require_permission(message, context)
    with _keeping_texts():
        return call_next(message, context)


@contextmanager
def _keeping_texts(*but: type[Exception]) -> Iterator[None]:
    """Tell the type of an exception that leaves; its text stays in this node's log, but for our own errors."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        _LOG.exception("the server is told that this failed, not why")
        raise AppFailedError(error) from None


def _require_permission(message: Message, context: Context) -> None:
    """Refuse other strategies' messages unless the config allows it: any answer may tell of this node alone."""
    told, insists = permission(context, _PERMISSION), BUDGET in context.node_config
    if told != "none":
        where = f"the node config, which has {BUDGET}" if insists else "the node or the run config"
        raise LocalProtocolError(
            f"a message of type '{message.metadata.message_type}' that BufferedSecAgg did not send: its answer"
            f" would leave in clear. If that is wanted, write {_PERMISSION}='none' into {where} (it is"
            f" {told!r}), or remove basecagg_mod"
        )


# --- the stages -----------------------------------------------------------------------------------


def _hello(call: Call) -> Reply:
    """Show this node's public keys; they are made when first asked for."""
    with OpenNode(call.folder) as node:
        return node.introduce(str(call.context.node_id), call.order.operator_key), []


def _goodbye(call: Call) -> Reply:
    """Delete what is kept of the federation, if the operator says that it is over."""
    with OpenNode(call.folder) as node:
        node.wake()
        node.take(visits.unpack_letters(call.message.content))
        node.clear()
    return NodeReport(), []


def _visit(call: Call) -> Reply:
    """Take the letters, collect what was trained meanwhile, deal masks; then do what was ordered.

    The node is closed while the app's function runs: the next message must find it free.
    """
    with OpenNode(call.folder) as node:
        report, letters = _exchange(call, node)
        free = report.epoch and report.activity != "running" and not report.spent
        task = call.order.task if free else ""
        if task == "train" and not report.ready:
            return replace(report, activity="no mask"), letters
        if not task:
            return report, letters
        detach = task == "train" and call.detach
        try:
            lesson, job = Lesson.of(call, node)
            fresh_task = lessons.pack_task(lesson) if detach else b""
        except (WrongModel, LocalProtocolError) as error:
            _LOG.error("the app was not shown the model: %s", error)
            return _failed(report, error), letters
        if detach:
            node.note_job(job)
    if task == "evaluate":
        return _evaluate(lesson, report), letters
    if detach:
        detached.launch(call.folder.path, lessons.TARGET, fresh_task)
        return replace(report, activity="running"), letters
    report, more = _train(lesson, report, job)
    return report, [*letters, *more]


_STAGES: Mapping[str, Callable[[Call], Reply]] = {
    "hello": _hello,
    "visit": _visit,
    "goodbye": _goodbye,
}


def _exchange(call: Call, node: OpenNode) -> Reply:
    letters = node.wake(resume=call.order.resume)
    letters += node.take(visits.unpack_letters(call.message.content))
    node.require_trust()
    report, more = _sum_up(node, _collect(node, call))
    return report, [*letters, *more]


def _sum_up(node: OpenNode, done: Reply) -> Reply:
    """The node's report after some work, with the letters of that work and of the next mask."""
    letters = [*done[1], *node.deal()]
    return replace(node.report(), activity=done[0].activity, problem=done[0].problem), letters


# --- training and evaluation ----------------------------------------------------------------------


def _train(lesson: Lesson, report: NodeReport, job: BegunTraining) -> Reply:
    """Train here and now."""
    try:
        update = lesson.learn()
    except Exception as error:
        _LOG.exception("training failed")
        return _failed(report, error, hidden=lesson.terms.private), []
    with OpenNode(lesson.call.folder) as node:
        node.wake()
        return _sum_up(node, _submit(node, update, job))


def _collect(node: OpenNode, call: Call) -> Reply:
    """Take the update of a training process that has ended, if there was one. End one that takes too long.

    The app goes on with the state that its training left; why it failed stays on this node.
    """
    job = node.job
    if job is None:
        return NodeReport(), []
    outcome = detached.look(node.folder.path)
    if outcome.state == "running" and time.time() - job.began < call.order.patience:
        return NodeReport(activity="running"), []
    problem = outcome.problem or "TimedOut"
    told = _HIDDEN if node.is_private else problem
    answer: Reply = NodeReport(activity="failed", problem=told), []
    if outcome.update is not None:
        call.remember(outcome.memory)
        answer = _submit(node, outcome.update, job)
    else:
        _LOG.error(
            "training failed with %s; it printed last (all of it is in %s):\n%s",
            *(problem, node.folder.path / detached.LAST_FAILURE),
            detached.tail(node.folder.path),
        )
    node.drop_job()
    return answer


def _submit(node: OpenNode, update: Model, job: BegunTraining) -> Reply:
    """Mask an update. One that cannot be masked is dropped: the node trains afresh."""
    try:
        return NodeReport(activity="done"), node.submit(update, job)
    except BASecAggError as error:
        _LOG.warning("an update is dropped: %s", error)
        return _failed(NodeReport(), error), []


def _evaluate(lesson: Lesson, report: NodeReport) -> NodeReport:
    """Let the app evaluate the model, and keep what it found for the next update."""
    try:
        metrics = numbers(lesson.call.ask_app())
    except Exception as error:
        _LOG.exception("evaluation failed")
        return _failed(report, error, hidden=lesson.terms.private)
    with OpenNode(lesson.call.folder) as node:
        node.wake()  # before anything is written: this may be an older copy by now
        node.note_evaluation(metrics)
    return replace(report, activity="done")


def _failed(report: NodeReport, error: Exception, *, hidden: bool = False) -> NodeReport:
    """The type of an error may leave the node, and the text if it is ours: any other can quote the data."""
    problem = _HIDDEN if hidden else visits.told_of(error)
    return replace(report, activity="failed", problem=problem)
