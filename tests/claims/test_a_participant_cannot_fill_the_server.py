"""What a participant says is kept once, and only what the server can check: nothing is invented."""

from __future__ import annotations

import os

import numpy as np
import pytest
from parties import SIZE, make_federation

from basecagg import errors
from basecagg.errors import Refused
from basecagg.protocol.effects import sends_of
from basecagg.protocol.messages import MaskName, Receipt, Refusal, Shipment, signed
from basecagg.service.problems import Problem
from basecagg.service.server.host import EpochHost
from basecagg.service.server.registry import Charter
from basecagg.storage.in_memory import MemoryStore

OPEN = Charter(phase="open")
DEALERS = [f"dealer-{index}" for index in range(12)]


class Scene:
    """A server with a dealing of each dealer, and one holder who has something to say."""

    def __init__(self) -> None:
        self.federation = make_federation()
        self.store = MemoryStore()
        agreement, signer = self.federation.agreement, self.federation.identity("server")
        self.host = EpochHost(agreement, signer, self.store, np.zeros(SIZE, np.float32), OPEN)
        self.shipments = {name: self._deal(name) for name in DEALERS}
        self.masks = [shipment.dealing.masks[0] for shipment in self.shipments.values()]

    def _deal(self, name: str) -> Shipment:
        (send,) = sends_of(self.federation.contributor(name).deal(0))
        assert isinstance(send.message, Shipment)
        self.say(name, send.message)
        return send.message

    def say(self, name: str, message) -> None:
        self.host.receive(name, message)
        self.host.flush()

    def confirm(self, *masks: MaskName) -> None:
        evil = self.federation.agreement.holder_names[0]
        receipt = Receipt(self.federation.agreement.id, 0, masks)
        self.say(evil, signed(receipt, self.federation.identity(evil)))

    @property
    def stored(self) -> int:
        return sum(len(value) for kind in self.store.snapshot().values() for value in kind.values())

    def told(self, dealer: str) -> int:
        return len(self.host.mailboxes._boxes[dealer].letters)


def junk(count: int) -> list[MaskName]:
    return [MaskName("x" * 64, os.urandom(16)) for _ in range(count)]


def test_by_receipts_for_masks_that_nobody_dealt() -> None:
    scene = Scene()
    before = scene.stored
    with pytest.raises(Problem, match="was not dealt here"):
        scene.confirm(*scene.masks, *junk(200))
    assert scene.stored == before
    assert [scene.told(dealer) for dealer in DEALERS] == [0] * len(DEALERS)
    scene.confirm(*scene.masks)  # the control: without the junk it is passed on
    assert [scene.told(dealer) for dealer in DEALERS] == [1] * len(DEALERS)


def test_by_a_receipt_that_names_a_mask_again_and_again() -> None:
    scene = Scene()
    with pytest.raises(Problem, match="twice"):
        scene.confirm(*scene.masks, *[scene.masks[0]] * 500)
    assert scene.told(DEALERS[0]) == 0


def test_by_the_same_receipt_again_and_again() -> None:
    scene = Scene()
    for _ in range(20):
        scene.confirm(*scene.masks)
    assert scene.told(DEALERS[0]) == 1
    # A dealer who asks again lacks it: then, and for it alone, the receipt is passed on once more.
    scene.say(DEALERS[0], scene.shipments[DEALERS[0]])
    for _ in range(20):
        scene.confirm(*scene.masks)
    assert [scene.told(dealer) for dealer in DEALERS[:3]] == [2, 1, 1]


def test_by_invented_kinds_of_refusal() -> None:
    scene = Scene()
    for number in range(2000):
        scene.say("user-1", Refusal(f"code{number}", ""))
    scene.say("user-1", Refusal("MaskTaken", ""))
    assert scene.host.refusals == {"other": 2000, "MaskTaken": 1}


def test_every_kind_of_refusal_is_in_the_table() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    refusals = {
        kind.__name__ for kind in kinds if issubclass(kind, Refused) and kind is not Refused
    }
    assert refusals == errors.REFUSAL_CODES


def test_by_dealings_that_hardly_ever_expire() -> None:
    """The server's side of bounded expiry: what lives longer than a mask may is not relayed."""
    scene = Scene()
    (send,) = sends_of(scene.federation.contributor("late").deal(10**5))
    before = scene.stored
    with pytest.raises(Problem, match="not within mask_lifetime"):
        scene.say("late", send.message)
    assert scene.stored == before
