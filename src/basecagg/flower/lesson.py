"""One training as a node is told to do it: the model, the app's own function, and the update that comes out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as WrittenRecords

from basecagg.errors import DataError
from basecagg.flower.failures import AppFailedError
from basecagg.flower.flat import Layout, as_app_reads, only_arrays
from basecagg.flower.metrics import Charge, numbers
from basecagg.flower.node import BegunTraining, OpenNode
from basecagg.flower.node_folder import NodeFolder, in_simulation
from basecagg.flower.visits import LETTERS, METRICS, ORDER, SLOTS, Order
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.global_model import Model

_LOG = logging.getLogger("flwr")
_OURS = (ORDER, LETTERS, METRICS, SLOTS)


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
        own[self.order.arrays_key] = as_app_reads(content.array_records[self.order.arrays_key])
        try:
            answer = self.call_next(_with(self.message, own), self.context)
        except Exception as error:
            raise AppFailedError(error) from error
        if answer.has_error():
            raise DataError(f"the app answered with error {answer.error.code}")
        return answer.content

    # Training that is detached has a copy of Flower's Context.state: what the app remembers between messages.

    def frozen_memory(self) -> bytes:
        """The state as bytes."""
        return bytes(recorddict_to_proto(self.context.state).SerializeToString())

    def remember(self, frozen: bytes) -> None:
        """Let the app find the state that its training left."""
        self.context.state = recorddict_from_proto(WrittenRecords.FromString(frozen))


def _with(message: Message, content: RecordDict) -> Message:
    """The same message with other content."""
    return Message(metadata=message.metadata, content=content)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class Lesson:
    """All that training needs, without an open store."""

    call: Call
    layout: Layout
    start: Model
    job: BegunTraining
    charge: Charge
    evaluation: Mapping[str, float] | None
    parameters: ProtocolParameters

    @property
    def private(self) -> bool:
        """Whether a budget covers all that this node tells of its training."""
        return self.parameters.privacy is not None

    @classmethod
    def of(cls, call: Call, node: OpenNode) -> Lesson:
        """Read the model from the message, or `WrongModel` if it is not the one that the server released."""
        content, version = call.message.content, call.order.version
        arrays: Any = content[call.order.arrays_key]
        slots: Any = content[SLOTS]
        metrics: Any = content[METRICS]
        participant = node.participant
        agreement = participant.working().agreement
        charge = Charge.from_bytes(metrics["charge"], agreement.epoch.charge)
        layout = Layout.of(arrays)
        start = layout.flatten(arrays)
        whole = np.concatenate([start, slots["slots"].numpy()])
        head = participant.watch.head_of(version, whole)
        job = BegunTraining(version=version, head=head, began=time.time())
        return cls(call, layout, start, job, charge, node.evaluation, agreement.parameters)

    def learn(self) -> Model:
        """Δ = x − x_i after the app's own training, and behind it the metrics that are averaged."""
        answer = self.call.ask_app()
        trained = self.layout.flatten(only_arrays(answer))
        factor = self.charge.factor(numbers(answer))
        clip, staleness = self.parameters.clip, self.parameters.max_staleness
        update = self.layout.difference(self.start, trained, staleness, factor)
        slots = self.charge.encode(update, numbers(answer), self.evaluation, clip)
        if self.charge.tells_cuts and slots[-1] > 0:
            _LOG.warning(
                "numbers beyond the clip B = %g, or beyond a metric's limit, are cut", clip
            )
        return np.concatenate([update, slots]).astype(self.layout.dtype)
