"""The participant, rule by rule: what it joins and refuses, what ends an epoch, and what it forgets when."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import FrozenInstanceError

import msgspec
import numpy as np
import pytest
from harness import small
from participants import (
    ANN,
    DEALERS,
    NOW,
    STRANGER,
    Ann,
    PowerCutError,
    Town,
    quick,  # noqa: F401 - a fixture
)
from private import private

from basecagg.channels.identity import enrol
from basecagg.channels.sealing import SealingKeys
from basecagg.errors import (
    BadSignature,
    LocalProtocolError,
    Retired,
    StorageError,
    WrongEpoch,
)
from basecagg.protocol import life
from basecagg.protocol.effects import (
    BudgetEnded,
    Declined,
    Joined,
    Left,
    MaskEnded,
    StoreLost,
    writes_of,
)
from basecagg.protocol.epoch import Seat
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import (
    Answer,
    Endorsement,
    HolderKey,
    Receipt,
    Upload,
    Verdict,
    statement,
)
from basecagg.protocol.participant import GRACE, Participant
from basecagg.storage.in_memory import MemoryStore

pytestmark = pytest.mark.usefixtures("quick")
UPDATE = np.arange(5.0)


@pytest.fixture
def town():
    return Town()


@pytest.fixture
def ann(town, tmp_path):
    ann = Ann(town, tmp_path / "ann")
    yield ann
    ann.store.close()


def declined(ann, epoch, credential=None, *, match, code="WrongEpoch"):
    """She does not take it, changes nothing but her log of refusals, and that says why."""
    before = ann.machine.number, ann.machine.state, ann.machine.keys.states()
    news = ann.offer(epoch, credential)
    assert isinstance(news, Declined), news
    assert news.code == code
    assert match in news.reason
    assert (ann.machine.number, ann.machine.state, ann.machine.keys.states()) == before
    assert ann.machine.refusals()[code].reason == news.reason


def opened_sum(ann, epoch):
    """Ann gives her share of a sum of three; a request that shares a mask with it, and its parcels."""
    dealt = [ann.town.deal(epoch, dealer) for dealer in DEALERS]
    ann.hear(*(parcel for parcel, _ in dealt))
    tickets = [ticket for _, ticket in dealt]
    request = ann.town.request(epoch, tickets[:3])
    (vote,) = ann.hear(request)
    certified = ann.town.certified(request, vote)
    (answer,) = ann.hear(certified)
    assert (type(vote), type(answer)) == (Endorsement, Answer)
    return [parcel for parcel, _ in dealt], ann.town.request(epoch, tickets[1:]), certified


def answers_nothing(ann, epoch, parcels, overlapping):
    """The server tries everything that it ever had, and a sum that overlaps one that was answered."""
    before = len(ann.sent)
    ann.offer(epoch, ann.town.credential(epoch))
    ann.hear(*parcels, overlapping, ann.town.certified(overlapping))
    return not [m for m in ann.sent[before:] if isinstance(m, Receipt | Endorsement | Answer)]


# --- announcing a key -----------------------------------------------------------------------------


def test_an_announced_key_is_signed_and_says_what_was_joined_before(ann):
    ann.join(number=7)
    (said,) = ann.do(ann.machine.announce())
    assert isinstance(said, HolderKey)
    assert (said.federation, said.name, said.suite, said.after) == ("town", ANN, "x25519", 7)
    assert ann.machine._verifier.verify(ann.pins.signing_key, statement(said), said.signature)


def test_the_same_key_is_announced_until_another_is_wanted(ann):
    first = ann.announce()
    assert ann.announce() == first
    ann.restart()
    assert ann.announce() == first
    second = ann.announce(another=True)
    assert second != first
    assert ann.announce() == second
    assert ann.machine.keys.states() == {first.hex(): "announced", second.hex(): "announced"}


def test_of_many_announced_keys_the_eight_newest_are_kept(ann):
    keys = [ann.announce(another=True).hex() for _ in range(11)]
    assert list(ann.machine.keys.states()) == keys[-8:]
    ann.restart()
    assert set(ann.machine.keys.states()) == set(keys[-8:])


def test_any_announced_key_can_be_the_one_that_joins_and_older_ones_go(ann, town):
    first, second, third = (ann.announce(another=True) for _ in range(3))
    ann.offer(town.epoch(second, 1))
    assert ann.machine.keys.states() == {second.hex(): "joined", third.hex(): "announced"}
    ann.offer(town.epoch(third, 2))
    assert ann.machine.keys.states() == {third.hex(): "joined"}
    assert first.hex() not in ann.machine.keys.states()


# --- an epoch is offered --------------------------------------------------------------------------


def test_a_good_epoch_is_joined_and_held(ann, town):
    epoch = ann.join(number=3)
    assert ann.news[-1] == Joined(3, epoch.id, holds=True)
    assert (ann.machine.number, ann.machine.state) == (3, "inside")
    assert ann.machine.holder is not None
    assert ann.machine.contributor is not None


def test_an_epoch_of_another_operator_is_declined(ann, town):
    epoch = town.epoch(ann.announce(), operator=STRANGER)
    declined(ann, epoch, match="not signed by the operator", code="BadSignature")


CHANGED = {
    "protocol": 3,
    "number": 9,
    "ends": 5,
    "suite": "mlkem768-x25519",
    "server_key": STRANGER.public_key,
    "enrolment_key": STRANGER.public_key,
    "signature": bytes(64),
}


@pytest.mark.parametrize("field", CHANGED)
def test_a_changed_epoch_is_declined(ann, town, field):
    epoch = msgspec.structs.replace(town.epoch(ann.announce()), **{field: CHANGED[field]})
    declined(ann, epoch, match="not signed by the operator", code="BadSignature")


def resigned(town, epoch, **changes):
    epoch = msgspec.structs.replace(epoch, **changes)
    signature = town.identities["operator"].sign(statement(epoch))
    return msgspec.structs.replace(epoch, signature=signature)


def test_another_version_of_the_protocol_is_declined(ann, town):
    declined(ann, resigned(town, town.epoch(ann.announce()), protocol=3), match="version 3")


def test_another_federation_is_declined(ann, town):
    declined(ann, town.epoch(ann.announce(), federation="city"), match="it is of city")


def test_another_suite_is_declined(ann, town):
    """One that she was not promised, though all keys in it are of it; and keys of another one."""
    declined(ann, town.epoch(ann.announce(), suite="mlkem768-x25519"), match="none of the suite")
    epoch = town.epoch(ann.announce())
    ann.machine._suite = SealingKeys("mlkem768-x25519")
    declined(ann, epoch, match="town with x25519, I belong to town with mlkem768-x25519")


@pytest.mark.parametrize(
    ("floor", "match"),
    [
        (LocalFloor(buffer_size=4), "K = 3 is below my floor 4"),
        (LocalFloor(max_colluders=2), "T = 1 is below my floor 2"),
        (LocalFloor(min_per_version=4), "m = 3 is below my floor 4"),
    ],
)
def test_an_epoch_below_the_floor_is_declined(ann, town, floor, match):
    ann.floor = floor
    ann.restart()
    declined(ann, town.epoch(ann.announce()), match=match)


def test_an_epoch_that_allows_many_burns_is_declined(ann, town):
    """Each sum that is given up may have been opened."""
    ann.floor = LocalFloor(consistency="certified", min_per_version=1)
    ann.restart()
    declined(
        ann, town.epoch(ann.announce(), max_burns=2), match="max_burns = 2 is above my limit 1"
    )
    ann.floor = LocalFloor(consistency="certified", min_per_version=1, max_burns=2)
    ann.restart()
    assert isinstance(ann.offer(town.epoch(ann.announce(), max_burns=2)), Joined)


def test_an_uncertified_epoch_is_declined_by_who_insists_on_certificates(ann, town):
    ann.floor = LocalFloor(consistency="certified", min_per_version=1)
    ann.restart()
    honest = small("honest-server", "own")
    declined(ann, town.epoch(ann.announce(), parameters=honest), match="'certified'")
    assert isinstance(ann.offer(town.epoch(ann.announce())), Joined)


@pytest.mark.parametrize("number", [1, 2])
def test_a_number_that_has_passed_is_declined(ann, town, number):
    ann.join(number=2)
    declined(ann, town.epoch(ann.announce(), number), match=f"its number {number} has passed")
    ann.restart()
    declined(ann, town.epoch(ann.announce(), number), match="I have been in 2")


def test_the_invitation_says_where_numbers_begin(town, tmp_path):
    ann = Ann(town, tmp_path / "late")
    ann.pins = town.pins(after=5)
    ann.restart()
    declined(ann, town.epoch(ann.announce(), 5), match="I have been in 5")
    assert isinstance(ann.offer(town.epoch(ann.announce(), 6)), Joined)
    ann.store.close()


def test_the_very_same_epoch_changes_nothing(ann, town):
    epoch = ann.join()
    opened_sum(ann, epoch)
    before = ann.copy()
    assert ann.offer(epoch, town.credential(epoch)) is None
    ann.restart()
    assert ann.offer(epoch) is None
    held = ann.machine.holder.states()
    assert set(held.values()) == {"spent", "held"}
    assert ann.copy()[1] == before[1]


def test_a_credential_may_come_later_but_once(ann, town):
    epoch = town.epoch(ann.announce())
    ann.offer(epoch)
    assert ann.machine.contributor is None
    ann.offer(epoch, town.credential(epoch))
    contributor = ann.machine.contributor
    ann.offer(epoch, town.credential(epoch))
    assert ann.machine.contributor is contributor
    ann.restart()
    assert ann.machine.contributor is not None


@pytest.mark.parametrize("late", [False, True], ids=["with the epoch", "later"])
def test_the_credential_of_somebody_else_is_declined(ann, town, late):
    epoch = town.epoch(ann.announce())
    if late:
        ann.offer(epoch)
    forged = enrol(STRANGER, epoch.id, ANN, town.key(ANN))
    wrong = {
        "another epoch or name": town.credential(epoch, "bob"),
        "another key than mine": town.credential(epoch, ANN, STRANGER.public_key),
        "not signed by the enrolment key": forged,
    }
    for match, credential in wrong.items():
        declined(ann, epoch, credential, match=match, code="NotEnrolled")
    assert ann.machine.contributor is None


def test_who_only_holds_takes_no_credential(town, tmp_path):
    ann = Ann(town, tmp_path / "holder")
    ann.pins = town.pins(contributes=False)
    ann.restart()
    ann.join()
    assert ann.machine.contributor is None
    ann.store.close()


def test_an_unknown_or_destroyed_key_only_contributes(ann, town):
    old = ann.announce()
    ann.offer(town.epoch(ann.announce(another=True), 1))  # destroys the older one
    for number, key in ((2, old), (3, STRANGER.public_key)):
        epoch = town.epoch(key, number)
        assert ann.offer(epoch, town.credential(epoch)) == Joined(number, epoch.id, holds=False)
        assert ann.machine.holder is None
        parcel, _ = town.deal(epoch, "w")
        ann.hear(parcel)
        assert isinstance(ann.refusals[-1], Retired)


def test_a_key_that_joined_another_epoch_is_refused(ann, town):
    epoch = ann.join(1)
    key = epoch.holders[0].sealing_key
    declined(ann, town.epoch(key, 2), match="with which I joined another epoch")


def test_another_signing_key_under_her_name_is_refused(ann, town):
    sealing = ann.announce()
    holders = [Seat(ANN, STRANGER.public_key, sealing), *town.epoch(sealing).holders[1:]]
    declined(ann, town.epoch(sealing, holders=holders), match="another signing key under my name")


def test_an_epoch_in_which_she_holds_nothing_is_joined(ann, town):
    elsewhere = town.epoch(ann.announce())
    eve = Seat("eve", STRANGER.public_key, elsewhere.holders[1].sealing_key)
    epoch = town.epoch(ann.announce(), holders=[eve, *elsewhere.holders[1:]])
    assert ann.offer(epoch) == Joined(1, epoch.id, holds=False)


def test_an_epoch_whose_time_has_passed_is_declined(ann, town):
    declined(ann, town.epoch(ann.announce(), ends=NOW), match="its end has passed by my clock")


# --- accepted: one transaction --------------------------------------------------------------------


def test_joining_is_one_transaction(ann, town):
    ann.join(1)
    key = ann.announce()
    epoch = town.epoch(key, 2)
    effects = ann.machine.offer(epoch)
    assert lasting(effects) == {"sealing", "highest", "membership"}
    store = MemoryStore()
    for kind in ("sealing", "membership", "number", "charter", "epoch"):
        store._kinds[kind].update(ann.store.scan(kind))
    store.commit(writes_of(effects))
    assert store.number == 2
    assert store.keys("sealing") == [key.hex()]
    rebuilt = Participant(
        ann.pins, town.identities[ANN], ann.machine._suite, ann.machine._verifier, store
    )
    assert rebuilt.keys.states() == {key.hex(): "joined"}
    assert rebuilt.agreement.id == epoch.id
    ann.restart()  # the effects were never carried out: nothing of them has happened
    assert ann.machine.number == 1
    assert ann.machine.keys.states()[key.hex()] == "announced"


def test_she_does_not_train_for_nothing_when_her_budget_is_spent(ann):
    """Not in the next epoch either: the budget is one."""
    p = small(**{"min_per_version": None} | private(max_uses=1))
    epoch = ann.join(1, parameters=p)
    ann.ready_mask(epoch)
    assert ann.machine.may_train
    ann.submit(UPDATE)
    assert ann.machine.refusals()["BudgetSpent"].reason.startswith("all k_max = 1 uploads")
    ann.restart()
    ann.ready_mask(ann.join(2, parameters=p))
    assert ann.machine.working().ready
    assert not ann.machine.may_train


def test_she_says_when_she_joins_that_no_upload_of_this_epoch_can_be_paid_for(ann):
    ann.ready_mask(ann.join(1))
    ann.submit(UPDATE)
    ann.join(2, parameters=small(**{"min_per_version": None} | private()))
    (ended,) = [news for news in ann.news if isinstance(news, BudgetEnded)]
    assert ended.reason.startswith("1 earlier uploads from this store had no noise")
    assert ann.machine.refusals()["BudgetSpent"].reason == ended.reason
    ann.join(3)  # another one without noise
    assert ann.machine.working().may_spend


def test_an_old_copy_of_her_does_not_train_where_it_costs_privacy(ann):
    epoch = ann.join(1, parameters=small(**{"min_per_version": None} | private()))
    old = ann.copy()
    ann.ready_mask(epoch)
    ann.submit(UPDATE)
    ann.restore(*old[:1])
    ann.join(2, parameters=small(**{"min_per_version": None} | private()))
    assert not ann.machine.working().may_spend


def test_when_she_may_train(ann, town):
    """With a mask ready, no update on its way, the epoch not over. She rests if only a version is missing."""
    assert not ann.machine.may_train
    epoch = ann.join(1, ends=NOW + 100)
    assert not ann.machine.may_train
    ann.ready_mask(epoch)
    assert ann.machine.may_train
    ann.ready_mask(epoch)
    ann.submit(UPDATE)
    assert ann.machine.working().ready
    assert not ann.machine.may_train
    assert not ann.machine.is_resting
    ann.hear(*(Verdict(epoch.id, m.mask, "refused") for m in uploaded(ann)))
    assert not ann.machine.may_train  # from this version: it has uploaded an update from it
    assert ann.machine.is_resting
    ann.hear(town.closing(epoch, *(m.mask for m in uploaded(ann))))
    assert ann.machine.may_train  # the server has signed that it is burned
    assert not ann.machine.is_resting
    ann.tick(NOW + 200)
    assert not ann.machine.may_train


def uploaded(ann):
    return [message.ticket for message in ann.sent if isinstance(message, Upload)]


def test_what_was_pinned_stays(ann):
    with pytest.raises(FrozenInstanceError):
        ann.pins.name = "bob"


def lasting(effects):
    """The kinds of records that an older copy of the store may not lack unnoticed."""
    return {effect.kind for effect in writes_of(effects) if getattr(effect, "irreversible", False)}


def test_leaving_and_forgetting_are_written_for_good(ann, town):
    epoch = ann.join(1)
    forgotten = lasting(ann.machine._forget("a reason"))
    assert "membership" in forgotten
    assert "ledger" in forgotten  # nobody knows what is left of her budget of privacy
    ann.restart()
    assert lasting(ann.machine.receive(town.end(epoch))) == {"membership"}


def test_an_old_copy_says_why_it_forgot(ann):
    old = ann.copy()
    ann.join(1)
    ann.join(2)
    ann.restore(*old[:1])
    (lost,) = [news for news in ann.news if isinstance(news, StoreLost)]
    assert lost.reason == "the store is an older copy of itself, or its anchor is"
    assert ann.machine.refusals()["StoreLost"].reason == lost.reason


def test_nothing_of_an_epoch_follows_into_the_next(ann, town):
    epoch = ann.join(1)
    opened_sum(ann, epoch)
    ann.ready_mask(epoch)
    ann.submit(UPDATE)
    ann.ready_mask(epoch)
    ann.do(ann.machine.working().deal(0))  # no holder confirms it
    kinds = ("held", "share", "answer", "progress", "vote")
    kinds += ("mask", "dealing", "locks", "ticket", "upload", "epoch")
    assert [kind for kind in kinds if not ann.store.keys(kind)] == []
    following = ann.join(2)
    assert [news.state for news in ann.news if isinstance(news, MaskEnded)] == ["burned"] * 3
    assert ann.machine.holder.states() == {}
    assert [kind for kind in kinds if ann.store.keys(kind)] == ["epoch"]
    assert ann.store.read("epoch", "") == following.id
    ann.hear(town.end(following))
    assert ann.store.keys("epoch") == []


# --- the end of an epoch --------------------------------------------------------------------------


def test_the_operators_word_ends_an_epoch_and_destroys_its_key(ann, town):
    epoch = ann.join(4)
    parcels, overlapping, _ = opened_sum(ann, epoch)
    following = ann.announce()
    ann.hear(town.end(epoch))
    assert ann.news[-1] == Left(4, "the operator ended it")
    assert (ann.machine.number, ann.machine.state) == (4, "outside")
    assert ann.machine.keys.states() == {following.hex(): "announced"}
    for _ in range(2):
        assert answers_nothing(ann, epoch, parcels, overlapping)
        declined(ann, epoch, match="is over for me")
        ann.restart()


def test_an_end_is_heard_once(ann, town):
    epoch = ann.join()
    ann.hear(town.end(epoch))
    news = list(ann.news)
    ann.hear(town.end(epoch))
    assert ann.news == news
    assert not ann.refusals


@pytest.mark.parametrize("by", ["server", "enrolment", ANN, "bob"])
def test_nobody_else_ends_an_epoch(ann, town, by):
    epoch = ann.join()
    ann.hear(town.end(epoch, by))
    assert isinstance(ann.refusals[-1], BadSignature)
    assert ann.machine.state == "inside"


def test_the_end_of_another_epoch_is_none_of_hers(ann, town):
    first = ann.join(1)
    ann.join(2)
    ann.hear(town.end(first))
    assert isinstance(ann.refusals[-1], WrongEpoch)
    assert ann.machine.holder is not None


def test_her_own_clock_stops_an_epoch_at_once_and_destroys_it_later(ann, town):
    epoch = ann.join(ends=NOW + 100)
    ann.ready_mask(epoch)
    parcel, _ = town.deal(epoch, "w")
    ann.tick(NOW + 100)
    ann.hear(parcel)
    assert isinstance(ann.refusals[-1], Retired)
    assert not ann.machine.may_train
    with pytest.raises(LocalProtocolError):
        ann.machine.working()
    ann.tick(NOW + 100 + GRACE - 1)
    assert ann.machine.state == "inside"
    ann.tick(NOW + 100 + GRACE)
    assert ann.news[-1] == Left(1, "its time has passed")
    assert ann.machine.keys.states() == {}


@pytest.mark.parametrize("jump", [100, 10**9], ids=["a bit", "by decades"])
def test_a_clock_that_jumps_and_comes_back_costs_nothing(ann, town, jump):
    epoch = ann.join(ends=NOW + 100)
    parcel, _ = town.deal(epoch, "w")
    ann.tick(NOW + jump)
    ann.hear(parcel)
    assert isinstance(ann.refusals[-1], Retired)
    ann.tick(NOW + jump + 10)
    ann.tick(NOW + 10)
    assert [type(message) for message in ann.hear(parcel)] == [Receipt]


def test_a_clock_that_was_wrong_does_not_lengthen_the_wait(ann):
    ann.join(ends=NOW + 100)
    ann.tick(NOW + 10**9)
    ann.tick(NOW + 100)
    ann.tick(NOW + 100 + GRACE)
    assert ann.machine.state == "outside"


def test_the_wait_goes_on_through_restarts(ann):
    ann.join(ends=NOW + 100)
    for now in (NOW + 100, NOW + 100 + GRACE // 2, NOW + 100 + GRACE):
        assert ann.machine.state == "inside"
        ann.now = now
        ann.restart()
    assert ann.machine.state == "outside"


def test_nothing_is_sent_again_when_the_time_has_passed(ann, town):
    epoch = ann.join(ends=NOW + 100)
    ann.ready_mask(epoch)
    ann.submit(UPDATE)
    assert [type(message) for message in ann.restart()] == [Upload]
    ann.now = NOW + 100
    assert ann.restart() == []
    assert ann.do(ann.machine.reconnect()) == []
    ann.tick(NOW)
    assert [type(message) for message in ann.do(ann.machine.reconnect())] == [Upload]


# --- floors that are raised -----------------------------------------------------------------------


@pytest.mark.parametrize("old_copy", [False, True])
def test_a_floor_that_was_raised_stops_the_present_epoch(ann, town, old_copy):
    epoch = ann.join()
    ann.ready_mask(epoch)
    copy = ann.copy()
    ann.submit(UPDATE)
    ann.floor = LocalFloor(buffer_size=4)
    assert ann.restore(copy[0] if old_copy else None) == []
    assert ann.news[-1].reason == "K = 3 is below my floor 4"
    assert "WrongEpoch" in ann.machine.refusals()
    with pytest.raises(LocalProtocolError):
        ann.machine.working()
    parcel, _ = town.deal(epoch, "w")
    ann.hear(parcel)
    assert isinstance(ann.refusals[-1], Retired)
    ann.hear(town.end(epoch))
    assert ann.machine.state == "outside"


# --- amnesia --------------------------------------------------------------------------------------


def forgot(ann, number):
    """No sealing key, no share, no mask to use; the number is what it was."""
    assert ann.machine.keys.states() == {}
    assert ann.machine.holder is None
    assert ann.machine.contributor is None or not ann.machine.contributor.states()
    assert ann.machine.number == number
    return any(isinstance(news, StoreLost) for news in ann.news)


def later_life(ann):
    """Epoch 2 with an answered sum, and copies of store and anchor from before, while the key was fresh."""
    ann.join(1)
    key = ann.announce()
    copy = ann.copy()
    epoch = ann.town.epoch(key, 2)
    ann.offer(epoch, ann.town.credential(epoch))
    parcels, overlapping, _ = opened_sum(ann, epoch)
    return copy, (epoch, parcels, overlapping)


LOSSES = {
    "an old copy": lambda ann, copy: ann.restore(copy[0]),
    "a deleted store": lambda ann, copy: ann.restore(b""),
    "an anchor two behind": lambda ann, copy: ann.restore(None, copy[1]),
    "an unreadable anchor": lambda ann, copy: ann.restore(None, b"\xff" * 8192),
    "a deleted anchor": lambda ann, copy: ann.restore(None, b""),
    "a foreign anchor": lambda ann, copy: ann.restore(None, foreign_anchor(ann)),
    "an old copy without its anchor": lambda ann, copy: ann.restore(copy[0], b""),
}


def foreign_anchor(ann):
    other = Ann(ann.town, ann.folder / "other")
    other.join(1)
    other.store.close()
    return other.anchor.read_bytes()


@pytest.mark.parametrize("loss", LOSSES)
def test_whatever_could_be_forgotten_takes_the_keys_with_it(ann, loss):
    copy, everything = later_life(ann)
    LOSSES[loss](ann, copy)
    assert forgot(ann, number=1 if "without its anchor" in loss else 2)
    for _ in range(2):
        assert answers_nothing(ann, *everything)
        ann.restart()


def test_control_a_store_and_an_anchor_that_fit_would_answer_again(ann):
    """It is the anchor that tells: what was restored as a whole is not noticed, so backups leave it out."""
    copy, everything = later_life(ann)
    ann.restore(*copy)
    with pytest.raises(AssertionError, match="two different endorsements"):
        answers_nothing(ann, *everything)


def test_an_old_copy_whose_epoch_is_over_by_the_clock_forgets_first(ann, town):
    """Leaving by the clock is a write too: it must not make an older copy look current."""
    ann.join(1, ends=NOW + 100)
    key = ann.announce()
    copy = ann.copy()
    epoch = town.epoch(key, 2)
    ann.offer(epoch, town.credential(epoch))
    parcels, overlapping, _ = opened_sum(ann, epoch)
    ann.now = NOW + 100 + GRACE
    ann.restore(copy[0], b"\xff" * 8192)  # and nothing knows the number of epoch 2 any more
    assert forgot(ann, number=1)
    assert answers_nothing(ann, epoch, parcels, overlapping)


def test_an_anchor_one_behind_is_a_crash_and_costs_nothing(ann, town, monkeypatch):
    epoch = ann.join()
    parcels, _, _ = opened_sum(ann, epoch)
    anchor = ann.anchor.read_bytes()
    ann.hear(town.closing(epoch, *parcels[0].dealing.masks))
    ann.restore(None, anchor)
    assert ann.machine.holder is not None
    assert not [news for news in ann.news if isinstance(news, StoreLost)]


def test_after_amnesia_she_goes_on_with_fresh_masks_and_a_fresh_key(ann, town):
    copy, (epoch, *_) = later_life(ann)
    ann.ready_mask(epoch)
    ann.restore(None, copy[1])
    assert [news.state for news in ann.news if isinstance(news, MaskEnded)] == ["burned"]
    ann.ready_mask(epoch)
    ann.submit(UPDATE)
    assert ann.offer(town.epoch(ann.announce(), 3)).holds


def test_tombstones_stay_through_amnesia(ann):
    epoch = ann.join()
    opened_sum(ann, epoch)
    ann.restore(None, b"\xff" * 8192)
    assert len(ann.store.keys("held")) == len(DEALERS)
    assert ann.store.keys("share") == []


def test_a_certificate_with_an_endorsement_that_she_does_not_remember_is_amnesia(ann, town):
    """A clone spoke for her: what it has answered is not known here."""
    epoch = ann.join()
    parcels, overlapping, _ = opened_sum(ann, epoch)
    ann.hear(town.certified(overlapping, town.vote(overlapping, 0)))
    assert ann.news[-1] == StoreLost("somebody else endorsed a request with my key")
    assert forgot(ann, number=1)
    assert answers_nothing(ann, epoch, parcels, overlapping)


def test_the_certificate_in_the_next_request_tells_as_well(ann, town):
    epoch = ann.join()
    _, overlapping, _ = opened_sum(ann, epoch)
    stranger = town.certificate(overlapping, town.vote(overlapping, 0))
    ann.hear(town.request(epoch, overlapping.tickets, 1, stranger))
    assert forgot(ann, number=1)


def test_other_certificates_are_no_reason_to_forget(ann, town):
    """Her own vote, others' votes, a forged one of hers, one of another epoch."""
    first = ann.join(1)
    _, unseen, _ = opened_sum(ann, first)
    ann.join(2)
    epoch = ann.machine.agreement.epoch
    _, overlapping, certified = opened_sum(ann, epoch)
    forged = msgspec.structs.replace(town.vote(overlapping, 0), signature=bytes(64))
    ann.hear(
        certified,
        town.certified(overlapping),
        town.certified(overlapping, forged),
        town.certified(unseen, town.vote(unseen, 0)),
    )
    assert not [news for news in ann.news if isinstance(news, StoreLost)]
    assert ann.machine.holder is not None


