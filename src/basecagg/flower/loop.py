"""The loop that a ServerApp runs: keep C nodes busy, send messages, take replies, publish each new version."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import TypeAlias

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from basecagg.errors import LocalProtocolError, ParameterError
from basecagg.flower.coordinator import LOG, Coordinator

_LOOK_AROUND = 1.0
"""Seconds between two questions who is there."""
_SHORT_PAUSE, _LONG_PAUSE = 0.1, 1.0
"""Seconds between two looks for replies: a look costs nothing in a simulation, and the SuperLink elsewhere."""
_GATHER = 10.0
"""Seconds until all nodes of a simulation are there: Flower starts its ServerApp first."""
_REMIND = 30.0
"""Seconds after which it is said again that nodes are missing."""
_FAREWELL = 300.0
"""Seconds that the nodes are given, at most, to delete what they keep when the run is over."""
_GRACE = 60.0
"""Seconds after its time to live that a message is given up here, should Flower not have said so."""
Evaluate: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


def is_simulated(grid: Grid) -> bool:
    """Whether this is the grid of Flower's simulation engine. Ray may still be starting when the run begins."""
    from flwr.superlink.grid import InMemoryGrid  # brings a database that nodes need not load

    return isinstance(grid, InMemoryGrid)


@dataclass
class Courier:
    """Messages on their way to nodes and back: at most one for each node.

    Two messages to one node would run at once on the simulation engine, and the second would wait for the first
    on the deployment engine. Node ids are unsigned 64-bit whole numbers: a float would lose some of them.
    """

    grid: Grid
    ttl: float
    """Seconds that a message may take."""
    clock: Callable[[], float] = time.monotonic
    _outstanding: dict[int, tuple[str, float]] = field(default_factory=dict)
    """For each node the id of its message, and when that was sent."""

    @property
    def is_simulated(self) -> bool:
        """Whether the nodes are simulated."""
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
        heard: dict[int, Message | None] = {
            nodes[reply.metadata.reply_to_message_id]: reply
            for reply in self.grid.pull_messages(list(nodes))
        }
        latest = self.clock() - self.ttl - _GRACE
        for node_id, (_, sent) in self._outstanding.items():
            if sent < latest:
                heard.setdefault(node_id, None)
        for node_id in heard:
            del self._outstanding[node_id]
        return list(heard.items())


