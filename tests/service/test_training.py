"""The user's function in its own process: it may print, fail, hang or die."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from basecagg.errors import DataError
from basecagg.privacy import Privacy
from basecagg.service.training import RoundInfo, UserFunction

INFO = RoundInfo(federation="test", name="alice", version=3, round=1, data="/data")
MODEL = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def importable(monkeypatch) -> None:
    monkeypatch.chdir(os.path.dirname(__file__))


def call(place: str, times: int = 1, info: RoundInfo = INFO) -> list[np.ndarray]:
    async def story() -> list[np.ndarray]:
        function = UserFunction(place)
        try:
            return [await function(MODEL, info) for _ in range(times)]
        finally:
            function.close()

    return asyncio.run(story())


def test_it_gets_the_model_and_the_round_and_may_print() -> None:
    (result,) = call("user_functions:chatty")
    assert result.tolist() == [3.0, 4.0, 5.0, 6.0]


def test_it_can_clip_each_record_as_the_epoch_wants_it() -> None:
    """The helper in the user's own process: a record moves the model by C at most, however large it is."""
    privacy = Privacy(
        clip_norm=0.5, noise=2.0, epsilon=3.0, unit="record", sampling_rate=1.0, max_records=9
    )
    (moved,) = call(
        "user_functions:on_one_record", info=msgspec.structs.replace(INFO, privacy=privacy)
    )
    assert np.linalg.norm(moved - MODEL) == pytest.approx(0.5 * (1 - 2**-7), rel=1e-5)


def test_its_process_lives_on_between_rounds() -> None:
    assert [result[0] for result in call("user_functions:counting", times=3)] == [1, 2, 3]


def test_its_exception_is_told() -> None:
    with pytest.raises(DataError, match="ZeroDivisionError"):
        call("user_functions:failing")


def test_its_death_is_told() -> None:
    with pytest.raises(DataError, match="ended unexpectedly"):
        call("user_functions:dying")


@pytest.mark.parametrize("place", ["nowhere:train", "user_functions:nothing"])
def test_a_function_that_is_not_there_is_told(place: str) -> None:
    with pytest.raises(DataError, match="failed"):
        call(place)


def test_a_place_without_a_function_is_refused_at_once() -> None:
    with pytest.raises(DataError, match="module:function"):
        UserFunction("my_package")


@pytest.mark.parametrize("shadow", ["msgspec", "json", "basecagg"])
def test_a_file_in_the_folder_shadows_nothing_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shadow: str
) -> None:
    """One may start in a folder of data that others write to. One's own module is found there all the same."""
    (tmp_path / f"{shadow}.py").write_text("open('was_here', 'w').close()\n")
    source = "import json, msgspec, basecagg\ndef train(model, info):\n    return model + 1\n"
    (tmp_path / "own_training.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as `python -m` has it
    (result,) = call("own_training:train")
    assert result.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert not (tmp_path / "was_here").exists()


async def test_the_event_loop_goes_on_while_it_blocks(tmp_path: Path) -> None:
    """The training ends only if the loop has ticked meanwhile."""
    function = UserFunction("user_functions:blocking")
    info = msgspec.structs.replace(INFO, data=str(tmp_path))
    try:
        task = asyncio.create_task(function(MODEL, info))
        while not (tmp_path / "begun").exists():
            if task.done():
                await task  # it says why it never began
            await asyncio.sleep(0.01)
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not task.done()
        (tmp_path / "go").touch()
        assert (await task).tolist() == MODEL.tolist()
    finally:
        function.close()


async def test_its_process_ends_with_its_pipe() -> None:
    function = UserFunction("user_functions:counting")
    await function(MODEL, INFO)
    child = function._child
    assert child is not None
    child.pipe.close()  # as when the agent is killed
    assert await asyncio.to_thread(child._process.wait, 20) == 0
    function.close()
