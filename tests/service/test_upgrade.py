"""An upgrade in place, from stores that 0.1.0 and 0.2.0 wrote: people and model carry over into a new epoch.

`tests/vectors/store-0.1.0-protocol-*.tar.xz` were written by basecagg 0.1.0 when it spoke version 3 and 4 of
the protocol: an operator, a server and four hospitals at version 3 of the model, stopped while their epoch was
open. A fifth one was revoked. `store-0.2.0.tar.xz` is the same federation of basecagg 0.2.0, at version 5.
"""

from __future__ import annotations

import asyncio
import json
import math
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_harness import SMALL, Federation, Nudge, stopped_at_last
from test_commands import Desk

from basecagg.errors import StorageError
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.records import Standing
from basecagg.service.operator.folder import certify_server
from basecagg.storage import anchor
from basecagg.storage.participant import ParticipantStore

VECTORS = Path(__file__).parent.parent / "vectors"
STORES = sorted(VECTORS.glob("store-0.1.0-*.tar.xz"))
NAMES = [f"hospital-{number}" for number in (1, 2, 3, 4)]
PLAN = ("--dropouts", "1", "--colluders", "1", "--buffer", "4")


class Upgraded(Federation):
    """The folders of the old federation, at another place: only their address and anchors move with them."""

    def __init__(self, folder: Path, store: Path) -> None:
        with tarfile.open(store) as packed:
            packed.extractall(folder, filter="data")
        self.told = json.loads((folder / "told.json").read_bytes())
        super().__init__(folder)

    def found(self) -> None:
        for path in (self.folder / "operator/operator.json", *self.folder.glob("*/identity.json")):
            path.write_text(path.read_text().replace(self.told["url"], self.url))
        stores = {"operator": ("operator/operator.db", "operator")}
        stores |= {name: (f"{name}/state.db", "participant") for name in NAMES}
        anchors = self.folder / "anchors"
        for label, (path, namespace) in stores.items():
            (anchors / label).rename(anchors / anchor.name_of(self.folder / path, namespace))
        operator = self.folder / "operator"
        certify_server(operator, operator / "server", ["127.0.0.1"])


def play(folder: Path, store: Path, story: Any) -> None:
    async def whole() -> None:
        fed = Upgraded(folder, store)
        async with stopped_at_last(fed):
            await story(fed)

    asyncio.run(whole())


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_people_and_model_carry_over_into_a_new_epoch(tmp_path: Path, store: Path) -> None:
    async def story(fed: Upgraded) -> None:
        await fed.start_server()
        overview = await fed.operator.look(fed.connection)
        assert overview.version == fed.told["version"]
        assert [member.name for member in overview.members] == NAMES
        for name in NAMES:
            fed.launch(fed.profile(name), Nudge(target=2.0))
        desk = Desk(fed)
        assert "hospital-5                     both, revoked" in (await desk("status")).output
        # No word of the old epoch can be checked any more, so the operator has to say that it wants this model.
        refused = await desk("start", *PLAN)
        accept = f"--accept-model {overview.model_hash.hex()}"
        assert accept in str(refused.exception), refused.output
        started = await desk("start", *PLAN, *accept.split())
        assert f"epoch 2 from version {overview.version}: N = 4" in started.output, (
            started.exception
        )
        await desk.reach(overview.version + 1)
        log = (await desk("log")).output
        assert "epoch carried over" in log
        assert "model accepted" in log

    play(tmp_path, store, story)


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_the_model_is_the_old_one_to_the_bit_and_nothing_else_is_kept(
    tmp_path: Path, store: Path
) -> None:
    async def story(fed: Upgraded) -> None:
        await fed.start_server()
        await fed.stop_server()
        await fed.start_server()  # a restart in between changes nothing
        overview = await fed.operator.look(fed.connection)
        told = (fed.told["version"], len(fed.told["model"]))
        assert (overview.version, overview.model_size) == told
        for name in NAMES:
            fed.launch(fed.profile(name), Nudge(seconds=60))

        async def keys_are_there() -> bool:
            await fed.operator.look(fed.connection)
            return not fed.operator.machine.missing()

        await fed.until(keys_are_there)
        assert await fed.operator.settle_model(fed.connection, accepted=overview.model_hash) == 10
        await fed.operator.start(fed.connection, _four())
        assert (await fed.model()).tolist() == np.array(fed.told["model"], np.float32).tolist()
        assert fed.operator.epoch is not None
        assert fed.operator.epoch.number == 2
        old_keys = {key for key, number in fed.operator.machine._used.items() if number == 1}
        new_keys = {key for key, number in fed.operator.machine._used.items() if number == 2}
        assert len(old_keys) == len(new_keys) == 4
        assert not old_keys & new_keys

    play(tmp_path, store, story)


def test_an_epoch_of_0_2_0_is_carried_over_too(tmp_path: Path) -> None:
    async def story(fed: Upgraded) -> None:
        await fed.start_server()
        overview = await fed.operator.look(fed.connection)
        assert (overview.phase, overview.version) == ("waiting", fed.told["version"])
        for name in NAMES:
            fed.launch(fed.profile(name), Nudge(target=2.0))
        desk = Desk(fed)
        there = [m.name for m in overview.members if not m.revoked and m.name not in NAMES]
        plan = (*PLAN, *(word for name in there for word in ("--without", name)))
        refused = await desk("start", *plan)
        accept = f"--accept-model {overview.model_hash.hex()}"
        assert accept in str(refused.exception), refused.output
        started = await desk("start", *plan, *accept.split())
        assert f"from version {overview.version}: N = 4" in started.output, started.exception
        await desk.reach(overview.version + 1)

    play(tmp_path, VECTORS / "store-0.2.0.tar.xz", story)


def test_uploads_that_0_2_0_made_without_noise_count(tmp_path: Path) -> None:
    with tarfile.open(VECTORS / "store-0.2.0.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    path = tmp_path / NAMES[0] / "state.db"
    with ParticipantStore(path, "participant", anchor_folder=tmp_path / "elsewhere") as store:
        ledger = PrivacyLedger(store)
        assert ledger.uses > 0
        assert ledger.spent == math.inf
        assert store.read("ledger", "") is None


def _four() -> ProtocolParameters:
    return replace(
        SMALL,
        num_holders=4,
        recovery_threshold=2,
        max_colluders=1,
        max_dropouts=1,
        model_size=10,
    )


def test_an_operator_whose_standing_nobody_can_read_signs_nothing() -> None:
    """The control: what is carried over is what an older version wrote, not any damage."""
    assert Standing.read_back(None).suspended
    with pytest.raises(StorageError, match="cannot be read"):
        Standing.read_back(b"\x00damaged")
