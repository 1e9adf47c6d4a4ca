"""A crash at every boundary of an upload, old copies and hasty drivers: nothing leaves that is not counted."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from harness import Bench, Disk, Judge, World, small
from private import NOISE
from test_crashes import CONTRIBUTOR, Archive, Hasty, Unnoticed, explained

from basecagg.errors import BudgetSpent
from basecagg.maths.staleness import constant
from basecagg.privacy import Privacy
from basecagg.protocol.effects import sends_of
from basecagg.protocol.messages import Upload
from basecagg.protocol.stored import Spent, parse
from reproduction.bench import Address

NAMES = [f"user-{index}" for index in range(4)]
USES = 6


def parameters(**changes):
    privacy = Privacy(clip_norm=1.0, **(NOISE | {"epsilon": 9.0, "max_uses": USES} | changes))
    return small(weights="own", privacy=privacy, staleness=constant())


class Treasurer(Judge):
    """Counts what left each device, and holds it against what the device has written down."""

    stores = None

    def sent(self, letter):
        super().sent(letter)
        if isinstance(letter.message, Upload):
            self.count(letter.sender)

    def count(self, name):
        masks = [mask for mask in self.uploads if mask.contributor == name]
        stored = self.stores.stores[Address("contributor", name)].read("ledger", "")
        spent = parse(stored, Spent) if stored else Spent()
        uses = math.inf if spent.everything else sum(count for *_, count in spent.uploads)
        assert len(masks) <= uses, "an upload left that is not counted"

    def _opened(self, released):
        self._over(released.members, self.opened)
        self.released.append(released)


class PrivateWorld(World):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.judge.stores = self.stores

    def submit(self, name, base_version):
        update = np.array([self._numbers.uniform(-1, 1) for _ in range(self._size)], np.float32)
        head = self.server.head_of(base_version) or bytes(32)
        effects = self.contributor(name).submit(update, base_version, head, self.server.version)
        (upload,) = (s.message for s in sends_of(effects) if isinstance(s.message, Upload))
        self.judge.submitted(upload.ticket.mask, [], base_version)
        self.perform(Address("contributor", name), effects)


@pytest.fixture(autouse=True)
def treasurer(monkeypatch):
    monkeypatch.setattr("harness.Judge", Treasurer)


def trained(until=2, crashes=(), **options):
    world = PrivateWorld(parameters(), **options)
    start = len(world.network.boundaries)
    world.network.crash_at = {boundary for boundary in crashes if boundary >= start}
    world.train(NAMES, until)
    return world


def of_contributors(world):
    return [
        n for n, address in enumerate(world.network.boundaries) if address.role == "contributor"
    ]


@pytest.mark.parametrize("prompt", [True, False], ids=["back at once", "back when all is quiet"])
def test_a_crash_at_every_boundary_of_a_contributor(prompt):
    mine = of_contributors(trained())
    assert len(mine) > 30
    for number in mine:
        with explained(f"the crash was at boundary {number}"):
            world = trained(crashes={number}, prompt=prompt)
            for name in NAMES:
                world.judge.count(name)


def test_a_crash_on_real_stores(tmp_path):
    """SQLite closed and opened again; a few boundaries, spread out."""
    mine = of_contributors(trained(1))
    for number in random.Random(1).sample(mine, 3):
        disk = Disk(tmp_path / str(number))
        with explained(f"the crash was at boundary {number}"), disk:
            trained(1, {number}, stores=disk, cryptography=True)


def test_a_driver_that_sends_before_it_writes_is_found(monkeypatch):
    assert issubclass(Hasty, Bench)
    monkeypatch.setattr("harness.Bench", Hasty)
    with pytest.raises(AssertionError, match="not counted"):
        trained()


def restored(archive):
    """Every old copy of a contributor's store in its place, one after the other: how many uploads it makes."""
    world = trained(1, stores=archive)
    uploads = 0
    for copy in list(archive.copies):
        archive.restore(copy)
        world.restart(CONTRIBUTOR)
        world.deal(CONTRIBUTOR.name)
        world.settle()
        if world.federation.contributor(CONTRIBUTOR.name).ready:
            world.submit(CONTRIBUTOR.name, world.server.version)
            uploads += 1
        world.settle()
    return uploads


def test_an_old_copy_uploads_nothing_more(tmp_path):
    with (
        Archive(tmp_path, CONTRIBUTOR) as archive,
        pytest.raises(BudgetSpent, match="older copy"),
    ):
        restored(archive)


def test_an_old_copy_that_nobody_noticed_would_spend_again(tmp_path):
    """Negative control: the ledger goes back with the store, and what has left does not."""
    with (
        Unnoticed(tmp_path, CONTRIBUTOR) as archive,
        pytest.raises(AssertionError, match=r"not counted|two different uploads"),
    ):
        restored(archive)
