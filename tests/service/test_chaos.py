"""Real processes, killed at random moments, behind a line that is cut: nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from chaos_check import violations
from chaos_processes import NAMES, Chaos
from private_postgres import private_postgres

from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.messages import Link
from basecagg.protocol.stored import HeldShare, ModelState, load, parse, write
from basecagg.service.server.buffer_log import BufferEntry
from basecagg.service.server.registry import Charter
from basecagg.storage.participant_store import ParticipantStore
from basecagg.storage.server_store import ServerStore


@dataclass(frozen=True)
class Troubles:
    """How much goes wrong."""

    server_kills: int
    user_kills: int
    cut_seconds: float
    pause: float
    afterwards: int


SHORT = Troubles(2, 4, 2.0, 1.0, 3)
LONG = Troubles(20, 50, 10.0, 3.0, 5)
GIVE_UP = 240.0
"""Seconds after which nobody waits for a version any longer."""


def test_nothing_is_lost_in_a_short_chaos(tmp_path: Path) -> None:
    asyncio.run(chaos(tmp_path, SHORT))


def test_nothing_is_lost_in_a_short_chaos_on_postgresql(tmp_path: Path) -> None:
    with private_postgres() as database:
        asyncio.run(chaos(tmp_path, SHORT, database))


@pytest.mark.soak
def test_nothing_is_lost_in_a_long_chaos(tmp_path: Path) -> None:
    asyncio.run(chaos(tmp_path, LONG))


@pytest.mark.soak
def test_nothing_is_lost_in_a_long_chaos_on_postgresql(tmp_path: Path) -> None:
    with private_postgres() as database:
        asyncio.run(chaos(tmp_path, LONG, database))


KEYS = ProtocolParameters(
    num_holders=5,
    recovery_threshold=3,
    max_colluders=1,
    max_dropouts=1,
    buffer_size=3,
    model_size=100_000,
    max_staleness=20,
)


def test_sums_with_masks_from_keys_go_on_after_kills(tmp_path: Path) -> None:
    """The defaults, with a model of usual size: own weights, keys, words of three bytes."""
    assert (KEYS.masks, KEYS.weights, KEYS.word_bytes) == ("keys", "own", 3)
    asyncio.run(killed_with_keys(tmp_path))


async def killed_with_keys(folder: Path) -> None:
    scene = Chaos(folder)
    scene.parameters = KEYS
    try:
        await scene.begin()
        await scene.reach(2, GIVE_UP)
        for victim in ("server", NAMES[0]):
            scene.kill(victim)
            scene.start_server() if victim == "server" else scene.start_user(victim)
            await scene.reach(max(scene.versions) + 2, GIVE_UP)
    finally:
        await scene.end()
    assert (scene.kills, scene.versions) == (2, sorted(scene.versions))


async def chaos(folder: Path, troubles: Troubles, database: str | None = None) -> None:
    scene = Chaos(folder, database)
    try:
        await scene.begin()
        await scene.reach(2, GIVE_UP)
        await torment(scene, troubles, random.Random(0))
        alive = [name for name, process in scene.processes.items() if process.poll() is None]
        assert sorted(alive) == sorted(["server", *NAMES])
        last = max(scene.versions)
        await scene.reach(last + troubles.afterwards, GIVE_UP)
    finally:
        await scene.end()
    assert scene.kills == troubles.server_kills + troubles.user_kills
    assert scene.versions == sorted(scene.versions)
    users, anchors = [folder / name for name in NAMES], folder / "anchors"
    assert violations(scene.database, users, anchors) == []
    require_that_the_check_can_fail(scene.database, users[0], anchors)


async def torment(scene: Chaos, troubles: Troubles, dice: random.Random) -> None:
    """Kill and cut at random moments; whoever was killed starts again at once."""
    victims = ["server"] * troubles.server_kills
    victims += [NAMES[index % len(NAMES)] for index in range(troubles.user_kills)]
    dice.shuffle(victims)
    cut = asyncio.create_task(scene.proxy.cut(troubles.cut_seconds))
    for victim in victims:
        await asyncio.sleep(dice.uniform(0.2, 2 * troubles.pause))
        await scene.look()
        scene.kill(victim)
        scene.start_server() if victim == "server" else scene.start_user(victim)
    await cut


def require_that_the_check_can_fail(database: str, user: Path, anchors: Path) -> None:
    """Doctor the stores, and see that it is noticed."""
    with ServerStore(database, "service") as store:
        charter = load(store, "charter", Charter)[""]
    epoch_id = unpack(charter.epoch, MAX_CONTROL_BYTES).id.hex()
    with ServerStore(database, f"epoch:{epoch_id}") as store:
        ledger = load(store, "ledger", BufferEntry).values()
    opened = {mask for entry in ledger for mask in entry.members}
    with ParticipantStore(user / "state.db", "participant", anchor_folder=anchors) as store:
        held = load(store, "held", HeldShare)
        key, share = next((k, share) for k, share in held.items() if share.digest and k in opened)
        store.commit([write("held", key, msgspec.structs.replace(share, digest=bytes(32)))])
    with ServerStore(database, f"epoch:{epoch_id}") as store:
        state = parse(store.read("model-state", "") or b"", ModelState)
        state.admitted += 1
        state.history = state.history.after(Link(0, bytes(32), bytes(32), bytes(32)), 100)
        store.commit([write("model-state", "", state)])
    found = violations(database, [user], anchors)
    assert any("another request" in each for each in found)
    assert any("1 admitted updates are lost" in each for each in found)
    assert any("up to" in each for each in found)
