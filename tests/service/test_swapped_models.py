"""A server that swaps models under the operator's hands, at the start and at a rotation. Each with its control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_harness import SMALL, Federation, Nudge, federation
from test_commands import Desk

from basecagg.service.operator.office import Office
from basecagg.service.server.epochs import Epochs

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]
PLAN = ("--dropouts", "2", "--colluders", "2", "--buffer", "4")
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


@pytest.mark.xfail(strict=True, reason="the operator signs whatever first model the server names")
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


@pytest.mark.xfail(
    strict=True, reason="the operator signs whatever model the server names at a rotation"
)
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