# --- fingerprints ---------------------------------------------------------------------------------


def test_an_update_is_masked_once_in_all_epochs(ann):
    for number in (1, 2):
        ann.ready_mask(ann.join(number))
        if number == 1:
            ann.submit(UPDATE)
    with pytest.raises(LocalProtocolError, match="masked before"):
        ann.submit(UPDATE)
    ann.submit(UPDATE + 1)


def test_an_update_is_masked_once_in_all_federations_that_share_a_file(tmp_path):
    """Both machines are there before the first fingerprint is: their salt must be one."""
    anns = [Ann(Town(f"town-{i}"), tmp_path / "node", namespace=f"{i}") for i in range(2)]
    for ann in anns:
        ann.ready_mask(ann.join(parameters=small(weights="own", repeated_versions=True)))
    anns[0].submit(UPDATE)
    with pytest.raises(LocalProtocolError, match="masked before"):
        anns[1].submit(UPDATE)
    anns[1].submit(UPDATE + 1)
    anns[0].ready_mask(anns[0].machine.agreement.epoch)
    with pytest.raises(LocalProtocolError, match="masked before"):
        anns[0].submit(UPDATE + 1)
    for ann in anns:
        ann.store.close()


def test_control_files_of_their_own_do_not_know_of_each_other(tmp_path):
    for i in range(2):
        ann = Ann(Town(f"town-{i}"), tmp_path / f"node-{i}")
        ann.ready_mask(ann.join())
        ann.submit(UPDATE)
        ann.store.close()


