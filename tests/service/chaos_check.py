"""What the stores say after a chaos: nothing lost, nothing counted twice, one answer per mask."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack
from basecagg.protocol.stored import BufferedUpdate, HeldShare, ModelState, load, parse
from basecagg.service.server.buffer_log import BufferEntry
from basecagg.service.server.registry import Charter
from basecagg.storage.lease import EXPIRES
from basecagg.storage.participant_store import ParticipantStore
from basecagg.storage.server_store import ServerStore

WAIT = EXPIRES + 2.0
"""Seconds after which a server that was killed on what looks like another machine is given up."""


def violations(database: str, users: list[Path], anchors: Path) -> list[str]:
    """Everything that must not be, in words. The users' stores must not be in use."""
    with ServerStore(database, "service", wait=WAIT) as store:
        charter = load(store, "charter", Charter)[""]
    epoch_id = unpack(charter.epoch, MAX_CONTROL_BYTES).id.hex()
    with ServerStore(database, f"epoch:{epoch_id}", wait=WAIT) as store:
        ledger = list(load(store, "ledger", BufferEntry).values())
        state = parse(store.read("model-state", "") or b"", ModelState)
        buffered = load(store, "buffered", BufferedUpdate)
    found = [*_ledger(ledger, state), *_updates(ledger, state, list(buffered.values()))]
    for user in users:
        with ParticipantStore(user / "state.db", "participant", anchor_folder=anchors) as s:
            found += [] if s.keys("held") else [f"{user.name}: knows of no share"]
            found += [f"{user.name}: its memory is gone"] if s.rolled_back else []
            found += [
                f"{user.name}: {each}" for each in _answers(ledger, load(s, "held", HeldShare))
            ]
    return found


def _ledger(ledger: list[BufferEntry], state: ModelState) -> list[str]:
    versions = [entry.version for entry in ledger if entry.outcome == "opened"]
    burned = [f"version {e.version} burned: {e.reason}" for e in ledger if e.outcome != "opened"]
    gap = versions != list(range(state.history.last))
    return [*burned, *([f"versions {versions} up to {state.history.last}"] if gap else [])]


def _updates(
    ledger: list[BufferEntry], state: ModelState, waiting: list[BufferedUpdate]
) -> list[str]:
    summed = [mask for entry in ledger for mask in entry.members]
    places = Counter([*summed, *(update.name.key for update in waiting)])
    twice = [f"{mask} counted {count} times" for mask, count in places.items() if count > 1]
    lost = state.admitted - len(places)
    return [*twice, *([f"{lost} admitted updates are lost"] if lost else [])]


def _answers(ledger: list[BufferEntry], held: dict[str, HeldShare]) -> list[str]:
    """Every mask that was endorsed or answered here was so for the one request that opened it."""
    digest_of = {mask: entry.digest for entry in ledger for mask in entry.members}
    return [
        f"mask {mask} was answered for another request than the one that opened"
        for mask, share in held.items()
        if share.digest and mask in digest_of and share.digest != digest_of[mask]
    ]
