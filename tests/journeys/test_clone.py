"""From a fresh clone, with python3, make and pip: the targets that README names."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installation import ROOT, Installation
from traveller import Traveller

from browser import CHROMIUM, browser
from processes import short_folder


@pytest.fixture(scope="module")
def clone(whole: Installation) -> Iterator[Traveller]:
    """Somebody in a fresh clone; targets install what they need there."""
    with short_folder() as folder:
        somebody = Traveller(folder, whole, with_programs=False)
        subprocess.run(["git", "clone", "--quiet", ROOT, somebody.work / "basecagg"], check=True)
        somebody.own()
        with somebody.stopped_at_the_end():
            somebody.type("cd basecagg")
            yield somebody


def install(somebody: Traveller, mark: str, figures: dict[str, Any]) -> None:
    """What a target needs, apart from the target, so that it is not counted among its seconds."""
    began = time.monotonic()
    somebody.type(f"make .venv/{mark}", seconds=1800)
    figures["seconds to install"] = round(time.monotonic() - began, 1)


def look(report: Path) -> str:
    """Who has seen it: Chromium, where there is one. It asks nobody else for anything."""
    if CHROMIUM is None:
        assert report.exists()
        return "nobody, for there is no Chromium here"
    # Chromium's helpers may still write into its profile when it is deleted.
    place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with place as profile, browser(Path(profile)) as tab:
        tab.open(report.as_uri())
        assert tab.run("document.title")
        assert not [url for url in tab.requests if url.startswith("http")]
    return "Chromium"


@pytest.mark.journey
def test_make_run(clone: Traveller, figures: dict[str, Any]) -> None:
    install(clone, ".installed", figures)
    said = clone.type("make run")
    accuracies = re.findall(r"(\d+\.\d)\s?%", said)
    figures["accuracy in per cent"] = accuracies
    (report,) = re.findall(r"\S+report\.html", said)
    figures["report seen by"] = look(clone.work / "basecagg" / report)
    for method in ("fedavg", "fedbuff", "basecagg"):
        assert method in said


@pytest.mark.journey
def test_make_study(clone: Traveller, figures: dict[str, Any]) -> None:
    install(clone, ".installed-study", figures)
    clone.type("make study", seconds=1500)
    figures["report seen by"] = look(clone.work / "basecagg" / "runs" / "study" / "report.html")


@pytest.mark.journey
def test_the_step_after_the_study(clone: Traveller, figures: dict[str, Any]) -> None:
    """The network of the tutorial's last part, in the environment that `make study` made."""
    said = clone.type(".venv/bin/python examples/dialysis/service.py")
    before, after = map(float, re.findall(r"(-\d+\.\d+) at version", said))
    figures["log likelihood before"], figures["log likelihood after"] = before, after
    assert after > before


@pytest.mark.journey
def test_the_study_over_the_network(clone: Traveller, figures: dict[str, Any]) -> None:
    """Answers of more than 10⁵ numbers; one centre slow, one gone, one killed."""
    said = clone.type(".venv/bin/python examples/dialysis/over_network.py --step 0.003")
    assert "is back" in said
    assert "was killed, and goes on" in said
    (apart,) = re.findall(r"difference to the same study in one process: (\S+)", said)
    figures["difference to one process"] = apart
    report = clone.work / "basecagg" / "runs" / "study-network" / "report.html"
    figures["report seen by"] = look(report)


@pytest.mark.journey
def test_make_federation(clone: Traveller, figures: dict[str, Any]) -> None:
    install(clone, ".installed-federation", figures)
    said = clone.type("make federation")
    (figures["seconds for 30 versions"],) = re.findall(r"30 versions in (\d+) s", said)
    (accuracy,) = re.findall(r"accuracy on the operator's test digits: (\d+\.\d)%", said)
    figures["accuracy in per cent"] = accuracy
    assert float(accuracy) > 80


@pytest.mark.journey
def test_make_test(clone: Traveller, figures: dict[str, Any]) -> None:
    """The target itself with everything that it sets up, on one file of tests."""
    install(clone, ".installed-dev", figures)
    assert " passed" in clone.type('make test ARGS="tests/test_cli.py"')


# --- short forms ----------------------------------------------------------------------------------


def test_a_short_run(traveller: Traveller) -> None:
    few = "--versions 2 --set users=8 --set buffer_size=4 --set model=logistic"
    said = traveller.type(f"basecagg run --method fedbuff --method basecagg {few}")
    (report,) = re.findall(r"\S+report\.html", said)
    assert (traveller.work / report).exists()


def test_a_short_federation(traveller: Traveller) -> None:
    said = traveller.type(f"python {ROOT}/examples/federation/run.py --users 4 --versions 3")
    assert "user-0 is killed" in said
    assert re.search(r"accuracy on the operator's test digits: \d+\.\d%", said)


def test_a_short_study(traveller: Traveller) -> None:
    traveller.type(f"python {ROOT}/examples/dialysis/study.py --quick --made-up --folder study")
    assert (traveller.work / "study" / "report.html").exists()
