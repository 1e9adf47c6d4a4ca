"""One training of the app: the model it is shown, its own function, and the update that comes out.

It runs in this process or in a fresh one. The fresh process imports the ClientApp by its name and gives it the
message, so all its mods stand where they stood. Our mod then trains at once: the node that launched the process
has checked everything.
"""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, TypeAlias

import msgspec
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import serde
from flwr.proto import message_pb2, recorddict_pb2
from flwr.supercore.task_identity import TaskIdentity

from basecagg.errors import DataError, LocalProtocolError
from basecagg.flower import visits
from basecagg.flower.contract import Contract, numbers, require_bound
from basecagg.flower.layout import Layout, as_app_reads, only_arrays
from basecagg.flower.node import BegunTraining, OpenNode
from basecagg.flower.node_folder import NodeFolder, in_simulation, locate
from basecagg.protocol.global_model import Model

_LOG = logging.getLogger("flwr")
Training: TypeAlias = Callable[[Message, Context, ClientAppCallable], Message]
training: Training | None = None
"""In a fresh process: what our mod does there. Nothing that a message says can set it."""
TARGET = f"{__name__}:train"
"""What a fresh process runs."""


@dataclass(frozen=True)
class Call:
    """One message that the node was given."""

    message: Message
    context: Context
    call_next: ClientAppCallable

    @cached_property
    def order(self) -> visits.Order:
        """What the strategy wants done."""
        return visits.read_order(self.message.content)

    @cached_property
    def folder(self) -> NodeFolder:
        """Where this node keeps what belongs to the federation."""
        return locate(self.context, self.order.federation)

    @property
    def detach(self) -> bool:
        """Whether to train in a process of its own. On Ray nodes do not wait for one another anyway."""
        return self.order.detach and not in_simulation()

    def ask_app(self) -> RecordDict:
        """What the app's own function answers to its part of the message."""
        content, key = self.message.content, self.order.arrays_key
        own = RecordDict({name: each for name, each in content.items() if name not in visits.OURS})
        own[key] = as_app_reads(content.array_records[key])
        try:
            answer = self.call_next(_with(self.message, own), self.context)
        except Exception as error:
            raise visits.AppFailedError(error) from error
        if answer.has_error():
            raise DataError(f"the app answered with error {answer.error.code}")
        return answer.content

    def remember(self, frozen: bytes) -> None:
        """Let the app find the state that its detached training left: it had a copy of Flower's own."""
        records = recorddict_pb2.RecordDict.FromString(frozen)
        self.context.state = serde.recorddict_from_proto(records)


def _with(message: Message, content: RecordDict) -> Message:
    """The same message with other content."""
    return Message(metadata=message.metadata, content=content)  # type: ignore[call-overload,no-any-return]


class Terms(msgspec.Struct, frozen=True):
    """What the epoch and the node say about an update."""

    contract: Contract
    evaluation: Mapping[str, float] | None
    clip: float
    max_staleness: int
    private: bool
    """Whether a budget covers all that this node tells of its training."""


