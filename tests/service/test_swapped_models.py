"""A server that swaps models under the operator's hands, at the start and at a rotation; with controls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from service_harness import SMALL, Federation, Nudge, federation
from test_commands import Desk

from basecagg.commands import verify
from basecagg.errors import DataError, ServerCaught, WrongModel
from basecagg.protocol import server
from basecagg.protocol.epoch import first_link
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.global_model import Model
from basecagg.protocol.opening import Opened
from basecagg.protocol.server import stepped
from basecagg.protocol.step_rule import OptimiserState, StepRule
from basecagg.service.documents import Overview
from basecagg.service.operator.office import Office
from basecagg.service.server.epoch_sequence import Epochs

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]
PLAN = ("--max-dropouts", "2", "--max-colluders", "2", "--buffer-size", "4")
EVIL = np.full(SMALL.model_size, 42.0, "<f4").tobytes()


def swap_given(patch: pytest.MonkeyPatch) -> None:
    """The model that the operator sends is replaced by another."""
    real = Epochs.set_model
    patch.setattr(Epochs, "set_model", lambda self, data: real(self, EVIL if data else data))


def swap_trained(patch: pytest.MonkeyPatch) -> None:
    """When an epoch is closed, the next one is to begin with another model."""
    real = Epochs._next_model

    def swapped(self: Epochs) -> bytes:
        return EVIL if self.phase == "closed" else real(self)

    patch.setattr(Epochs, "_next_model", swapped)


def signed_epochs(fed: Federation) -> list[Any]:
    """What the operator remembers of epochs, and their number."""
    office = Office(fed.folder / "operator", fed.folder / "anchors")
    known = [office.machine.number, office.epoch.first_version if office.epoch else None]
    office.close()
    return known


async def joined(fed: Federation) -> Desk:
    await fed.join(NAMES, lambda name: Nudge(seconds=0.05))
    np.save(fed.folder / "m.npy", np.full(SMALL.model_size, 0.5))
    return Desk(fed)


async def test_another_first_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path) as fed:
        desk = await joined(fed)
        start = ("start", "--model", str(tmp_path / "m.npy"), *PLAN)
        with monkeypatch.context() as patch:
            swap_given(patch)
            refused = await desk(*start)
        assert "epoch 1 from version 0" not in refused.output
        assert "the one that was given, traced or accepted here" in str(refused.exception)
        assert signed_epochs(fed) == [0, None]
        # The control: the same command, and a server that keeps what it was given.
        started = await desk(*start)
        assert "epoch 1 from version 0" in started.output, started.exception


async def test_another_model_at_a_rotation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path) as fed:
        desk = await joined(fed)
        await desk("start", "--model", str(tmp_path / "m.npy"), *PLAN)
        await desk.reach(2)
        with monkeypatch.context() as patch:
            swap_trained(patch)
            refused = await desk("rotate", *PLAN)
        assert "epoch 2 from version" not in refused.output
        assert "the one that was given, traced or accepted here" in str(refused.exception)
        assert signed_epochs(fed) == [1, 0]
        trained = await fed.model()
        # The control, and the way on: a server that goes on with what it made.
        rotated = await desk("rotate", *PLAN)
        assert "epoch 2 from version" in rotated.output, rotated.exception
        assert (await fed.model()).tolist() == trained.tolist()


async def test_another_place_in_the_chain_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is signed, and then the server speaks of another version than the one that it can show."""
    async with federation(tmp_path) as fed:
        desk = await joined(fed)
        await desk("start", "--model", str(tmp_path / "m.npy"), *PLAN)
        await desk.reach(1)
        await desk("close")
        real = Epochs.overview

        def lying(self: Epochs, *told: Any) -> Overview:
            said = real(self, *told)
            return msgspec.structs.replace(said, version=said.version + 1)

        with monkeypatch.context() as patch:
            patch.setattr(Epochs, "overview", lying)
            assert isinstance((await desk("start", *PLAN)).exception, WrongModel)
        started = await desk("start", *PLAN)
        assert "epoch 2 from version" in started.output, started.exception


# --- a server that released another model than it made --------------------------------------------


def miscalculate(patch: pytest.MonkeyPatch) -> None:
    """Every version is another model than the sums make. Releases and chain are what they should be."""

    def evil(rule: StepRule, model: Model, state: OptimiserState, opened: Opened) -> Any:
        made, state = stepped(rule, model, state, opened)
        return made + np.float32(0.25), state

    patch.setattr(server, "stepped", evil)


