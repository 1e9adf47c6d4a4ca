"""`basecagg reproduce beyond`: what the paper does not show, by simulated time on a clock of devices.

Data that differ from user to user, holders that are gone when a sum is opened, K and the number of users that
train at once, and K up to N: a buffer in a trusted enclave is limited by the enclave's memory, this one is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

from basecagg.simulation.config import SimulationConfig
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import SEEDS, Job, Order, Size
from reproduction.report import Claim, Line, Publication, Verdict, seeds_missing, settled
from reproduction.simulated import (
    Run,
    accuracy_columns,
    by_group,
    by_time,
    curve_of,
    final_accuracy,
    first_above,
    simulation_job,
)

TARGET = 0.9
"""Accuracy whose time is told."""
_TASK: Mapping[str, Any] = {
    "dataset": "digits",
    "model": "mlp",
    "users": 100,
    "min_per_version": 1,
    "concurrency": 20,
    "buffer_size": 10,
    "max_staleness": 20,
    "weights": "field",
    "weight_levels": 2**6,
    "masks": "long",
    "correctness": "honest-holders",
    "staleness": "polynomial:0.5",
    "local_rate": 0.1,
    "local_epochs": 2,
    "batch_size": 5,
    "evaluate_last": 10,
    "cryptography": "arithmetic",
}

_DEFAULT_RUN: Mapping[str, Any] = {
    name: getattr(SimulationConfig, name)
    for name in ("max_staleness", "staleness", "local_rate", "local_epochs", "batch_size")
}
"""Where what `basecagg run` does differs from the above."""


class Part(NamedTuple):
    """One thing that is varied."""

    name: str
    title: str
    label: str
    """Of the legend, with the value in place."""
    values: tuple[Any, ...]
    settings: Callable[[Any], dict[str, Any]]
    updates: Callable[[Any], int] = lambda value: 600
    """Of a full run. Runs that are compared by time should take about as long."""
    methods: tuple[str, ...] = ("basecagg",)


def _mixture(alpha: float) -> dict[str, Any]:
    """Dirichlet(α) over users for every class; α = ∞ is IID."""
    if alpha == float("inf"):
        return {"partition": "iid"}
    return {"partition": "dirichlet", "dirichlet_alpha": alpha}


PARTS = (
    Part(
        "data",
        "Uneven data",
        "Dirichlet α = {}",
        (0.1, 0.3, 1.0, float("inf")),
        _mixture,
        methods=("fedbuff", "basecagg"),
    ),
    Part(
        "dropout",
        "Holders gone at every recovery",
        "{:.0%} gone",
        (0.0, 0.1, 0.2, 0.3),
        lambda share: {"holder_dropout": share, "cryptography": "full"},
        lambda share: 400,
    ),
    Part(
        "buffer",
        "K, with 50 users training at once, 1,000 updates",
        "K = {}",
        (5, 10, 20, 50, 100),
        lambda k: {"buffer_size": k, "concurrency": 50},
        lambda k: 1000,
    ),
    Part(
        "concurrency",
        "Users that train at once, K = 10, 25·C updates (300 at least)",
        "C = {}",
        (5, 10, 20, 50, 100),
        lambda c: {"concurrency": c},
        lambda c: max(300, 25 * c),
    ),
    Part(
        "versions",
        "Members of each version in a sum, in the default run",
        "m = {}",
        (1, 2, 3, 5),
        lambda m: {**_DEFAULT_RUN, "min_per_version": m},
    ),
)
_LENGTH: Mapping[Size, float] = {"full": 1, "quick": 0.4, "smoke": 0.1}


# --- running ------------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """Every value of every part, seed by seed; the smoke form has the ends of each."""
    size, wanted = order.size, list[Job]()
    for seed, part in product(SEEDS[size], PARTS):
        ends = part.values[:: len(part.values) - 1]
        for method, value in product(part.methods, ends if size == "smoke" else part.values):
            run = config(part, method, value, seed, size)
            key = f"{part.name}/{method}/{value}/{seed}"
            wanted.append(simulation_job(key, run, order))
    return wanted


def config(part: Part, method: str, value: Any, seed: int, size: Size) -> SimulationConfig:
    """A run with so many updates in all, however many of them make a version."""
    changed = {**_TASK, "method": method, "seed": seed, **part.settings(value)}
    if size == "smoke":
        fewer = {name: min(20, changed[name]) for name in ("users", "buffer_size", "concurrency")}
        changed |= {**fewer, "holders": 10}
    updates = round(_LENGTH[size] * part.updates(value))
    changed["versions"] = max(2, updates // changed["buffer_size"])
    return SimulationConfig(**changed)


# --- reporting ----------------------------------------------------------------------------------


def report(results: Results, size: Size) -> Publication:
    """A table and a plot for each part."""
    groups = by_group(results)
    parts = {part: [name for name in groups if name.startswith(part.name + "/")] for part in PARTS}
    lines = [_line(part, name, groups[name]) for part, names in parts.items() for name in names]
    return Publication(
        "beyond",
        "Beyond the paper",
        f"An MLP on digits, {_TASK['users']} users, devices with half-normal speeds. Time is"
        " simulated: training, messages and cryptography.",
        lines,
        notes=[
            "Recovery with holders gone ran sealed and signed; the other parts did the arithmetic only,"
            " whose sums are the same but for the random rounding.",
            "Small K and large C make updates stale, and the model swings; K = N waits for the slowest and"
            " takes few steps.",
            "Holders that are gone are drawn anew for every sum. D = 30 % of them were planned for.",
            "Runs are not all equally long: 'updates' and 'versions' say after how many the accuracy was taken."
            " K = 10 with C = 50 is in two parts, and one goes on where the other ends: a model that swings has"
            " another accuracy there.",
            "With m, each version in a sum has m members or more, and an update that finds too few others of"
            " its version is given up; 'updates' counts those too. What is summed is fresher for it, which"
            " makes up for some of the time.",
            "Accuracy is the mean over seeds; '± seeds' is half the distance from the worst seed to the best.",
            f"Time to {TARGET:.0%} is of the mean over seeds; '–' means that it was not reached.",
        ],
        figures={
            f"beyond-{part.name}": (
                plot.bands(_curves(part, groups, names), "simulated seconds", "test accuracy, %"),
                f"{part.title}: mean over seeds, bands from the worst to the best.",
            )
            for part, names in parts.items()
            if names
        },
        claims=_claims(lines, results, size),
    )


def _line(part: Part, name: str, runs: Sequence[Run]) -> dict[str, Any]:
    _, method, value = name.split("/")
    return {
        "varied": part.title,
        "method": method,
        "value": _label(part, value),
        "updates": round(mean(curve_of(run)[-1].updates for run in runs)),
        "versions": round(mean(curve_of(run)[-1].version for run in runs)),
        **accuracy_columns([100 * _end(run) for run in runs]),
        f"seconds to {TARGET:.0%}": first_above(list(map(by_time, runs)), TARGET),
        "simulated seconds": mean(curve_of(run)[-1].time for run in runs),
        "seeds": len(runs),
    }


def _end(run: Run) -> float:
    """The mean of the last tenth, ten versions at most: K = N makes few versions, and the first are no end."""
    return final_accuracy(run, last=max(1, min(10, curve_of(run)[-1].version // 10)))


def _label(part: Part, value: str) -> str:
    number = float(value)
    if number == float("inf"):
        return "IID"
    return part.label.format(number if part.name in ("data", "dropout") else int(number))


def _curves(
    part: Part, groups: Mapping[str, Sequence[Run]], names: Sequence[str]
) -> dict[str, list[plot.Curve]]:
    ours = [name for name in names if name.split("/")[1] == "basecagg"]
    return {
        _label(part, name.rpartition("/")[2]): list(map(by_time, groups[name])) for name in ours
    }


# --- claims -------------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """What BASecAgg's runs of one part found."""

    part: Part
    lines: Sequence[Line]
    runs: Mapping[str, Mapping[str, Run]]
    """By value and seed."""
    size: Size

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last value that the part has, run or not."""
        return str(self.part.values[0]), str(self.part.values[-1])

    @property
    def seeds(self) -> int:
        """How many every value has in common."""
        return len(set.intersection(*(set(runs) for runs in self.runs.values())))

    def made(self, value: str) -> list[bool]:
        """For each seed, whether it made all its versions."""
        planned = self.planned(value).versions
        return [curve_of(run)[-1].version == planned for run in self.runs[value].values()]

    def planned(self, value: str) -> SimulationConfig:
        """What the runs of a value were to do."""
        number = next(each for each in self.part.values if str(each) == value)
        return config(self.part, "basecagg", number, SEEDS[self.size][0], self.size)

    def line(self, value: str) -> Line:
        """What the table says about a value."""
        return next(line for line in self.lines if line["value"] == _label(self.part, value))


def _claims(lines: Sequence[Line], results: Results, size: Size) -> list[Claim]:
    """One for each part that was run."""
    claims = []
    for part in PARTS:
        title = part.title
        own = [line for line in lines if (line["varied"], line["method"]) == (title, "basecagg")]
        if own:
            evidence = Evidence(part, own, _by_seed(part, results), size)
            claims.append(_CLAIMS[part.name](evidence))
    return claims


def _by_seed(part: Part, results: Results) -> dict[str, dict[str, Run]]:
    runs: dict[str, dict[str, Run]] = {}
    for key, run in results.items():
        name, method, value, seed = key.split("/")
        if (name, method) == (part.name, "basecagg"):
            runs.setdefault(value, {})[seed] = run
    return runs


def _question(heading: str, sentence: str, evidence: Evidence) -> Claim:
    """What no paper says, so nothing is judged: accuracy, after how much, and the time to the target."""
    found, figure = "; ".join(map(_told, evidence.lines)), f"beyond-{evidence.part.name}"
    verdict = settled("measured", evidence.seeds)
    return Claim(heading, sentence, f"{found}.", verdict, figure=figure, beyond=True)


def _told(line: Line) -> str:
    seconds = line[f"seconds to {TARGET:.0%}"]
    target = f"{TARGET:.0%} not reached" if seconds == "–" else f"{TARGET:.0%} after {seconds} s"
    return f"{line['value']}: {_length(line)}, {target}"


def _length(line: Line) -> str:
    return (
        f"{line['accuracy, %']} % after {line['updates']:,} updates and"
        f" {line['simulated seconds']:.0f} simulated seconds"
    )


def _how_many_at_once(evidence: Evidence) -> Claim:
    """The same, with the C that is soonest."""
    claim = _question("Users at once", "How many users should train at once?", evidence)
    column = f"seconds to {TARGET:.0%}"
    there = [line for line in evidence.lines if line[column] != "–"]
    if not there:
        return claim
    soonest = min(there, key=lambda line: float(line[column]))
    why = f"runs differ in length, so the time to {TARGET:.0%} compares them: {soonest['value']} is soonest"
    return replace(claim, why=why)


def _recovery(evidence: Evidence) -> Claim:
    """Whether every version is the same, to the last digit, however many holders were gone."""
    equal, seeds = _equal_curves(evidence), evidence.seeds
    shares = ", ".join(line["value"] for line in evidence.lines)
    return Claim(
        "Holders who are gone",
        "Sums open exactly although up to D holders are gone.",
        f"{shares}: {sum(equal)} of {len(equal)} runs with holders gone have the curve of the run with none"
        " gone and the same seed, to the last digit of accuracy, updates and simulated time in every version"
        f" ({_length(evidence.lines[0])}; seeds: {seeds}).",
        settled(_recovery_verdict(evidence, equal), seeds),
        "what this shows is exact recovery: a sum that opened otherwise, or later, would change the curve after"
        f" it (curves are compared, for models are not kept){seeds_missing(seeds)}",
        "beyond-dropout",
    )


def _equal_curves(evidence: Evidence) -> list[bool]:
    """For each run with holders gone, whether it is the one with none gone over again."""
    none_gone = evidence.runs.get(evidence.ends[0], {})
    return [
        seed in none_gone and run["curve"] == none_gone[seed]["curve"]
        for value, runs in evidence.runs.items()
        if value != evidence.ends[0]
        for seed, run in runs.items()
    ]


def _recovery_verdict(evidence: Evidence, equal: Sequence[bool]) -> Verdict:
    if not evidence.runs.keys() >= set(evidence.ends):
        return "undecided"
    scores = [float(line["accuracy, %"]) for line in evidence.lines]
    made = all(all(evidence.made(value)) for value in evidence.runs)
    if not made or max(scores) - min(scores) > _SAME:
        return "not reproduced"
    return "reproduced" if all(equal) else "partly"


def _largest_buffer(evidence: Evidence) -> Claim:
    """Whether the runs with K = N went to their end, and with what."""
    heading, sentence = (
        "A buffer of everybody",
        "Without an enclave the buffer may be as large as K = N.",
    )
    everybody = evidence.ends[1]
    if everybody not in evidence.runs:
        return Claim(heading, sentence, "K = N was not run.", "undecided", figure="beyond-buffer")
    made, seeds = evidence.made(everybody), len(evidence.runs[everybody])
    verdict: Verdict = "partly" if any(made) else "not reproduced"
    best = max(evidence.lines, key=lambda line: float(line["accuracy, %"]))
    return Claim(
        heading,
        sentence,
        f"With K = N {sum(made)} of {len(made)} runs made all their {evidence.planned(everybody).versions}"
        f" versions. {_told(evidence.line(everybody))} by the mean over seeds, in some version by"
        f" {_seeds_there(evidence.runs[everybody].values())} of {seeds} seeds. The best: {_told(best)}.",
        settled("reproduced" if all(made) else verdict, seeds),
        "judged is only whether all sums of N updates open, by the arithmetic alone; that so large a buffer"
        f" learns well is not claimed{seeds_missing(seeds)}",
        "beyond-buffer",
    )


def _seeds_there(runs: Iterable[Run]) -> int:
    """How many of them were at the target in some version."""
    return sum(max(point.score for point in curve_of(run)) >= TARGET for run in runs)


_SAME = 0.5
"""Points of accuracy that count as none."""
_CLAIMS: Mapping[str, Callable[[Evidence], Claim]] = {
    "data": partial(
        _question, "Uneven data", "How uneven may the users' data be? (The paper is IID.)"
    ),
    "dropout": _recovery,
    "buffer": _largest_buffer,
    "concurrency": _how_many_at_once,
    "versions": partial(
        _question,
        "Nobody alone with a version",
        "What does it cost that nobody is alone with a version? (The paper has m = 1.)",
    ),
}

BEYOND = Experiment("beyond", jobs, report)
