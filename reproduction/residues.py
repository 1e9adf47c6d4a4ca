"""`basecagg reproduce residues`: what one opened sum tells about a member beyond the real-valued sum.

The server opens Σ s̄·x̄ in whole numbers, with x̄ an update in steps of 1/c_l. Where weights differ, the
remainders of such a sum say which members they came from. What an attacker who knows the weights can make of
it is computed here, not tried: every number of an update is drawn from a normal distribution, and the best
guess of a member's number is its mean given the opened number. The paper's promise would be kept if that guess
came no nearer than the best guess from Σ s̄·Δ, the same sum of real numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from basecagg.maths.staleness import polynomial, quantized_weight
from basecagg.options import Weights
from basecagg.parameters import ProtocolParameters
from basecagg.planning.planner import plan
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.simulate import simulate
from reproduction import plot
from reproduction.bench import Federation
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Publication, beyond_paper

Reals = npt.NDArray[np.float64]

WEIGHTS = {
    "stochastic": "in the field, rounded by a coin",
    "nearest": "in the field, rounded to the nearest",
    "own": "own (default)",
}
SIZES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2)
"""Standard deviations of an update's numbers."""
USUAL_LEVELS = 2**16
"""c_l by default"""
WIDEST = 256
"""Steps. A member whose numbers spread further is computed as if they spread so far: weights are at most 64, so
what remainders tell has fallen to exp(−½·(2π·256/64)²) < 10⁻¹³⁰ long before."""
FAINT = 0.02
"""Correlations differ by less than this: nothing is told."""
_SUMS: Mapping[Size, int] = {"full": 60, "quick": 10, "smoke": 4}
_MEASURED: Mapping[Size, int] = {"full": 20_000, "quick": 4000, "smoke": 500}
"""Numbers of an update in the sum that is opened through the machines."""
_REACH = 9
"""Standard deviations, beyond which nothing is computed."""
_UNLIKELY = 1e-11
"""Opened numbers less likely than this are left out: the transform is no more exact."""


# --- the best guess from an opened number ---------------------------------------------------------


class Numbers(NamedTuple):
    """What one number of an update may be, after rounding: a = −R … R."""

    chances: Reals
    """P(a)"""
    parts: Reals
    """P(a)·E[v | a], with v the number before rounding."""
    deviation: float
    """of v"""


class Group(NamedTuple):
    """Members of a sum that nobody can tell apart."""

    members: int
    factor: int
    """By how much one step of theirs moves the opened number."""
    numbers: Numbers


class Guess(NamedTuple):
    """What an attacker makes of an opened number about a member of one group."""

    table: Reals
    """E[v | opened]; the opened number mod the length is the place."""
    correlation: float
    """Of the guess with v: nothing does better."""
    real_valued: float
    """Of the real-valued sum with v."""

    def of(self, opened: npt.NDArray[np.int64]) -> Reals:
        """The guesses from opened numbers."""
        return self.table[opened % len(self.table)]


def rounded(deviation: float) -> Numbers:
    """v ~ N(0, deviation²) in steps, rounded up with the probability of its fraction."""
    reach = math.ceil(_REACH * deviation) + 1
    z = np.arange(-reach - 1, reach + 2) / deviation
    beyond = 0.5 * np.array([math.erfc(x / math.sqrt(2)) for x in z])
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    # P(a | v) = max(0, 1 − |v − a|) is a second difference of (v − x)₊: so are both integrals over v.
    chances = np.diff(deviation * (density - z * beyond), n=2)
    return Numbers(chances.clip(0), deviation**2 * np.diff(beyond, n=2), deviation)


def on_grid(chances: Reals) -> Numbers:
    """Values that lie on a grid, which no rounding hides: −R … R with these chances."""
    values = np.arange(len(chances)) - len(chances) // 2
    chances = chances / chances.sum()
    return Numbers(chances, chances * values, float(np.sqrt(chances @ values**2)))


