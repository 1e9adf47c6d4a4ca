"""`basecagg reproduce privacy-audit`: what an attacker gets out of opened sums, against what is claimed.

Every member of a sum is a canary: along an axis of its own it sends all that it may, or nothing, by a coin. The
attacker sees the opened sum, knows the axes, and knows the noise of T_c members, which it subtracts. How often
it guesses wrong gives a lower bound of μ for Gaussian differential privacy (Nasr et al. 2023); what is claimed
is μ = √(2ρ). The same attacker must exceed the claim where contributors add half of their noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from statistics import NormalDist
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from basecagg.maths.noise import noise_table
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import signed
from basecagg.maths.randomness import SEED_BYTES, FieldStream, Words, derive_seed
from basecagg.parameters import ProtocolParameters
from basecagg.privacy import Privacy
from basecagg.protocol import masking
from basecagg.protocol.effects import Released
from basecagg.protocol.messages import Upload
from basecagg.protocol.stored import OwnMask, load
from basecagg.simulation.beginning import SeededEntropy
from reproduction import plot
from reproduction.bench import Address, Federation
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Publication, beyond_paper
from reproduction.simulated import Run, by_group

Integers = npt.NDArray[np.int64]
MEMBERS, SILENT = 50, 5
"""K and T_c, where there are no messages."""
FEW, ONE = 10, 1
"""The same through the machines."""
NOISE = 1.0
"""z"""
LEVELS = 2**10
SURE = 0.95
LEAST = 0.8
"""Of the claim: an attacker that sees less proves little."""
SEEDS = 20
_SEEDS: Mapping[Size, int] = {"full": SEEDS, "quick": 4, "smoke": 1}
LEAST_REFUTED = 0.95
"""Of the audits in which half of the noise is missing."""
_COUNTS: Mapping[Size, Mapping[str, int]] = {
    "full": {"arithmetic": 5_000, "machines": 8000},
    "quick": {"arithmetic": 6000, "machines": 500},
    "smoke": {"arithmetic": 500, "machines": 20},
}
"""Canaries of either kind."""


class Seen(NamedTuple):
    """What the attacker sees along the axes of canaries that sent nothing, and that sent all."""

    nothing: Integers
    everything: Integers


def parameters(members: int, silent: int, noise: float = NOISE) -> ProtocolParameters:
    """Sums of K canaries, T_c of them silent."""
    promise: dict[str, Any] = {"noise": noise, "epsilon": 20.0, "delta": 1e-5}
    return ProtocolParameters(
        num_holders=6,
        recovery_threshold=2,
        max_colluders=1,
        max_dropouts=1,
        buffer_size=members,
        model_size=members,
        max_colluding_contributors=silent,
        update_levels=LEVELS,
        masks="long",
        privacy=Privacy(clip_norm=1.0, **promise),
    )


def claim(p: ProtocolParameters) -> float:
    """μ"""
    assert p.mechanism is not None
    return math.sqrt(2 * p.mechanism.cost(0))


def lower_bound(seen: Seen) -> float:
    """μ ≥ Φ⁻¹(1 − α) − Φ⁻¹(β), with upper bounds of both errors that hold together in 95 % of all audits."""
    threshold = (seen.nothing.mean() + seen.everything.mean()) / 2
    wrong = int((seen.nothing > threshold).sum()), int((seen.everything <= threshold).sum())
    alpha, beta = (_at_most(errors, len(seen.nothing)) for errors in wrong)
    return NormalDist().inv_cdf(1 - alpha) - NormalDist().inv_cdf(beta)


def _at_most(errors: int, count: int) -> float:
    """The largest rate with which so few errors are not too unlikely: Chernoff's bound, solved by halving."""
    low, high, found = errors / count, 1 - 1e-12, errors / count
    for _ in range(50):
        middle = (low + high) / 2
        likely = count * _divergence(found, middle) <= math.log(2 / (1 - SURE))
        low, high = (middle, high) if likely else (low, middle)
    return high


def _divergence(p: float, q: float) -> float:
    """Kullback and Leibler's, of two coins."""
    parts = ((p, q), (1 - p, 1 - q))
    return sum(a * math.log(a / b) for a, b in parts if a)


# --- what the attacker sees -----------------------------------------------------------------------