@dataclass
class Loop:
    """One run of the strategy."""

    versions: int
    """Where the model is to get to."""
    coordinator: Coordinator
    courier: Courier
    concurrency: Callable[[int], int]
    """C, by how many nodes are there."""
    evaluate: Evaluate | None
    chooser: random.Random
    poll_interval: float | None
    """Seconds between two looks for replies; None for what suits the engine."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    result: Result = field(default_factory=Result)
    _began: float = 0.0
    _look_at: float = 0.0
    _say_at: float = 0.0
    _short_since: float | None = None

    def run(self, initial: ArrayRecord) -> Result:
        """Train until the model has reached the last version."""
        self.coordinator.require_future(self.versions)
        self._began = self.clock()
        self.result.arrays = initial
        if self.coordinator.version == 0:
            self._evaluate(0)
        while self.coordinator.version < self.versions and not self._has_ended():
            if not self.step():
                self._pause()
        self.result.arrays = self.coordinator.arrays
        self._part()
        self._sum_up()
        return self.result

    def _has_ended(self) -> bool:
        """Whether no version can follow; the model that was reached is the outcome."""
        reason = self.coordinator.end()
        if reason:
            reached = self.coordinator.version, self.versions
            LOG.warning("%s: training ends at version %d of %d", reason, *reached)
        return bool(reason)

    def _sum_up(self) -> None:
        """The end, as Flower's own strategies log it, and who failed at what."""
        LOG.info("")
        LOG.info("Strategy execution finished in %.2fs", self.clock() - self._began)
        for view in self.coordinator.nodes.values():
            if view.dropped:
                LOG.info(
                    "\t├── node %d: %d dropped, last: %s", view.node_id, view.dropped, view.problem
                )
        LOG.info("Final results:")
        for line in str(self.result).splitlines():
            LOG.info("\t%s", line)

    def step(self) -> bool:
        """Look who is there, hand out work, send, take replies. Returns whether there was a reply."""
        now = self.clock()
        if now >= self._look_at:
            self.coordinator.meet(self.courier.present())
            self._look_at = now + _LOOK_AROUND
            self._note_shortage(now)
            self.coordinator.require_enough_nodes()
        self._assign(now)
        free = [n for n in self.coordinator.nodes if not self.courier.is_busy(n)]
        for errand in self.coordinator.errands(free, now):
            if not self.courier.send(*errand):
                self.coordinator.receive(errand[0], None, self.clock())
        heard = self.courier.receive()
        for node_id, reply in heard:
            self.coordinator.receive(node_id, reply, self.clock())
            self._publish()
            if self.coordinator.version >= self.versions:
                return True
        begins = self.coordinator.server is None
        self.coordinator.tick(self.clock())
        if begins and self.coordinator.server is not None:
            self._compare_with_rounds()
        self._publish()
        return bool(heard)

    def _compare_with_rounds(self) -> None:
        """Say how many versions train as often as the rounds of FedAvg that a newcomer may have meant."""
        size = self.coordinator.settings.chosen_buffer_size
        cohort = self.concurrency(len(self.coordinator.present))
        if size != cohort:
            equal = ceil(self.versions * cohort / size)
            LOG.info(
                "K = %d: %d versions equal your %d rounds of %d nodes; num_rounds counts versions",
                *(size, equal, self.versions, cohort),
            )

    def _note_shortage(self, now: float) -> None:
        """Say which nodes are missing. In a simulation end the run: no node is ever added there."""
        shortage = self.coordinator.shortage()
        if not shortage:
            self._short_since = None
            return
        self._short_since = now if self._short_since is None else self._short_since
        if self.courier.is_simulated and now - self._short_since >= _GATHER:
            raise ParameterError(
                f"the simulation has {shortage}: choose a smaller number in BufferedSecAgg, or run"
                ' with --federation-config "num-supernodes=…"',
                rule="K ≤ nodes",
            )
        if now >= self._say_at:
            LOG.info("waiting: %s", shortage)
            self._say_at = now + _REMIND

    def _pause(self) -> None:
        usual = _SHORT_PAUSE if self.courier.is_simulated else _LONG_PAUSE
        self.sleep(usual if self.poll_interval is None else self.poll_interval)

    def _assign(self, now: float) -> None:
        room = self.coordinator.room(self.concurrency(len(self.coordinator.present)))
        if room <= 0:
            return
        free = [n for n in self.coordinator.candidates(now) if not self.courier.is_busy(n)]
        for node_id in self.chooser.sample(free, min(room, len(free))):
            self.coordinator.assign(node_id)

    def _publish(self) -> None:
        for version, trained, evaluated in self.coordinator.take_news():
            elapsed = self.clock() - self._began
            LOG.info("")
            LOG.info("[ROUND %d/%d] after %.2fs", version, self.versions, elapsed)
            if trained is not None:
                LOG.info("\t├──> Aggregated MetricRecord (train): %s", trained)
                self.result.train_metrics_clientapp[version] = trained
            if evaluated is not None:
                LOG.info("\t├──> Aggregated MetricRecord (evaluate): %s", evaluated)
                self.result.evaluate_metrics_clientapp[version] = evaluated
            self._evaluate(version)

    def _evaluate(self, version: int) -> None:
        if self.evaluate is None:
            return
        arrays = self.coordinator.arrays if self.coordinator.server else self.result.arrays
        metrics = self.evaluate(version, arrays)
        LOG.info("\t└──> Global evaluation: %s", metrics)
        if metrics is not None:
            self.result.evaluate_metrics_serverapp[version] = metrics

    def _part(self) -> None:
        """Tell the nodes to delete what they keep, each as soon as it has answered its last message."""
        untold = {errand[0]: errand for errand in self.coordinator.farewell()}
        keeping = set(untold)
        end = self.clock() + _FAREWELL
        while (untold or any(map(self.courier.is_busy, keeping))) and self.clock() < end:
            for node_id in [n for n in untold if not self.courier.is_busy(n)]:
                self.courier.send(*untold.pop(node_id))
            heard = self.courier.receive()
            answered = {n for n, reply in heard if reply is not None and not reply.has_error()}
            keeping -= answered - untold.keys()
            if not heard:
                self._pause()
        if keeping:
            LOG.warning("nodes that may still keep keys and shares of this run: %s", keeping)
