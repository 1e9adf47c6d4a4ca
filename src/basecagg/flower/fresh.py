"""The app in a fresh process: what training needs there, and how the app's own function is found again.

The process imports the ClientApp by its name and gives it the message, so all its mods stand where they stood.
Our mod then trains at once: everything was checked by the node that launched the process.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

import msgspec
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Context as WrittenContext
from flwr.proto.message_pb2 import Message as WrittenMessage
from flwr.supercore.task_identity import TaskIdentity

from basecagg.errors import LocalProtocolError
from basecagg.flower.lesson import Call, Lesson, Terms, ask_app
from basecagg.flower.visits import LETTERS
from basecagg.protocol.global_model import Model

Training: TypeAlias = Callable[[Message, Context, ClientAppCallable], Message]
TARGET = f"{__name__}:train"
"""What the process runs."""
training: Training | None = None
"""In a process that trains: what our mod does there. Nothing that a message says can set it."""


class FreshTask(msgspec.Struct, frozen=True):
    """All that goes to the fresh process."""

    app: str
    """module:name of the ClientApp."""
    message: bytes
    context: bytes
    identity: tuple[int, int, int]
    """Flower's own: task, run and node. Without it no message can be made."""
    terms: Terms


def importable_app() -> str:
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


def pack_task(app: str, call: Call, lesson: Lesson) -> bytes:
    """The task for the process, without the letters: they are the node's."""
    content = RecordDict({k: record for k, record in call.message.content.items() if k != LETTERS})
    message = Message(metadata=call.message.metadata, content=content)  # type: ignore[call-overload]
    task = FreshTask(
        app,
        message_to_proto(message).SerializeToString(),
        context_to_proto(call.context).SerializeToString(),
        (TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id),
        lesson.terms,
    )
    return msgspec.msgpack.encode(task)


def train(content: bytes) -> tuple[Model, bytes]:
    """In the process: the update, and Flower's Context.state as the training left it."""
    global training  # noqa: PLW0603 - this process does nothing else
    task = msgspec.msgpack.decode(content, type=FreshTask)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.identity
    context = context_from_proto(WrittenContext.FromString(task.context))
    updates: list[Model] = []

    def learn(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        lesson = Lesson.from_terms(
            message, task.terms, lambda: ask_app(message, context, call_next)
        )
        updates.append(lesson.learn())
        return Message(RecordDict(), reply_to=message)

    training = learn
    module, _, name = task.app.partition(":")
    app: ClientApp = getattr(import_module(module), name)
    app(message_from_proto(WrittenMessage.FromString(task.message)), context)
    if len(updates) != 1:
        raise LocalProtocolError("the ClientApp that was imported again has no basecagg_mod")
    return updates[0], recorddict_to_proto(context.state).SerializeToString()
