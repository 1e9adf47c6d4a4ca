"""The line to the nodes: messages out, replies back, at most one outstanding for each node.

Two messages to one node would run at once on the simulation engine, and the second would wait for the first on
the deployment engine. Node ids are unsigned 64-bit whole numbers throughout: a float would lose some of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from basecagg.errors import LocalProtocolError

_GRACE = 60.0
"""Seconds after its time to live that a message is given up here, should Flower not have said so."""


@dataclass
class Line:
    """All messages on their way."""

    grid: Grid
    ttl: float
    """Seconds that a message may take."""
    clock: Callable[[], float] = time.monotonic
    _outstanding: dict[int, tuple[str, float]] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        """Whether the nodes are simulated. The grid knows; Ray may still be starting when the run begins."""
        return is_simulated(self.grid)

    def present(self) -> set[int]:
        """The nodes that can be reached now."""
        return {int(node_id) for node_id in self.grid.get_node_ids()}

    def is_busy(self, node_id: int) -> bool:
        """Whether a message to this node is on its way."""
        return node_id in self._outstanding

    def send(self, node_id: int, content: RecordDict, message_type: str) -> bool:
        """Send a message; False when Flower does not take it."""
        if self.is_busy(node_id):
            raise LocalProtocolError(f"node {node_id} has a message already: one at a time")
        message = Message(content, node_id, message_type, ttl=self.ttl)
        try:
            message_ids = list(self.grid.push_messages([message]))
        except ObjectPushError:  # the SuperLink restarted after the message and before its content
            return False
        if not message_ids or not message_ids[0]:
            return False
        self._outstanding[node_id] = message_ids[0], self.clock()
        return True

    def receive(self) -> list[tuple[int, Message | None]]:
        """Replies that have come, each with its node; None for one that will not come any more."""
        if not self._outstanding:
            return []
        nodes = {message_id: node_id for node_id, (message_id, _) in self._outstanding.items()}
        replies = list(self.grid.pull_messages(list(nodes)))
        heard: list[tuple[int, Message | None]] = [
            (nodes[reply.metadata.reply_to_message_id], reply) for reply in replies
        ]
        for node_id, _ in heard:
            del self._outstanding[node_id]
        return [*heard, *((node_id, None) for node_id in self._give_up())]

    def _give_up(self) -> list[int]:
        latest = self.clock() - self.ttl - _GRACE
        late = [node_id for node_id, (_, sent) in self._outstanding.items() if sent < latest]
        for node_id in late:
            del self._outstanding[node_id]
        return late


def is_simulated(grid: Grid) -> bool:
    """Whether this is the grid of Flower's simulation engine."""
    from flwr.superlink.grid import InMemoryGrid  # brings a database that nodes need not load

    return isinstance(grid, InMemoryGrid)
