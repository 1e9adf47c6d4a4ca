"""A crash at every boundary between writes and sends, on each side; and stores that come back as old copies.

A run without crashes counts the boundaries: before a commit, after it, and after each message that leaves.
Then the same run is played once for every boundary, with the machine that stands there killed and built again
from its store. The judge of the harness sees all of it.
"""

from __future__ import annotations

import random
import shutil
from contextlib import contextmanager

import msgspec
import pytest
from harness import Bench, Disk, World, once, small

from basecagg.errors import Retired
from basecagg.protocol.effects import sends_of
from basecagg.protocol.messages import Parcel
from reproduction.bench import Address, Letter

MODES = pytest.mark.parametrize(
    "mode", ["certified", "honest-server", "one visit, certified", "one visit, honest-server"]
)
AHEAD = pytest.mark.parametrize("mode", ["certified", "honest-server"])
"""Only where masks are dealt ahead: what comes once leaves no unused mask."""
ROLES = pytest.mark.parametrize("role", ["server", "holder", "contributor"])
NAMES = [f"user-{index}" for index in range(4)]
ALL_OF_A_SUM = NAMES[:3]
"""Where all members of a sum are of one version a fourth may find no company, and is burned."""
HOLDER = Address("holder", "user-2")
CONTRIBUTOR = Address("contributor", "user-0")


def chosen(mode):
    return once(mode.split(", ")[1]) if "one visit" in mode else small(mode)


def train(world, until):
    alone = world.parameters.least_per_version == 1
    world.train(NAMES if alone else ALL_OF_A_SUM, until)


def boundaries(mode, until, **options):
    """Who stands at each boundary of an undisturbed run."""
    world = World(chosen(mode), **options)
    train(world, until)
    return list(world.network.boundaries)


def survive(mode, until, crashes, **options):
    """The same run with crashes at these boundaries: it gets there, and nothing is lost on the way."""
    world = World(chosen(mode), **options)
    start = len(world.network.boundaries)
    world.network.crash_at = {boundary for boundary in crashes if boundary >= start}
    train(world, until)
    assert not world.judge.burned
    assert len(world.judge.opened) == until * world.parameters.buffer_size
    return world


@contextmanager
def explained(what):
    """Say in a failure which boundary it was."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


# --- crashes --------------------------------------------------------------------------------------


@MODES
@ROLES
@pytest.mark.parametrize("prompt", [True, False], ids=["back at once", "back when all is quiet"])
def test_a_crash_at_every_boundary(mode, role, prompt):
    places = boundaries(mode, until=2)
    mine = [number for number, address in enumerate(places) if address.role == role]
    assert len(mine) > 30
    for number in mine:
        with explained(f"the crash was at boundary {number}, of {places[number]}"):
            survive(mode, 2, {number}, prompt=prompt)


@MODES
def test_a_crash_of_a_contributor_that_keeps_its_masks(mode):
    """As a Flower node does; all others give up what they have not used when they start."""
    places = boundaries(mode, until=2)
    for number in [n for n, address in enumerate(places) if address.role == "contributor"]:
        with explained(f"the crash was at boundary {number}, of {places[number]}"):
            survive(mode, 2, {number}, keeps_masks=True)


@MODES
@pytest.mark.soak
def test_two_crashes_anywhere(mode):
    chance = random.Random(mode)
    count = len(boundaries(mode, until=4))
    for first in range(count):
        second = first + 1 + int(chance.expovariate(1 / 30))
        with explained(f"the crashes were at boundaries {first} and {second}"):
            survive(mode, 4, {first, second}, prompt=chance.random() < 0.5)


@MODES
@ROLES
def test_a_crash_on_real_stores_with_real_keys(mode, role, tmp_path):
    """SQLite closed and opened again, everything sealed and signed; a few boundaries, spread out."""
    places = boundaries(mode, until=1)
    mine = [number for number, address in enumerate(places) if address.role == role]
    for number in random.Random(f"{mode}/{role}").sample(mine, 2):
        disk = Disk(tmp_path / str(number))
        with explained(f"the crash was at boundary {number}, of {places[number]}"), disk:
            survive(mode, 1, {number}, stores=disk, cryptography=True)


@pytest.mark.soak
@MODES
def test_a_crash_at_every_boundary_on_real_stores(mode, tmp_path):
    for number in range(len(boundaries(mode, until=2))):
        disk = Disk(tmp_path / str(number))
        with explained(f"the crash was at boundary {number}"), disk:
            survive(mode, 2, {number}, stores=disk, cryptography=True)


# --- negative control: a driver that sends before it writes ----------------------------------------


class Hasty(Bench):
    def perform(self, address, effects):
        sends = sends_of(effects)
        super().perform(address, sends)
        super().perform(address, [effect for effect in effects if effect not in sends])


def test_the_judge_finds_a_driver_that_sends_before_it_writes(monkeypatch):
    monkeypatch.setattr("harness.Bench", Hasty)
    places = boundaries("certified", until=2)
    numbers = [number for number, address in enumerate(places) if address.role == "contributor"]
    with pytest.raises(AssertionError, match="two different uploads"):
        [survive("certified", 2, {number}, keeps_masks=True) for number in numbers]


# --- old copies ------------------------------------------------------------------------------------


class Archive(Disk):
    """Real stores, and a copy of one of them from before each of its commits."""

    def __init__(self, folder, archived):
        super().__init__(folder)
        self._archived = archived
        self.copies = []

    def open(self, address):
        store = super().open(address)
        if address == self._archived:
            store.commit = self._copying(store.commit)
        return store

    def _copying(self, commit):
        def copy_and_commit(writes):
            self.copies.append(self._copy())
            commit(writes)

        return copy_and_commit

    def _copy(self):
        path = self.path(self._archived)
        folder = self.folder / f"copy-{len(self.copies)}"
        folder.mkdir()
        for each in path.parent.glob(f"{path.name}*"):
            shutil.copy(each, folder)
        return folder

    def restore(self, copy):
        """Put an older copy in the place of the store, as a backup would. The anchor is not in it."""
        self.close(self._archived)
        path = self.path(self._archived)
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()
        for each in copy.iterdir():
            shutil.copy(each, path.parent)


class Unnoticed(Archive):
    """Negative control: nobody notices that a store is an old copy."""

    def open(self, address):
        store = super().open(address)
        store.rolled_back = False
        return store


def trained(mode, archive, **options):
    world = World(chosen(mode), stores=archive, **options)
    train(world, 2)
    return world


def ask_everything_again(world):
    """A cheating server tries the shares once more, and every sum as if it were the next version's."""
    parcels = [
        letter.message
        for letter in world.judge.letters
        if letter.to == HOLDER and isinstance(letter.message, Parcel)
    ]
    histories = {request.version: request.history for request in world.judge.requests.values()}
    histories[world.server.version] = world.server.history
    requests = [
        msgspec.structs.replace(
            request,
            version=request.version + 1,
            history=histories[request.version + 1],
            previous=world.judge.certificates.get(request.version),
        )
        for request in world.judge.requests.values()
    ]
    return [Letter("server", HOLDER, message) for message in (*parcels, *requests)]


