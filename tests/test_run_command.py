"""`basecagg run` and `report` as people type them: results, interruptions, and what is wrong in one line."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from basecagg.auditing import audit_rendering
from basecagg.auditing.leakage import audit
from basecagg.auditing.transcript import read_transcript
from basecagg.cli import main
from basecagg.commands.run import explained_settings, in_words
from basecagg.simulation.config import config_from
from basecagg.simulation.protections import PRESETS, PROTECTIONS
from basecagg.simulation.run_folder import transcripts
from basecagg.simulation.timing import SCHEDULES

SMALL = [
    *("--versions", "3"),
    *("--set", "users=8"),
    *("--set", "buffer_size=4"),
    *("--set", "model=logistic"),
    *("--set", "checkpoint_every=1"),
]


def basecagg(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def complaint(result: Result) -> str:
    """The one line that says what is wrong; anything else is a failure of ours."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    lines = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.output
    return lines[0]


# --- the main job -----------------------------------------------------------------------------------


def test_three_methods_a_table_and_a_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = basecagg("run", *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    for method in ("fedavg", "fedbuff", "basecagg"):
        assert method in result.output
        assert (out / method / "totals.json").exists()
    assert (out / "report.html").exists()
    assert "report:" in result.output


@pytest.mark.soak
def test_the_run_without_arguments_learns_the_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    assert basecagg("run").exit_code == 0
    assert time.monotonic() - started < 90 * max(1.0, os.getloadavg()[0] / 2)
    for path in tmp_path.glob("runs/*/*/metrics.jsonl"):
        last = json.loads(path.read_text().splitlines()[-1])
        assert last["score"] >= 0.9, path


def test_a_file_overrides_and_flags_make_one_run(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('method = "fedbuff"\nusers = 30\nlocal_rate = 0.2\nversions = 9\n')
    out = tmp_path / "out"
    arguments = ("--set", "users=12", "--versions", 2, "--seed", 5, "--out", out)
    assert basecagg("run", file, *arguments).exit_code == 0
    config = json.loads((out / "fedbuff" / "config.json").read_text())
    told = {key: config[key] for key in ("users", "local_rate", "versions", "seed")}
    assert told == {"users": 12, "local_rate": 0.2, "versions": 2, "seed": 5}


def test_methods_are_compared_at_the_same_number_of_updates(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("users = 8\nbuffer_size = 4\nmodel = 'logistic'\nversions = 500\n")
    methods = ("--method", "fedasync", "--method", "fedbuff")
    out = tmp_path / "out"
    result = basecagg("run", file, *methods, "--until", "updates=16", "--out", out)
    assert result.exit_code == 0, result.output
    for method in ("fedasync", "fedbuff"):
        assert json.loads((out / method / "totals.json").read_text())["updates"] == 16
    assert "16/16" in result.output
    said = json.loads((out / "fedbuff" / "metrics.jsonl").read_text().splitlines()[-1])
    assert said["version"] == 4


def test_versions_on_the_command_line_win_over_until_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('method = "fedbuff"\nuntil = "updates=16"\n')
    assert basecagg("run", file, *SMALL, "--out", tmp_path / "out").exit_code == 0
    lines = (tmp_path / "out" / "fedbuff" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4


def test_fedavg_waits_for_a_whole_buffer_of_another_size(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--method", "fedavg", "--set", "buffer_size=25", "--versions", 1, "--out", out)
    assert basecagg("run", *arguments).exit_code == 0
    assert json.loads((out / "fedavg" / "config.json").read_text())["concurrency"] == 25


def test_every_setting_is_explained() -> None:
    listed = basecagg("run", "--settings").output
    assert "Probability that a user is there when it is chosen" in " ".join(listed.split())
    for name, default, meaning in explained_settings():
        assert len(meaning) > 6, name
        assert name in listed
        assert config_from({name: json.loads(default)}), name


def test_the_names_that_settings_explain_are_all_there_are() -> None:
    learning = importlib.import_module("basecagg.learning")
    meanings = {name: meaning for name, _, meaning in explained_settings()}
    for setting, known in (
        ("method", PRESETS),
        ("schedule", SCHEDULES),
        ("protection", PROTECTIONS),
        ("dataset", learning.DATASETS),
        ("model", learning.MODELS),
    ):
        assert [name for name in known if name not in meanings[setting]] == [], setting


def tensorboard_scalars(folder: Path) -> dict[str, list[int]]:
    """The steps of every curve, as TensorBoard itself reads them."""
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    reader = events.EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [each.step for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_tensorboard_files_are_written_on_request(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = basecagg("run", *SMALL, "--method", "fedbuff", "--tensorboard", "--out", out)
    assert result.exit_code == 0, result.output
    curves = tensorboard_scalars(out / "fedbuff" / "tensorboard")
    assert curves == {"test/accuracy": [0, 1, 2, 3], "test/loss": [0, 1, 2, 3]}


def test_a_missing_tensorboard_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    out = tmp_path / "out"
    result = basecagg("run", *SMALL, "--method", "fedbuff", "--tensorboard", "--out", out)
    assert "'tensorboard'" in complaint(result)
    assert not out.exists()


# --- interruptions ----------------------------------------------------------------------------------


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_ctrl_c_then_resume_gives_the_identical_result(tmp_path: Path) -> None:
    many = ["--versions", "20", *SMALL[2:], "--method", "basecagg"]
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    command = [sys.executable, "-c", "from basecagg.cli import main; main()", "run", *many]
    child = subprocess.Popen(
        [*command, "--out", str(cut)],
        stdout=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has them ignore Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    while child.poll() is None and lines_in(cut / "basecagg" / "metrics.jsonl") < 5:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert f"basecagg run --resume {cut}" in said.replace("\n", "")
    assert basecagg("run", "--resume", cut).exit_code == 0
    assert basecagg("run", *many, "--out", whole).exit_code == 0
    for name in ("model.npy", "metrics.jsonl", "config.json"):
        parts = [(folder / "basecagg" / name).read_bytes() for folder in (cut, whole)]
        assert parts[0] == parts[1], name
    seen = [folder / "basecagg" / "transcript.jsonl" for folder in (cut, whole)]
    # A contributor that comes back sends a waiting upload again, byte for byte: no news to the server.
    facts = [
        {line.rpartition('"chain"')[0] for line in path.read_text().splitlines()} for path in seen
    ]
    assert {f for f in facts[0] if '"end"' not in f} == {f for f in facts[1] if '"end"' not in f}
    learned = [audit_rendering.in_words(audit(read_transcript(path))) for path in seen]
    assert all(read_transcript(path).ending in ("signed", "closed") for path in seen)
    assert learned[0] == learned[1]


TUNED = (
    *("auto_tune=true", "tune_after=3", "update_levels=1", "staleness=constant"),
    "weights=field",
    *("min_per_version=1", "users=12", "concurrency=8", "buffer_size=4", "local_epochs=1"),
    "versions=15",
)


@pytest.mark.parametrize("every", [2, 10], ids=["in the second epoch", "in the first epoch"])
def test_every_epoch_of_a_tuned_run_has_a_transcript_also_when_resumed(
    every: int, tmp_path: Path
) -> None:
    """Each is signed and shows sums alone, wherever the checkpoint lies that the run goes on from."""
    out = tmp_path / "out"
    settings = [w for each in (*TUNED, f"checkpoint_every={every}") for w in ("--set", each)]
    result = basecagg("run", "--method", "basecagg", *settings, "--out", out)
    assert result.exit_code == 0, result.output
    run = out / "basecagg"
    epochs = json.loads((run / "totals.json").read_text())["epochs"]
    assert len(epochs) == 2

    def facts() -> list[set[str]]:
        for path in transcripts(run):
            view = read_transcript(path)
            assert view.ending == "signed"
            assert audit(view).only_sums
        lines = [path.read_text().splitlines() for path in transcripts(run)]
        said = [{line.rpartition('"chain"')[0] for line in each} for each in lines]
        return [{fact for fact in each if '"end"' not in fact} for each in said]

    whole, model = facts(), (run / "model.npy").read_bytes()
    assert len(whole) == 2
    with transcripts(run)[1].open("a") as file:
        file.write("what a run wrote after its checkpoint\n")
    (run / "totals.json").unlink()
    assert basecagg("run", "--resume", out).exit_code == 0
    assert (run / "model.npy").read_bytes() == model
    assert facts() == whole


def test_a_finished_run_is_not_run_again_but_reported(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert basecagg("run", *SMALL, "--method", "fedbuff", "--out", out).exit_code == 0
    before = (out / "fedbuff" / "metrics.jsonl").stat().st_mtime_ns
    (out / "report.html").unlink()
    assert basecagg("run", "--resume", out).exit_code == 0
    assert (out / "report.html").exists()
    assert (out / "fedbuff" / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_plan_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    assert basecagg("run", *SMALL, "--method", "fedbuff", "--out", out).exit_code == 0
    plan = json.loads((out / "runs.json").read_text())
    for name in ("../../x", str(tmp_path / "x"), "..", ".", "", "fedbuff/../../x", "basecagg"):
        (out / "runs.json").write_text(json.dumps({name: plan["fedbuff"]}))
        before = sorted(tmp_path.rglob("*"))
        result = basecagg("run", "--resume", out)
        assert "is not as `basecagg run` writes it" in complaint(result), name
        assert sorted(tmp_path.rglob("*")) == before, name
    (out / "runs.json").write_text(json.dumps(plan))  # as it was, it is taken
    assert basecagg("run", "--resume", out).exit_code == 0


@pytest.mark.parametrize("content", ["[]", "{}", "[3]", '{"fedbuff": 3}', "\udcff", "3"])
def test_a_damaged_plan_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_bytes(content.encode(errors="surrogateescape"))
    result = basecagg("run", "--resume", tmp_path)
    assert str(tmp_path) in complaint(result)
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("speed", "said"),
    [(None, ""), (0.0, ""), (4.62, "4.6 /s"), (0.5, "2.0 s each"), (1 / 12, "12 s each")],
)
def test_a_slow_run_says_how_long_each_takes(speed: float | None, said: str) -> None:
    assert in_words(speed) == said


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "fedmagic"), "method 'fedmagic' is unknown"),
        (("--set", "recovery_threshold=90", "--set", "max_dropouts=30"), "recovery_threshold"),
        (("--set", "users=5000"), "1437 examples cannot be dealt to 5000 users"),
        (("--set", "dataset=mnist", "--set", "data_dir=nowhere"), "nowhere"),
        (("--set", "dataset=klingon"), "no dataset is called 'klingon'"),
        (("--set", "model=klingon"), "no model is called 'klingon'"),
        (("--set", "colour=red"), "unknown setting 'colour'"),
        (("--set", "user=8"), "unknown setting 'user': did you mean users?"),
        (("--seed", "-1"), "seed = -1 must be at least 0"),
        (("--set", "colour"), "is not key=value"),
        (("missing.toml",), "missing.toml"),
        (("fedbuff",), "CONFIG has to be a file, but fedbuff is a method: use --method fedbuff"),
        (("--method", "fedasync", "--set", "protection=basecagg"), "cannot protect the immediate"),
        (("--resume", "nowhere"), "nowhere holds no runs"),
        (("--versions", "0"), "versions = 0"),
        (("--executor", "magic"), "executor = 'magic' must be one of in-process, processes, ray"),
        (("--until", "updates=9", "--versions", "3"), "--versions and --until both say when"),
        (("--until", "epochs=9"), "until = 'epochs=9' must be updates=NUMBER or seconds=NUMBER"),
        (("--set", "users=many"), "users = 'many' must be a whole number"),
        (("--resume", "nowhere", "--versions", "3"), "--resume takes all settings from its folder"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = basecagg("run", *arguments)
    assert said in complaint(result)
    assert result.exit_code == 2
    assert not list(tmp_path.glob("runs/*"))


def test_a_corrupted_data_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{part}-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03 not an image")[:-6])
    out = tmp_path / "out"
    data = ("--dataset", "mnist", "--data-dir", tmp_path / "data")
    result = basecagg("run", *data, "--out", out)
    assert "idx" in complaint(result)
    assert result.exit_code == 2
    assert not out.exists()


def test_a_loss_that_is_not_a_number_ends_the_run_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    wild = ("--method", "fedbuff", "--set", "local_rate=1e38", "--out", out)
    result = basecagg("run", *SMALL, *wild)
    assert "diverged" in complaint(result)
    assert result.exit_code == 2
    assert_whole(out)


def test_an_output_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = (*SMALL, "--method", "fedbuff", "--out", out)
    assert basecagg("run", *small).exit_code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = basecagg("run", *small)
    assert "holds runs already" in complaint(result)
    assert result.exit_code == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_folder_of_another_run_is_left_alone_without_a_plan_too(tmp_path: Path) -> None:
    (tmp_path / "fedbuff").mkdir()
    result = basecagg("run", *SMALL, "--method", "fedbuff", "--out", tmp_path)
    assert "holds runs already: choose another --out" in complaint(result)
    assert not list((tmp_path / "fedbuff").iterdir())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = basecagg("run", *SMALL, "--method", "fedbuff", "--out", tmp_path / "file" / "out")
    assert "cannot be made: Not a directory" in complaint(result)


def test_an_odd_folder_is_as_good_as_any(tmp_path: Path) -> None:
    name = "[/] [red] :smile: $\\frac{$ _运行"
    result = basecagg("run", *SMALL, "--method", "fedbuff", "--out", tmp_path / name)
    assert result.exit_code == 0, result.exc_info
    assert (tmp_path / name / "report.html").exists()
    assert all(part in result.output for part in name.split())


def test_a_folder_without_runs_has_no_report(tmp_path: Path) -> None:
    result = basecagg("report", tmp_path)
    assert "holds no run" in complaint(result)
    assert result.exit_code == 2


# --- a full disk ------------------------------------------------------------------------------------


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size`: what a full disk looks like."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def assert_whole(out: Path) -> None:
    """No file was left half-written, but for a last line of a log."""
    assert not list(out.rglob("*.partial"))
    for path in out.rglob("*.json"):
        json.loads(path.read_text())
    for path in out.rglob("metrics.jsonl"):
        *lines, _ = path.read_text().split("\n")
        assert all(json.loads(line) for line in lines)


@pytest.mark.parametrize("size", [100, 1800, 4000, 9000, 20_000, 60_000])
def test_a_full_disk_is_one_line_and_the_run_can_go_on(size: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = (*SMALL, "--method", "basecagg", "--out", out)
    with files_at_most(size):
        result = basecagg("run", *small)
    assert "cannot be written: File too large" in complaint(result)
    assert result.exit_code == 1
    assert_whole(out)
    again = basecagg("run", "--resume", out) if out.exists() else basecagg("run", *small)
    assert again.exit_code == 0, again.output
    assert len((out / "basecagg" / "metrics.jsonl").read_text().splitlines()) == 4
