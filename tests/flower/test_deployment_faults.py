"""Processes that die: what a federation on Flower's deployment engine survives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deployment_apps import nobody_finishes, slow_app, training_nodes
from deployment_harness import Deployment
from deployment_stores import AnswerBook, held_shares, holder_version

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]
NODES, BUFFER, ANSWERS = 6, 3, 4
OPTIONS = {
    "max_colluders": 1,
    "max_dropouts": 2,
    "recovery_threshold": ANSWERS,
    "erase_state": False,
    "poll_interval": 1.0,
    "answer_timeout": 30.0,
}
KILLS = 10
VERSIONS = 3 + KILLS
"""Two kills cost two versions at most; the rest are for those who came back."""
SECONDS = 8.0
"""Extra seconds of training: long enough to be killed in."""


class Observer:
    """Looks into a federation from outside."""

    def __init__(self, federation: Deployment) -> None:
        self._federation = federation
        self._nodes = range(federation.num_nodes)
        self.book = AnswerBook()

    def look(self) -> None:
        """Note every answer in the stores."""
        for node in self._nodes:
            self.book.look(node, held_shares(self._federation.state_folder(node)))

    def training(self) -> list[int]:
        """The nodes that train now."""
        return training_nodes(self._federation.folder)

    def owing(self) -> list[int]:
        """The nodes that run and have not answered yet, while some have and the sum cannot be open."""
        versions = {node: self.version(node) for node in self._nodes}
        newest = max(versions.values())
        answered = [node for node, version in versions.items() if version == newest]
        if newest < 0 or len(answered) >= ANSWERS:
            return []
        return [node for node in self._nodes if node not in answered and self._runs(node)]

    def version(self, node: int) -> int:
        """The newest version that the node has helped to open, or -1."""
        return holder_version(self._federation.state_folder(node))

    def _runs(self, node: int) -> bool:
        return self._federation.is_running(f"node{node}")


def kill_one(federation: Deployment, candidates: Callable[[], list[int]], what: str) -> int:
    """kill -9 of the first candidate."""
    node = federation.wait_for(lambda: next(iter(candidates()), None), what)
    federation.kill(f"node{node}")
    return node


def bring_back(federation: Deployment, node: int) -> None:
    """The same key gives the same node."""
    lives = len(federation.ids_of(node)) + 1
    federation.start_node(node)
    federation.wait_until_joined(node, lives=lives)
    assert len(set(federation.ids_of(node))) == 1


def test_ten_nodes_killed_in_training_or_in_recovery_come_back(tmp_path: Path) -> None:
    with Deployment.running(NODES) as federation:
        observer, kills = Observer(federation), 0
        settings = f"num-server-rounds={VERSIONS} buffer-size={BUFFER} fraction-evaluate=0.0"
        federation.start_run(slow_app(tmp_path, SECONDS, **OPTIONS), settings)
        while kills < KILLS:
            trained = kill_one(federation, observer.training, "a node that trains")
            recovered = kill_one(federation, observer.owing, "a node that owes an answer")
            kills += 2
            with nobody_finishes(federation.folder):
                for node in (trained, recovered):
                    bring_back(federation, node)
            observer.look()
        at_return = {node: observer.version(node) for node in (trained, recovered)}
        while federation.is_running("run"):
            observer.look()
            time.sleep(1)
        assert f"round {VERSIONS}: " in federation.finish_run()
        observer.look()
        assert len(observer.book.masks) >= VERSIONS
        assert observer.book.violations(BUFFER) == []
        for node, version in at_return.items():
            assert observer.version(node) > version


def test_a_run_outlives_its_superlink(tmp_path: Path) -> None:
    with Deployment.running(4, external_executor=True) as federation:
        federation.start_executor()
        settings = f"num-server-rounds=2 buffer-size={BUFFER} fraction-evaluate=0.0"
        options = OPTIONS | {"max_dropouts": 1, "recovery_threshold": 3}
        federation.start_run(slow_app(tmp_path, SECONDS, **options), settings)
        federation.wait_until(lambda: "round 1: " in federation.said("run"), "the first sum")
        federation.kill("superlink")
        federation.start_superlink()
        observer = Observer(federation)
        federation.follow_run()
        assert "round 2: " in federation.finish_run()
        observer.look()
        assert observer.book.violations(BUFFER) == []
