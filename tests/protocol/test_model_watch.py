"""What a participant keeps of the server's words about its models, and which of them it may forget."""

from __future__ import annotations

import os
from functools import cache

import pytest
from msgspec.structs import replace
from parties import make_federation, one_round

from basecagg.protocol.effects import Forget, writes_of
from basecagg.protocol.messages import History, Link, Release, signed
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.proofs import Caught, Fork
from basecagg.protocol.stored import version_key
from basecagg.simulation.federation import Federation
from basecagg.storage.in_memory import MemoryStore

FAR = 999_999


class Watching:
    """A watch with its store, and a server that signs whatever it likes."""

    def __init__(self) -> None:
        self.federation = make_federation()
        self.store = MemoryStore()
        self.restart()

    def restart(self) -> None:
        self.watch = ModelWatch(self.federation.agreement, self.store)

    def hear(self, word: Release) -> None:
        self.store.commit(writes_of(self.watch.hear(word)))

    def release(self, history: History) -> Release:
        word = Release(self.federation.agreement.id, history, (), ())
        return signed(word, self.federation.identity("server"))

    def chain(self, model: bytes, version: int) -> Release:
        """The word on a version, where all models have this hash."""
        history = self.federation.agreement.beginning
        for each in range(1, version + 1):
            history = history.after(Link(each, model * 32, bytes(32), bytes(32)), 10)
        return self.release(history)

    def far(self, version: int = FAR) -> Release:
        """The word on a version that nobody has come to."""
        link = Link(version, os.urandom(32), bytes(32), bytes(32))
        return self.release(History(version - 1, os.urandom(32), (link,)))

    @property
    def kept(self) -> list[int]:
        return [int(key) for key in self.store.keys("released")]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_far_version_makes_a_watch_forget_nothing(restarts: bool) -> None:
    watching = Watching()
    watching.hear(watching.chain(b"X", 3))
    watching.hear(watching.far())
    if restarts:
        watching.restart()
    with pytest.raises(Caught) as caught:
        watching.hear(watching.chain(b"Y", 3))
    assert isinstance(caught.value.proof, Fork)


def test_after_a_far_version_a_watch_still_learns() -> None:
    watching = Watching()
    watching.hear(watching.far())
    watching.hear(watching.chain(b"X", 4))
    with pytest.raises(Caught):
        watching.hear(watching.chain(b"Y", 4))


def test_words_are_forgotten_when_later_versions_are_used() -> None:
    watching = Watching()
    federation = watching.federation
    for version in range(1, 6):
        one_round(federation)
        watching.hear(federation.server.opening.kept.release(version))
        watching.watch.head_of(version, federation.server.model)
    assert watching.kept == [3, 4, 5]  # 3 goes with the next word


def test_words_on_versions_that_nobody_used_stay() -> None:
    """The control of the test before."""
    watching = Watching()
    for version in range(1, 6):
        watching.hear(watching.chain(b"X", version))
    assert watching.kept == [1, 2, 3, 4, 5]


def test_a_flood_of_words_pushes_out_none_of_the_first() -> None:
    watching = Watching()
    watching.hear(watching.chain(b"X", 3))
    for version in range(FAR - 200, FAR, 2):
        watching.hear(watching.far(version))
    assert len(watching.kept) == 64
    assert watching.kept[0] == 3
    assert (
        watching.kept[-1] == FAR - 2
    )  # the last one: whoever wants to train from it has the word on it
    with pytest.raises(Caught):
        watching.hear(watching.chain(b"Y", 3))


def test_a_fork_is_caught_without_a_far_version() -> None:
    """The control: the two words of these tests do contradict each other, and honest ones do not."""
    watching = Watching()
    watching.hear(watching.chain(b"X", 3))
    watching.hear(watching.chain(b"X", 4))
    with pytest.raises(Caught):
        watching.hear(watching.chain(b"Y", 3))


MANY = 64
"""Words that a watch keeps."""


@cache
def long_run() -> tuple[Federation, list[Release]]:
    """A federation with more versions than a watch keeps words, and the true words on them."""
    federation, words = make_federation(cryptography=False, keep=2), list[Release]()
    for version in range(1, MANY + 3):
        one_round(federation)
        words.append(federation.server.opening.kept.release(version))
    return federation, words


class Exchanged(Watching):
    """A version that was made again, and a server that then shows another model under its number."""

    def __init__(self) -> None:
        self.federation, self.words = long_run()
        self.store = MemoryStore()
        self.restart()
        self.version = len(self.words)
        history = self.words[-1].history
        other = replace(history.links[-1], model_hash=b"Y" * 32)
        self.forged = self.release(replace(history, links=(*history.links[:-1], other)))
        self.hear(self.words[-1])

    def restart(self) -> None:
        self.watch = ModelWatch(self.federation.agreement, self.store, 1.0)

    def check(self) -> None:
        assert self.watch.is_due(self.version)
        parts = self.federation.server.opening.kept.parts(self.version)
        self.store.commit(writes_of(self.watch.check(parts)))
        assert not self.watch.is_due(self.version)

    def flood(self) -> None:
        """The server repeats true words on versions before."""
        for word in self.words[-MANY - 1 : -1]:
            self.hear(word)


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_older_words_do_not_push_out_the_newest_one(checks: bool, restarts: bool) -> None:
    exchanged = Exchanged()
    if checks:
        exchanged.check()
    exchanged.flood()
    if restarts:
        exchanged.restart()
    with pytest.raises(Caught) as caught:
        exchanged.hear(exchanged.forged)
    assert isinstance(caught.value.proof, Fork)


@pytest.mark.parametrize("restarts", [False, True])
def test_another_model_under_a_checked_number_is_made_again(restarts: bool) -> None:
    exchanged = Exchanged()
    exchanged.check()
    exchanged.store.commit([Forget("released", version_key(exchanged.version))])
    if restarts:
        exchanged.restart()
    exchanged.watch._words.clear()
    exchanged.hear(exchanged.forged)
    assert exchanged.watch.is_due(exchanged.version)


@pytest.mark.parametrize("checks", [False, True])
def test_without_a_flood_the_exchange_is_caught(checks: bool) -> None:
    """The control: the two words contradict each other."""
    exchanged = Exchanged()
    if checks:
        exchanged.check()
    with pytest.raises(Caught):
        exchanged.hear(exchanged.forged)


def test_the_same_word_on_a_checked_version_is_not_due_again() -> None:
    """The control: what is made again is the model, not the number."""
    exchanged = Exchanged()
    exchanged.check()
    exchanged.flood()
    exchanged.restart()
    exchanged.hear(exchanged.words[-1])
    assert not exchanged.watch.is_due(exchanged.version)
