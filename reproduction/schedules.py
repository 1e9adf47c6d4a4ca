"""`basecagg reproduce schedules`: simulated time and updates until a target accuracy, with and without rounds.

The virtual clock knows how fast each device trains and how long its messages travel; a tenth of the trainings
come to nothing. FedAvg has C users train in a round and takes the first C/1.3 (30 % more than it needs, as
FedBuff's authors do); late ones keep their places until they are done. FedBuff and BASecAgg keep C users busy
and step after every K updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite, nan, sqrt
from statistics import mean, median
from typing import Any, NamedTuple

from basecagg.options import Speed
from basecagg.simulation.config import SimulationConfig
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Line, Publication, Verdict, seeds_missing, select, settled

TARGET = 0.90
METHODS = ("fedavg", "fedasync", "fedat", "fedbuff", "basecagg")
BUFFERED = ("fedbuff", "basecagg")
_NAMES = {
    "fedavg": "FedAvg",
    "fedasync": "FedAsync",
    "fedat": "FedAT",
    "fedbuff": "FedBuff",
    "basecagg": "BASecAgg",
}
SPEEDS: dict[Speed, float] = {"half-normal": 3.0, "log-normal": 1.0}
"""Distributions of device speed, with their spread."""
_OVERSELECTION = 1.3
_TASK: Mapping[str, Any] = {
    "dataset": "digits",
    "model": "mlp",
    "users": 100,
    "min_per_version": 1,
    "partition": "dirichlet",
    "local_rate": 0.1,
    "local_epochs": 1,
    "batch_size": 5,
    "seconds_per_step": 0.5,
    "dropout": 0.1,
    "weights": "field",
    "masks": "long",
    "correctness": "honest-holders",
}
_TEST_IMAGES = 360
_LAST_VERSION = {"fedavg": 150, "fedasync": 3000, "fedat": 1000, "fedbuff": 600, "basecagg": 600}
_CURVE_POINTS = 150
_VARIED: Mapping[Size, tuple[Sequence[int], Sequence[int], Sequence[int]]] = {
    "full": ((10, 20, 40), (5, 10, 20), (1, 2, 3)),
    "quick": ((10, 20), (5, 10), (1,)),
    "smoke": ((10,), (5,), (1,)),
}
"""C, K and seeds."""
_SMOKE_VERSIONS = 2
_SUMMARY = (
    "method",
    "speed",
    "C",
    "K",
    "simulated seconds",
    "updates",
    "accuracy",
    "reached",
    "faster than fedavg",
    "faster than fedasync",
    "seeds",
)
PUBLISHED_GAIN = 3.8
"""How much sooner than rounds FedBuff's authors were; the paper cites it."""


@dataclass(frozen=True)
class Race:
    """One run to the target."""

    method: str
    speed: Speed
    concurrency: int
    """C"""
    buffer_size: int
    """K; for methods without a buffer what they step with."""
    seed: int

    @property
    def key(self) -> str:
        """A name for files and resumed runs."""
        return f"{self.method}/{self.speed}/{self.concurrency}/{self.buffer_size}/{self.seed}"

    @classmethod
    def from_key(cls, key: str) -> Race:
        """The race of this name."""
        method, speed, concurrency, buffer_size, seed = key.split("/")
        known: Speed = "log-normal" if speed == "log-normal" else "half-normal"
        return cls(method, known, int(concurrency), int(buffer_size), int(seed))

    def config(self, size: Size) -> SimulationConfig:
        """The quick form has 20 holders and does the arithmetic only; the full one 100, sealed and signed."""
        full, last = size == "full", _LAST_VERSION[self.method]
        return SimulationConfig(
            **_TASK,
            method=self.method,
            speed=self.speed,
            speed_spread=SPEEDS[self.speed],
            concurrency=self.concurrency,
            buffer_size=self.buffer_size,
            seed=self.seed,
            versions=_SMOKE_VERSIONS if size == "smoke" else last,
            evaluate_every=5 if self.method == "fedasync" else 1,
            holders=None if full else 20,
            cryptography="full" if full else "arithmetic",
        )


class Finish(NamedTuple):
    """When a race was over."""

    reached: bool
    updates: int
    versions: int
    score: float
    curve: Sequence[tuple[float, float]]
    """(simulated seconds, accuracy)"""

    @property
    def seconds(self) -> float:
        """Simulated."""
        return self.curve[-1][0]


class _AtTheTarget(Exception):  # noqa: N818 - not an error: the way to stop a simulation
    pass


