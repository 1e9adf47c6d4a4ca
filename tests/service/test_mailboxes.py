"""Letters stay until they are dealt with, whatever restarts."""

from __future__ import annotations

import pytest

from basecagg.channels.wire import pack, unpack
from basecagg.errors import ChannelError
from basecagg.protocol import merkle
from basecagg.protocol.effects import Forget, Send
from basecagg.protocol.messages import Credential, Dealing, MaskName, Parcel, Refusal, Verdict
from basecagg.service import framing
from basecagg.service.server import mailboxes
from basecagg.service.server.mailboxes import Mailboxes
from basecagg.storage.in_memory import MemoryStore

NAME = MaskName("alice", bytes(16))
ADMITTED = Verdict(bytes(32), NAME, "admitted")
OPENED = Verdict(bytes(32), NAME, "opened")
LEAVES = tuple(bytes([index]) * 32 for index in range(5))
HOLDERS = [f"holder-{index}" for index in range(5)]


def parcel(holder: int = 3) -> Parcel:
    credential = Credential(bytes(32), "alice", bytes(32))
    dealing = Dealing(bytes(32), (NAME,), bytes(32), credential)
    path = merkle.path(merkle.tree(LEAVES), holder)
    return Parcel(dealing, holder, path, b"sealed %d" % holder * 100)


class Kept:
    """Where the machine keeps parcels; counts how often they are read."""

    def __init__(self, *holders: int) -> None:
        self.holders = set(holders)
        self.read = 0

    def lacks(self, holder: int, dealing: str) -> bool:
        return holder in self.holders

    def parcels(self, dealing: str) -> list[Parcel]:
        self.read += 1
        return [parcel(holder) for holder in range(5)]


def boxes(store: MemoryStore, kept: Kept | None = None) -> Mailboxes:
    return Mailboxes(store, kept or Kept())


def post(boxes: Mailboxes, name: str, *messages) -> None:
    for message in messages:
        boxes.post([Send(name, message)])


def collect(boxes: Mailboxes, name: str, holder: int | None = None, **limits) -> list:
    letters = boxes.collect(name, holder, limits.pop("most_bytes", 10**6), **limits)
    return [unpack(letter.frame, 10**6) for letter in letters]


def test_letters_survive_a_restart_in_order() -> None:
    store = MemoryStore()
    post(boxes(store), "alice", ADMITTED, OPENED, Refusal("Malformed", "x"))
    assert collect(boxes(store), "alice") == [ADMITTED, OPENED, Refusal("Malformed", "x")]


def test_a_letter_is_gone_when_it_is_dealt_with_and_not_before() -> None:
    store = MemoryStore()
    first = boxes(store)
    post(first, "alice", ADMITTED, OPENED)
    assert first.collect("alice", None, 10**6) == first.collect("alice", None, 10**6)
    first.acknowledge("alice", first.collect("alice", None, 10**6)[0].number)
    assert collect(first, "alice") == [OPENED]
    assert collect(boxes(store), "alice") == [OPENED]


def test_what_goes_to_many_is_stored_once_and_goes_with_the_last_of_them() -> None:
    store = MemoryStore()
    first = boxes(store)
    first.post([Send(name, OPENED) for name in HOLDERS])
    assert len(store.keys("letter")) == 1
    for name in HOLDERS:
        assert len(store.keys("letter")) == 1
        assert collect(first, name) == [OPENED]
        first.acknowledge(name, 0)
    assert store.keys("letter") == []


def test_what_one_has_dealt_with_does_not_come_again_while_others_have_not() -> None:
    store = MemoryStore()
    first = boxes(store)
    first.post([Send(name, OPENED) for name in HOLDERS])
    first.acknowledge(HOLDERS[0], 0)
    again = boxes(store)
    assert collect(again, HOLDERS[0]) == []
    assert collect(again, HOLDERS[1]) == [OPENED]
    for name in HOLDERS[1:]:
        again.acknowledge(name, 0)
    assert store.keys("letter") == []


def test_without_its_mark_it_would_come_again() -> None:
    """The control."""
    store = MemoryStore()
    first = boxes(store)
    first.post([Send(name, OPENED) for name in HOLDERS])
    first.acknowledge(HOLDERS[0], 0)
    store.commit([Forget("read", HOLDERS[0])])
    assert collect(boxes(store), HOLDERS[0]) == [OPENED]