def best_guesses(groups: Sequence[Group]) -> list[Guess]:
    """The best guess of one member of every group, from exact distributions of the opened number."""
    length = _length(groups)
    spectra = [_spectrum(each.numbers.chances, each.factor, length) for each in groups]
    likely = np.fft.irfft(_product(groups, spectra), length)
    told = likely > _UNLIKELY
    whole = math.sqrt(sum(g.members * (g.factor * g.numbers.deviation) ** 2 for g in groups))
    guesses = []
    for index, group in enumerate(groups):
        part = _spectrum(group.numbers.parts, group.factor, length)
        joint = np.fft.irfft(part * _product(groups, spectra, without=index), length)
        table = np.divide(joint, likely, out=np.zeros(length), where=told)
        deviation = group.numbers.deviation
        found = math.sqrt(float(np.sum(table**2 * likely, where=told))) / deviation
        guesses.append(Guess(table, found, group.factor * deviation / whole))
    return guesses


def _length(groups: Sequence[Group]) -> int:
    """Of a circle on which the sums do not meet themselves."""
    most = sum(g.members * g.factor * (len(g.numbers.chances) // 2) for g in groups)
    variance = sum(g.members * g.factor**2 * (g.numbers.deviation**2 + 0.25) for g in groups)
    far = math.ceil(_REACH * math.sqrt(variance)) + 4 * max(g.factor for g in groups)
    return int(2 ** math.ceil(math.log2(2 * min(most, far) + 2)))


def _spectrum(values: Reals, factor: int, length: int) -> npt.NDArray[np.complex128]:
    reach = len(values) // 2
    places = factor * np.arange(-reach, reach + 1) % length
    return np.fft.rfft(np.bincount(places, values, length))


def _product(
    groups: Sequence[Group],
    spectra: Sequence[npt.NDArray[np.complex128]],
    without: int | None = None,
) -> npt.NDArray[np.complex128]:
    """Of all members, but for one of this group."""
    counts = [group.members - (index == without) for index, group in enumerate(groups)]
    product = np.ones_like(spectra[0])
    for spectrum, count in zip(spectra, counts, strict=True):
        product *= spectrum**count
    return product


def groups_of(weights: Sequence[float], by: Weights, spread: float) -> list[Group]:
    """Members by weight: in the field it multiplies whole numbers, an own weight comes before the rounding."""
    steps = min(spread, WIDEST)
    if by == "own":
        return [Group(n, 1, rounded(w * steps)) for w, n in Counter(weights).items()]
    return [Group(n, int(w), rounded(steps)) for w, n in Counter(weights).items()]


# --- sums of real runs, and one through the machines ----------------------------------------------


def sums_of_a_run(argument: tuple[Weights, int]) -> dict[str, Any]:
    """Weights and ages of the members of every sum of the default run."""
    by, count = argument
    run = simulate(SimulationConfig(weights=by, versions=count + 1, evaluate_every=count + 1))
    records = run.versions[-count:]
    return {"sums": [[list(each.weights), list(each.staleness)] for each in records]}


def weights_of(kind: str, found: Sequence[Any]) -> list[list[float]]:
    """The weights of every sum; to the nearest if they had been rounded so."""
    if kind != "nearest":
        return [weights for weights, _ in found]
    s = SimulationConfig().staleness_function
    return [[quantized_weight(s, age, 64, b"", "nearest") for age in ages] for _, ages in found]


def measure(argument: tuple[list[list[float]], Weights, float, int]) -> dict[str, Any]:
    """What the sums of a run tell about each of their members, for one size of updates and one c_l."""
    sums, by, size, levels = argument
    found: list[tuple[float, float]] = []
    for weights, times in Counter(tuple(sorted(each)) for each in sums).items():
        groups = groups_of(weights, by, size * levels)
        for group, guess in zip(groups, best_guesses(groups), strict=True):
            found += [(guess.correlation, guess.real_valued)] * (times * group.members)
    beyond = [best - real for best, real in found]
    worst = beyond.index(max(beyond))
    return {
        "levels": levels,
        "size": size,
        "members": len(found),
        "best": fmean(best for best, _ in found),
        "real_valued": fmean(real for _, real in found),
        "told_more": fmean(each > FAINT for each in beyond),
        "worst": found[worst],
    }


class Opening(NamedTuple):
    """A sum that was opened through the machines, as its server sees it, and the truth."""

    weights: tuple[float, ...]
    """Of the members in the order of their names."""
    numbers: npt.NDArray[np.int64]
    """Σ s̄·x̄, or Σ x̄ with own weights."""
    updates: Mapping[str, Reals]
    """Of all members."""


def open_one(by: Weights, size: float, length: int) -> Opening:
    """Three members from the present model, and three from two versions before; certified, with defaults."""
    p = ProtocolParameters(
        num_holders=7,
        recovery_threshold=3,
        max_colluders=1,
        max_dropouts=1,
        buffer_size=6,
        model_size=length,
        weights=by,
        masks="long",
        staleness=polynomial(),
        max_colluding_contributors=1,
    )
    federation, random = Federation(p), np.random.default_rng(1)
    base, head = federation.server.version, federation.server.head
    for _ in range(2):
        for index in range(6):
            federation.contribute(f"early-{index}", random.normal(scale=size, size=length))
        federation.run()
    updates = {f"user-{index}": random.normal(scale=size, size=length) for index in range(6)}
    for name, update in list(updates.items())[:3]:
        federation.contribute(name, update)
    for name, update in list(updates.items())[3:]:
        federation.deal(name)
        federation.network.run()
        federation.submit(name, update, base, head)
    (opened,) = federation.run()
    told = {mask.contributor: w for mask, w in zip(opened.members, opened.weights, strict=True)}
    numbers = np.rint(opened.weighted_sum * p.update_levels).astype(np.int64)
    return Opening(tuple(told[name] for name in updates), numbers, updates)


def guess_members(opening: Opening, by: Weights, size: float) -> list[tuple[float, Guess]]:
    """How well each member's update is guessed from the opened sum, beside what was computed."""
    groups = groups_of(opening.weights, by, size * USUAL_LEVELS)
    of_weight = dict(zip(Counter(opening.weights), best_guesses(groups), strict=True))
    told = []
    for weight, update in zip(opening.weights, opening.updates.values(), strict=True):
        guess = of_weight[weight]
        found = float(np.corrcoef(guess.of(opening.numbers), update)[0, 1])
        told.append((found, guess))
    return told


def through_machines(argument: tuple[Weights, float, int]) -> dict[str, Any]:
    """The same attack on a sum that holders opened."""
    by, size, length = argument
    opening = open_one(by, size, length)
    told = guess_members(opening, by, size)
    return {
        "weights": opening.weights,
        "found": [found for found, _ in told],
        "computed": [guess.correlation for _, guess in told],
        "real_valued": [guess.real_valued for _, guess in told],
    }


# --- the experiment -------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """First the sums of real runs, then what they tell."""
    count = _SUMS[order.size]
    kinds: tuple[Weights, ...] = ("field", "own")
    first = [Job(f"run/{by}", sums_of_a_run, (by, count)) for by in kinds]
    first += [
        Job(f"machines/{by}", through_machines, (by, 2e-5, _MEASURED[order.size])) for by in kinds
    ]
    if any(job.key not in results for job in first):
        return first
    return first + [
        Job(f"{kind}/{which}/{size:g}", measure, (sums, by, size, levels))
        for kind in WEIGHTS
        for by in kinds
        if (by == "own") == (kind == "own")
        for sums in [weights_of(kind, results[f"run/{by}"]["sums"])]
        for which, levels in (("usual", USUAL_LEVELS), ("planned", planned_levels(by)))
        for size in SIZES
    ]


def planned_levels(by: Weights) -> int:
    """c_l of the planner: the finest with which no sum wraps around."""
    chosen = plan(
        num_holders=100,
        max_dropouts=30,
        buffer_size=10,
        model_size=10_000,
        weights=by,
        masks="long",
    )
    return chosen.parameters.update_levels


def report(results: Results, size: Size) -> Publication:
    """The table, the picture and both claims."""
    points = {key: found for key, found in results.items() if key.split("/")[0] in WEIGHTS}
    return Publication(
        "residues",
        "What a sum of whole numbers tells",
        f"Sums of the default run (K = 10 of 100 users, {_SUMS[size]} sums). The best guess of a member's"
        " update from one opened sum beside the best guess from the sum of real numbers that it stands for, as"
        " correlations with the truth. All parties are honest; the attacker looks at what the server gets.",
        [_line(key, found) for key, found in points.items()],
        tables={"One sum through the machines": _machine_lines(results)},
        notes=_NOTES,
        figures={"residues": (_figure(points), _CAPTION)},
        claims=_claims(points),
    )


def _line(key: str, found: Mapping[str, Any]) -> dict[str, Any]:
    kind, _, _ = key.split("/")
    best, real = found["worst"]
    return {
        "weights": WEIGHTS[kind],
        "c_l": f"2^{math.log2(found['levels']):g}",
        "size of updates": f"{found['size']:g}",
        "that is steps": found["size"] * found["levels"],
        "real-valued sum, mean": f"{found['real_valued']:.2f}",
        "best guess, mean": f"{found['best']:.2f}",
        "members told more of": f"{found['told_more']:.0%}",
        "worst: best guess": f"{best:.2f}",
        "worst: real-valued sum": f"{real:.2f}",
    }


def _machine_lines(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "weights": {"field": WEIGHTS["stochastic"], "own": WEIGHTS["own"]}[by],
            "member": f"{index + 1} of 6",
            "its weight": weight,
            "real-valued sum": f"{found['real_valued'][index]:.2f}",
            "computed": f"{found['computed'][index]:.2f}",
            "found": f"{found['found'][index]:.2f}",
        }
        for by in ("field", "own")
        for found in [results.get(f"machines/{by}", {"weights": []})]
        for index, weight in enumerate(found["weights"])
    ]


def _figure(points: Results) -> Any:
    curves: dict[str, list[tuple[float, float]]] = {label: [] for label in WEIGHTS.values()}
    for key, found in points.items():
        kind, which, _ = key.split("/")
        if which == "usual":
            curves[WEIGHTS[kind]].append((found["size"], found["worst"][0] - found["worst"][1]))
    return plot.lines(
        curves,
        "size of updates (c_l = 2¹⁶)",
        "more than the real-valued sum tells",
        colours=plot.VIVID,
        x_scale=plot.LOG,
    )


def _claims(points: Results) -> list[Claim]:
    field = [found for key, found in points.items() if not key.startswith("own/")]
    own = [found for key, found in points.items() if key.startswith("own/")]
    if not field or not own:
        return []
    most = max(field, key=lambda found: found["worst"][0] - found["worst"][1])
    told = most["worst"][0] - most["worst"][1] > FAINT
    nothing = max(best - real for best, real in (found["worst"] for found in own))
    return [
        Claim(
            "A sum and nothing beyond",
            "The server learns nothing about updates beyond their weighted aggregate.",
            f"with updates of {most['size']:g} and c_l = 2^{math.log2(most['levels']):g} the best guess of one"
            f" member's update from one opened sum correlates {most['worst'][0]:.2f} with the truth, the"
            f" weighted aggregate {most['worst'][1]:.2f}; {most['told_more']:.0%} of members are told more of"
            " than it tells.",
            "corrected" if told else "reproduced",
            "the server gets Σ s̄·x̄ in whole numbers, and remainders by the weights say whose number is which"
            " ([worked by hand](../explanation/residues.md)); the proof is of sums in the field, not of the"
            " sums of real numbers that they stand for. With weights that contributors apply themselves it"
            " holds",
            "residues",
        ),
        Claim(
            "Own weights tell no more",
            "With own weights an opened sum tells no more about a member than the sum of real numbers.",
            f"over all sizes and both c_l the best guess exceeds it by {max(nothing, 0):.3f} at most.",
            beyond_paper(nothing <= FAINT),
            "",
            "residues",
            beyond=True,
        ),
    ]


_CAPTION = (
    "By how much the best guess of one member's update correlates better with the truth than the real-valued"
    " sum does. Zero: nothing is told beyond the sum."
)
_NOTES = (
    "Every number of an update is drawn from a normal distribution of the given size. Then the best guess is"
    " the mean of a member's number given the opened number. It is computed from exact distributions, so no"
    " attack on one opened sum does better. An attacker who knows more about updates may do better in both"
    " columns.",
    "A member is told more of if the best guess exceeds the real-valued sum by more than"
    f" {FAINT:g}. The worst member is the one of all sums for whom it exceeds most.",
    "To the nearest, the weights of one version are alike, and nobody stands alone by a coin. Then remainders"
    " tell the sum of each version's members, of whom a certified sum has three at least.",
    "The planner's c_l is the finest with which no sum wraps around. Without weights in the field it is six"
    " bits finer. Where updates spread over many steps, remainders tell nothing, whatever the weights.",
    "Through the machines: three members from the present model, three from two versions before, updates of"
    " 2·10⁻⁵, c_l = 2¹⁶, certified. Holders, masks and messages are real.",
    "Masks are long, so that sums are exact. With masks from keys every opened number has an error besides.",
)
RESIDUES = Experiment("residues", jobs, report)
