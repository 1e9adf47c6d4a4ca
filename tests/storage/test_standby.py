"""A standby follows what a live server writes, so that it need not doubt the database when that one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_kinds import sql

from basecagg.errors import PassingFault
from basecagg.protocol.effects import Persist
from basecagg.storage import standby
from basecagg.storage.server_store import ServerStore
from basecagg.storage.standby import Standby

NAMESPACE = "epoch:1"
STEP = [Persist("sum", "1", b"opened", irreversible=True)]


class Scene:
    """A primary on one machine, and the anchors of two."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'server.db'}"
        self.here, self.there = folder / "here", folder / "there"
        self.primary = ServerStore(self.url, NAMESPACE, anchor_folder=self.here)
        self.standby = Standby(self.url, NAMESPACE, self.there)

    def die(self) -> None:
        """The primary falls silent, and nobody can see that its process is gone."""
        sql(self.url, "UPDATE basecagg_lease SET heartbeat = heartbeat - 100")

    def is_doubted(self) -> bool:
        with ServerStore(self.url, NAMESPACE, anchor_folder=self.there) as store:
            return store.rolled_back

    def step(self, count: int) -> None:
        for _ in range(count):
            self.primary.commit(STEP)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.primary.close()


def test_whoever_looked_on_believes_the_database(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "_SIGHT", 1000.0)  # however slow the disk
    assert "process" in scene.standby.look()
    scene.step(5)  # more than one step since the last look
    scene.die()
    scene.standby.wait(lambda reason: None)
    assert not scene.is_doubted()


def test_whoever_did_not_doubts_it(scene: Scene) -> None:
    """The control: the same without a look while the primary lived."""
    scene.step(5)
    scene.die()
    scene.standby.wait(lambda reason: None)
    assert scene.is_doubted()


def test_whoever_lost_sight_of_it_doubts_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.standby.look()
    scene.step(5)
    scene.die()
    monkeypatch.setattr(standby, "_SIGHT", -1.0)
    scene.standby.wait(lambda reason: None)
    assert scene.is_doubted()


def test_an_older_copy_is_doubted_however_short_the_look_away(scene: Scene, tmp_path: Path) -> None:
    old = sql(scene.url, "SELECT value FROM basecagg_records WHERE kind = 'anchor-mark'")
    scene.step(5)
    scene.standby.look()
    sql(scene.url, "UPDATE basecagg_records SET value = :old WHERE kind = 'anchor-mark'", old=old)
    scene.die()
    scene.standby.wait(lambda reason: None)
    assert scene.is_doubted()


def test_a_new_database_is_nobodys(tmp_path: Path) -> None:
    Standby(f"sqlite:///{tmp_path / 'new.db'}", NAMESPACE, tmp_path).wait(pytest.fail)


def test_it_waits_for_a_database_that_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(standby, "_PAUSE", 0.0)
    answers = iter(["process 7", PassingFault("cannot look", "gone"), "process 7", ""])

    def look() -> str:
        answer = next(answers)
        if isinstance(answer, PassingFault):
            raise answer
        return answer

    monkeypatch.setattr(scene.standby, "look", look)
    scene.standby.wait(said.append)
    assert said == ["process 7", "cannot look: gone", "process 7"]