def test_no_number_is_given_twice_even_if_all_letters_are_gone() -> None:
    """A machine that is rebuilt keeps its callers, and they name the last number that they have seen."""
    store = MemoryStore()
    first = boxes(store)
    post(first, "alice", ADMITTED, OPENED)
    (_, last) = first.collect("alice", None, 10**6)
    first.acknowledge("alice", last.number)
    again = boxes(store)
    post(again, "alice", ADMITTED)
    again.acknowledge("alice", last.number)
    assert collect(again, "alice") == [ADMITTED]


def test_the_same_words_said_twice_to_one_are_said_twice_and_in_order() -> None:
    first = boxes(MemoryStore())
    other = Refusal("Malformed", "x")
    first.post([Send("alice", OPENED), Send("alice", other), Send("alice", OPENED)])
    assert collect(first, "alice") == [OPENED, other, OPENED]


def test_parcels_are_kept_once_and_read_when_they_are_fetched() -> None:
    store, kept = MemoryStore(), Kept(0, 1, 2, 3, 4)
    first = boxes(store, kept)
    first.post([Send(HOLDERS[index], parcel(index)) for index in range(5)])
    ((_, letter),) = store.scan("letter")
    assert len(letter) < 200
    assert collect(first, HOLDERS[3], 3) == [parcel(3)]
    assert kept.read == 0  # fresh ones are still in memory
    again = boxes(store, kept)
    assert collect(again, HOLDERS[3], 3) == [parcel(3)]
    assert collect(again, HOLDERS[2], 2) == [parcel(2)]
    assert kept.read == 1
    kept.holders.discard(3)  # the mask is over, or the holder has confirmed it
    assert collect(again, HOLDERS[3], 3) == []


def test_parcels_in_memory_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(mailboxes, "_FRESH_BYTES", 1)
    first = boxes(MemoryStore(), Kept(0, 1, 2, 3, 4))
    first.post([Send(HOLDERS[index], parcel(index)) for index in range(5)])
    first._remember("another", [parcel(0)])
    assert list(first._fresh) == ["another"]
    assert first._fresh_bytes == len(parcel(0).sealed)
    assert collect(first, HOLDERS[3], 3) == [parcel(3)]


def test_a_parcel_that_is_not_kept_any_more_travels_whole() -> None:
    """A dealer that lost its receipts ships again; holders who confirmed get their parcel again."""
    first = boxes(MemoryStore())
    post(first, "bob", parcel())
    assert collect(first, "bob", 3) == [parcel()]


def test_questions_and_final_verdicts_are_urgent() -> None:
    first = boxes(MemoryStore())
    for message, urgent in ((ADMITTED, False), (OPENED, True), (parcel(), False)):
        post(first, "alice", message)
        assert first.take_woken() == {"alice": urgent}
    post(first, "alice", OPENED, ADMITTED)
    assert first.take_woken() == {"alice": True}
    assert first.take_woken() == {}


def test_there_is_news_for_whoever_has_not_seen_all(monkeypatch) -> None:
    monkeypatch.setattr(mailboxes, "MAX_LETTERS", 2)
    first = boxes(MemoryStore())
    assert first.has_news("alice", None)
    assert not first.has_news("alice", 0)
    post(first, "alice", OPENED, OPENED)
    assert first.has_news("alice", 0)
    assert not first.has_news("alice", 1)
    post(first, "alice", OPENED)  # does not fit: the machine has to be asked
    assert first.has_news("alice", 1)


def test_a_batch_is_bounded_but_never_empty() -> None:
    first = boxes(MemoryStore())
    for _ in range(5):
        post(first, "bob", parcel())
    assert len(collect(first, "bob", 3, most_bytes=1)) == 1
    assert len(collect(first, "bob", 3, most_letters=3)) == 3


def test_what_does_not_fit_is_noted_until_the_box_is_empty(monkeypatch) -> None:
    monkeypatch.setattr(mailboxes, "MAX_LETTERS", 2)
    store = MemoryStore()
    first = boxes(store)
    post(first, "alice", OPENED, OPENED, OPENED)
    assert len(first._boxes["alice"].letters) == 2
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
