"""What an app remembers between two messages: Flower's Context.state, carried over from a process of its own.

Training that is detached has a copy of the state. Without this, what the app wrote there would end with it.
"""

from __future__ import annotations

from flwr.app import Context
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Written


def freeze(context: Context) -> bytes:
    """The state as bytes."""
    return bytes(recorddict_to_proto(context.state).SerializeToString())


def restore(context: Context, frozen: bytes) -> None:
    """Let the app find the state that its training left."""
    context.state = recorddict_from_proto(Written.FromString(frozen))
