"""Runs: a seed decides everything, whoever trains; an interrupted run goes on to the very same result."""

from __future__ import annotations

import importlib.util
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, SimulationResult, simulate
from basecagg.errors import DataError, MissingExtraError, ParameterError, StorageError
from basecagg.protocol.step_rule import USUAL_RATES
from basecagg.simulation.config import config_from, parse_override, read_settings
from basecagg.simulation.logbook import VersionRecord
from basecagg.simulation.protections import PRESETS
from basecagg.simulation.run_folder import CHECKPOINT, CONFIG, METRICS, MODEL, read_metrics

CASES = [
    *((method, "devices") for method in PRESETS),
    *((method, "uniform-staleness") for method in ("fedasync", "fedbuff", "ldp", "basecagg")),
]
METHODS = pytest.mark.parametrize(("method", "clock"), CASES)


def eventful(method: str, clock: str = "devices", **changes: object) -> SimulationConfig:
    """Users that drop out, are away, and holders that do not answer."""
    events = {"dropout": 0.2, "availability": 0.7, "holder_dropout": 0.2, "checkpoint_every": 1}
    return tiny_config(method, **({"clock": clock} | events | changes))


def run(config: SimulationConfig, **options: object) -> SimulationResult:
    return simulate(config, task=tiny_task(), **options)


def assert_same(one: SimulationResult, other: SimulationResult) -> None:
    assert one.versions == other.versions
    assert one.model.tobytes() == other.model.tobytes()


@METHODS
def test_a_seed_repeats_a_run(method: str, clock: str) -> None:
    config = eventful(method, clock)
    first = run(config)
    assert_same(first, run(config))
    assert first.model.tobytes() != run(replace(config, seed=2)).model.tobytes()


@METHODS
def test_a_run_cut_off_anywhere_goes_on_to_the_same_result(
    method: str, clock: str, tmp_path: Path
) -> None:
    config = eventful(method, clock)
    whole = run(config, folder=tmp_path / "whole")

    class Cut(Exception):  # noqa: N818
        pass

    def cut_at(last: int) -> object:
        def progress(record: object) -> None:
            if getattr(record, "version", 0) == last:
                raise Cut

        return progress

    folder = tmp_path / "cut"
    for last in (1, 2, 3):  # each time from the checkpoint before
        with pytest.raises(Cut):
            run(config, folder=folder, resume=folder.exists(), progress=cut_at(last))
    assert_same(whole, run(config, folder=folder, resume=True))
    for name in (METRICS, MODEL):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("method", "optimiser"),
    [("fedbuff", "adam"), ("basecagg", "momentum"), ("basecagg", "adam"), ("secagg", "adam")],
)
def test_a_run_with_a_server_optimiser_goes_on_to_the_same_result(
    method: str, optimiser: str, tmp_path: Path
) -> None:
    config = eventful(method, server_optimiser=optimiser, global_rate=None, checkpoint_every=2)
    whole = run(config)
    assert whole.model.tobytes() != run(replace(config, server_optimiser="sgd")).model.tobytes()

    class Cut(Exception):  # noqa: N818
        pass

    def cut(record: VersionRecord) -> None:
        if record.version == 3:
            raise Cut

    with pytest.raises(Cut):
        run(config, folder=tmp_path / "run", progress=cut)
    assert_same(whole, run(config, folder=tmp_path / "run", resume=True))


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    """So what is left in the buffer at the end has not touched the model."""
    long = run(tiny_config(versions=4, concurrency=7))
    short = run(tiny_config(versions=2, concurrency=7))
    assert short.versions == long.versions[:3]
    assert short.versions[-1].updates >= 2 * tiny_config().buffer_size


@pytest.mark.parametrize("method", sorted(PRESETS))
@pytest.mark.parametrize("until", ["updates=30", "seconds=25"])
def test_methods_end_with_the_first_version_that_has_as_much(method: str, until: str) -> None:
    config = tiny_config(method, until=until, versions=1, evaluate_every=50)
    *before, end = run(config).versions
    measure, amount = config.ending
    assert end.reached(measure) >= amount > before[-1].reached(measure)
    assert end.score is not None


@pytest.mark.parametrize("method", ["fedasync", "basecagg"])
@pytest.mark.parametrize("until", ["updates=20", "seconds=15"])
def test_a_run_until_so_much_goes_on_to_the_same_end(
    method: str, until: str, tmp_path: Path
) -> None:
    config = tiny_config(method, until=until, checkpoint_every=1)
    whole = run(config, folder=tmp_path / "whole")

    def stop(record: VersionRecord) -> None:
        if record.version == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, folder=tmp_path / "cut", progress=stop)
    assert_same(whole, run(config, folder=tmp_path / "cut", resume=True))
    assert_same(whole, run(config, folder=tmp_path / "cut", resume=True))  # at its end already


