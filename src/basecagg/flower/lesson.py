"""One training as a node is told to do it: the model, the app's own function, and the update that comes out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.serde import recorddict_from_proto
from flwr.proto.recorddict_pb2 import RecordDict as WrittenRecords

from basecagg.errors import DataError
from basecagg.flower.contract import Contract, numbers, require_bound
from basecagg.flower.layout import Layout, as_app_reads, only_arrays
from basecagg.flower.node import BegunTraining, OpenNode
from basecagg.flower.node_folder import NodeFolder, in_simulation
from basecagg.flower.visits import METRICS, OURS, SLOTS, AppFailedError, Order, read_order
from basecagg.protocol.global_model import Model

_LOG = logging.getLogger("flwr")


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
        return ask_app(self.message, self.context, self.call_next)

    def remember(self, frozen: bytes) -> None:
        """Let the app find the state that its detached training left: it had a copy of Flower's own."""
        self.context.state = recorddict_from_proto(WrittenRecords.FromString(frozen))


def _with(message: Message, content: RecordDict) -> Message:
    """The same message with other content."""
    return Message(metadata=message.metadata, content=content)  # type: ignore[call-overload,no-any-return]


def ask_app(message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
    """What the app's own function answers to its part of the message."""
    content, key = message.content, read_order(message.content).arrays_key
    own = RecordDict({name: each for name, each in content.items() if name not in OURS})
    own[key] = as_app_reads(content.array_records[key])
    try:
        answer = call_next(_with(message, own), context)
    except Exception as error:
        raise AppFailedError(error) from error
    if answer.has_error():
        raise DataError(f"the app answered with error {answer.error.code}")
    return answer.content


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

    ask: Callable[[], RecordDict]
    layout: Layout
    start: Model
    terms: Terms

    @classmethod
    def of(cls, call: Call, node: OpenNode) -> tuple[Lesson, BegunTraining]:
        """Read the model from the message, or `WrongModel` if it is not the one that the server released."""
        content, version = call.message.content, call.order.version
        slots: Any = content[SLOTS]
        metrics: Any = content[METRICS]
        agreement = node.member.participant.working().agreement
        p = agreement.parameters
        contract = Contract.from_bytes(metrics["charge"], agreement.epoch.contract)
        terms = Terms(contract, node.evaluation, p.clip, p.max_staleness, p.privacy is not None)
        lesson = cls.from_terms(call.message, terms, call.ask_app)
        require_bound(content, call.order, lesson.layout, contract, call.context)
        whole = np.concatenate([lesson.start, slots["slots"].numpy()])
        head = node.member.head_of(version, whole)
        return lesson, BegunTraining(version=version, head=head, began=time.time())

    @classmethod
    def from_terms(cls, message: Message, terms: Terms, ask: Callable[[], RecordDict]) -> Lesson:
        """The lesson of a message that was checked."""
        arrays: Any = message.content[read_order(message.content).arrays_key]
        layout = Layout.of(arrays)
        return cls(ask, layout, layout.flatten(arrays), terms)

    def learn(self) -> Model:
        """Δ = x − x_i after the app's own training, and behind it the metrics that are averaged."""
        answer, terms = self.ask(), self.terms
        trained = self.layout.flatten(only_arrays(answer))
        factor = terms.contract.factor(numbers(answer))
        clip = terms.clip
        update = self.layout.difference(self.start, trained, terms.max_staleness, factor)
        slots = terms.contract.encode(update, numbers(answer), terms.evaluation, clip)
        if terms.contract.tells_cuts and slots[-1] > 0:
            _LOG.warning(
                "numbers beyond the clip B = %g, or beyond a metric's limit, are cut", clip
            )
        return np.concatenate([update, slots]).astype(self.layout.dtype)