def races(size: Size) -> list[Race]:
    """All runs: C varied for every method, K for those with a buffer."""
    concurrencies, buffers, seeds = _VARIED[size]
    wanted: dict[str, Race] = {}
    for speed, seed, method, c, k in product(SPEEDS, seeds, METHODS, concurrencies, buffers):
        fixed = {"fedavg": int(c / _OVERSELECTION), "fedasync": 1, "fedat": c // 5}
        race = Race(method, speed, c, fixed.get(method, k), seed)
        wanted[race.key] = race
    return list(wanted.values())


def jobs(order: Order, results: Results) -> list[Job]:
    """One for each race."""
    return [Job(race.key, _finished, (race, order.size)) for race in races(order.size)]


def _finished(argument: tuple[Race, Size]) -> dict[str, Any]:
    return run_race(*argument)._asdict()


def run_race(race: Race, size: Size) -> Finish:
    """Simulate until the target or the last version."""
    from basecagg.simulation.logbook import VersionRecord
    from basecagg.simulation.simulate import simulate

    seen: list[VersionRecord] = []

    def watch(record: VersionRecord) -> None:
        if record.score is not None:
            seen.append(record)
            if record.score >= TARGET:
                raise _AtTheTarget

    try:
        simulate(race.config(size), progress=watch)
        reached = False
    except _AtTheTarget:
        reached = True
    last, step = seen[-1], 1 + len(seen) // _CURVE_POINTS
    curve = [(record.time, record.score or 0.0) for record in (*seen[:-1:step], last)]
    return Finish(reached, last.updates, last.version, last.score or 0.0, curve)


def lines_of(finishes: Mapping[Race, Finish]) -> list[dict[str, Any]]:
    """The mean over seeds for every method, speed, C and K; gains against FedAvg and FedAsync at the same C."""
    groups: dict[tuple[str, Speed, int, int], list[Finish]] = {}
    for race, finish in finishes.items():
        key = (race.method, race.speed, race.concurrency, race.buffer_size)
        groups.setdefault(key, []).append(finish)
    seconds = {key: mean(f.seconds for f in runs) for key, runs in groups.items()}
    rival = {(method, speed, c): s for (method, speed, c, _), s in seconds.items()}
    lines = []
    for (method, speed, c, k), runs in groups.items():
        own = seconds[method, speed, c, k]
        lines.append(
            {
                "method": method,
                "speed": speed,
                "C": c,
                "K": k,
                "simulated seconds": own,
                "updates": mean(f.updates for f in runs),
                "versions": mean(f.versions for f in runs),
                "accuracy": mean(f.score for f in runs),
                "reached": all(f.reached for f in runs),
                "faster than fedavg": rival["fedavg", speed, c] / own,
                "faster than fedasync": rival["fedasync", speed, c] / own,
                "seeds": len(runs),
            }
        )
    return lines


def report(results: Results, size: Size) -> Publication:
    """The table and the plots."""
    finishes = {
        Race.from_key(key): Finish(*(found[name] for name in Finish._fields))
        for key, found in results.items()
    }
    lines = lines_of(finishes)
    return Publication(
        "schedules",
        "Asynchronous against in rounds",
        _lead(),
        lines,
        summary=select(lines, _SUMMARY),
        notes=[
            "Published for large federations: FedBuff is 3.3–3.8 times faster than synchronous training and"
            " 2.5 times faster than FedAsync (Nguyen et al. 2021).",
            "BASecAgg's time holds its cryptography: dealing while training, and the seconds from the last"
            " upload to the open sum. "
            + (
                "All users hold shares, sealed and signed."
                if size == "full"
                else "This quick run has 20 holders and does the arithmetic only."
            ),
            "A method that did not reach the target in its last version is marked; its time is a lower bound.",
            "A late user of FedAvg trains on to its end and counts among the C meanwhile: the next round starts"
            " without it, and fills its place when it is done. Rounds that call late users off may be sooner.",
            "Updates are all that users have sent, also the late ones of a round, which FedAvg drops.",
            "Seconds, updates and accuracy are means over seeds. All methods train with the same local rate;"
            " the best C and K of a method are the best in the table, which has more K for the buffered ones.",
        ],
        figures={
            "schedules-time": (
                _drawn_times(lines),
                "Simulated time to the target, the best K of each method.",
            ),
            "schedules-curves": (
                _drawn_curves(finishes),
                "Accuracy over simulated time, first seed.",
            ),
            "schedules-concurrency": (
                _drawn_concurrency(lines, "simulated seconds"),
                "Time to the target against C, the K of least time.",
            ),
            "schedules-updates": (
                _drawn_concurrency(lines, "updates"),
                "Updates to the target against C, the K of least time.",
            ),
        },
        claims=[claim(lines), data_claim(finishes)],
    )


def _lead() -> str:
    return (
        f"Simulated time until {TARGET:.0%} test accuracy: an MLP on {_TASK['dataset']}, {_TASK['users']} users"
        f" with data by Dirichlet({SimulationConfig.dirichlet_alpha:g}), E = {_TASK['local_epochs']} epoch,"
        f" {_TASK['dropout']:.0%} of the trainings lost. FedAvg over-selects: of C users a round takes the"
        f" first C/{_OVERSELECTION}, rounded down. FedBuff and BASecAgg keep C users busy and step after K"
        f" updates. Every version (FedAsync's: every fifth) is evaluated on {_TEST_IMAGES} test images, and a"
        " race ends at the first evaluation at or above the target; so a curve that swings profits a little."
    )


# --- how much sooner ----------------------------------------------------------------------------


def claim(lines: Sequence[Line]) -> Claim:
    """Whether the buffered methods are as much sooner than rounds as published, protection included."""
    seeds = min(line["seeds"] for line in lines)
    tuned = [{method: _tuned_gain(lines, method, speed) for method in BUFFERED} for speed in SPEEDS]
    verdict: Verdict = "not reproduced"
    if any(min(gains.values()) >= PUBLISHED_GAIN for gains in tuned):
        verdict = "reproduced"
    elif all(_gain(_most_gained(lines, method)) >= PUBLISHED_GAIN for method in BUFFERED):
        verdict = "partly"
    same_c = "; ".join(_in_cells(lines, method) for method in BUFFERED)
    best = "; ".join(_when_tuned(lines, speed) for speed in SPEEDS)
    return Claim(
        "Asynchronous against rounds",
        f"Buffered asynchronous training is {PUBLISHED_GAIN} times faster than in rounds, as FedBuff's authors"
        " found, whom the paper cites.",
        f"With the same C: {same_c}. With every method at its own best C and K: {best} (seeds: {seeds}).",
        settled(verdict, seeds),
        f"of simulated time to {TARGET:.0%}, BASecAgg's with its cryptography; reproduced means that with every"
        f" method at its best both gain {PUBLISHED_GAIN} times with one of the distributions of speed, partly"
        f" that only single cells do{seeds_missing(seeds)}",
        "schedules-time",
    )


def _gain(line: Line) -> float:
    """Against FedAvg with the same C; a race that was not won gains nothing."""
    return float(line["faster than fedavg"]) if line["reached"] else 0.0


def _most_gained(lines: Sequence[Line], method: str) -> Line:
    return max((line for line in lines if line["method"] == method), key=_gain)


def _in_cells(lines: Sequence[Line], method: str) -> str:
    """The best cell, and what all the others say."""
    gains = [_gain(line) for line in lines if line["method"] == method]
    best = _most_gained(lines, method)
    return (
        f"{_NAMES[method]} at most {max(gains):.1f} times ({best['speed']} speeds, {_setting(best)}), median"
        f" {median(gains):.1f} times, {PUBLISHED_GAIN} or more in {sum(g >= PUBLISHED_GAIN for g in gains)} of"
        f" {len(gains)} cells, slower than FedAvg in {sum(g < 1 for g in gains)}"
    )


def _tuned_gain(lines: Sequence[Line], method: str, speed: Speed) -> float:
    """Against FedAvg, each with the C and K that are best for it."""
    own, rival = (_best(lines, method=each, speed=speed) for each in (method, "fedavg"))
    return float(rival["simulated seconds"] / own["simulated seconds"]) if own["reached"] else 0.0


def _when_tuned(lines: Sequence[Line], speed: Speed) -> str:
    gains = ", ".join(
        f"{_NAMES[method]} {_tuned_gain(lines, method, speed):.1f} times"
        f" ({_setting(_best(lines, method=method, speed=speed))})"
        for method in BUFFERED
    )
    return f"{speed} speeds, FedAvg with {_setting(_best(lines, method='fedavg', speed=speed))}: {gains}"


def _setting(line: Line) -> str:
    return f"C = {line['C']}, K = {line['K']}"


def _best(lines: Sequence[Line], **wanted: object) -> Line:
    fitting = [line for line in lines if all(line[key] == value for key, value in wanted.items())]
    return min(fitting, key=lambda line: (not line["reached"], line["simulated seconds"]))


# --- how much data ------------------------------------------------------------------------------


class Growth(NamedTuple):
    """Updates to the target from the smallest C to the largest."""

    name: str
    sizes: Sequence[int]
    """C"""
    updates: Sequence[float]
    """Mean over seeds, for each C."""
    factors: Sequence[float]
    """For each seed, those of the largest C over those of the smallest; not a number if one is not there."""

    def __str__(self) -> str:
        if not all(map(isfinite, self.factors)):
            return f"{self.name} not always there"
        needed = " → ".join(f"{updates:,.0f}" for updates in self.updates)
        span = f"{min(self.factors):.1f}–{max(self.factors):.1f}"
        return f"{self.name} {needed} (× {self.updates[-1] / self.updates[0]:.1f}; by seed {span})"


def data_claim(finishes: Mapping[Race, Finish]) -> Claim:
    """Whether rounds need more data when more users train at once, and a buffer does not."""
    lines = lines_of(finishes)
    seeds, sizes = min(line["seeds"] for line in lines), sorted({line["C"] for line in lines})
    growths = {speed: _growths(finishes, lines, speed) for speed in SPEEDS}
    told = "; ".join(
        f"{speed} speeds: {', '.join(map(str, each))}" for speed, each in growths.items()
    )
    limit = sqrt(sizes[-1] / sizes[0])
    return Claim(
        "More users at once",
        "More users at once make training in rounds inefficient in data; a buffer with a proper K stays"
        " efficient.",
        f"Updates to {TARGET:.0%} with C = {' → '.join(map(str, sizes))}: {told} (seeds: {seeds}).",
        settled(_data_verdict(list(growths.values()), limit), seeds),
        "K is proper if it is soonest at the target with the largest C; inefficient means that updates grow by"
        f" the square root of C's growth or more (× {limit:.1f}); reproduced means that this is so for FedAvg,"
        " and not for FedBuff and BASecAgg, with every seed, partly that theirs always grow less than FedAvg's"
        f"{seeds_missing(seeds)}",
        "schedules-updates",
    )


def _growths(finishes: Mapping[Race, Finish], lines: Sequence[Line], speed: Speed) -> list[Growth]:
    """FedAvg's, then those of the buffered methods with the K that is soonest at the largest C."""
    most = max(line["C"] for line in lines)
    proper = {each: _best(lines, method=each, speed=speed, C=most)["K"] for each in BUFFERED}
    return [_growth(finishes, "fedavg", speed)] + [
        _growth(finishes, method, speed, k) for method, k in proper.items()
    ]


def _growth(finishes: Mapping[Race, Finish], method: str, speed: Speed, k: int = 0) -> Growth:
    """With this K; 0: whatever K goes with C."""
    own = {
        (race.seed, race.concurrency): float(finish.updates) if finish.reached else nan
        for race, finish in finishes.items()
        if (race.method, race.speed) == (method, speed) and k in (0, race.buffer_size)
    }
    seeds, sizes = ({key[part] for key in own} for part in (0, 1))
    first, last = min(sizes), max(sizes)
    return Growth(
        f"{_NAMES[method]}, K = {k}," if k else _NAMES[method],
        sorted(sizes),
        [mean(updates for (_, c), updates in own.items() if c == size) for size in sorted(sizes)],
        [own.get((seed, last), nan) / own.get((seed, first), nan) for seed in sorted(seeds)],
    )


def _data_verdict(growths: Sequence[Sequence[Growth]], limit: float) -> Verdict:
    """By every distribution of speeds and every seed. Nothing that is not a number passes."""
    rounds = [factor for each in growths for factor in each[0].factors]
    buffered = [factor for each in growths for growth in each[1:] for factor in growth.factors]
    if not all(factor >= limit for factor in rounds):
        return "not reproduced"
    if all(factor < limit for factor in buffered):
        return "reproduced"
    return "partly" if all(factor < min(rounds) for factor in buffered) else "not reproduced"


# --- plots --------------------------------------------------------------------------------------


def _drawn_times(lines: Sequence[Line]) -> Any:
    times: dict[str, list[float]] = {
        speed: [_best(lines, method=each, speed=speed)["simulated seconds"] for each in METHODS]
        for speed in SPEEDS
    }
    return plot.bars(
        times, [_NAMES[each] for each in METHODS], f"simulated seconds to {TARGET:.0%}"
    )


def _drawn_concurrency(lines: Sequence[Line], column: str) -> Any:
    sizes = sorted({line["C"] for line in lines})
    needed = {
        _NAMES[method]: [
            (c, _best(lines, method=method, speed="half-normal", C=c)[column]) for c in sizes
        ]
        for method in METHODS
    }
    label = f"{column} to {TARGET:.0%}, half-normal"
    return plot.lines(needed, "concurrency C", label, ticks=sizes)


def _drawn_curves(finishes: Mapping[Race, Finish]) -> Any:
    most = min(20, max(race.concurrency for race in finishes))
    curves = {}
    for method in METHODS:
        wanted = (method, "half-normal", 1, most)
        own = [
            (race, finish)
            for race, finish in finishes.items()
            if (race.method, race.speed, race.seed, race.concurrency) == wanted
        ]
        race, finish = min(own, key=lambda pair: (not pair[1].reached, pair[1].seconds))
        points = [(at, 100 * score) for at, score in finish.curve]
        curves[f"{_NAMES[method]}, K = {race.buffer_size}"] = points
    x_label = "simulated seconds, half-normal speeds"
    return plot.lines(curves, x_label, "test accuracy, %", style="-", width=1.4, legend_size=8)


SCHEDULES = Experiment("schedules", jobs, report, timed=False)
