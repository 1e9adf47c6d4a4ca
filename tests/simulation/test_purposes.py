"""Bytes are told in words: every kind of message that a run sends has a purpose."""

from __future__ import annotations

from basecagg.baselines import secagg
from basecagg.channels.wire import AnyMessage
from basecagg.protocol import messages
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.messages import Message
from basecagg.simulation.purposes import PURPOSES, by_purpose, largest_part

NOT_IN_RUNS = {
    *(Epoch, messages.EpochEnd, messages.HolderKey, messages.Credential, messages.Refusal),
    *(messages.Inquiry, messages.Witness, messages.Release, messages.Parts),
}
"""Nobody is admitted, restored or refused there; models and their parts are downloads."""


def test_every_kind_has_words() -> None:
    kinds = set(AnyMessage.__args__) - NOT_IN_RUNS
    kinds |= {
        kind
        for kind in vars(secagg).values()
        if isinstance(kind, type)
        and issubclass(kind, Message)
        and kind.__module__ == secagg.__name__
    }
    assert {kind.__name__ for kind in kinds} <= set(PURPOSES)


def test_bytes_are_added_up_by_what_they_are_for_the_most_first() -> None:
    sent = {"Upload": 30, "Shipment": 20, "Parcel": 25, "Answer": 5, "Other": 20}
    assert list(by_purpose(sent).items()) == [
        ("sealed shares of masks", 45),
        ("updates", 30),
        ("Other", 20),
        ("answers that open a sum", 5),
    ]
    assert largest_part(sent) == "sealed shares of masks, 45\u00a0%"


def test_all_of_one_kind() -> None:
    assert largest_part({"PlainUpdate": 7}) == "updates, 100\u00a0%"
    assert largest_part({}) == largest_part({"Upload": 0}) == "nothing was sent"