def test_an_absurd_version_costs_no_mask(ann):
    """A server says it without a signature. Whoever refuses it must be as it was before."""
    ann.join()
    working = ann.machine.working()
    (shipment,) = ann.do(working.deal(0))
    with pytest.raises(LocalProtocolError, match="not believed"):
        working.deal_ahead(10**14, 2)
    assert ann.do(ann.machine.reconnect()) == [shipment]


# --- the refusal log and the tables ---------------------------------------------------------------


def test_refusals_are_counted_by_their_kind_and_kept(ann, town):
    epoch = ann.join(2)
    for _ in range(3):
        ann.offer(town.epoch(ann.announce(), 1))
    ann.offer(town.epoch(ann.announce(), operator=STRANGER))
    ann.offer(epoch, town.credential(epoch, "bob"))
    ann.restart()
    log = {code: noted.count for code, noted in ann.machine.refusals().items()}
    assert log == {"WrongEpoch": 3, "BadSignature": 1}  # a second credential is not even looked at


def test_every_step_is_in_the_tables_and_every_step_of_the_tables_is_taken(ann, town, monkeypatch):
    taken, after = set(), life.after

    def noting(table, state, event):
        if table in (life.PARTICIPANT, life.SEALING_KEY):
            taken.add((state, event, after(table, state, event)))
        return after(table, state, event)

    monkeypatch.setattr(life, "after", noting)
    ann.restore(None, b"")  # outside: forget
    ann.announce()
    ann.restore(None, b"")  # an announced key is destroyed
    first = ann.join(1)
    copy = ann.copy()
    ann.join(2)
    ann.restore(copy[0])
    ann.hear(town.end(first))
    last = ann.join(3)
    ann.hear(town.end(last))
    tables = (life.PARTICIPANT, life.SEALING_KEY)
    steps = {(s, e, t) for table in tables for s, row in table.items() for e, t in row.items()}
    assert taken == steps


