"""`import basecagg` offers what most people want, loads nothing before it is used, and prints well."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import basecagg
from basecagg import DataError, Federation, LocalProtocolError, ParameterError, audit, plan, verify
from basecagg.auditing.recorder import Recorder
from basecagg.auditing.transcript import Scribe
from basecagg.channels.wire import pack
from basecagg.cli import main
from basecagg.planning.planner import Wishes, choose
from basecagg.protocol.effects import MaskEnded
from basecagg.protocol.proofs import Account

SMALL = {"num_holders": 7, "max_dropouts": 2, "buffer_size": 3, "model_size": 20}
UPDATES = {f"user-{i}": np.full(20, 0.25 * i) for i in range(3)}


def python(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def command(*words: object) -> str:
    """What it prints, without the spaces at the ends of lines."""
    done = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "80"})
    return done.stdout.rstrip("\n")


@pytest.fixture(autouse=True)
def _narrow(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


# --- the names --------------------------------------------------------------------------------


def imported_for_types() -> dict[str, str]:
    """What a type checker sees: name → module."""
    tree = ast.parse(Path(basecagg.__file__).read_text("utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(statement.module)
        for statement in guarded.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def test_type_checkers_see_what_is_offered() -> None:
    homes = {
        name: f"basecagg.{basecagg._HOMES.get(name, 'errors')}"
        for name in basecagg.__all__
        if name != "__version__"
    }
    assert imported_for_types() == homes


@pytest.mark.parametrize("name", basecagg.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(basecagg, name) is not None
    assert name in dir(basecagg)


def test_every_branch_of_the_errors_is_offered() -> None:
    branches = [basecagg.BASecAggError, *basecagg.BASecAggError.__subclasses__()]
    taxonomy = {kind.__name__ for kind in branches if kind.__module__ == "basecagg.errors"}
    assert len(taxonomy) > 5
    assert taxonomy <= set(basecagg.__all__)


def test_what_is_not_offered_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        basecagg.no_such_name  # noqa: B018


def test_nothing_is_loaded_before_it_is_used() -> None:
    script = "import sys, basecagg; print(*[m for m in sys.modules if m.startswith('basecagg')])"
    assert python(script).stdout.split() == ["basecagg"]
    after = python(script.replace("; print", "; basecagg.Federation; print")).stdout.split()
    assert "basecagg.simulation.federation" in after


def test_a_name_whose_part_is_missing_says_which() -> None:
    missing = "import sys; sys.modules['torch'] = None; import basecagg; basecagg.simulate"
    done = python(missing)
    assert done.returncode == 1
    assert "pip install '.[learn]'" in done.stderr.splitlines()[-1]
    assert python(missing.replace("simulate", "SimulationConfig()")).returncode == 0


# --- plan, audit, verify ----------------------------------------------------------------------


def test_a_plan_is_the_one_of_the_command() -> None:
    chosen = plan(num_holders=100, max_dropouts=30, model_size=1_000_000)
    assert chosen == choose(Wishes(num_holders=100, max_dropouts=30, model_size=1_000_000))
    options = ("--holders", 100, "--max-dropouts", 30, "--model-size", "1e6", "--no-cpu")
    assert str(chosen) == command("plan", *options)
    assert repr(chosen) == str(chosen)
    assert "not measured" in str(chosen)


def test_a_plan_can_be_measured() -> None:
    chosen = plan(**SMALL)
    assert not chosen.cpu
    assert set(chosen.measured().cpu) == {option.recovery_threshold for option in chosen.options}
    assert "not measured" not in str(chosen.measured())


@pytest.mark.parametrize(
    "wrong", [{"model_size": 1e6}, {"max_dropouts": 0.3}, {"max_dropouts": 99}]
)
def test_a_plan_that_cannot_be_says_why(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        plan(**SMALL | wrong)


def recorded(folder: Path, users: int = 3) -> Path:
    federation, path = Federation(plan(**SMALL).parameters), folder / "transcript.jsonl"
    with path.open("w") as file:
        scribe = Scribe(file.write)
        recorder = Recorder(federation.agreement, scribe.add)
        federation.network.observers.append(lambda each: recorder.see(each.sender, each.message))
        for name in list(UPDATES)[:users]:
            federation.contribute(name, UPDATES[name])
        federation.run()
        scribe.close(federation.identity("server"))
    return path


def test_an_audit_is_the_one_of_the_command(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    report = audit(path)
    assert report.only_sums
    assert report == audit(str(path))
    assert str(report) == repr(report) == command("audit", path)
    assert not audit(path, insiders=["user-0", "user-1"]).only_sums


def parts_of(federation: Federation, folder: Path) -> Path:
    path, key = folder / "version-1-1.parts", federation.identity("operator").public_key
    parts = federation.server.opening.kept.parts(1)
    path.write_bytes(pack(Account(federation.agreement.epoch, parts, key)))
    return path


@pytest.fixture
def opened() -> Federation:
    federation = Federation(plan(**SMALL).parameters)
    for name, update in UPDATES.items():
        federation.contribute(name, update)
    federation.run()
    return federation


def test_a_verification_is_the_one_of_the_command(opened: Federation, tmp_path: Path) -> None:
    path, key = parts_of(opened, tmp_path), opened.identity("operator").public_key
    found = verify(path, operator_key=key)
    assert found.verdict == "equal"
    assert found == verify(str(path), operator_key=key.hex())
    assert str(found) == command("verify", path, "--operator-key", key.hex())
    assert verify(path).findings[0].named_key == key.hex()
    assert verify(path, operator_key=opened.identity("server").public_key).verdict == "not checked"


@pytest.mark.parametrize("wrong", [b"", "", "5f1c", "no hexadecimal text", bytes(31)])
def test_a_wrong_key_is_not_read_as_none(wrong: bytes | str, opened, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a key"):
        verify(parts_of(opened, tmp_path), operator_key=wrong)


def test_verifying_nothing_is_an_error() -> None:
    with pytest.raises(DataError, match="nothing to verify"):
        verify()


# --- a federation in memory -------------------------------------------------------------------


def test_a_sum_opens_without_the_holders_that_vanished(opened: Federation) -> None:
    for name, update in UPDATES.items():
        opened.contribute(name, update + 0.25)
    opened.vanish("user-5", "user-6")
    (second,) = opened.run()
    assert opened.server.version == 2
    mean = second.weighted_sum / sum(second.weights)
    assert np.array_equal(mean, np.full(20, 0.5))
    assert opened.run() == []


def test_it_waits_if_too_many_vanish_and_opens_when_they_come_back() -> None:
    federation = Federation(plan(**SMALL).parameters)
    for name, update in UPDATES.items():
        federation.contribute(name, update)
    federation.vanish("user-4", "user-5", "user-6")
    assert federation.run() == []
    assert federation.server.version == 0
    federation.come_back("user-4")
    assert len(federation.run()) == 1


def test_other_news_is_kept() -> None:
    federation = Federation(replace(plan(**SMALL).parameters, repeated_versions=True))
    federation.contribute("user-0", UPDATES["user-0"])
    federation.contribute("user-0", UPDATES["user-1"])
    assert federation.run() == []
    (refused,) = [news for news in federation.take_news() if isinstance(news, MaskEnded)]
    assert refused.state == "refused"
    assert "user-0" in refused.reason


def test_mistakes_are_named() -> None:
    federation = Federation(plan(**SMALL).parameters)
    federation.vanish("user-6")
    for name in ("user-6", "nobody"):
        with pytest.raises(DataError, match=f"{name} cannot vanish"):
            federation.vanish(name)
    with pytest.raises(DataError, match="nobody cannot come back"):
        federation.come_back("nobody")
    with pytest.raises(DataError):
        federation.contribute("user-0", np.zeros(3))
    federation.vanish("user-1", "user-2", "user-3")
    with pytest.raises(LocalProtocolError, match="no mask is ready"):
        federation.contribute("user-4", UPDATES["user-0"])