@pytest.mark.parametrize("method", ["fedbuff", "basecagg"])
def test_processes_train_to_the_same_result(method: str) -> None:
    config = SimulationConfig(
        method=method, users=6, concurrency=4, buffer_size=3, versions=2, model="logistic"
    )
    config = replace(config, cryptography="arithmetic")
    side_by_side = replace(config, executor="processes", workers=2)
    one, other = simulate(config), simulate(side_by_side)
    assert_same(one, other)


ON_RAY = """
from dataclasses import replace
from basecagg import SimulationConfig, simulate
config = SimulationConfig(method="fedbuff", users=6, concurrency=4, buffer_size=3, versions=2)
one, other = simulate(config), simulate(replace(config, executor="ray", workers=2))
assert one.versions == other.versions
assert one.model.tobytes() == other.model.tobytes()
"""


@pytest.mark.soak
def test_ray_trains_to_the_same_result() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    subprocess.run([sys.executable, "-c", ON_RAY], check=True)  # Ray leaves processes to its exit


def test_a_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\.\[ray\]"):
        run(tiny_config(executor="ray"))


def test_a_task_that_other_processes_cannot_have_is_named() -> None:
    with pytest.raises(DataError, match=r"'clouds' cannot be sent to other processes"):
        run(tiny_config(executor="processes"))


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
def test_workers_end_with_a_parent_that_was_killed() -> None:
    code = (
        "from basecagg import SimulationConfig, simulate\n"
        "if __name__ == '__main__':\n"
        "    simulate(SimulationConfig(method='fedbuff', executor='processes', workers=2,"
        " versions=10**6), progress=lambda record: print(record.version, flush=True))\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(3)]
        workers = _children(child.pid)
        child.kill()
    assert len(workers) >= 2
    for _ in range(100):
        if not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers):
            return
        time.sleep(0.1)
    pytest.fail("workers outlived their parent")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# --- kill -9 ----------------------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_runs import eventful, run
from tiny import tiny_config
folder = Path(sys.argv[1])
run(eventful("basecagg", versions=int(sys.argv[3])), folder=folder, resume=folder.exists())
"""


def kill_at_random(folder: Path, versions: int, generator: random.Random) -> bool:
    """Run on in a process of its own, and kill it some time after it has written something."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", CHILD, str(folder), str(here), str(versions)]
    path = f"{here}:{here.parent / 'schedules'}:{here.parent.parent / 'src'}"
    child = subprocess.Popen(command, env={"PYTHONPATH": path, "PATH": ""})
    before = _lines(folder)
    while child.poll() is None and _lines(folder) <= before + 1:
        time.sleep(0.005)
    time.sleep(generator.uniform(0, 0.2))
    child.kill()
    return child.wait() == -signal.SIGKILL


def _lines(folder: Path) -> int:
    metrics = folder / METRICS
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def check_kills(tmp_path: Path, versions: int, kills: int) -> None:
    config = eventful("basecagg", versions=versions)
    killed = [
        kill_at_random(tmp_path / "cut", versions, random.Random(number)) for number in range(kills)
    ]
    assert any(killed)
    assert_same(run(config), run(config, folder=tmp_path / "cut", resume=True))


def test_a_killed_run_goes_on_to_the_same_result(tmp_path: Path) -> None:
    check_kills(tmp_path, versions=60, kills=1)


@pytest.mark.soak
def test_a_run_killed_again_and_again_goes_on_to_the_same_result(tmp_path: Path) -> None:
    check_kills(tmp_path, versions=200, kills=12)


# --- folders ----------------------------------------------------------------------------------------


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    run(tiny_config(), folder=tmp_path / "run")
    with pytest.raises(
        DataError, match="exists: choose another folder, or go on with it by resume=True"
    ):
        run(tiny_config(), folder=tmp_path / "run")


def test_a_run_is_not_resumed_with_another_configuration(tmp_path: Path) -> None:
    run(tiny_config(checkpoint_every=1), folder=tmp_path / "run")
    with pytest.raises(DataError, match="another configuration"):
        run(tiny_config(checkpoint_every=2), folder=tmp_path / "run", resume=True)