# --- crashes --------------------------------------------------------------------------------------


def play(ann):
    """A life with every kind of step in it."""
    town = ann.town
    ann.announce()
    first = town.epoch(ann.announce(another=True), 1)
    ann.offer(first)
    ann.offer(first, town.credential(first))
    parcels, *_ = opened_sum(ann, first)
    ann.ready_mask(first)
    ann.submit(UPDATE)
    ann.hear(town.closing(first, *parcels[3].dealing.masks))
    second = town.epoch(ann.announce(), 2, ends=NOW + 100)
    ann.offer(second, town.credential(second))
    opened_sum(ann, second)
    ann.tick(NOW + 200)
    ann.tick(NOW + 100)
    ann.hear(town.end(second))
    ann.join(3)


def cut_short(ann, where, at):
    """The same life with the power cut at the commit number `at`; how many commits there were."""
    commits, write = [], ann._write

    def counting(batch, mark):
        commits.append(mark)
        if len(commits) - 1 == at:
            ann.cut = where
        write(batch, mark)

    ann.store._write = counting
    with suppress(PowerCutError):
        play(ann)
    return len(commits)


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_a_crash_at_every_boundary(town, tmp_path, where):
    """Before a commit, between store and anchor, and after both: she goes on, and nothing weakens."""
    ann = Ann(town, tmp_path / "undisturbed")
    boundaries = cut_short(ann, "", -1)
    ann.store.close()
    assert boundaries > 18
    for at in range(boundaries):
        ann = Ann(town, tmp_path / f"{at}")
        assert cut_short(ann, where, at) == at + 1
        if where != "before":
            ann.judge.look(ann)
        ann.restart()
        ann.judge.look(ann)
        assert not [news for news in ann.news if isinstance(news, StoreLost)]
        opened_sum(ann, ann.join(10))
        ann.judge.look(ann)
        ann.store.close()


