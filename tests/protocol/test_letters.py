"""What a driver does with letters: all are heard in order, alike ones written together, refusals answered."""

from samples import make_samples

from basecagg.errors import Malformed
from basecagg.protocol.effects import Persist, Send
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.letters import answered, take
from basecagg.protocol.messages import (
    Closing,
    MaskName,
    Parcel,
    Receipt,
    Refusal,
    Ticket,
    Upload,
    Verdict,
)
from basecagg.storage.memory import MemoryStore

MASK = MaskName("ann", bytes(16))
UPLOAD = Upload(Ticket(bytes(32), MASK, 0, bytes(32), bytes(32)), b"words")


class Listener:
    """Writes down what it hears, and what it heard when it was asked for a receipt."""

    def __init__(self):
        self.heard, self.runs = [], []

    def receive(self, message):
        self.heard.append(message)
        return [Persist("heard", str(len(self.heard)), b"")]

    def acknowledge(self):
        self.runs.append(len(self.heard) - sum(self.runs))
        return [Send(SERVER, self.heard[-1])]


def test_alike_ones_are_written_together_but_not_too_many():
    """A receipt or parcel needs no record of the one before; everything else has a transaction of its own."""
    receipts = [Receipt(bytes(32), index, (MASK,)) for index in range(40)]
    closings = [Closing(bytes(32), version, (MASK,), "burned") for version in range(2)]
    letters = [*receipts, *closings, receipts[0]]
    listener, store = Listener(), MemoryStore()
    sends = take(listener, store, letters, refused=None)
    assert listener.heard == letters
    assert listener.runs == [32, 8, 1, 1, 1]
    assert [send.message for send in sends] == [letters[at] for at in (31, 39, 40, 41, 42)]
    assert len(store.keys("heard")) == 43


def test_parcels_and_receipts_are_written_together():
    parcel, receipt = make_samples()[Parcel], make_samples()[Receipt]
    listener = Listener()
    take(listener, MemoryStore(), [parcel, parcel, receipt], refused=None)
    assert listener.runs == [3]


def reply_to(message, reason="no"):
    told = []

    def receive():
        raise Malformed(reason)

    replies = answered("bob", message, receive, lambda *what: told.append(what))
    assert [(each, str(why)) for each, why in told] == [(message, reason)]
    return replies


def test_who_is_refused_learns_why():
    assert reply_to(Receipt(bytes(32), 0, (MASK,))) == [Send("bob", Refusal("Malformed", "no"))]
    assert reply_to(UPLOAD) == [Send("bob", Verdict(bytes(32), MASK, "refused", "no"))]


def test_a_refusal_or_verdict_is_never_answered():
    """Else two that refuse each other would never end."""
    assert reply_to(Refusal("Malformed", "no")) == []
    assert reply_to(Verdict(bytes(32), MASK, "refused")) == []


def test_a_reason_is_cut_to_what_a_message_may_hold():
    (send,) = reply_to(UPLOAD, "x" * 1000)
    assert 0 < len(send.message.reason) < 1000
