"""A run that is killed goes on from its last checkpoint, and says what it would have said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from basecagg.errors import DataError
from reproduction import accuracy, simulated
from reproduction.jobs import Order
from reproduction.simulated import run_simulation, simulation_job

VERSIONS, KILLED_AT = 9, 5


class KilledError(Exception):
    """In the middle of a run, just before a checkpoint."""


@pytest.fixture
def job(tmp_path):
    config = accuracy.SMOKE.config(method="fedbuff", versions=VERSIONS, evaluate_every=1, seed=1)
    config = replace(config, checkpoint_every=2)
    return simulation_job("fedbuff/1", config, Order("smoke", unfinished=tmp_path / "unfinished"))


def test_it_says_the_same_and_does_not_begin_again(job, monkeypatch):
    whole = run_simulation(job.argument)
    trained = []

    def killed(record):
        trained.append(record.version)
        if trained.count(KILLED_AT) == 1 and record.version == KILLED_AT:
            raise KilledError

    going_on = simulated.simulate
    monkeypatch.setattr(simulated, "simulate", lambda *a, **k: going_on(*a, **k, progress=killed))
    with pytest.raises(KilledError):
        run_simulation(job.argument)
    assert job.argument.folder.exists()
    again = run_simulation(job.argument)
    assert trained == [*range(KILLED_AT + 1), *range(KILLED_AT, VERSIONS + 1)]
    assert again["curve"] == whole["curve"]
    assert again["updates"] == whole["updates"]
    assert not job.argument.folder.exists()


def test_what_cannot_be_resumed_is_no_result(job):
    job.argument.folder.mkdir(parents=True)
    (job.argument.folder / "checkpoint.msgpack").write_bytes(b"half of it")
    with pytest.raises(DataError):
        run_simulation(job.argument)


def test_another_setting_does_not_go_on_from_there(job):
    other = replace(job.argument.config, local_rate=0.5)
    assert simulation_job("fedbuff/1", other, Order("smoke")).argument.folder.name != (
        job.argument.folder.name
    )