async def test_a_model_that_was_not_made_from_its_sum_convicts_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path) as fed:
        fed.floor = LocalFloor(consistency="certified", correctness="agreed")  # none makes it again
        desk = await joined(fed)
        with monkeypatch.context() as patch:
            miscalculate(patch)
            await desk("start", "--model", str(tmp_path / "m.npy"), *PLAN)
            await desk.reach(2)
            refused = await desk("rotate", *PLAN)
        assert isinstance(refused.exception, ServerCaught), refused.output
        assert "--accept-model" not in str(refused.exception)
        assert signed_epochs(fed) == [1, 0]
        (evidence,) = (tmp_path / "operator").glob("evidence-1-*.bin")
        assert f"basecagg verify {evidence}" in str(refused.exception)
        key = (await desk("key")).output.strip()
        judged = CliRunner().invoke(verify.command, [str(evidence), "--operator-key", key])
        assert judged.exit_code == 1
        assert "convicted in epoch 1 of test" in judged.output


# --- a server that has lost what leads to its model -----------------------------------------------


async def test_a_model_that_cannot_be_traced_is_accepted_by_its_hash_only(tmp_path: Path) -> None:
    """A server that keeps no parts of its versions, as one may be that was restored by hand."""
    async with federation(tmp_path, keep_versions=0) as fed:
        fed.floor = LocalFloor(consistency="certified", correctness="agreed")
        desk = await joined(fed)
        await desk("start", "--model", str(tmp_path / "m.npy"), *PLAN)
        await desk.reach(1)
        refused = await desk("rotate", *PLAN)
        assert isinstance(refused.exception, DataError), refused.output
        assert "has not kept what version" in str(refused.exception)
        (told,) = re.findall("--accept-model ([0-9a-f]{64})", str(refused.exception))
        assert signed_epochs(fed) == [1, 0]
        wrong = await desk("rotate", *PLAN, "--accept-model", "ab" * 32)
        assert isinstance(wrong.exception, WrongModel)
        trained = await fed.model()
        rotated = await desk("rotate", *PLAN, "--accept-model", told)
        assert "epoch 2 from version" in rotated.output, rotated.exception
        assert (await fed.model()).tolist() == trained.tolist()
        assert f"hash {told}" in (await desk("log")).output


async def test_a_model_is_given_or_accepted(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        np.save(tmp_path / "m.npy", np.zeros(3))
        both = ("--model", str(tmp_path / "m.npy"), "--accept-model", "ab" * 32)
        done = await Desk(fed)("start", *both)
        assert "either --model or --accept-model" in str(done.exception)


# --- what is remembered in between ----------------------------------------------------------------


async def test_a_start_that_failed_remembers_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has enrolled yet; the next `start` goes on with what was given, and with nothing else."""
    async with federation(tmp_path) as fed:
        np.save(tmp_path / "m.npy", np.full(SMALL.model_size, 0.5))
        desk = Desk(fed)
        failed = await desk("start", "--model", str(tmp_path / "m.npy"), *PLAN)
        assert "holders have enrolled" in str(failed.exception)
        fed.operator = Office(tmp_path / "operator", tmp_path / "anchors")
        desk = await joined(fed)
        with monkeypatch.context() as patch:
            patch.setattr(Epochs, "_next_model", lambda self: EVIL)
            assert isinstance((await desk("start", *PLAN)).exception, WrongModel)
        started = await desk("start", *PLAN)
        assert "epoch 1 from version 0" in started.output, started.exception
        office = Office(tmp_path / "operator", tmp_path / "anchors")
        given = np.full(SMALL.model_size, 0.5, "<f4")
        assert office.epoch is not None
        assert office.epoch.first == first_link(given)
        office.close()


async def test_the_size_of_the_model_is_the_one_that_was_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path) as fed:
        desk = await joined(fed)
        await desk("start", "--model", str(tmp_path / "m.npy"), *PLAN)
        await desk.reach(1)
        real = Epochs.overview

        def lying(self: Epochs, *told: Any) -> Overview:
            return msgspec.structs.replace(real(self, *told), model_size=7)

        monkeypatch.setattr(Epochs, "overview", lying)
        rotated = await desk("rotate", *PLAN)
        assert f"d = {SMALL.model_size}," in rotated.output, rotated.exception


async def test_an_operator_that_recovered_follows_the_epoch_that_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path) as fed:
        desk = await joined(fed)
        await desk("start", "--model", str(tmp_path / "m.npy"), *PLAN)
        await desk.reach(1)
        confirmed = [word for name in NAMES for word in ("--confirm", name)]
        recovered = await desk("recover", "--above", "1", *confirmed)
        assert recovered.exit_code == 0, recovered.exception
        with monkeypatch.context() as patch:
            swap_trained(patch)
            assert isinstance((await desk("rotate", *PLAN)).exception, WrongModel)
        rotated = await desk("rotate", *PLAN)
        assert "epoch 2 from version" in rotated.output, rotated.exception