def restore_holder(mode, archive):
    """Put every old copy of the holder's store in its place, one after the other, and ask for everything."""
    world = trained(mode, archive)
    letters, copies = ask_everything_again(world), list(archive.copies)
    for copy in copies:
        archive.restore(copy)
        world.restart(HOLDER)
        world.network.in_flight.clear()  # this server does not tell a holder that masks are over
        for letter in letters:
            world.network.post(letter)
        world.settle()
    return world


@MODES
def test_a_holder_restored_from_an_old_copy_says_nothing_more(mode, tmp_path):
    with Archive(tmp_path, HOLDER) as archive:
        world = restore_holder(mode, archive)
        assert len(archive.copies) > 10
        refused = [refusal for address, refusal in world.network.refusals if address == HOLDER]
        assert len(refused) > len(archive.copies)
        assert {type(refusal) for refusal in refused} == {Retired}
        world.stop(HOLDER)
        world.train(NAMES, 4)


@MODES
def test_an_old_copy_that_nobody_noticed_would_answer_twice(mode, tmp_path):
    with (
        Unnoticed(tmp_path, HOLDER) as archive,
        pytest.raises(AssertionError, match=r"two different (endorsements|answers)"),
    ):
        restore_holder(mode, archive)


def restore_contributor(archive, **options):
    """Put every old copy of the contributor's store in its place, and let it use whatever mask it finds."""
    world = trained("certified", archive, **options)
    for copy in list(archive.copies):
        archive.restore(copy)
        world.restart(CONTRIBUTOR)
        if world.federation.contributor(CONTRIBUTOR.name).ready:
            world.submit(CONTRIBUTOR.name, world.server.version)
        world.settle()
        world.judge.inspect(world.network)
    return world


def test_a_contributor_restored_from_an_old_copy_uses_no_mask_twice(tmp_path):
    with Archive(tmp_path, CONTRIBUTOR) as archive:
        world = restore_contributor(archive)
        assert len(archive.copies) > 10
        world.train(NAMES, world.server.version + 2)


def test_an_old_copy_that_nobody_noticed_would_use_a_mask_twice(tmp_path):
    with (
        Unnoticed(tmp_path, CONTRIBUTOR) as archive,
        pytest.raises(AssertionError, match="two different uploads"),
    ):
        restore_contributor(archive, keeps_masks=True)
