"""A grid in this process: apps run when their replies are pulled, and a test says what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

ENDLESS = 20_000
"""Messages after which a run is taken for one that would never end: a test has to fail, not to hang."""
Fault = Callable[[int, Message], "Error | str | None"]
"""An error in place of the reply, "late" to reply another time, "lost" to lose the reply, or None."""


@dataclass
class FakeNode:
    app: ClientApp
    context: Context


@dataclass
class FakeGrid(Grid):
    """One reply per pull and node; messages are never delivered twice, and one at a time is checked."""

    nodes: dict[int, FakeNode]
    offline: set[int] = field(default_factory=set)
    fault: Fault = lambda node_id, message: None
    before: list[Callable[[int, Message], None]] = field(default_factory=list)
    after: list[Callable[[int, Message], None]] = field(default_factory=list)
    outstanding: dict[str, Message] = field(default_factory=dict)
    sent: int = 0

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        return [node_id for node_id in self.nodes if node_id not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            busy = [m.metadata.dst_node_id for m in self.outstanding.values()]
            assert node_id not in busy, f"two messages to node {node_id}"
            self.sent += 1
            assert self.sent < ENDLESS, "this run does not end"
            message.metadata.__dict__["_message_id"] = f"message-{self.sent}"
            self.outstanding[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = [self._run(message_id) for message_id in sorted(message_ids)]
        return [reply for reply in replies if reply is not None]

    def _run(self, message_id: str) -> Message | None:
        message = self.outstanding[message_id]
        node_id = message.metadata.dst_node_id
        wrong = Error(5, "gone") if node_id in self.offline else self.fault(node_id, message)
        if isinstance(wrong, Error):
            del self.outstanding[message_id]
            return Message(wrong, reply_to=message)
        if wrong == "late":
            return None
        del self.outstanding[message_id]
        for look in self.before:
            look(node_id, message)
        reply = self._handle(node_id, message)
        if wrong == "lost":
            return Message(Error(3, "the reply came too late"), reply_to=message)
        for look in self.after:
            look(node_id, reply)
        return reply

    def _handle(self, node_id: int, message: Message) -> Message:
        node = self.nodes[node_id]
        try:
            return node.app(message, node.context)
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        raise AssertionError("a barrier")

    def set_run(self, run: Any) -> None:
        raise AssertionError

    @property
    def run(self) -> Any:
        raise AssertionError

    def create_message(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError


def context_of(node_id: int, partition: int, folder: Path | None, **run_config: Any) -> Context:
    """What a SuperNode started with --node-config "state-dir=…" gives its app."""
    config: dict[str, Any] = {"partition-id": partition}
    if folder is not None:
        config |= {"state-dir": str(folder / str(partition)), "anchor-dir": str(folder / "anchors")}
    return Context(1, node_id, config, RecordDict(), dict(run_config))


def make_grid(count: int, app: ClientApp, folder: Path, **faults: Any) -> FakeGrid:
    """Nodes whose ids need all 64 bits."""
    chooser = random.Random(count)
    ids = [2**64 - 1 - chooser.randrange(2**40) for _ in range(count)]
    nodes = {
        node_id: FakeNode(app, context_of(node_id, index, folder))
        for index, node_id in enumerate(ids)
    }
    return FakeGrid(nodes, **faults)


def without_protection(grid: FakeGrid) -> FakeGrid:
    """Nodes that were told to let updates out in clear."""
    for node in grid.nodes.values():
        node.context.run_config["basecagg-protection"] = "none"
    return grid


def flat(arrays: ArrayRecord) -> Any:
    import numpy as np

    return np.concatenate([array.numpy().ravel() for array in arrays.values()])
