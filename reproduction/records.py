"""`basecagg reproduce privacy-records`: what it costs to hide single records of ten hospitals.

MNIST over ten users, five uploads in a sum, each one step on a sample in which every record is clipped. Private
sums stand between DP-SGD on all data in one place, whose keeper is trusted with it, and hospitals that trust
nobody: local noise, which is T_c = K − 1. All keep the same ε at the same δ for every record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from basecagg.learning import derive_seed, evaluate, record_update
from basecagg.maths.randomness import SEED_BYTES
from basecagg.planning.budget import least_noise
from basecagg.privacy import Privacy
from basecagg.simulation.config import SimulationConfig
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import SEEDS, Job, Order, Size
from reproduction.report import Claim, Publication, beyond_paper
from reproduction.simulated import Run, accuracy_columns, by_group, ends, simulation_job, task_of

EPSILON, DELTA = 3.0, 1e-5
"""What is promised to every record in the comparison."""
OTHERS = (1.0,)
"""ε that show how accuracy goes with it."""
KINDS = ("sums", "pooled", "local")
HOSPITALS, MEMBERS, SILENT = 10, 5, 1
"""N, K and T_c"""
RATE, SAMPLE = 0.05, 300
"""Each record is in an upload with this probability, and so many are in one, about."""
STEP = 8.0
"""η of the mean of all clipped gradients in a sum, for everybody."""
WITHIN = 2.0
"""Points from DP-SGD on pooled data."""
_VERSIONS: Mapping[Size, int] = {"full": 100, "quick": 100, "smoke": 3}
_USES: Mapping[Size, int] = {"full": 55, "quick": 55, "smoke": 5}
"""k_max: a tenth more than all use on average, for who is drawn more often."""
_TASK: Mapping[str, Any] = {
    "dataset": "mnist",
    "model": "logistic",
    "users": HOSPITALS,
    "concurrency": HOSPITALS,
    "buffer_size": MEMBERS,
    "holders": HOSPITALS,
    "consistency": "honest-server",
    "cryptography": "arithmetic",
    "clock": "uniform-staleness",
    "max_staleness": 4,
    "min_per_version": 1,
    "local_steps": 1,
    "weight_decay": 0.0,
    "batch_size": SAMPLE,
    "evaluate_every": 10,
    "evaluate_last": 10,
    "checkpoint_every": 1000,
}
_PRIVATE: Mapping[str, Any] = {
    "method": "basecagg-dp",
    "unit": "record",
    "staleness": "constant",
    "sampling_rate": RATE,
    "clip_norm": 1.0,
    "delta": DELTA,
    "local_rate": float(SAMPLE),
    "global_rate": STEP / SAMPLE,
}
_OPEN: Mapping[str, Any] = {
    "method": "fedbuff",
    "staleness": "constant",
    "local_rate": 0.1,
    "global_rate": 1.0,
}
_NAMES = {
    "none": "no privacy (FedBuff)",
    "sums": "private sums (basecagg-dp)",
    "pooled": "DP-SGD on all data in one place",
    "local": "nobody trusted (local noise)",
}


# --- running ------------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """ε = 3 first, seed by seed."""
    rows = [Row("none", 0.0), *(Row(kind, e) for e in (EPSILON, *OTHERS) for kind in KINDS)]
    return [
        _job(order, row, seed)
        for some in (rows[:4], rows[4:])
        for seed in SEEDS[order.size]
        for row in some
    ]


class Row(NamedTuple):
    """A line of the table: who adds noise, and the ε that it keeps."""

    kind: str
    epsilon: float

    @property
    def name(self) -> str:
        """Its key in the ledger."""
        return f"{self.kind}/{self.epsilon:g}"


def _job(order: Order, row: Row, seed: int) -> Job:
    key, config = f"{row.name}/{seed}", config_of(order.size, row, seed)
    if row.kind != "pooled":
        return simulation_job(key, config, order)
    argument = replace(config, data_dir=str(order.data_dir)), row.epsilon
    return Job(key, train_pooled, argument, cost=config.versions * MEMBERS)


def config_of(size: Size, row: Row, seed: int = 1) -> SimulationConfig:
    """One run; local noise is that of hospitals of which all others may work with the server."""
    noisy = {**_PRIVATE, "epsilon": row.epsilon, "max_uses": _USES[size]}
    silent = MEMBERS - 1 if row.kind == "local" else SILENT
    own = _OPEN if row.kind == "none" else noisy | {"max_colluding_contributors": silent}
    small = {"dataset": "digits", "batch_size": 9} if size == "smoke" else {}
    values = {**_TASK, **own, **small}
    return SimulationConfig(**values, versions=_VERSIONS[size], seed=seed)


def train_pooled(argument: tuple[SimulationConfig, float]) -> dict[str, Any]:
    """DP-SGD on the examples of all hospitals together: as many steps, as many records in one, the same η."""
    config, epsilon = argument
    task = task_of(config)
    records = len(task.dataset.train_y)
    sample = MEMBERS * config.batch_size
    rate, steps = sample / records, config.versions
    noise = least_noise(epsilon, DELTA, steps, rate)
    privacy = Privacy(
        clip_norm=1.0,
        noise=noise,
        epsilon=epsilon,
        delta=DELTA,
        max_uses=steps,
        unit="record",
        sampling_rate=rate,
        max_records=2 * sample,
    )
    model = task.build_model(derive_seed(config.seed, 0))
    data, generator = task.dataset, np.random.default_rng(config.seed)
    x, curve = model.vector(), list[list[float]]()
    for step in range(1, steps + 1):
        total = record_update(
            model,
            x,
            (data.train_x, data.train_y),
            task.loss,
            privacy,
            step=1.0,
            seed=generator.bytes(SEED_BYTES),
        )
        total += generator.normal(0, noise, x.shape).astype(np.float32)
        x = x - np.float32(STEP / sample) * total
        if step > steps - config.evaluate_last or step % config.evaluate_every == 0:
            score = evaluate(task, model, x).score
            curve.append([step, 0.0, step * MEMBERS, round(score, 6)])
    return {"curve": curve, "noise": noise, "epsilon": epsilon}


# --- reporting ----------------------------------------------------------------------------------


def report(results: Results, size: Size) -> Publication:
    """A table of all runs, accuracy against ε, and whether what is promised holds."""
    groups = by_group(results)
    return Publication(
        "privacy-records",
        "What it costs to hide a record",
        f"Logistic regression (d = 7850) on MNIST over {HOSPITALS} hospitals with 6000 records each, K ="
        f" {MEMBERS} uploads in a sum, T_c = {SILENT}, {_VERSIONS[size]} versions, staleness uniform on 0…4. An"
        f" upload is one step on a sample, in which each record is with probability {RATE:g}, its gradient"
        f" clipped to 1. ε is of each record in all uploads, at δ = {DELTA:g}.",
        [_line(name, runs) for name, runs in groups.items()],
        notes=_NOTES,
        figures={"privacy-records": _figure(groups)},
        claims=_claims(groups) if size != "smoke" else [],
    )


def _line(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    kind, epsilon = name.split("/")
    spent = [run["epsilon"] for run in runs if "epsilon" in run]
    return {
        "who adds noise": _NAMES[kind],
        "ε": "–" if kind == "none" else epsilon,
        **accuracy_columns(ends(runs)),
        "ε spent": f"{max(spent):.3f}" if spent else "–",
        "seeds": len(runs),
    }


def _figure(groups: Mapping[str, Sequence[Run]]) -> tuple[Any, str]:
    kept = sorted((EPSILON, *OTHERS))
    curves = {
        _NAMES[kind]: [
            (epsilon, mean(ends(groups[name])))
            for epsilon in kept
            if (name := Row(kind, epsilon).name) in groups
        ]
        for kind in KINDS
    }
    return plot.accuracy_by_epsilon(curves, "a record", "record", kept)


def _claims(groups: Mapping[str, Sequence[Run]]) -> list[Claim]:
    found = {kind: groups.get(Row(kind, EPSILON).name) for kind in KINDS}
    if not all(found.values()):
        return []
    ours, pooled, local = (mean(ends(found[kind] or ())) for kind in KINDS)
    return [
        Claim(
            "Ten hospitals beside one data set",
            f"Hospitals that share nothing come within {WITHIN:g} points of DP-SGD on all their data, at"
            f" ε = {EPSILON:g} for every record.",
            f"{ours:.2f} % in private sums, {pooled:.2f} % where all data is in one place.",
            beyond_paper(pooled - ours <= WITHIN),
            "a hospital samples its records more often, and T_c of K shares of noise are spare",
            "privacy-records",
            beyond=True,
        ),
        Claim(
            "Local noise for records",
            f"Local noise of the same ε = {EPSILON:g} is worse.",
            f"{local:.2f} %, {ours - local:.2f} points below private sums.",
            beyond_paper(ours > local),
            "every upload has the noise of a whole sum",
            "privacy-records",
            beyond=True,
        ),
    ]


_NOTES = (
    "Accuracy is the mean of the last ten versions, ± half of what lies between the worst and the best seed.",
    "ε spent is that of the hospital that uploaded most. Everybody samples unseen and is accounted by the same"
    " code for the same neighbours: one record is there, or it is not.",
    "DP-SGD on pooled data takes as many steps on as many records: each is sampled half as often in twice as"
    " many steps, and nobody's noise is spare.",
    f"All private runs take the same step η = {STEP:g} of the mean clipped gradient.",
    "No privacy does not clip, and has a step of its own, η = 0.1, the best of 0.05, 0.1, 0.2 and 0.4. Clipped"
    " gradients learn faster in so few steps, so DP-SGD on pooled data may end above it.",
    "Private runs did the arithmetic only: every hospital drew its own discrete Gaussian noise and kept its own"
    " ledger with the code that it has in a federation.",
)
PRIVACY_RECORDS = Experiment("privacy-records", jobs, report)