def observe(sums: Iterator[tuple[Integers, Integers]], skip: int, wanted: int) -> Seen:
    """Sums until there are enough canaries of either kind; the first `skip` members help the attacker."""
    seen: dict[int, list[int]] = {0: [], 1: []}
    while min(map(len, seen.values())) < wanted:
        coins, total = next(sums)
        for index in range(skip, len(coins)):
            seen[int(coins[index])].append(int(total[index]))
    return Seen(np.array(seen[0][:wanted]), np.array(seen[1][:wanted]))


def _updates(coins: Integers) -> npt.NDArray[np.float64]:
    """One row for each member: C along its own axis, or nothing."""
    return np.diag(coins.astype(np.float64))


def without_messages(p: ProtocolParameters, seed: int) -> Iterator[tuple[Integers, Integers]]:
    """Coins, and the sum of what contributors hide behind their masks, less the noise of the silent ones."""
    dice, silent = np.random.default_rng(seed), p.max_colluding_contributors
    while True:
        coins = dice.integers(0, 2, p.buffer_size)
        total = np.zeros(p.model_size, np.int64)
        for index, update in enumerate(_updates(coins)):
            if index < silent:
                total += (update * p.update_levels).astype(np.int64)
            else:
                mask, fresh = dice.bytes(SEED_BYTES), dice.bytes(SEED_BYTES)
                words = masking.mask_of(mask, fresh, bytes(32), p)
                total += _unmasked(masking.hide_with_noise(update, 0, fresh, p, words), mask, p)
        yield coins, total


def through_machines(p: ProtocolParameters, seed: int) -> Iterator[tuple[Integers, Integers]]:
    """The same from opened sums: masks are dealt, uploads signed, shares summed and decoded.

    The first member tells the server what it has uploaded, and so its noise.
    """
    entropy = SeededEntropy(seed, {})
    federation = Federation(p, np.zeros(p.model_size), cryptography=False, entropy=entropy)
    dice = np.random.default_rng(seed)
    for opening in count():
        coins = dice.integers(0, 2, p.buffer_size)
        names = [f"user-{opening}-{index}" for index in range(p.buffer_size)]
        told = _submit_all(federation, names, _updates(coins))
        federation.network.run()
        (news,) = [each for each in federation.take_news() if isinstance(each, Released)]
        total = np.rint(news.weighted_sum * p.update_levels).astype(np.int64)
        yield coins, total - told


def _submit_all(
    federation: Federation, names: Sequence[str], updates: npt.NDArray[np.float64]
) -> Integers:
    """Every member deals and submits; what the first one's upload is without its mask."""
    for name in names:
        federation.deal(name)
    federation.network.run()
    store = federation.network.nodes[Address("contributor", names[0])].store
    (mask,) = load(store, "mask", OwnMask).values()
    seed, server = mask.seed, federation.server
    for name, update in zip(names, updates, strict=True):
        federation.submit(name, update, server.version, server.head)
    (words,) = [
        letter.message.words
        for letter in federation.network.in_flight
        if isinstance(letter.message, Upload) and letter.message.ticket.mask == mask.name
    ]
    return _unmasked(np.frombuffer(words, "<u4"), seed, federation.agreement.parameters)


def _unmasked(words: Words, mask: bytes, p: ProtocolParameters) -> Integers:
    """What a mask hides, in steps."""
    cover = FieldStream(derive_seed(mask, "mask"), p.field_size).draw(p.model_size)
    return signed(PrimeField(p.field_size).sub(words[: p.model_size], cover), p.field_size)


# --- running --------------------------------------------------------------------------------------

WAYS: Mapping[str, tuple[Callable[..., Iterator[tuple[Integers, Integers]]], int, int]] = {
    "arithmetic": (without_messages, MEMBERS, SILENT),
    "machines": (through_machines, FEW, ONE),
}
"""How sums come about, K, and T_c."""
SHARES = {"honest": 1, "half": 2}
"""By what contributors divide the σ of their noise."""


