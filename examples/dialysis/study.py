"""What predicts survival on dialysis? A study over 67 centres of which none shows its patients: `make study`.

Everything that is known at the end is a sum of all centres. They answer at their own pace, and 20 of the 67 are
gone as holders once they have answered. The pooled analysis stands beside it. Then the same with a budget of
privacy for every single patient, and what that costs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import patients
import report
from patients import COVARIATES, MONTHS, MOST, Rows

from basecagg.planning.budget import Budget
from basecagg.protocol.messages import Upload
from basecagg.statistics import (
    Desk,
    HazardModel,
    Question,
    Statistic,
    Study,
    cox_step,
    fit_cox,
    fit_hazard,
    fit_hazard_privately,
    histogram,
    kaplan_meier,
    mean,
    private_sums,
    together,
)
from basecagg.statistics.encoding import element_bits
from basecagg.storage.in_memory import MemoryStore

STEPS, CLIP = 6, 2.0
BUDGET = Budget(epsilon=3.0, delta=1e-5, max_uses=2 + STEPS)
"""Of every patient, for a curve, the moments of the covariates, and so many steps together."""
MODEL = HazardModel(tuple(range(4, 45, 4)), COVARIATES, MOST)
ABOUT = together(
    mean("age", 0, 110, most=MOST),
    histogram("age", (0, 20, 40, 60, 80, 110), most=MOST),
    kaplan_meier(MONTHS, most=MOST),
)
"""The first question: who they are, and how long they live."""
COX = cox_step(COVARIATES, np.zeros(len(COVARIATES)), most=MOST)
"""The model that every centre approves, for whatever coefficients."""
Ask = Callable[[Statistic[Any]], Any]


def main() -> None:
    """Run the study, show it, and fail if it is not what it has to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/study"), help="for study.json and the report"
    )
    parser.add_argument("--seeds", type=int, default=20, help="repetitions with noise")
    parser.add_argument("--quick", action="store_true", help="twelve centres, two repetitions")
    parser.add_argument("--made-up", action="store_true", help="made-up patients: needs no package")
    given = parser.parse_args()
    centres = patients.made_up() if given.made_up else patients.real()
    if given.quick:
        largest = sorted(centres, key=lambda name: -len(centres[name]["time"]))[:12]
        centres, given.seeds = {name: centres[name] for name in sorted(largest)}, 2
    began = time.monotonic()
    found = conduct(centres, given.seeds)
    found["seconds"] = round(time.monotonic() - began, 1)
    found["patients"] = "made up" if given.made_up else "SurvSet, Dialysis"
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "study.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    report.show(found)
    print(f"\n{report.write(found, given.folder)} has it with pictures ({found['seconds']} s)")
    missed = [text for text, holds in report.promises(found).items() if not holds]
    sys.exit(f"NOT as promised: {'; '.join(missed)}" if missed else 0)


def conduct(centres: dict[str, Rows], seeds: int) -> dict[str, Any]:
    """Everything that is to be told, as plain numbers."""
    uploads: list[Upload] = []
    study = Study(
        centres, most=MOST, budget=BUDGET, observers=[lambda letter: _note(uploads, letter)]
    )
    for (
        desk
    ) in study.desks.values():  # which each centre does by itself, once it has read the model
        desk.approve(COX)
    gone = int(0.3 * len(centres))
    say(f"{len(centres)} centres; {gone} of them are gone as holders as soon as they have answered")
    ask = at_their_own_pace(study.ask, list(centres), gone)
    exact = ask_exactly(ask)
    say("the same with noise, by the same machines")
    curve, at = fit_hazard_privately(
        at_their_own_pace(study.ask_privately, list(centres), gone), MODEL, clip=CLIP, steps=STEPS
    )
    say("what the server saw")
    audit = study.audit()
    known = find_spec("lifelines") is not None
    say(f"the pooled analysis, and {seeds} repetitions with noise")
    return {
        "centres": len(centres),
        "gone": gone,
        "months": list(MONTHS),
        "covariates": [each.name for each in COVARIATES],
        "exact": exact,
        "oracle": "lifelines" if known else "the same sums in clear",
        "pooled": oracle.by_lifelines(centres) if known else oracle.in_clear(centres),
        "private": price(centres, seeds)
        | {
            "by the machines": {
                "survival": curve.survival.tolist(),
                "coefficients": MODEL.coefficients(at).tolist(),
            },
            "spent": max(desk.ledger.spent for desk in study.desks.values()),
        },
        "server": {
            "sums": audit.sums,
            "smallest": audit.smallest,
            "only sums": audit.only_sums,
            "single centres": len(audit.rounds.determined),
            "one centre": _one_centre(uploads, centres),
        },
    }