def test_a_run_is_not_resumed_with_another_task(tmp_path: Path) -> None:
    run(tiny_config(checkpoint_every=1), folder=tmp_path / "run")
    other = replace(tiny_task(), name="other")
    with pytest.raises(DataError, match="made with the task 'clouds', not 'other'"):
        simulate(tiny_config(checkpoint_every=1), task=other, folder=tmp_path / "run", resume=True)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
    config = tiny_config(checkpoint_every=1)
    run(config, folder=tmp_path / "run")
    path = tmp_path / "run" / CHECKPOINT
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"flip": content, "cut": content[:-7], "empty": b""}[damage]
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="is damaged"):
        run(config, folder=tmp_path / "run", resume=True)


def test_a_line_of_metrics_cut_off_is_left_out(tmp_path: Path) -> None:
    run(tiny_config(), folder=tmp_path / "run")
    path = tmp_path / "run" / METRICS
    path.write_bytes(path.read_bytes()[:-9])
    assert [line["version"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2, 3]


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="48 examples cannot be dealt to 49 users"):
        run(tiny_config(users=49), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        run(tiny_config(), folder=tmp_path / "file" / "run")


def test_a_diverged_training_stops_the_run() -> None:
    with pytest.raises(DataError, match=r"diverged .* lower learning_rate"):
        run(tiny_config(local_rate=1e38, local_epochs=5))


# --- configurations ---------------------------------------------------------------------------------


def test_a_file_and_overrides_make_one_configuration(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('method = "fedbuff"\nusers = 30\nlocal_rate = 0.2\n')
    overrides = dict(map(parse_override, ("users=40", "partition=dirichlet")))
    config = config_from({**read_settings(path), **overrides})
    assert (config.method, config.users, config.local_rate) == ("fedbuff", 40, 0.2)
    assert config.partition == "dirichlet"
    assert config_from(asdict(config)) == config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"method": "fedmagic"}, "method 'fedmagic' is unknown; there are fedavg"),
        ({"schedule": "immediate", "protection": "basecagg"}, "K ≥ 2"),
        ({"colour": 1}, "unknown setting 'colour'"),
        ({"users": "many"}, "users = 'many' must be a whole number"),
        ({"download": 1}, "download = 1 must be true or false"),
        ({"speed": "odd"}, "speed = 'odd' must be one of constant, uniform, half-normal"),
        ({"seed": -1}, "seed = -1 must be at least 0"),
        ({"users": 8, "buffer_size": 4, "concurrency": 9}, "concurrency = 9 .* users = 8"),
        ({"local_rate": -1.0}, "local_rate = -1.0 must be above 0 and finite"),
        ({"method": "fedasync", "fedasync_mixing": 2.0}, "fedasync_mixing = 2.0"),
        ({"method": "ldp", "noise": 0.0}, "noise = 0.0 must be positive"),
        ({"method": "ldp", "delta": 1.0}, "delta = 1.0"),
        ({"partition": "dirichlet", "dirichlet_alpha": 0.0}, "dirichlet_alpha = 0.0"),
        (
            {"staleness": "polynomial:-1"},
            "staleness = 'polynomial:-1' must be constant, polynomial:α or",
        ),
        ({"staleness_a": 0.5}, "unknown setting 'staleness_a': did you mean staleness"),
        ({"dp_epsilon": 1.0}, "unknown setting 'dp_epsilon': did you mean epsilon"),
        ({"concurrency": 0}, "concurrency = 0 must be at least 1 or none"),
        ({"speed_spread": -1.0}, "speed_spread = -1.0"),
        ({"server_optimiser": "adagrad"}, "must be one of sgd, momentum, adam"),
        ({"global_rate": -1.0}, r"global_rate = -1.0 must be above 0, at most 1e\+06 or none"),
        ({"server_optimiser": "momentum", "server_momentum": 1.0}, "server_momentum = 1.0 must be"),
        (
            {"server_optimiser": "adam", "server_second_momentum": -0.1},
            "server_second_momentum = -0.1 must be at least 0, below 1",
        ),
        (
            {"server_optimiser": "adam", "server_epsilon": 0.0},
            "server_epsilon = 0.0 must be between",
        ),
        (
            {"method": "fedasync", "server_optimiser": "adam"},
            "server_optimiser = 'adam' must be sgd for this schedule",
        ),
        ({"workers": -1}, "workers = -1"),
        ({"holders": 1}, "holders = 1"),
        ({"method": "secagg", "update_levels": 0}, "update_levels = 0"),
        ({"until": "updates"}, "until = 'updates' must be updates=NUMBER or seconds=NUMBER"),
        ({"until": "versions=3"}, "until = 'versions=3' must be updates=NUMBER"),
        ({"until": "updates=0"}, "until = 'updates=0' must be"),
        ({"until": "seconds=inf"}, "until = 'seconds=inf' must be"),
        ({"until": "updates=9", "evaluate_last": 5}, "evaluate_last = 5 must be 1"),
        ({"until": "seconds=9", "clock": "uniform-staleness"}, "which has no seconds"),
        ({"recovery_threshold": 90, "max_dropouts": 30}, "U"),
        ({"buffer_size": 1}, "buffer_size = 1 must be between 2"),
        ({"buffer_size": 200}, "buffer_size = 200"),
        ({"method": "fedavg", "concurrency": 5}, "concurrency = 5"),
        ({"method": "fedavg", "clock": "uniform-staleness"}, "clock"),
        (
            {"local_steps": 3, "local_epochs": 5},
            "local_steps = 3 must be left out while local_epochs = 5: give one",
        ),
        ({"clip": 1e6}, "c_l"),
        ({"holder_dropout": 0.5}, "leaves 50 of 100 holders, and a sum needs 70"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(values: dict[str, object], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        config_from(values)


@pytest.mark.parametrize(
    "values",
    [
        {"method": "fedavg", "users": 4, "buffer_size": 4},  # and tiers = 5
        {"method": "fedasync", "buffer_size": 999},
        {"method": "fedat", "buffer_size": 999},
        {"method": "fedbuff", "noise": 0.0, "holders": 2},
    ],
)
def test_a_setting_that_a_method_does_not_use_is_not_asked_for(values: dict[str, object]) -> None:
    assert config_from(values).users == values.get("users", 100)


@pytest.mark.parametrize(("optimiser", "rate"), USUAL_RATES.items())
def test_each_server_optimiser_has_a_rate_of_its_own(optimiser: str, rate: float) -> None:
    assert config_from({"server_optimiser": optimiser}).server_rate == rate
    assert config_from({"server_optimiser": optimiser, "global_rate": 0.7}).server_rate == 0.7


@pytest.mark.parametrize(("optimiser", "rate"), USUAL_RATES.items())
def test_what_was_not_given_follows_what_is_replaced(optimiser: str, rate: float) -> None:
    changed = replace(SimulationConfig(users=8, buffer_size=4), server_optimiser=optimiser)
    assert changed.step_rule(12, 12).rate == rate
    assert changed == SimulationConfig(users=8, buffer_size=4, server_optimiser=optimiser)
    assert replace(SimulationConfig(global_rate=0.7), server_optimiser=optimiser).server_rate == 0.7
    assert replace(changed, users=100).users_at_once == 20
    assert replace(SimulationConfig(concurrency=5), users=50).users_at_once == 5


def test_runs_of_before_are_resumed_though_they_wrote_down_what_was_not_given(
    tmp_path: Path,
) -> None:
    config = tiny_config(concurrency=None, global_rate=None, checkpoint_every=2, versions=2)
    run(config, folder=tmp_path / "old")
    place = tmp_path / "old" / CONFIG
    written = json.loads(place.read_text()) | {"concurrency": 8, "global_rate": 0.5}
    assert written != json.loads(place.read_text())
    place.write_text(json.dumps(written))
    assert run(config, folder=tmp_path / "old", resume=True).versions[-1].version == 2
    with pytest.raises(DataError, match="another configuration"):
        run(replace(config, global_rate=0.6), folder=tmp_path / "old", resume=True)


def test_no_more_users_train_at_once_than_there_are() -> None:
    assert SimulationConfig().users_at_once == 20
    assert SimulationConfig(users=8, buffer_size=4).users_at_once == 8


def test_a_python_call_is_told_the_words_too() -> None:
    with pytest.raises(ParameterError, match="executor = 'magic' must be one of in-process,"):
        SimulationConfig(executor="magic")  # type: ignore[arg-type]


def test_python_words_for_true_and_false_are_understood() -> None:
    assert dict(map(parse_override, ("download=True", "auto_tune=false"))) == {
        "download": True,
        "auto_tune": False,
    }


@pytest.mark.parametrize("content", [b"users = ", b"\xff\xfe", None])
def test_an_unreadable_file_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"my\.toml"):
        config_from(read_settings(path))


def test_models_are_kept_as_numpy_files(tmp_path: Path) -> None:
    result = run(tiny_config(), folder=tmp_path / "run")
    np.testing.assert_array_equal(np.load(tmp_path / "run" / MODEL), result.model)