def audit(way: str, noise: str, seed: int, wanted: int) -> dict[str, Any]:
    """One audit."""
    sums, members, silent = WAYS[way]
    p, less = parameters(members, silent), SHARES[noise] ** 2
    with patch.object(masking, "noise_table", lambda variance: noise_table(variance // less)):
        seen = observe(sums(p, seed), silent, wanted)
    return {"claim": claim(p), "bound": lower_bound(seen), "canaries": 2 * wanted}


def jobs(order: Order, results: Results) -> list[Job]:
    """Many seeds without messages, one through the machines; each with all of the noise and with half of it."""
    counts, seeds = _COUNTS[order.size], range(1, _SEEDS[order.size] + 1)
    cases = [(way, noise, 1) for way in ("machines", "arithmetic") for noise in SHARES]
    cases += [("arithmetic", noise, seed) for seed in seeds[1:] for noise in SHARES]
    return [Job("/".join(map(str, case)), _audited, (*case, counts[case[0]])) for case in cases]


def _audited(argument: tuple[str, str, int, int]) -> dict[str, Any]:
    return audit(*argument)


# --- reporting ------------------------------------------------------------------------------------


def report(results: Results, size: Size) -> Publication:
    """The bounds against the claim, and whether the audit can fail."""
    groups = by_group(results)
    return Publication(
        "privacy-audit",
        "An audit of the noise that can fail",
        f"K = {MEMBERS} canaries in a sum, T_c = {SILENT} of them help the attacker, z = {NOISE:g}; through the"
        f" machines K = {FEW}, T_c = {ONE}. A bound is what an attacker has shown of μ, with 95 % confidence;"
        " it must not exceed the claim. Where contributors add half of the noise that they should, it does.",
        [_line(name, runs) for name, runs in sorted(groups.items())],
        notes=_NOTES,
        claims=_claims(groups),
        figures={
            "privacy-audit": (
                _figure(groups),
                "Lower bounds of μ over the claim, seed by seed. Above 1 the claim is refuted.",
            )
        },
    )


def _ratios(runs: Sequence[Run]) -> list[float]:
    return [run["bound"] / run["claim"] for run in runs]


def _line(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    way, noise = name.split("/")
    ratios = _ratios(runs)
    return {
        "sums": {"machines": "through the machines"}.get(way, "arithmetic"),
        "noise": {"half": "half of σ"}.get(noise, "as promised"),
        "seeds": len(runs),
        "canaries each": runs[0]["canaries"],
        "μ claimed": f"{runs[0]['claim']:.3f}",
        "bound/claim, least": f"{min(ratios):.3f}",
        "bound/claim, most": f"{max(ratios):.3f}",
        "above the claim": f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}",
    }


def _claims(groups: Mapping[str, Sequence[Run]]) -> list[Claim]:
    honest, half = (
        [ratio for way in WAYS for ratio in _ratios(groups.get(f"{way}/{noise}", []))]
        for noise in SHARES
    )
    if not honest or not half:
        return []
    within = all(LEAST <= ratio <= 1 for ratio in honest)
    refuted = sum(ratio > 1 for ratio in half)
    return [
        Claim(
            "The noise holds what it claims",
            "No attacker sees more than the noise is claimed to let through, and one sees nearly as much.",
            f"bounds between {min(honest):.3f} and {max(honest):.3f} of the claim in {len(honest)} audits.",
            beyond_paper(within),
            "",
            "privacy-audit",
            beyond=True,
        ),
        Claim(
            "Half of the noise is noticed",
            "With half of the noise the same audit refutes the claim.",
            f"in {refuted} of {len(half)} audits, with bounds from {min(half):.2f} of the claim on.",
            beyond_paper(refuted >= LEAST_REFUTED * len(half)),
            "",
            "privacy-audit",
            beyond=True,
        ),
    ]


def _figure(groups: Mapping[str, Sequence[Run]]) -> Any:
    curves = {
        f"arithmetic, {'half of' if noise == 'half' else 'all of'} the noise": [
            (float(seed), ratio)
            for seed, ratio in enumerate(_ratios(groups.get(f"arithmetic/{noise}", [])), 1)
        ]
        for noise in SHARES
    }
    curves["the claim"] = [(1.0, 1.0), (float(SEEDS), 1.0)]
    return plot.lines(curves, "seed", "lower bound of μ / claim")


_NOTES = (
    "A canary sends C along an axis of its own, which is the longest update that there is, or nothing. So"
    " every member of a sum tells the attacker something, and an audit takes some hundred sums, not a million.",
    "μ of Gaussian differential privacy follows from the rates of both errors; these are bounded by Chernoff."
    " Bounds of (ε, δ) by Clopper and Pearson, without a model of the noise, would show less than half.",
    "Without messages the code is that with which contributors clip, round, add noise and mask. Through"
    " the machines masks are dealt, sums endorsed and answers decoded.",
    "The claim is for C̃, which is a little more than C: rounding may make an update longer.",
)
PRIVACY_AUDIT = Experiment("privacy-audit", jobs, report)
