"""The ages that tickets tell, and those at the opening, are read from transcripts of whole runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from basecagg.auditing.transcript import read_transcript
from basecagg.maths.staleness import polynomial
from basecagg.simulation.run_folder import transcripts
from basecagg.simulation.simulate import simulate
from reproduction import told_ages
from reproduction.told_ages import Told, told

WEIGH = polynomial()


def runs(*pairs: tuple[int, int, int]) -> list[dict[str, Any]]:
    return [{"pairs": [list(pair)]} for pair in pairs]


def test_an_age_matters_where_its_tier_is_another() -> None:
    assert told(runs((1, 1, 90), (1, 2, 7), (2, 3, 3)), WEIGH) == Told(100, 10, 3)
    assert told(runs((0, 0, 50)), WEIGH) == Told(50, 0, 0)


@pytest.mark.parametrize(("reweighed", "verdict"), [(1, "holds"), (30, "does not hold")])
def test_the_share_of_other_weights_decides(reweighed: int, verdict: str) -> None:
    results = {
        f"{name}/{seed}": {"pairs": [[0, 0, 1000 - reweighed], [0, 1, reweighed]], "counts": {}}
        for name in told_ages.CASES
        for seed in (1, 2, 3)
    }
    (claim,) = told_ages.TOLD_AGES.report(results, "full").claims
    assert claim.verdict == verdict


def test_what_runs_say_is_what_their_tickets_say(tmp_path: Path) -> None:
    """A whole run, whose transcript is read as well; both forms count the same."""
    config = told_ages.config_of("smoke", told_ages.CASES["default run"], 1)
    counted = told_ages.run(config)["pairs"]
    whole = simulate(replace(config, cryptography="full"), folder=tmp_path / "run")
    (path,) = transcripts(tmp_path / "run")
    transcript, pairs = read_transcript(path), Counter[tuple[int, int]]()
    for request in transcript.requests.values():
        assert transcript.outcomes[request.masks] == "opened"
        for member in request.members:
            upload = transcript.uploads[member.mask][member.update]
            pairs[upload.staleness, request.version - upload.base_version] += 1
    assert sorted([*pair, times] for pair, times in pairs.items()) == counted
    weights = Counter(weight for version in whole.versions for weight in version.weights)
    assert Counter(2.0 ** -WEIGH.tier(told) for told, _ in pairs.elements()) == weights
