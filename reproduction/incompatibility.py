"""SecAgg forced into a buffer: the paper's section 'Incompatibility', as an experiment.

K users have trained from versions t_i. Under SecAgg user i masks with the seeds a_ij of its own version, as the
paper prints it, and the server adds everything up. It is even given every private seed b_i. Where t_i = t_j the
pairwise masks cancel; where not, both stay in the sum. BASecAgg opens the same buffer through its machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from basecagg.baselines.secagg import add_masks, mask_purpose
from basecagg.channels.key_agreement import SECRET_BYTES, AgreementKey
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import signed
from basecagg.maths.randomness import Words, system_entropy
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Released
from basecagg.reports.plots import COLOURS
from basecagg.simulation.federation import Federation
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Publication

LEVELS = 2**16
"""c_l"""
MEMBERS = 10
"""K"""
SIZE = 1000
"""d"""
_PURPOSE = 16
_MOST = 0.99
"""Share of wrong elements from which a sum is noise."""
_REPEATS: Mapping[Size, int] = {"full": 10, "quick": 1, "smoke": 1}

Integers = npt.NDArray[np.int64]


_COLUMNS = {
    "mixed": "members from a version of their own",
    "share": "share of all members",
    "secagg": "SecAgg: RMS error / RMS of the sum",
    "secagg_wrong": "SecAgg: share of wrong elements",
    "basecagg": "BASecAgg: RMS error / RMS of the sum",
    "basecagg_wrong": "BASecAgg: share of wrong elements",
}


class Point(NamedTuple):
    """The error of the aggregate when so many members have trained from versions of their own."""

    mixed: int
    """Members that are not of the newest version, each from another one."""
    share: float
    secagg: float
    """Root mean square error of SecAgg's sum, relative to the sum's own size."""
    secagg_wrong: float
    """Share of elements that are wrong."""
    basecagg: float
    basecagg_wrong: float


def versions_of(mixed: int, members: int = MEMBERS) -> list[int]:
    """t_i of every member: `mixed` of them from older versions, each its own; the others from the newest."""
    newest = members
    older = [newest - 1 - index for index in range(mixed)]
    return older + [newest] * (members - mixed)


def forced_secagg(updates: Sequence[Integers], versions: Sequence[int]) -> Integers:
    """What the server gets: Σ y_i^(t;t_i) − Σ PRG(b_i), with every pairwise seed of its owner's own version."""
    keys = [AgreementKey(system_entropy(SECRET_BYTES)) for _ in updates]
    masked, private = [], []
    for user, update in enumerate(updates):
        purpose = mask_purpose(_round_id(versions[user]))
        seeds = {
            peer: keys[user].agree(key.public_key, purpose)
            for peer, key in enumerate(keys)
            if peer != user
        }
        private.append(system_entropy(SECRET_BYTES))
        added = [private[-1], *(seed for peer, seed in seeds.items() if user < peer)]
        subtracted = [seed for peer, seed in seeds.items() if user > peer]
        masked.append(add_masks(_to_field(update), added, subtracted))
    total = PrimeField(PAPER_MODULUS).weighted_sum(masked, [1] * len(masked))
    return signed(add_masks(total, [], private), PAPER_MODULUS)


def _round_id(version: int) -> bytes:
    return hashlib.sha256(version.to_bytes(8, "big")).digest()[:_PURPOSE]


def _to_field(update: Integers) -> Words:
    return (update % PAPER_MODULUS).astype(np.uint32)


class BufferedFederation:
    """A BASecAgg federation that has published enough versions to mix them."""

    def __init__(self, members: int, size: int) -> None:
        """Publish versions 0 … K."""
        parameters = ProtocolParameters(
            num_holders=members,
            recovery_threshold=members - 2,
            max_colluders=2,
            max_dropouts=2,
            buffer_size=members,
            model_size=size,
            weights="field",
            masks="long",
            staleness=polynomial(1.0),
            max_staleness=members,
            consistency="honest-server",
        )
        self._federation = Federation(parameters, np.zeros(size, np.float32), cryptography=False)
        self._hashes = [self._federation.server.head]
        generator = np.random.default_rng((7, 7))
        for version in range(members):
            steps = [_draw(generator, size) for _ in range(members)]
            self._open(steps, [version] * members)
            self._hashes.append(self._federation.server.head)

    def sum(
        self, updates: Sequence[Integers], versions: Sequence[int]
    ) -> tuple[Integers, Integers]:
        """Σ s̄·Δ as it was opened, and as it should be, both in units of 1/c_l."""
        news = self._open(updates, versions)
        weight = {
            name.contributor: int(weight)
            for name, weight in zip(news.members, news.weights, strict=True)
        }
        wanted = sum(weight[f"user-{index}"] * update for index, update in enumerate(updates))
        return np.rint(news.weighted_sum * LEVELS).astype(np.int64), np.asarray(wanted)

    def _open(self, updates: Sequence[Integers], versions: Sequence[int]) -> Released:
        federation = self._federation
        names = [f"user-{index}" for index in range(len(updates))]
        for name in names:
            federation.deal(name)
        federation.network.run()
        for name, update, version in zip(names, updates, versions, strict=True):
            values = (update / LEVELS).astype(np.float64)
            federation.submit(name, values, version, self._hashes[version])
        federation.network.run()
        (news,) = [each for each in federation.take_news() if isinstance(each, Released)]
        return news


