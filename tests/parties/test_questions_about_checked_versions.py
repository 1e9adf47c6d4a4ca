"""A member that made a version again answers for that model only, also if it lost the server's words on it."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from parties import SIZE, USERS
from whole_epoch import WholeEpoch

from basecagg.parties.member import Member
from basecagg.protocol.effects import Forget
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Endorsement, History, RecoveryRequest, Ticket, signed
from basecagg.protocol.model_watch import ModelWatch

ANN, FIRST, NEXT = USERS[0], USERS[:3], USERS[3:6]
rng = np.random.default_rng(1)


class Town(WholeEpoch):
    """Version 1 is made, and Ann makes it again. Three others have trained from version 0 meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        for name in FIRST:
            self.contribute(name, self.update())
        self.tickets = sorted(map(self.ticket, NEXT), key=lambda ticket: ticket.mask)
        recovery = self.server.recovery
        self.history, self.previous = (
            recovery.kept.release(1).history,
            recovery.kept.certificate_of(1),
        )
        ann = self.restart()
        ann.take([recovery.kept.release(1)])
        assert ann.is_due(1)
        ann.take([recovery.kept.parts(1)])
        assert not ann.is_due(1)

    def update(self) -> np.ndarray:
        return rng.normal(scale=0.1, size=SIZE).astype(np.float32)

    def ticket(self, name: str) -> Ticket:
        """Of an update that the server keeps for itself."""
        self.say(name, self.members[name].deal())
        beginning = self.server.recovery.agreement.beginning
        (upload,) = self.members[name].submit(self.update(), 0, beginning.head)
        return upload.ticket

    def restart(self) -> Member:
        self.start_member(ANN, floor=LocalFloor(verify="always"))
        return self.members[ANN]

    def forget_words(self) -> Member:
        """What the server signed about any version; not which version she made again."""
        store = self.stores[ANN]
        kinds = ("released", "asked")
        store.commit([Forget(kind, key) for kind in kinds for key in store.keys(kind)])
        return self.restart()

    def question(self, history: History) -> RecoveryRequest:
        """The sum of the three, asked for in version 1 with this chain of models."""
        asked = RecoveryRequest(self.epoch.id, 1, 0, history, tuple(self.tickets), self.previous)
        return signed(asked, self.identities[SERVER])

    def exchanged(self) -> RecoveryRequest:
        """The server means another model by version 1 now."""
        *links, last = self.history.links
        other = replace(last, model_hash=b"Y" * 32)
        return self.question(replace(self.history, links=(*links, other)))


def endorses(ann: Member, question: RecoveryRequest) -> bool:
    return any(isinstance(said, Endorsement) for said in ann.take([question]))


def test_another_model_under_a_checked_number_is_made_again_before_she_answers():
    town = Town()
    ann = town.forget_words()
    assert not endorses(ann, town.exchanged())
    assert ann.take_wanted() == 1
    assert endorses(ann, town.question(town.history))
    assert ann.take_wanted() is None


def test_where_the_number_alone_counted_she_would_answer(monkeypatch):
    """Negative control."""
    is_due = ModelWatch.is_due
    monkeypatch.setattr(
        ModelWatch, "is_due", lambda watch, version, head=b"": is_due(watch, version)
    )
    town = Town()
    assert endorses(town.forget_words(), town.exchanged())
