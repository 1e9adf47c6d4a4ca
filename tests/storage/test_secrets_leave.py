"""A used seed, an answered share: gone from every file of an open store, and after a kill too."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from dying_child import SECRETS, open_store
from test_restored_machines import PARAMETERS, USERS, FederationOnFiles

from basecagg.protocol.stored import Locks, OwnMask, load
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
