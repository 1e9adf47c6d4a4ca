"""Letters stay until they are dealt with, whatever restarts."""

from __future__ import annotations

import pytest

from basecagg.channels.wire import pack, unpack
from basecagg.errors import ChannelError
from basecagg.protocol import merkle
from basecagg.protocol.effects import Forget, Persist
from basecagg.protocol.messages import Credential, Dealing, MaskName, Parcel, Refusal, Verdict
from basecagg.protocol.records import Relay, write
from basecagg.service import framing
from basecagg.service.server import mailboxes
from basecagg.service.server.mailboxes import Mailboxes
from basecagg.storage.memory import MemoryStore

NAME = MaskName("alice", bytes(16))
ADMITTED = Verdict(bytes(32), NAME, "admitted")
OPENED = Verdict(bytes(32), NAME, "opened")
LEAVES = tuple(bytes([index]) * 32 for index in range(5))


def parcel() -> Parcel:
    credential = Credential(bytes(32), "alice", bytes(32))
    dealing = Dealing(bytes(32), (NAME,), 9, bytes(32), credential)
    return Parcel(dealing, 3, merkle.path(merkle.tree(LEAVES), 3), b"sealed" * 100)


def boxes(store: MemoryStore, heard: list | None = None) -> Mailboxes:
    heard = [] if heard is None else heard
    return Mailboxes(store, lambda name, urgent: heard.append((name, urgent)))


def frames(letters) -> list:
    return [unpack(letter.frame, 10**6) for letter in letters]


def test_letters_survive_a_restart_in_order() -> None:
    store = MemoryStore()
    first = boxes(store)
    for message in (ADMITTED, OPENED, Refusal("Malformed", "x")):
        first.post("alice", message)
    letters = boxes(store).collect("alice", 10**6)
    assert frames(letters) == [ADMITTED, OPENED, Refusal("Malformed", "x")]


def test_a_letter_is_gone_when_it_is_dealt_with_and_not_before() -> None:
    store = MemoryStore()
    first = boxes(store)
    first.post("alice", ADMITTED)
    first.post("alice", OPENED)
    assert first.collect("alice", 10**6) == first.collect("alice", 10**6)
    first.acknowledge("alice", first.collect("alice", 10**6)[0].number)
    assert frames(first.collect("alice", 10**6)) == [OPENED]
    assert frames(boxes(store).collect("alice", 10**6)) == [OPENED]


def test_a_parcel_is_kept_once_and_read_when_it_is_fetched() -> None:
    store, sealed = MemoryStore(), parcel()
    relay = Relay(dealing=sealed.dealing, leaves=LEAVES)
    store.commit(
        [
            Persist("parcel:3", sealed.dealing.key, sealed.sealed),
            write("relay", sealed.dealing.key, relay),
        ]
    )
    first = boxes(store)
    first.post("bob", sealed)
    ((_, letter),) = store.scan("mail:bob")
    assert len(letter) < 100
    assert frames(first.collect("bob", 10**6)) == [sealed]
    store.commit([Forget("parcel:3", sealed.dealing.key)])  # the mask is over
    assert first.collect("bob", 10**6) == []


def test_a_parcel_that_is_not_kept_any_more_travels_whole() -> None:
    """A dealer that lost its receipts ships again; holders who confirmed get their parcel again."""
    first = boxes(MemoryStore())
    first.post("bob", parcel())
    assert frames(first.collect("bob", 10**6)) == [parcel()]


def test_questions_and_final_verdicts_are_urgent() -> None:
    heard: list = []
    first = boxes(MemoryStore(), heard)
    for message in (ADMITTED, OPENED, parcel()):
        first.post("alice", message)
    assert heard == [("alice", False), ("alice", True), ("alice", False)]


def test_a_batch_is_bounded_but_never_empty() -> None:
    first = boxes(MemoryStore())
    for _ in range(5):
        first.post("bob", parcel())
    assert len(first.collect("bob", 1)) == 1
    assert len(first.collect("bob", 10**6, most_letters=3)) == 3


def test_what_does_not_fit_is_noted_until_the_box_is_empty(monkeypatch) -> None:
    monkeypatch.setattr(mailboxes, "MAX_LETTERS", 2)
    store = MemoryStore()
    first = boxes(store)
    for _ in range(3):
        first.post("alice", OPENED)
    assert first.letters_waiting("alice") == 2
    again = boxes(store)  # the note survives a restart too
    assert not again.overflowed("alice")
    again.acknowledge("alice", 1)
    assert again.overflowed("alice")
    assert not again.overflowed("alice")


def test_frames_survive_their_body() -> None:
    letters = [framing.Numbered(7, pack(ADMITTED)), framing.Numbered(8, b"")]
    body = b"".join(framing.join(letters))
    assert framing.split(body) == letters
    for cut in range(1, len(body)):
        if cut != 12 + len(pack(ADMITTED)):
            with pytest.raises(ChannelError, match="ends within"):
                framing.split(body[:cut])