def ask_exactly(ask: Ask) -> dict[str, Any]:
    """Who they are, the survival curve, Cox: without noise."""
    age, ages, curve = ask(ABOUT)
    say(f"{age.records:.0f} patients, {curve.events.sum():.0f} deaths; now Cox, step by step")
    fit = fit_cox(ask, COVARIATES, most=MOST)
    return {
        "patients": age.records,
        "deaths": curve.events.sum(),
        "age": [age.mean, age.deviation],
        "ages": ages.tolist(),
        "survival": curve.survival.tolist(),
        "deviation": curve.deviation.tolist(),
        "at risk": curve.at_risk.tolist(),
        "coefficients": fit.coefficients.tolist(),
        "errors": fit.errors.tolist(),
    }


def at_their_own_pace(ask: Any, names: list[str], gone: int) -> Ask:
    """Ask centres that answer in an order of their own each time, and of which others leave each time."""
    rng = np.random.default_rng(7)

    def paced(statistic: Statistic[Any]) -> Any:
        leaving = rng.choice(names, gone, replace=False)
        return ask(statistic, order=rng.permutation(names), gone=leaving)

    return paced


# --- the price of privacy ---------------------------------------------------------------------


def price(centres: dict[str, Rows], seeds: int) -> dict[str, Any]:
    """The model in discrete time: without noise, with the noise of secure sums, and with local noise."""

    def in_clear(statistic: Statistic[Any]) -> Any:
        return statistic.of_sum(np.sum([statistic.of_rows(r) for r in centres.values()], axis=0))

    curve, fit = in_clear(kaplan_meier(MODEL.times, most=MOST)), fit_hazard(in_clear, MODEL)
    silent = {"secure sums": min(8, len(centres) // 4), "local noise": len(centres) - 1}
    return {
        "epsilon": BUDGET.epsilon,
        "delta": BUDGET.delta,
        "seeds": seeds,
        "months": list(MODEL.times),
        "without noise": {
            "survival": curve.survival.tolist(),
            "coefficients": MODEL.coefficients(fit.coefficients).tolist(),
            "errors": MODEL.coefficients(fit.errors).tolist(),
        },
    } | {
        name: [_repeat(centres, seed, count) for seed in range(seeds)]
        for name, count in silent.items()
    }


def _repeat(centres: dict[str, Rows], seed: int, silent: int) -> dict[str, list[float]]:
    """One repetition: the desks' own answers, added up in clear. Masks would change nothing: sums are exact.

    Where all others may be silent, everybody adds all of the noise: that is local noise.
    """
    rng, names, numbers = np.random.default_rng(seed), tuple(sorted(centres)), itertools.count(1)
    desks = [
        Desk(
            name,
            centres[name],
            MemoryStore(),
            centres=names,
            most=MOST,
            budget=BUDGET,
            entropy=rng.bytes,
        )
        for name in names
    ]

    def ask(statistic: Statistic[Any]) -> Any:
        bits = element_bits(len(names))
        noise = private_sums(statistic, BUDGET, len(names), silent, bits=bits)
        question = Question(statistic, names, next(numbers), noise)
        return question.decode(np.sum([desk.answer(question) for desk in desks], axis=0))

    curve, at = fit_hazard_privately(ask, MODEL, clip=CLIP, steps=STEPS)
    return {
        "survival": curve.survival.tolist(),
        "coefficients": MODEL.coefficients(at).tolist(),
    }


# --- what the server saw ----------------------------------------------------------------------


def _note(uploads: list[Upload], letter: Any) -> None:
    if not uploads and isinstance(letter.message, Upload):
        uploads.append(letter.message)


def _one_centre(uploads: list[Upload], centres: dict[str, Rows]) -> dict[str, list[float]]:
    """The first upload as the server got it, beside what the centre put in: deaths and censorings by month."""
    name = uploads[0].ticket.mask.contributor
    own = kaplan_meier(MONTHS, most=MOST).of_rows(centres[name])
    words = np.frombuffer(uploads[0].words, "<u4")[ABOUT.bounds.size - own.size + 1 :]
    return {"own": own.tolist(), "seen": words[: own.size].astype(float).tolist()}


def say(text: str) -> None:
    """What is being done now."""
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