@dataclass(frozen=True)
class Lesson:
    """All that training needs, without an open store."""

    call: Call
    layout: Layout
    start: Model
    terms: Terms

    @classmethod
    def of(cls, call: Call, node: OpenNode) -> tuple[Lesson, BegunTraining]:
        """Read the model from the message, or `WrongModel` if it is not the one that the server released."""
        content, version = call.message.content, call.order.version
        slots: Any = content[visits.SLOTS]
        metrics: Any = content[visits.METRICS]
        agreement = node.member.participant.working().agreement
        p = agreement.parameters
        contract = Contract.from_bytes(metrics["charge"], agreement.epoch.contract)
        terms = Terms(contract, node.evaluation, p.clip, p.max_staleness, p.privacy is not None)
        lesson = cls.by_terms(call, terms)
        require_bound(content, call.order, lesson.layout, contract, call.context)
        whole = np.concatenate([lesson.start, slots["slots"].numpy()])
        head = node.member.head_of(version, whole)
        return lesson, BegunTraining(version=version, head=head, began=time.time())

    @classmethod
    def by_terms(cls, call: Call, terms: Terms) -> Lesson:
        """The lesson of a message that was checked."""
        arrays: Any = call.message.content[call.order.arrays_key]
        layout = Layout.of(arrays)
        return cls(call, layout, layout.flatten(arrays), terms)

    def learn(self) -> Model:
        """Δ = x − x_i after the app's own training, and behind it the metrics that are averaged."""
        answer, terms, contract = self.call.ask_app(), self.terms, self.terms.contract
        found, trained = numbers(answer), self.layout.flatten(only_arrays(answer))
        update = self.layout.difference(
            self.start, trained, terms.max_staleness, contract.factor(found)
        )
        slots = contract.encode(update, found, terms.evaluation, terms.clip)
        if contract.tells_cuts and slots[-1] > 0:
            _LOG.warning(
                "numbers beyond the clip B = %g, or beyond a metric's limit, are cut", terms.clip
            )
        return np.concatenate([update, slots]).astype(self.layout.dtype)


# --- in a fresh process ---------------------------------------------------------------------------


class FreshTask(msgspec.Struct, frozen=True):
    """All that goes to the fresh process."""

    app: str
    """module:name of the ClientApp."""
    message: bytes
    context: bytes
    identity: tuple[int, int, int]
    """Flower's own: task, run and node. Without it no message can be made."""
    terms: Terms


def pack_task(lesson: Lesson) -> bytes:
    """The task for the process, without the letters: they are the node's."""
    call = lesson.call
    content = RecordDict(
        {k: record for k, record in call.message.content.items() if k != visits.LETTERS}
    )
    task = FreshTask(
        _importable_app(),
        serde.message_to_proto(_with(call.message, content)).SerializeToString(),
        serde.context_to_proto(call.context).SerializeToString(),
        (TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id),
        lesson.terms,
    )
    return msgspec.msgpack.encode(task)


def _importable_app() -> str:
    """module:name of the ClientApp that handles the present message, or `LocalProtocolError` if it has none."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not ClientApp.__call__.__code__:
        frame = frame.f_back
    app = frame.f_locals["self"] if frame is not None else None
    for module in tuple(sys.modules.values()):
        found = [name for name, value in _names(module) if app is not None and value is app]
        if found:
            return f"{module.__name__}:{found[0]}"
    raise LocalProtocolError(
        "detached training imports the ClientApp again, in a process of its own, and no module has it under a"
        " name: assign it at the top of a module (app = ClientApp(...)), or use"
        " BufferedSecAgg(training='attached')"
    )


def _names(module: object) -> list[tuple[str, object]]:
    """What is at the top of a module that another process can import: not in a script."""
    names = vars(module) if hasattr(module, "__dict__") else {}
    return [] if names.get("__name__") in {None, "__main__", "__mp_main__"} else list(names.items())


def train(content: bytes) -> tuple[Model, bytes]:
    """In the process: the update, and Flower's Context.state as the training left it."""
    global training  # noqa: PLW0603 - this process does nothing else
    task = msgspec.msgpack.decode(content, type=FreshTask)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.identity
    context = serde.context_from_proto(message_pb2.Context.FromString(task.context))
    updates: list[Model] = []

    def learn(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        updates.append(Lesson.by_terms(Call(message, context, call_next), task.terms).learn())
        return Message(RecordDict(), reply_to=message)

    training = learn
    module, _, name = task.app.partition(":")
    app: ClientApp = getattr(import_module(module), name)
    app(serde.message_from_proto(message_pb2.Message.FromString(task.message)), context)
    if len(updates) != 1:
        raise LocalProtocolError("the ClientApp that was imported again has no basecagg_mod")
    return updates[0], serde.recorddict_to_proto(context.state).SerializeToString()
