"""An upgrade in place, from stores that 0.2.0 wrote: people and model carry over into a new epoch.

`tests/vectors/store-0.2.0.tar.xz` was written by basecagg 0.2.0: an operator, a server and four hospitals at
version 5 of the model, stopped while their epoch was open. A fifth hospital was revoked.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import tarfile
from contextlib import closing
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
from basecagg.protocol.stored import Standing
from basecagg.service.operator.folder import certify_server
from basecagg.storage import anchor
from basecagg.storage.participant_store import ParticipantStore

STORE = Path(__file__).parent.parent / "vectors/store-0.2.0.tar.xz"
NAMES = [f"hospital-{number}" for number in (1, 2, 3, 4)]
PLAN = ("--max-dropouts", "1", "--max-colluders", "1", "--buffer-size", "4")


def unpack(folder: Path) -> None:
    with tarfile.open(STORE) as packed:
        packed.extractall(folder, filter="data")


class Upgraded(Federation):
    """The folders of the old federation, at another place: only their address and anchors move with them."""

    def __init__(self, folder: Path) -> None:
        unpack(folder)
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


def model_in(folder: Path) -> list[float]:
    """The newest model, as 0.2.0 stored it."""
    with closing(sqlite3.connect(folder / "operator/server/server.db")) as database:
        newest = "SELECT value FROM basecagg_records WHERE kind = 'model' ORDER BY key DESC"
        return np.frombuffer(database.execute(newest).fetchone()[0], "<f4").tolist()


def play(folder: Path, story: Any) -> None:
    async def whole() -> None:
        fed = Upgraded(folder)
        async with stopped_at_last(fed):
            await story(fed)

    asyncio.run(whole())


def test_people_and_model_carry_over_into_a_new_epoch(tmp_path: Path) -> None:
    async def story(fed: Upgraded) -> None:
        await fed.start_server()
        overview = await fed.operator.look()
        assert (overview.phase, overview.version) == ("waiting", fed.told["version"])
        assert [member.name for member in overview.members if not member.revoked] == NAMES
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

    play(tmp_path, story)


def test_the_model_is_the_old_one_to_the_bit_and_nothing_else_is_kept(tmp_path: Path) -> None:
    async def story(fed: Upgraded) -> None:
        model = model_in(fed.folder)
        await fed.start_server()
        await fed.stop_server()
        await fed.start_server()  # a restart in between changes nothing
        overview = await fed.operator.look()
        assert (overview.version, overview.model_size) == (fed.told["version"], len(model))
        for name in NAMES:
            fed.launch(fed.profile(name), Nudge(seconds=60))

        async def keys_are_there() -> bool:
            await fed.operator.look()
            return not fed.operator.machine.missing()

        await fed.until(keys_are_there)
        accepted = overview.model_hash
        assert await fed.operator.settle_model(accepted=accepted) == len(model)
        await fed.operator.start(_four(len(model)))
        assert (await fed.model()).tolist() == model
        assert fed.operator.epoch is not None
        assert fed.operator.epoch.number == 2
        old_keys = {key for key, number in fed.operator.machine._used.items() if number == 1}
        new_keys = {key for key, number in fed.operator.machine._used.items() if number == 2}
        assert len(old_keys) == len(new_keys) == 4
        assert not old_keys & new_keys

    play(tmp_path, story)


def test_uploads_that_0_2_0_made_without_noise_count(tmp_path: Path) -> None:
    unpack(tmp_path)
    path = tmp_path / NAMES[0] / "state.db"
    with ParticipantStore(path, "participant", anchor_folder=tmp_path / "elsewhere") as store:
        ledger = PrivacyLedger(store)
        assert ledger.uses > 0
        assert ledger.spent == math.inf
        assert store.read("ledger", "") is None


def _four(model_size: int) -> ProtocolParameters:
    return replace(
        SMALL,
        num_holders=4,
        recovery_threshold=2,
        max_colluders=1,
        max_dropouts=1,
        model_size=model_size,
    )


def test_an_operator_whose_standing_nobody_can_read_signs_nothing() -> None:
    """The control: what is carried over is what an older version wrote, not any damage."""
    assert Standing.read_back(None).suspended
    with pytest.raises(StorageError, match="cannot be read"):
        Standing.read_back(b"\x00damaged")