def test_control_a_machine_that_sends_before_it_writes_is_found(town, tmp_path, monkeypatch):
    """The answer leaves, the note of it does not reach the disk: the next life gives another."""
    ann = Ann(town, tmp_path / "hasty")
    epoch = ann.join()
    dealt = [town.deal(epoch, dealer) for dealer in DEALERS]
    ann.hear(*(parcel for parcel, _ in dealt))
    tickets = [ticket for _, ticket in dealt]
    requests = town.request(epoch, tickets[:3]), town.request(epoch, tickets[1:])
    monkeypatch.setattr(ann.store, "commit", lambda writes: None)
    ann.hear(town.certified(requests[0]))
    ann.restart()
    with pytest.raises(AssertionError, match="two different answers"):
        ann.hear(town.certified(requests[1]))
    ann.store.close()


def test_a_store_whose_anchor_fails_says_nothing_more(ann, town, monkeypatch):
    epoch = ann.join()
    dealt = [town.deal(epoch, dealer) for dealer in DEALERS[:3]]
    ann.hear(*(parcel for parcel, _ in dealt))
    before = list(ann.sent)
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
        with pytest.raises(StorageError, match="nothing may be sent"):
            ann.hear(town.request(epoch, [ticket for _, ticket in dealt]))
    assert ann.sent == before
    ann.restart()
    assert set(ann.machine.holder.states().values()) == {"endorsed"}
