"""`basecagg reproduce told-ages`: the age that a contributor tells, beside that at which its update is summed.

With own weights an update is weighed when it is uploaded, by the age τ̂ that its contributor knows then. The
paper weighs when the sum is opened, by τ. An update that waits for company meanwhile grows older. How often,
and what it changes, is counted here over all members of all sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from basecagg.maths.staleness import StalenessFunction
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.simulate import simulate
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Publication, beyond_paper
from reproduction.simulated import by_group

CASES: Mapping[str, Mapping[str, Any]] = {
    "default run": {},
    "50 train at a time": {"concurrency": 50},
    "1 s of latency": {"latency": 1.0},
    "ten hospitals, K = 5": {"users": 10, "buffer_size": 5, "concurrency": 10},
}
"""By name, what differs from the default run."""
MOST = 0.01
"""The share of members with another weight that counts as none."""
_VERSIONS: Mapping[Size, int] = {"full": 60, "quick": 60, "smoke": 4}
_SEEDS: Mapping[Size, Sequence[int]] = {"full": range(1, 6), "quick": (1,), "smoke": (1,)}
_SMALL: Mapping[str, Any] = {"users": 12, "buffer_size": 5, "concurrency": 12, "model": "logistic"}


class Member(NamedTuple):
    """A member of an opened sum."""

    told: int
    """τ̂"""
    age: int
    """τ"""


def jobs(order: Order, results: Results) -> list[Job]:
    """Seed by seed."""
    return [
        Job(f"{name}/{seed}", run, config_of(order.size, case, seed))
        for seed in _SEEDS[order.size]
        for name, case in CASES.items()
    ]


def config_of(size: Size, case: Mapping[str, Any], seed: int) -> SimulationConfig:
    """The default run, but for the case."""
    versions = _VERSIONS[size]
    changes = {**case, **(_SMALL if size == "smoke" else {})}
    return SimulationConfig(
        **changes,
        seed=seed,
        versions=versions,
        evaluate_every=versions,
        cryptography="arithmetic",
    )


def run(config: SimulationConfig) -> dict[str, Any]:
    """How often each pair (τ̂, τ) was seen."""
    versions = simulate(config).versions
    pairs = Counter(
        pair for each in versions for pair in zip(each.told, each.staleness, strict=True)
    )
    return {"pairs": [[*pair, times] for pair, times in sorted(pairs.items())]}


# --- reporting ------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What runs of one case say together."""

    members: int
    later: int
    """Those with τ̂ < τ."""
    reweighed: int
    """Those of them with another weight by τ than by τ̂."""


def told(runs: Sequence[Mapping[str, Any]], weigh: StalenessFunction) -> Told:
    """Count members of all sums of these runs."""
    pairs = [(Member(*pair), times) for each in runs for *pair, times in each["pairs"]]
    return Told(
        sum(times for _, times in pairs),
        sum(times for member, times in pairs if member.told != member.age),
        sum(times for (known, age), times in pairs if weigh.tier(known) != weigh.tier(age)),
    )


def report(results: Results, size: Size) -> Publication:
    """A table, a picture, and whether it matters."""
    weigh = SimulationConfig().staleness_function
    groups = by_group(results)
    found = {name: told(groups[name], weigh) for name in CASES if name in groups}
    bars = {
        "another age": [100 * each.later / each.members for each in found.values()],
        "another weight": [100 * each.reweighed / each.members for each in found.values()],
    }
    return Publication(
        "told-ages",
        "The age that is told, and the age at the opening",
        f"{_VERSIONS[size]} versions of the default run (an MLP on digits, N = 100, K = 10, s = 1/(1 + τ), own"
        " weights 2^−t, masks from keys) and of three others. A member tells the age τ̂ that it knew when it"
        " uploaded; at the opening it has the age τ.",
        [
            {
                "federation": name,
                "members of sums": each.members,
                "τ̂ ≠ τ, %": f"{100 * each.later / each.members:.1f}",
                "another weight, %": f"{100 * each.reweighed / each.members:.1f}",
                "seeds": len(groups[name]),
            }
            for name, each in found.items()
        ],
        tables={"Pairs": [_pairs(name, groups[name]) for name in found]},
        notes=_NOTES,
        figures={
            "told-ages": (
                plot.bars(bars, list(found), "% of members"),
                "Members of opened sums whose age, or weight, is another one at the opening.",
            )
        },
        claims=[_claim(found, min((len(groups[name]) for name in found), default=0))],
    )


def _pairs(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each pair that differs."""
    pairs: Counter[Member] = Counter()
    for each in runs:
        for *pair, times in each["pairs"]:
            pairs[Member(*pair)] += times
    later = [f"{m.told} → {m.age}: {n}" for m, n in sorted(pairs.items()) if m.told != m.age]
    return {"federation": name, "τ̂ → τ: members": ", ".join(later) or "–"}


def _claim(found: Mapping[str, Told], seeds: int) -> Claim:
    """Whether weights by τ̂ are those by τ."""
    worst = max((each.reweighed / each.members for each in found.values()), default=1.0)
    ages = [100 * each.later / each.members for each in found.values()]
    return Claim(
        "Weights by the age that is told",
        "To weigh an update by the age that its contributor knows, and not by its age at the opening, changes"
        " at most one weight in a hundred.",
        f"{min(ages):.1f} to {max(ages):.1f} % of members are older at the opening than they told; at most"
        f" {100 * worst:.1f} % have another weight.",
        beyond_paper(worst <= MOST, seeds),
        "τ̂ and τ mostly lie in one tier",
        "told-ages",
        beyond=True,
    )


_NOTES = (
    "A tier is all ages with the same weight: with s = 1/(1 + τ) τ = 0, 1–2, 3–6 and 7–10. An update that grows"
    " older within its tier weighs what it would by τ; where no weight differs, weighing at the opening makes"
    " the same model.",
    "Why no weight differs: who comes later from the same version tells a later tier, and members of one"
    " version must have the same. An update that waits beyond its tier finds no new company, and is burned.",
    "In these runs an upload is weighed when it arrives. Versions that are made while it is on its way are not"
    " counted here.",
    "Burned updates are in no sum, and are not counted. Nothing was sealed or signed: that whole machines open"
    " the same is a test (`tests/simulation/test_key_runs.py`).",
)
TOLD_AGES = Experiment("told-ages", jobs, report)
