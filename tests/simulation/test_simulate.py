"""`simulate` in somebody's program: it takes what people give, leaves a transcript, and torch as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_config, tiny_task

from basecagg import audit, simulate
from basecagg.auditing.transcript import read_transcript
from basecagg.errors import DataError, ParameterError, StorageError
from basecagg.simulation.run_folder import CHECKPOINT, TOTALS, TRANSCRIPT, transcripts
from basecagg.storage import disk

SECURE = tiny_config("basecagg", checkpoint_every=2)


def test_a_folder_may_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    simulate(SECURE, task=tiny_task(), folder="mine/run")
    assert (tmp_path / "mine" / "run" / TOTALS).exists()
    with pytest.raises(DataError, match="mine/run exists"):
        simulate(SECURE, task=tiny_task(), folder="mine/run")


def threads_after(run: object, threads: int = 3) -> int:
    task, before = tiny_task(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        run(task)  # type: ignore[operator]
        return torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def test_torch_has_as_many_threads_as_before() -> None:
    assert threads_after(lambda task: simulate(tiny_config(), task=task)) == 3


def test_torch_has_as_many_threads_as_before_after_a_run_that_failed() -> None:
    def fail(task: object) -> None:
        with pytest.raises(DataError, match="diverged"):
            simulate(tiny_config(local_rate=1e38), task=task)  # type: ignore[arg-type]

    assert threads_after(fail) == 3


def test_users_train_with_one_thread() -> None:
    """More of them only get in the way: what is restored was changed for a reason."""
    seen = []
    threads_after(
        lambda task: simulate(
            tiny_config(), task=task, progress=lambda record: seen.append(torch.get_num_threads())
        )
    )
    assert set(seen) == {1}


def test_a_run_from_python_has_its_transcript(tmp_path: Path) -> None:
    simulate(SECURE, task=tiny_task(), folder=tmp_path / "run")
    assert read_transcript(tmp_path / "run" / TRANSCRIPT).ending in ("signed", "closed")
    found = audit(tmp_path / "run" / TRANSCRIPT)
    assert found.only_sums
    assert len(found.sums) == SECURE.versions


def test_who_watches_sees_as_much_as_before(tmp_path: Path) -> None:
    seen: list[object] = []
    simulate(
        SECURE,
        task=tiny_task(),
        folder=tmp_path / "run",
        watch=lambda agreement, network, signer: seen.append(agreement.id),
    )
    assert len(seen) == 1


def test_without_a_folder_or_without_masks_there_is_none(tmp_path: Path) -> None:
    simulate(tiny_config("fedasync"), task=tiny_task(), folder=tmp_path / "run")
    assert transcripts(tmp_path / "run") == []


class StoppedError(Exception):
    """Ctrl-C, for example."""


def cut_off(folder: Path, version: int) -> None:
    def stop(record: object) -> None:
        if record.version == version:  # type: ignore[attr-defined]
            raise StoppedError

    with pytest.raises(StoppedError):
        simulate(SECURE, task=tiny_task(), folder=folder, progress=stop)


def test_a_run_that_goes_on_goes_on_with_its_transcript(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cut_off(folder, 3)
    assert read_transcript(folder / TRANSCRIPT).ending not in ("signed", "closed")
    simulate(SECURE, task=tiny_task(), folder=folder, resume=True)
    assert len(audit(folder / TRANSCRIPT).sums) == SECURE.versions


def test_half_a_transcript_is_not_begun(tmp_path: Path) -> None:
    """A run of before had none: what its server saw until then is in no file, so no file says what it saw."""
    folder = tmp_path / "run"
    cut_off(folder, 3)
    assert (folder / CHECKPOINT).exists()
    (folder / TRANSCRIPT).unlink()
    simulate(SECURE, task=tiny_task(), folder=folder, resume=True)
    assert transcripts(folder) == []


def test_a_transcript_that_another_run_writes_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cut_off(folder, 3)
    with (folder / TRANSCRIPT).open("ab") as other:
        disk.lock(other.fileno())
        with pytest.raises(StorageError, match="by another run"):
            simulate(SECURE, task=tiny_task(), folder=folder, resume=True)


def test_a_run_that_cannot_begin_leaves_no_folder_and_no_transcript(tmp_path: Path) -> None:
    with pytest.raises((DataError, ParameterError)):
        simulate(replace(SECURE, users=5000), task=tiny_task(), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
