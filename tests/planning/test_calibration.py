"""Predicted processor time: a line through two trials. Times are noise here, so a slow clock stands in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from basecagg.parameters import ProtocolParameters
from basecagg.planning import calibration
from basecagg.planning.calibration import STEPS

SMALL = ProtocolParameters(
    num_holders=8,
    recovery_threshold=6,
    max_colluders=2,
    max_dropouts=0,
    buffer_size=5,
    model_size=999,
)


def test_every_step_takes_time() -> None:
    times = calibration.predict(SMALL)
    assert set(times) == set(STEPS)
    assert min(times.values()) > 0


def test_only_the_steps_asked_for_are_done() -> None:
    assert set(calibration.predict(SMALL, ["encode", "decode"])) == {"encode", "decode"}


@pytest.mark.parametrize("model_size", [1, 999, 10**6, 10**8])
def test_time_is_extended_along_a_line(monkeypatch, model_size: int) -> None:
    """A machine that takes 5 s and 2 s for each column, whatever the step."""

    def seconds(trial: calibration._Trial, steps: object) -> dict[str, float]:
        return {"encode": 5.0 + 2.0 * trial.width}

    monkeypatch.setattr(calibration, "_measure", seconds)
    p = replace(SMALL, model_size=model_size)
    assert calibration.predict(p)["encode"] == pytest.approx(5.0 + 2.0 * p.share_size)


def test_noise_that_makes_the_wide_trial_faster_predicts_no_negative_time(monkeypatch) -> None:
    monkeypatch.setattr(calibration, "_measure", lambda trial, steps: {"encode": 1.0 / trial.width})
    p = replace(SMALL, model_size=10**8)
    assert calibration.predict(p)["encode"] > 0


def test_the_trials_stay_small_for_the_largest_model() -> None:
    p = replace(SMALL, model_size=10**9)
    widths = []

    class Trial(calibration._Trial):
        def __init__(self, parameters: ProtocolParameters, width: int) -> None:
            widths.append(width)
            super().__init__(parameters, width)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_Trial", Trial)
        calibration.predict(p, ["answer"])
    assert max(widths) * p.num_holders <= calibration.WIDE