def _draw(generator: np.random.Generator, size: int) -> Integers:
    """An update of whole multiples of 1/c_l: rounding changes nothing, so every error is the masks'."""
    return np.rint(generator.normal(0, 0.05, size) * LEVELS).astype(np.int64)


def measure(mixed: int, repeats: int = 1, members: int = MEMBERS, size: int = SIZE) -> Point:
    """One point of the curve, the mean over repeats."""
    generator = np.random.default_rng(mixed + 1000)
    errors = []
    for _ in range(repeats):
        updates = [_draw(generator, size) for _ in range(members)]
        versions = versions_of(mixed, members)
        plain = np.sum(updates, axis=0)
        forced = forced_secagg(updates, versions)
        opened, wanted = BufferedFederation(members, size).sum(updates, versions)
        errors.append((*_error(forced, plain), *_error(opened, wanted)))
    return Point(mixed, mixed / members, *map(float, np.mean(errors, axis=0)))


def _error(found: Integers, wanted: Integers) -> tuple[float, float]:
    difference = (found - wanted).astype(np.float64)
    size = np.sqrt(np.mean(wanted.astype(np.float64) ** 2))
    return float(np.sqrt(np.mean(difference**2)) / size), float(np.mean(found != wanted))


def jobs(order: Order, results: Results) -> list[Job]:
    """From all of one version to all of different ones."""
    return [Job(str(mixed), _point, (mixed, _REPEATS[order.size])) for mixed in range(MEMBERS)]


def _point(argument: tuple[int, int]) -> dict[str, Any]:
    mixed, repeats = argument
    return measure(mixed, repeats)._asdict()


def report(results: Results, size: Size) -> Publication:
    """The table and the picture."""
    points = [Point(*(found[name] for name in Point._fields)) for found in results.values()]
    return Publication(
        "incompatibility",
        "SecAgg in a buffer",
        f"The error of the sum of K = {MEMBERS} updates of d = {SIZE:,} elements when some members have each"
        " trained from an older version of its own and the others from the newest; repeats of each mixture, of"
        f" which the mean is shown: {_REPEATS[size]}.",
        [{_COLUMNS[name]: value for name, value in point._asdict().items()} for point in points],
        notes=[
            "SecAgg's pairwise masks cancel only when all t_i agree. One member from another version leaves"
            " K − 1 masks of its own and K − 1 of the others in the sum, and every element is noise.",
            "A server could open SecAgg version by version instead. It would then see the sum of each"
            " version's members alone: with one member, that update itself.",
            "Updates here are whole multiples of 1/c_l, so that rounding adds no error of its own. RMS is the"
            " root of the mean square over the elements; an element is wrong if it differs at all.",
        ],
        figures={
            "incompatibility": (
                _drawn(points),
                "Error of the sum relative to its size. SecAgg: zero only when all versions agree."
                " BASecAgg: zero always.",
            )
        },
        claims=[_claim(points)],
    )


def _claim(points: Sequence[Point]) -> Claim:
    mixed = [point for point in points if point.mixed]
    spoiled = bool(mixed) and all(point.secagg_wrong > _MOST for point in mixed)
    exact = all(point.basecagg == 0 == point.basecagg_wrong for point in points)
    return Claim(
        "SecAgg in a buffer",
        "SecAgg's masks do not cancel in a buffer that mixes versions; BASecAgg's do.",
        f"with one member or more from a version of its own, at least"
        f" {100 * min((point.secagg_wrong for point in mixed), default=0):.1f} % of the elements of"
        f" SecAgg's sum are wrong; of BASecAgg's at most"
        f" {100 * max(point.basecagg_wrong for point in points):g} %.",
        "reproduced" if spoiled and exact else "not reproduced",
        f"of every mixed sum of SecAgg more than {_MOST:.0%} of the elements must be wrong, of BASecAgg's none",
        "incompatibility",
    )


def _drawn(points: Sequence[Point]) -> Any:
    shares = [100 * point.share for point in points]
    errors = {
        "SecAgg": [point.secagg for point in points],
        "BASecAgg": [point.basecagg for point in points],
    }
    return plot.lines(
        {name: list(zip(shares, values, strict=True)) for name, values in errors.items()},
        "members from a version of their own, %",
        "RMS error / RMS of the sum",
        colours=COLOURS[1::-1],
        y_scale={"value": "symlog", "linthresh": 1},
        bottom=-0.3,
    )


INCOMPATIBILITY = Experiment("incompatibility", jobs, report)
