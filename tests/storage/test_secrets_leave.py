"""A used seed, an answered share: gone from every file of an open store, and after a kill too."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from dying_child import SECRETS, open_store
from test_restored_machines import CONTRIBUTOR, PARAMETERS, USERS, FederationOnFiles

from basecagg.protocol.effects import Forget, Persist
from basecagg.protocol.stored import Locks, OwnMask, load
from basecagg.storage import participant_store
from basecagg.storage.participant_store import ParticipantStore
from reproduction.bench import AT_SERVER, Address

CHILD = Path(__file__).with_name("dying_child.py")
ROUNDS = 4
LARGE = replace(PARAMETERS, model_size=400)


def contents(folder: Path) -> bytes:
    """All that a thief reads in the files of a store, those beside it included."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


class Thief:
    """Knows every secret that ever was in a store, and looks for those that should be gone."""

    def __init__(self, federation: FederationOnFiles) -> None:
        self._federation = federation
        self._seen: dict[Address, set[bytes]] = {}
        self.looked_for = 0
        self.found = 0

    def look(self) -> None:
        """After each step: what a store does not return any more must be in none of its files."""
        for address, node in self._federation.network.nodes.items():
            if address == AT_SERVER:
                continue
            present = secrets_in(node.store)
            seen = self._seen.setdefault(address, set())
            seen |= present
            data = contents(self._federation.place(address))
            gone = seen - present
            self.looked_for += len(gone)
            self.found += sum(secret in data for secret in gone)
            assert all(secret in data for secret in present)  # it is not blind


def secrets_in(store: ParticipantStore) -> set[bytes]:
    """Seeds that no upload has used, keys of envelopes on their way, shares that no answer was made of."""
    seeds = {mask.seed for mask in load(store, "mask", OwnMask).values() if mask.seed}
    keys = {lock.key for locks in load(store, "locks", Locks).values() for lock in locks.of_holders}
    return seeds | keys | {share[:64] for _, share in store.scan("share")}


def played(folder: Path) -> Thief:
    """Some versions of a federation on files, with a thief who looks after every step."""
    federation = FederationOnFiles(folder, LARGE)
    thief = Thief(federation)
    for number in range(ROUNDS):
        for user in USERS:
            federation.deal(user)
        thief.look()
        federation.network.run()
        thief.look()
        federation.submit_all(scale=0.1 * (number + 1))
        thief.look()
    assert federation.server.version == ROUNDS
    federation.close()
    return thief


def test_what_was_used_or_answered_is_in_no_file_of_an_open_store(tmp_path):
    thief = played(tmp_path)
    assert thief.looked_for > 100
    assert thief.found == 0


def test_without_emptying_the_log_a_thief_would_find_them(tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(ParticipantStore, "_empty_log", lambda self: None)
    assert played(tmp_path).found > 20


# --- no oftener than needed ------------------------------------------------------------------------


def times_emptied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the logs of all holders, and of all contributors, were emptied in one version."""
    counts: Counter[str] = Counter()
    original = ParticipantStore._empty_log

    def counted(store: ParticipantStore) -> None:
        counts[store.namespace] += 1
        original(store)

    federation = FederationOnFiles(folder, LARGE)
    federation.deal_all()
    federation.submit_all()
    with monkeypatch.context() as counting:
        counting.setattr(ParticipantStore, "_empty_log", counted)
        federation.deal_all()
        federation.submit_all(2.0)
    assert federation.server.version == 2
    federation.close()
    return counts


def test_the_log_is_emptied_when_a_secret_goes_and_at_no_other_time(tmp_path, monkeypatch):
    """Each time costs waits for the disk. Of a mask the locks go, then the seed; a holder answers once."""
    holders, contributors = LARGE.num_holders, len(USERS)
    expected = {"holder": holders, "contributor": 2 * contributors}
    assert times_emptied(tmp_path, monkeypatch) == expected


def test_the_stub_of_a_mask_would_be_counted(tmp_path, monkeypatch):
    """Negative control: if the name of a used mask were taken for a secret, it would be emptied once more."""
    monkeypatch.setattr(Forget, "harmless", False)
    counts = times_emptied(tmp_path, monkeypatch)
    assert counts["contributor"] == 3 * len(USERS)


def gone_unused(folder: Path) -> bool:
    """Whether the seed of a mask that expires unused is in no file of the open store."""
    federation = FederationOnFiles(folder, LARGE)
    federation.deal_all()
    store, machine = federation.network.nodes[CONTRIBUTOR].store, federation.contributor(USERS[0])
    ((_, mask),) = load(store, "mask", OwnMask).items()
    assert mask.seed in contents(federation.place(CONTRIBUTOR))
    federation.network.perform(CONTRIBUTOR, machine.expire(mask.name.expires + 1))
    found = mask.seed in contents(federation.place(CONTRIBUTOR))
    federation.close()
    return not found


def test_a_mask_that_expires_unused_leaves_no_seed(tmp_path):
    assert gone_unused(tmp_path)


def test_a_seed_that_was_called_harmless_would_be_found(tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(participant_store, "_destroys", lambda write: False)
    assert not gone_unused(tmp_path)


def test_a_seed_that_goes_just_before_its_mask_is_gone_too(tmp_path):
    """In one commit a mask is written over without its seed, and deleted: the last write alone is harmless."""
    with open_store(tmp_path) as store:
        store.commit([Persist("mask", "ann", SECRETS["mask"])])
        used = Persist("mask", "ann", b"", irreversible=True)
        store.commit([used, Forget("mask", "ann", harmless=True)])
        assert SECRETS["mask"][:64] not in contents(tmp_path)


# --- killed in between ----------------------------------------------------------------------------


def killed_at(boundary: int, folder: Path) -> bool:
    """Let a process destroy secrets and kill it at a boundary of that commit; False if it came to the end."""
    folder.mkdir()
    command = [sys.executable, str(CHILD), str(folder), str(boundary)]
    child = subprocess.run(command, timeout=60, check=False)
    assert child.returncode in (0, -9)
    return child.returncode == -9


def left_behind(folder: Path) -> int:
    data = contents(folder)
    return sum(secret[:64] in data for secret in SECRETS.values())


def kill_everywhere(folder: Path) -> tuple[int, int]:
    """At how many boundaries a kill left destroyed secrets in the files, and where they were after a start."""
    before = after = boundary = 0
    while killed_at(boundary, folder / str(boundary)):
        place = folder / str(boundary)
        found = left_behind(place)
        with open_store(place) as store:
            kept = [kind for kind in SECRETS if store.read(kind, "ann")]
            assert not store.rolled_back
            assert kept in ([], list(SECRETS)), "half of a commit"
            if not kept:
                before += found > 0
                after += left_behind(place) > 0
        boundary += 1
    return before, after


def test_a_kill_before_the_log_is_emptied_is_made_good_by_the_next_start(tmp_path):
    before, after = kill_everywhere(tmp_path)
    assert before > 0  # there is such a moment
    assert after == 0


def test_a_start_that_leaves_the_log_alone_would_be_noticed(tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(ParticipantStore, "_empty_log", lambda self: None)
    assert kill_everywhere(tmp_path)[1] > 0
