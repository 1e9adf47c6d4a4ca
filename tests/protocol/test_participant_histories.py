"""Arbitrary histories of one participant: whatever comes in whatever order, nothing of hers ever weakens.

Everybody else is a puppet, and everything that was ever signed may come again at any time: epochs, ends,
credentials, parcels, requests, certificates, closings, receipts, verdicts, of several epochs and of another
operator; damaged, or mere noise. Her power fails anywhere, her clock jumps, her files come back as older
copies. The judge of `participants` remembers all she ever said and was.
"""

from __future__ import annotations

import random
import shutil
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from participants import (
    ANN,
    NOW,
    Ann,
    Judge,
    PowerCutError,
    Town,
    quick,  # noqa: F401 - a fixture
)

from basecagg.channels.wire import pack
from basecagg.errors import LocalProtocolError
from basecagg.protocol.epoch import NEVER
from basecagg.protocol.messages import Endorsement, EpochEnd, Parcel, Shipment, Upload, Verdict
from basecagg.protocol.participant import GRACE
from basecagg.protocol.stored import StoredSealingKey, parse, write
from basecagg.storage.anchor import Mark

pytestmark = pytest.mark.usefixtures("quick")
TOWN, RIVAL = Town(), Town()
RIVAL.identities |= {n: i for n, i in TOWN.identities.items() if n != "operator"}
CLOCKS = (NOW, NOW + 60, NOW + 3600, NOW + 3600 + GRACE, NOW + 10**9)
UPDATES = [np.full(5, float(number)) for number in range(4)]
STEPS = 25
_precedes = Mark.precedes


class History:
    """One life of Ann, played by dice."""

    def __init__(self, seed, folder, ann_type=Ann):
        self.dice = random.Random(seed)
        self.ann = ann_type(TOWN, folder)
        self.epochs, self.signed_keys = [], set()
        self.letters = {}
        """By epoch: everything that anybody but Ann ever signed in it."""
        self.copies = []
        self.kinds = set()
        """What Ann has said in this life."""
        self.actions = {
            self.found_epoch: 1.5,
            self.offer: 2,
            self.letter: 4,
            self.barrage: 4,
            self.noise: 2,
            self.announce: 1,
            self.contribute: 3,
            self.crash: 2,
            self.cut_power: 2,
            self.restore: 3,
            self.lose_everything: 0.5,
            self.hear_409: 0.5,
            self.jump: 1,
        }

    def play(self):
        self.found_epoch()
        for _ in range(STEPS):
            try:
                self.choose()()
            except PowerCutError:
                self.ann.restart()
            self.ann.cut = ""
            if self.dice.random() < 0.5:
                self.copy()
            self.ann.judge.look(self.ann)
        self.kinds = {type(message) for message in self.ann.sent}
        self.ann.store.close()

    def choose(self):
        """Anything; but who holds no shares any more is soon asked to do so again."""
        if self.ann.machine.holder is None and self.dice.random() < 0.4:
            return self.found_epoch
        (action,) = self.dice.choices(list(self.actions), list(self.actions.values()))
        return action

    # --- what the operator and the server do --------------------------------------------------------

    def found_epoch(self):
        """An honest operator: numbers rise, and no key is signed twice."""
        key = self.ann.announce()
        if key in self.signed_keys:
            key = self.ann.announce(another=True)
        self.signed_keys.add(key)
        number, ends = len(self.epochs) + 1, self.dice.choice((NEVER, NEVER, NOW + 3600))
        epoch = TOWN.epoch(key, number, ends=ends)
        self.epochs += [epoch, RIVAL.epoch(key, number + 1, ends=ends)]
        self.letters[epoch.id] = sealed = [*TOWN.everything(epoch), RIVAL.end(epoch)]
        for message in sealed:
            request = getattr(message, "request", message)
            if hasattr(request, "tickets"):
                self.ann.judge.requests[request.digest] = request
        self.ann.offer(epoch, TOWN.credential(epoch))

    def offer(self):
        epoch = self.dice.choice(self.epochs)
        name = self.dice.choice((ANN, ANN, "bob", None))
        self.ann.offer(epoch, TOWN.credential(epoch, name) if name else None)

    def letter(self):
        every = [message for letters in self.letters.values() for message in letters]
        self.ann.hear(*self.dice.choices([*every, *self.said()], k=self.dice.randint(1, 6)))

    def said(self):
        """Her own words may come back to her as well: certificates that count her in, verdicts."""
        requests = self.ann.judge.requests
        for message in self.ann.sent[-20:]:
            if isinstance(message, Endorsement):
                yield TOWN.certified(requests[message.digest], message)
            if isinstance(message, Shipment):
                masks = message.dealing.masks
                yield from TOWN.receipts(self.epoch_of(message.dealing.epoch), *masks)
            if isinstance(message, Upload):
                for outcome in ("admitted", "opened", "burned"):
                    yield Verdict(message.ticket.epoch, message.ticket.mask, outcome)

    def epoch_of(self, epoch_id):
        return next(epoch for epoch in self.epochs if epoch.id == epoch_id)

    def barrage(self):
        """One epoch from its beginning, most often the newest: the parcels, then anything but its end."""
        epochs = [epoch for epoch in self.epochs if epoch.id in self.letters]
        epoch = self.dice.choice([*epochs, *[epochs[-1]] * len(epochs)])
        self.ann.offer(epoch, TOWN.credential(epoch))
        letters = [m for m in self.letters[epoch.id] if not isinstance(m, EpochEnd)]
        parcels = [message for message in letters if isinstance(message, Parcel)]
        sums = [message for message in letters if not isinstance(message, Parcel)]
        self.ann.hear(*parcels, *self.dice.sample(sums, self.dice.randint(1, 4)))

    def noise(self):
        every = [*self.letters[self.epochs[0].id], *self.epochs]
        frame = bytearray(pack(self.dice.choice(every)))
        frame[self.dice.randrange(len(frame))] ^= 1 << self.dice.randrange(8)
        self.ann.hear_bytes(bytes(frame))
        self.ann.hear_bytes(self.dice.randbytes(self.dice.randrange(200)))

    def hear_409(self):
        """A server says that there is another epoch: she looks again, and is shown the same one."""
        self.ann.hear_of_another_epoch()
        self.barrage()

    # --- what Ann does ------------------------------------------------------------------------------

    def announce(self):
        self.ann.announce(another=self.dice.random() < 0.5)

    def contribute(self):
        with suppress(LocalProtocolError):  # she is in no epoch, or sent this update before
            contributor = self.ann.machine.working()
            if not contributor.ready:
                self.ann.ready_mask(self.ann.machine.agreement.epoch)
            self.ann.submit(self.dice.choice(UPDATES))

    def jump(self):
        self.ann.tick(self.dice.choice(CLOCKS))

    # --- what happens to her files ------------------------------------------------------------------

    def crash(self):
        self.ann.restart()

    def cut_power(self):
        self.ann.cut = self.dice.choice(("before", "between", "after"))
        self.dice.choice((self.letter, self.barrage, self.found_epoch, self.contribute))()

    def copy(self):
        self.copies.append((*self.ann.copy(), self.ann.store._mark, self.ann.machine.number))

    def restore(self):
        """Older files, in any combination but one: a store with the very anchor that it had then.

        The server tries at once whether she has forgotten something.
        """
        self.copy()
        now = self.copies[-1]
        store, anchor = self.dice.choice(self.copies), self.dice.choice(self.copies)
        damage = self.dice.choice((None, None, None, b"", b"\xff" * 8192))
        if damage is None and store is not now and _precedes(anchor[2], store[2]):
            anchor = now
        kept = [store[3], *([anchor[3]] if damage is None else [])]
        with self.excused(number=max(kept)):
            self.ann.replace(store[0], anchor[1] if damage is None else damage)
        self.barrage()

    def lose_everything(self):
        with self.excused(number=0):
            self.ann.store.close()
            shutil.rmtree(self.ann.folder)
            self.ann.folder.mkdir()
        self.barrage()

    @contextmanager
    def excused(self, number):
        """What her files do not have nobody can know; what she said and her keys still count."""
        kept = self.ann.keep_aside()
        yield
        self.ann.open()
        self.ann.judge.excuse(self.ann, number=number)
        self.ann.store.close()
        self.ann.put_back(kept)
        self.ann.start()


