"""Seven agents and a server over TLS: the model learns, whoever comes, goes or restarts."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from service_harness import SMALL, Nudge, federation

from basecagg.errors import DataError, TurnedAway
from basecagg.protocol.effects import Effect, Send
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import (
    Certificate,
    RecoveryRequest,
    signed,
)
from basecagg.service.connection import Connection
from basecagg.service.problems import Problem
from basecagg.service.signing import Caller

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


async def test_a_federation_learns_over_tls(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        trainings = {name: Nudge(target=float(index)) for index, name in enumerate(NAMES)}
        await fed.join(NAMES, trainings.__getitem__)
        await fed.start_epoch()
        await fed.reach(6)
        model = await fed.model()
        assert model.min() > 0.5  # it has left 0 for a mean of the targets 0 … 6
        assert model.max() < 6.0
        assert np.ptp(model) < 1e-3


async def test_the_operator_is_told_whose_answers_were_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in one number; the model learns all the same, and a restart does not forget who it was."""
    honest = Holder._answer
    liar = NAMES[3]

    def answer(
        self: Holder, request: RecoveryRequest, digest: bytes, *certificate: Certificate
    ) -> list[Effect]:
        effects = honest(self, request, digest, *certificate)
        if self.agreement.holder_names[self.index] == liar:
            told = self._answers[digest.hex()]
            words = np.frombuffer(told.words, "<u4").copy()
            words[0] = (int(words[0]) + 1) % SMALL.modulus
            lie = msgspec.structs.replace(told, words=words.tobytes(), signature=b"")
            self._answers[digest.hex()] = signed(lie, self._signer)
            effects[-1] = Send(SERVER, self._answers[digest.hex()])
        return effects

    monkeypatch.setattr(Holder, "_answer", answer)

    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        async with asyncio.timeout(60):
            while not (seen := (await fed.operator.look()).inconsistent):
                await asyncio.sleep(0.05)
        assert set(seen) == {liar}
        await fed.stop_server()
        await fed.start_server()
        after = (await fed.operator.look()).inconsistent
        assert set(after) == {liar}
        assert after[liar] >= seen[liar]
        assert np.ptp(await fed.model()) < 1e-3


async def test_the_server_restarts_and_goes_on(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        await fed.reach(2)
        before = await fed.version()
        await fed.stop_server()
        await fed.start_server()
        assert await fed.version() >= before
        await fed.reach(before + 3)


async def test_holders_that_are_gone_within_d_do_not_stop_it_and_come_back(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        await fed.reach(2)
        for name in NAMES[:2]:
            await fed.stop(name)
        before = await fed.version()
        await fed.reach(before + 2)
        for name in NAMES[:2]:
            fed.launch(fed.profile(name), Nudge())
        await fed.reach(await fed.version() + 3)


async def test_everybody_leaves_an_epoch_that_the_operator_ended(tmp_path: Path) -> None:
    """Nobody has to wait for the next one, which may never come."""

    def is_inside(name: str) -> bool:
        with closing(sqlite3.connect(tmp_path / name / "state.db")) as store:
            return bool(store.execute("SELECT 1 FROM records WHERE kind = 'charter'").fetchall())

    async def all_are_inside() -> bool:
        return all(map(is_inside, NAMES))

    async def nobody_is_left() -> bool:
        return not any(map(is_inside, NAMES))

    async with federation(tmp_path) as fed:
        await fed.join(NAMES, lambda name: None if name == NAMES[0] else Nudge())
        await fed.start_epoch()
        await fed.reach(1)
        await fed.until(all_are_inside)  # a version needs only some of them
        await fed.close_epoch()
        await fed.operator.end_epoch()
        await fed.until(nobody_is_left)


async def test_a_contributor_joins_during_an_epoch(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        await fed.reach(1)
        late = Nudge()
        await fed.join(["late"], lambda name: late)

        async def late_has_trained() -> bool:
            return late.calls >= 3

        await fed.until(late_has_trained)


async def test_an_epoch_is_rotated_and_the_model_goes_on(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        first = fed.operator.epoch
        assert first is not None
        await fed.reach(2)
        await fed.close_epoch()
        version, model = await fed.version(), await fed.model()
        await fed.start_epoch()
        second = fed.operator.epoch
        assert second is not None
        assert second.first_version == version
        assert np.array_equal(await fed.model(), model) or await fed.version() > version
        old = {holder.sealing_key for holder in first.holders}
        assert not old & {holder.sealing_key for holder in second.holders}
        await fed.reach(version + 2)


async def test_a_revoked_user_is_shut_out(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        await fed.reach(1)
        await fed.operator.revoke(NAMES[0])
        caller = Caller("test", NAMES[0], fed.profile(NAMES[0]).identity)
        line = Connection(fed.url, (fed.folder / "operator/ca.pem").read_text(), caller)
        with pytest.raises(Problem, match="does not belong"):
            await line.call("GET", "/v1/model")
        await line.close()
        with pytest.raises(TurnedAway, match=r"does not belong.*Revoked"):
            await asyncio.wait_for(fed.agents.pop(NAMES[0]), 20)
        await fed.reach(await fed.version() + 2)


async def test_a_holder_keeps_its_word_while_it_trains_and_when_training_fails(
    tmp_path: Path,
) -> None:
    """Three users train for ever or fail; without their answers no sum would open."""

    class Endless(Nudge):
        async def __call__(self, model, info):
            await asyncio.sleep(3600)

    class Failing(Nudge):
        async def __call__(self, model, info):
            raise DataError("out of memory")

    async with federation(tmp_path) as fed:
        kinds = [Endless, Endless, Failing, Nudge, Nudge, Nudge, Nudge]
        trainings = {name: kind() for name, kind in zip(NAMES, kinds, strict=True)}
        await fed.join(NAMES, trainings.__getitem__)
        await fed.start_epoch()
        await fed.reach(3)
        for name in NAMES[3:5]:  # D are gone: now every one of the three is needed
            await fed.stop(name)
        await fed.join(["extra-1", "extra-2"], lambda name: Nudge())
        await fed.reach(await fed.version() + 2)


async def test_users_of_every_speed_go_on_though_each_version_needs_three(tmp_path: Path) -> None:
    """K = 4 is below 2m: five users, one of whom is always behind, and all of them must meet in one version."""
    async with federation(tmp_path) as fed:
        slow = {name: Nudge(seconds=0.1 * index**2) for index, name in enumerate(NAMES[:5])}
        for name in NAMES:
            train = slow.get(name)
            role = "both" if train else "holder"
            fed.launch(fed.profile(name, await fed.invite(name, role)), train)
        await fed.admit(NAMES)
        await fed.start_epoch()
        assert fed.operator.epoch is not None
        assert fed.operator.epoch.parameters.least_per_version == 3
        await fed.reach(5)


async def test_a_committee_of_holders_serves_contributors_who_hold_nothing(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        committee = [f"holder-{index}" for index in range(SMALL.num_holders)]
        crowd = [f"phone-{index}" for index in range(5)]
        for name in committee:
            fed.launch(fed.profile(name, await fed.invite(name, "holder")), None)
        for name in crowd:
            fed.launch(fed.profile(name, await fed.invite(name, "contributor")), Nudge())
        await fed.admit([*committee, *crowd])
        await fed.start_epoch()
        epoch = fed.operator.epoch
        assert epoch is not None
        assert [holder.name for holder in epoch.holders] == committee
        await fed.reach(3)
