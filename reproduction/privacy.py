"""`basecagg reproduce privacy-users`: what hiding a whole user costs, beside who has to be trusted for it.

MNIST over 6000 users with ten examples each, sums of 600, three uploads a user. Private sums (basecagg-dp)
stand between a trusted server that adds the noise itself (central DP) and users that trust nobody (local DP);
all keep the same ε at the same δ, counted alike for the same neighbours: a user's contribution becomes zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from basecagg.planning.budget import noise_of
from basecagg.simulation.config import SimulationConfig
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import SEEDS, Job, Order, Size
from reproduction.report import Claim, Publication, beyond_paper, settled
from reproduction.simulated import Run, accuracy_columns, by_group, ends, simulation_job

EPSILON, DELTA, USES = 4.0, 1e-5, 3
"""What is promised to every user in the comparison."""
OTHERS = (1.0, 2.0, 8.0)
"""ε that show how accuracy goes with it."""
LOCAL_CLIPS = (0.01, 0.03, 0.1, 0.3)
"""C that local DP may choose from: its best counts."""
WEIGHTS = ("constant", "polynomial")
_TASK: Mapping[str, Any] = {
    "dataset": "mnist",
    "model": "logistic",
    "users": 6000,
    "concurrency": 600,
    "buffer_size": 600,
    "holders": 20,
    "cryptography": "arithmetic",
    "clock": "uniform-staleness",
    "min_per_version": 1,
    "local_rate": 0.1,
    "local_epochs": 1,
    "batch_size": 10,
    "global_rate": 1.0,
    "clip_norm": 0.2,
    "delta": DELTA,
    "max_uses": USES,
    "private_levels": 2**13,
    "max_colluding_contributors": 4,
    "evaluate_every": 4,
    "evaluate_last": 5,
    "checkpoint_every": 100,
}
_SMALL: Mapping[str, Any] = {
    "dataset": "digits",
    "users": 24,
    "concurrency": 6,
    "buffer_size": 6,
    "holders": 6,
    "private_levels": 2**9,
    "max_colluding_contributors": 1,
    "evaluate_last": 1,
}
_VERSIONS: Mapping[Size, int] = {"full": 28, "quick": 28, "smoke": 3}
_NAMES = {
    "none": "no privacy (FedBuff)",
    "clip": "private sums, no noise (z = 0)",
    "sums": "private sums (basecagg-dp)",
    "central": "a trusted server (central DP)",
    "local": "nobody trusted (local DP)",
}


# --- running ------------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """First which clip is best for local DP; then ε = 4, seed by seed; then the other ε."""
    seeds = SEEDS[order.size]
    clips = LOCAL_CLIPS[-1:] if order.size == "smoke" else LOCAL_CLIPS
    wanted = [_job(order, Row("local", clip=clip), seeds[0]) for clip in clips]
    if any(job.key not in results for job in wanted):
        return wanted
    best = best_clip(results, seeds[0])
    wanted += [_job(order, row, seed) for seed in seeds for row in _compared(best)]
    if order.size != "smoke":
        wanted += [_job(order, row, seed) for seed in seeds for row in _elsewhere(best)]
    return list({job.key: job for job in wanted}.values())


def _compared(clip: float) -> list[Row]:
    return [
        *(Row(kind, weights) for weights in WEIGHTS for kind in ("clip", "sums")),
        Row("central"),
        Row("local", clip=clip),
        Row("none"),
    ]


def _elsewhere(clip: float) -> list[Row]:
    return [
        row
        for epsilon in OTHERS
        for row in (
            *(Row("sums", weights, epsilon) for weights in WEIGHTS),
            Row("central", "constant", epsilon),
            Row("local", "constant", epsilon, clip),
        )
    ]


class Row(NamedTuple):
    """A line of the table: who adds noise, how updates are weighed, ε, and a C of its own."""

    kind: str
    weights: str = "constant"
    epsilon: float = EPSILON
    clip: float = 0.0

    @property
    def name(self) -> str:
        """Its key in the ledger."""
        epsilon = "-" if self.kind in ("none", "clip") else f"{self.epsilon:g}"
        return f"{self.kind}/{self.weights}/{epsilon}/{f'{self.clip:g}' if self.clip else '-'}"


def _job(order: Order, row: Row, seed: int) -> Job:
    return simulation_job(f"{row.name}/{seed}", config_of(order.size, row, seed), order)


def config_of(size: Size, row: Row, seed: int = 1) -> SimulationConfig:
    """One run."""
    methods = {"none": "fedbuff", "local": "ldp", "central": "cdp"}
    noise = {"clip": {"noise": 0.0}, "none": {}}.get(row.kind, {"epsilon": row.epsilon})
    own = {"clip_norm": row.clip} if row.clip else {}
    values = {
        **_task(size),
        **noise,
        **own,
        "staleness": row.weights,
    }
    return SimulationConfig(
        **values,
        method=methods.get(row.kind, "basecagg-dp"),
        versions=_VERSIONS[size],
        seed=seed,
    )


def _task(size: Size) -> dict[str, Any]:
    return {**_TASK, **(_SMALL if size == "smoke" else {})}


# --- reporting ----------------------------------------------------------------------------------


def best_clip(results: Results, seed: int) -> float:
    """The C with which local DP ended best at ε = 4 on this seed."""
    found = {clip: results.get(f"{_local(clip)}/{seed}") for clip in LOCAL_CLIPS}
    reached = {clip: ends([run])[0] for clip, run in found.items() if run}
    return max(reached, key=lambda clip: reached[clip])


def _local(clip: float) -> str:
    return Row("local", clip=clip).name


def report(results: Results, size: Size) -> Publication:
    """A table of all runs, accuracy against ε, and whether what is promised holds."""
    groups = by_group(results)
    task = _task(size)
    return Publication(
        "privacy-users",
        "What it costs to hide a user",
        f"Logistic regression (d = 7850) on MNIST over N = {task['users']} users with ten examples each, K ="
        f" {task['buffer_size']} updates in a sum, {_VERSIONS[size]} versions, staleness uniform on 0…10, at"
        f" most {USES} uploads a user, clipped to C = {task['clip_norm']}, η_g = {task['global_rate']:g}."
        f" ε is of all that one user ever uploads, at δ = {DELTA:g}.",
        [_line(name, runs) for name, runs in groups.items()],
        notes=_NOTES,
        figures={"privacy-users": _figure(groups)},
        claims=_claims(groups),
    )


def _line(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    kind, weights, epsilon, clip = name.split("/")
    return {
        "who adds noise": _NAMES[kind],
        "weights": weights,
        "ε": epsilon.replace("-", "–"),
        "C": clip if clip != "-" else "–" if kind == "none" else f"{_TASK['clip_norm']}",
        **accuracy_columns(ends(runs)),
        "ε spent": _mean(runs, lambda run: run.get("epsilon"), ".3f"),
        "noise in a sum / central": _mean(runs, lambda run: variance_ratio(run, epsilon), ".4f"),
        "seeds": len(runs),
    }


def _mean(runs: Sequence[Run], of: Any, form: str) -> str:
    found = [value for run in runs if (value := of(run)) is not None]
    return f"{mean(found):{form}}" if found else "–"


def variance_ratio(run: Run, epsilon: str) -> float | None:
    """Variance of what was measured in opened sums, against the (z·C)² that a trusted server adds for ε."""
    noise = run.get("opened noise")
    if not noise or epsilon == "-":
        return None
    central = config_of("full", Row("central", epsilon=float(epsilon)))
    deviation = noise_of(central) * central.clip_norm
    return float(noise["squared"] / noise["elements"] / deviation**2)


def _figure(groups: Mapping[str, Sequence[Run]]) -> tuple[Any, str]:
    curves: dict[str, plot.Curve] = {}
    for kind, weights in (("sums", "constant"), ("sums", "polynomial"), ("central", "constant")):
        curves[f"{_NAMES[kind]}, {weights}"] = _against_epsilon(groups, f"{kind}/{weights}")
    curves[_NAMES["local"]] = _against_epsilon(groups, "local/constant")
    return plot.accuracy_by_epsilon(curves, "all that a user uploads", "user", [1, 2, 4, 8])


def _against_epsilon(groups: Mapping[str, Sequence[Run]], prefix: str) -> plot.Curve:
    """The best clip at every ε."""
    found: dict[float, float] = {}
    for name, runs in groups.items():
        kind, weights, epsilon, _ = name.split("/")
        if f"{kind}/{weights}" == prefix:
            found[float(epsilon)] = max(mean(ends(runs)), found.get(float(epsilon), 0.0))
    return sorted(found.items())


_VISIBLE = 2.0
"""Points that count as a loss."""


def _claims(groups: Mapping[str, Sequence[Run]]) -> list[Claim]:
    found = [_cost("constant", 1.0, groups), _cost("polynomial", 2.5, groups)]
    return [*filter(None, found), *_beside_local(groups), *_as_central(groups)]


def _cost(weights: str, most: float, groups: Mapping[str, Sequence[Run]]) -> Claim | None:
    noisy, quiet = (groups.get(Row(kind, weights).name) for kind in ("sums", "clip"))
    if not noisy or not quiet:
        return None
    lost = mean(ends(quiet)) - mean(ends(noisy))
    return Claim(
        f"The price of ε = {EPSILON:g}, {weights} weights",
        f"With {weights} weights, ε = {EPSILON:g} costs {most:g} points at most.",
        f"{mean(ends(quiet)):.2f} % without noise, {mean(ends(noisy)):.2f} % with it: {lost:.2f} points.",
        beyond_paper(lost <= most, len(noisy)),
        "" if weights == "constant" else "old updates weigh less, and the noise in the mean more",
        "privacy-users",
        beyond=True,
    )


def _beside_local(groups: Mapping[str, Sequence[Run]]) -> list[Claim]:
    ours = groups.get(Row("sums").name)
    clips = {
        clip: mean(ends(groups[_local(clip)])) for clip in LOCAL_CLIPS if _local(clip) in groups
    }
    if not ours or not clips:
        return []
    clip = max(clips, key=lambda each: (len(groups[_local(each)]), clips[each]))
    less = mean(ends(ours)) - clips[clip]
    return [
        Claim(
            "Local DP",
            "Local DP, which hides every update by noise of its own, degrades the accuracy.",
            f"{clips[clip]:.2f} % at its best clip, C = {clip:g}: {less:.1f} points below private sums of"
            f" the same ε = {EPSILON:g}.",
            settled(
                "reproduced" if less >= _VISIBLE else "not reproduced", len(groups[_local(clip)])
            ),
            f"every update has the noise of a whole sum: √K times too much; {_VISIBLE:g} points are a loss",
            "privacy-users",
        )
    ]


def _as_central(groups: Mapping[str, Sequence[Run]]) -> list[Claim]:
    ours = groups.get(Row("sums").name)
    central = groups.get(Row("central").name)
    if not ours or not central:
        return []
    config = config_of("full", Row("sums"))
    p = config.protocol_parameters(ours[0]["model size"])
    most = config.buffer_size / (config.buffer_size - p.max_colluding_contributors)
    m = p.mechanism
    assert m is not None
    rounding = m.squared_bound(0) / (m.levels * config.clip_norm) ** 2
    error = 3 * math.sqrt(2 / sum(run["opened noise"]["elements"] for run in ours))
    ratio = mean(
        value for run in ours if (value := variance_ratio(run, f"{EPSILON:g}")) is not None
    )
    return [
        Claim(
            "Noise without a trusted server",
            "Nobody has to be trusted with the noise, and it is as large as a trusted server's.",
            f"The noise measured in opened sums has {ratio:.4f} times the variance of central DP's; K/(K −"
            f" T_c) = {most:.4f}, times {rounding:.4f} by rounding to steps (± {error:.4f})."
            f" Accuracy {mean(ends(ours)):.2f} %, a trusted server's"
            f" {mean(ends(central)):.2f} %.",
            beyond_paper(abs(ratio / (most * rounding) - 1) <= error, len(ours)),
            f"T_c = {p.max_colluding_contributors} contributors may tell the server their noise, so all others"
            " add a little more",
            "privacy-users",
            beyond=True,
        )
    ]


_NOTES = (
    "Accuracy is the mean of the last five versions, ± half of what lies between the worst and the best seed.",
    "Every run is accounted alike: a user's uploads become zero and it still sends noise (not: another user"
    " takes its place, which costs about twice the ε). ε spent is that of the user who uploaded most.",
    "No noise (z = 0) clips as the private runs do; no privacy does not even clip.",
    "Local DP has the same number of uploads, and its clip C was chosen by the test examples of the first seed"
    " among those in the table: it is as good as it can be.",
    "Central DP clips and weighs as private sums do, and adds its noise once to every sum.",
    "Polynomial weights s = 1/(1 + τ) are applied by the contributors before the noise, which does not shrink"
    " with them: in the mean it weighs 1/mean(s) = 3.6 times as much.",
    "Private runs did the arithmetic only, with 20 holders: every contributor drew its own discrete Gaussian"
    " noise and kept its own ledger with the code that it has in a federation.",
)
PRIVACY_USERS = Experiment("privacy-users", jobs, report)