def play(seeds, folder, ann_type=Ann):
    """Many lives; what Ann said in all of them."""
    said = set()
    for seed in seeds:
        history = History(seed, folder / f"{seed}", ann_type)
        try:
            history.play()
        except Exception as error:
            error.add_note(f"in the history with the seed {seed}")
            raise
        said |= history.kinds
        shutil.rmtree(folder / f"{seed}")
    return said


def test_nothing_weakens_in_any_history(tmp_path):
    said = {kind.__name__ for kind in play(range(150), tmp_path)}
    assert said >= {"HolderKey", "Receipt", "Endorsement", "Answer", "Shipment", "Upload"}


@pytest.mark.soak
def test_nothing_weakens_in_ten_thousand_histories(tmp_path):
    play(range(1000, 11_000), tmp_path)


# --- negative controls: what the property must find -------------------------------------------------


def secrets_of(ann):
    return {key: parse(value, StoredSealingKey) for key, value in ann.store.scan("sealing")}


class Forgetful(Ann):
    """The old reaction to an unsigned 409: store and anchor are erased, the keys lie elsewhere."""

    def hear_of_another_epoch(self):
        kept = secrets_of(self)
        self.store.close()
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        BackedUp.put_back(self, kept)
        self.start()


class BackedUp(Ann):
    """Sealing keys in a file of their own, which comes back from a backup when the disk is lost."""

    def keep_aside(self):
        return secrets_of(self)

    def put_back(self, kept):
        self.open()
        for record in kept.values():
            record.state = "announced"
        self.store.commit([write("sealing", key, record) for key, record in kept.items()])
        self.store.close()


def never_behind(mark, store):
    """An anchor that is any number of commits behind passes for fresh."""
    return mark.lineage == store.lineage and mark.counter <= store.counter


CONTROLS = {
    "the old reaction to 409": (Forgetful, _precedes),
    "a key outside the store": (BackedUp, _precedes),
    "an anchor two behind": (Ann, never_behind),
}


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("watched", ["what she is", "what she says"])
def test_the_property_finds(control, watched, tmp_path, monkeypatch):
    """Both by her keys that come back, and by what a server gets from her: two answers for one mask."""
    ann_type, precedes = CONTROLS[control]
    monkeypatch.setattr(Mark, "precedes", precedes)
    found = "the number fell|that was (joined|destroyed|spent)|is forgotten"
    if watched == "what she says":
        monkeypatch.setattr(Judge, "look", lambda judge, ann: None)
        found = "two different (endorsements|answers)"
    else:
        monkeypatch.setattr(Judge, "hear", lambda judge, message: None)
    with pytest.raises(AssertionError, match=found):
        play(range(100), tmp_path, ann_type)
