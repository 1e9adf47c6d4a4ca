"""The parameters of the protocol: frozen, and checked once, when they are made.

Every rule stands in `RULES` with the words of its error. A `ProtocolParameters` that exists is one that works:
no later code checks a threshold again or warns about an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, NamedTuple

from basecagg.errors import ParameterError
from basecagg.maths.approved_rings import (
    ERROR_REACH,
    ERROR_VARIANCE,
    KEY_MODULI,
    KEY_SIZE,
    MOST_WORDS,
    approved_ring,
)
from basecagg.maths.primes import PAPER_MODULUS, is_prime, word_bytes
from basecagg.maths.staleness import (
    MOST_TIERS,
    Rounding,
    StalenessFunction,
    constant,
    expected_weight,
)
from basecagg.options import (
    Consistency,
    Correctness,
    FieldOptions,
    LevelOptions,
    MaskOptions,
    Masks,
    Protection,
    SumOptions,
    TrustOptions,
    WeightOptions,
    Weights,
    check,
)
from basecagg.privacy import LEAST_DEVIATION, MOST_DEVIATION, Mechanism, Privacy

_MOST_LEVEL_BITS = 31
_KEY_ZEROS = 2
"""Zeros behind a key, at least: they must decode to zero."""
_PAD_BITS = 40
"""A sum that was opened wrongly passes for right with 2⁻⁴⁰ at most."""
_USUAL_WEIGHT_LEVELS = 2**6
"""c_g of the paper's experiments."""


@dataclass(frozen=True, kw_only=True)
class ProtocolParameters:
    """All that a federation agrees on before the first mask is dealt. N, U, T and D count *holders*.

    What is not explained here is explained in `options`. An epoch is signed over the fields in this order.
    """

    num_holders: int
    """N: holders of shares. In the paper every user is one."""
    recovery_threshold: int
    max_colluders: int
    max_dropouts: int
    buffer_size: int
    model_size: int
    """d: numbers in one update."""
    max_staleness: int = SumOptions.max_staleness
    clip: float = SumOptions.clip
    update_levels: int = LevelOptions.update_levels
    weights: Weights = WeightOptions.weights
    weight_levels: int | None = LevelOptions.weight_levels
    staleness: StalenessFunction = field(default_factory=constant)
    """The planner, runs and Flower choose the paper's s(τ); parameters made by hand have s(τ) = 1."""
    masks: Masks | None = MaskOptions.masks
    weight_rounding: Rounding = "stochastic"
    """How c_g·s(τ) becomes an integer: the paper's coin, or to the nearest."""
    modulus: int | None = FieldOptions.modulus
    consistency: Consistency = TrustOptions.consistency
    max_colluding_contributors: int = TrustOptions.max_colluding_contributors
    """Nothing enforces it: whom the operator admits has to make it true."""
    correctness: Correctness | None = None
    liars: int = TrustOptions.liars
    min_per_version: int | None = None
    repeated_versions: bool = False
    """Whether a contributor may be summed more than once with updates from one version. In certified mode only
    the simulated clock that draws the version of every update by itself needs it; a floor refuses it."""
    mask_lifetime: int = 100
    """Versions after which an unused mask expires and its shares are deleted."""
    mask_quota: int = 4
    """Masks that one contributor may have dealt ahead."""
    privacy: Privacy | None = None
    """How long updates may be and how much noise each contributor adds, if sums are to be private too. T_c is
    `max_colluding_contributors`: they add no noise, or tell the server theirs."""
    allow_wraparound: bool = FieldOptions.allow_wraparound
    protection: Protection = "basecagg"
    """With "none" nobody holds shares, so N = U = T = D = 0; what is said of masks and of the field means
    nothing then, and updates are not clipped. `in_clear` makes such parameters."""

    @classmethod
    def in_clear(cls, **chosen: Any) -> ProtocolParameters:
        """Parameters of plain FedBuff, whose server sees every update. K and d have to be chosen."""
        return cls(
            num_holders=0,
            recovery_threshold=0,
            max_colluders=0,
            max_dropouts=0,
            consistency="honest-server",
            protection="none",
            **chosen,
        )

    def __post_init__(self) -> None:
        """Choose what is not set; then check the rules, in order: the first that breaks is raised."""
        if self.weight_levels is None:
            levels = 1 if self.weights == "own" else _USUAL_WEIGHT_LEVELS
            object.__setattr__(self, "weight_levels", levels)
        if self.correctness is None:
            object.__setattr__(self, "correctness", usual_correctness(self.consistency))
        check(self)
        if self.min_per_version is None:
            usual = usual_per_version(self.consistency, self.max_colluding_contributors)
            usual = min(usual, max(1, self.buffer_size)) if self.is_masked else 1
            object.__setattr__(self, "min_per_version", usual)
        object.__setattr__(self, "clip", float(self.clip))
        if self.masks is None:
            object.__setattr__(self, "masks", "keys" if self._may_grow_from_keys else "long")
        broken, rules = None, RULES if self.is_masked else CLEAR_RULES
        for modulus in self._moduli:
            object.__setattr__(self, "modulus", modulus)
            broken = next((rule for rule in rules if not rule.holds(self)), None)
            if broken is None:
                return
        assert broken is not None
        raise ParameterError(broken.explain(self), rule=broken.text)

    @property
    def _may_grow_from_keys(self) -> bool:
        """Whether keys are less to share than masks, and no setting speaks against them."""
        approved = self.modulus is None or self.modulus in KEY_MODULI
        fits = KEY_SIZE < self.model_size < MOST_WORDS - KEY_SIZE
        return (
            self.is_masked
            and fits
            and approved
            and self.weights == "own"
            and not self.allow_wraparound
        )

    @property
    def _moduli(self) -> tuple[int, ...]:
        """What q may be, the narrowest first: a wider one is for sums that have no room in it."""
        if self.modulus is not None:
            return (self.modulus,)
        return KEY_MODULI if self.masks == "keys" else (PAPER_MODULUS,)

    @property
    def is_masked(self) -> bool:
        """Whether the server sees sums of K updates only, and not the updates."""
        return self.protection != "none"

    @property
    def field_size(self) -> int:
        """q: `modulus` with its default filled in."""
        assert self.modulus is not None
        return self.modulus

    @property
    def quorum(self) -> int:
        """⌊(N + T)/2⌋ + 1 signatures: two requests cannot both have so many."""
        return (self.num_holders + self.max_colluders) // 2 + 1

    @property
    def field_levels(self) -> int:
        """c_g: `weight_levels` with its default filled in."""
        assert self.weight_levels is not None
        return self.weight_levels

    @property
    def weighs_alike(self) -> bool:
        """Whether all updates of a sum have the same weight in the field."""
        return self.weights == "own" or self.staleness.tier(self.max_staleness) == 0

    @property
    def agreed(self) -> bool:
        """Whether answers have to agree, so that T liars cannot write a sum."""
        return self.correctness == "agreed"

    @property
    def answers_needed(self) -> int:
        """U + T answers that agree, U honest ones among them; U where holders are taken to be honest."""
        return self.recovery_threshold + (self.max_colluders if self.agreed else 0)

    @property
    def recovery_margin(self) -> int:
        """T + E (or 0): holders beyond U that must hold a share of every member of a sum."""
        return self.max_colluders + self.liars if self.agreed else 0

    @property
    def least_per_version(self) -> int:
        """m: `min_per_version` with its default filled in. Where K < 2m a sum is of one version."""
        assert self.min_per_version is not None
        return self.min_per_version

    @property
    def once_per_version(self) -> bool:
        """Whether a contributor may be in one sum only with updates from one version, but for sums given up."""
        return self.consistency == "certified" and not self.repeated_versions

    @property
    def one_visit(self) -> bool:
        """Whether a contributor deals a mask together with the update that it hides, in one message.

        What is shared of a key is small. Where uploads spend a budget a mask is dealt ahead, so that the budget
        is spent only on what can be opened.
        """
        return self.masks == "keys" and self.privacy is None and self.is_masked

    @property
    def submasks(self) -> int:
        """U − T: the pieces that a mask is cut into."""
        return self.recovery_threshold - self.max_colluders

    @property
    def share_size(self) -> int:
        """Numbers in one share: ⌈(d + 1)/(U − T)⌉, so that at least one pad element is zero.

        Of a key ⌈(n + 2)/(U − T)⌉, so that two are. Without masks there are no shares.
        """
        if not self.is_masked:
            return 0
        if self.masks == "keys":
            return -(-(KEY_SIZE + _KEY_ZEROS) // self.submasks)
        return self.model_size // self.submasks + 1

    @property
    def shared_size(self) -> int:
        """Numbers that are cut into U − T pieces: the padded mask, or its key and zeros."""
        return self.share_size * self.submasks

    @property
    def padded_size(self) -> int:
        """Numbers in one upload: d and a pad, which shows whether a sum was opened rightly.

        Of a long mask the pad makes it a multiple of U − T. With keys each number of it is within the errors by
        chance with (32K + 1)/q, all of them with 2⁻⁴⁰ at most. Without masks there is no pad.
        """
        if not self.is_masked:
            return self.model_size
        if self.masks == "long":
            return self.shared_size
        bits = math.log2(self.field_size / (2 * self.error_reach * self.buffer_size + 1))
        return self.model_size + max(1, math.ceil(_PAD_BITS / bits))

    @property
    def error_reach(self) -> int:
        """The largest error of one mask in one number: 16 with keys."""
        return ERROR_REACH if self.masks == "keys" else 0

    @property
    def word_bytes(self) -> int:
        """Bytes of one element of the field on the wire: 3 or 4. In clear 4, a float32."""
        return word_bytes(self.field_size) if self.is_masked else 4

    @property
    def parts_bytes(self) -> int:
        """What a version is made from, at most: K uploads, the model before it, and N answers."""
        words = self.buffer_size * self.padded_size + self.num_holders * self.share_size
        return self.word_bytes * words + 4 * self.padded_size

    @property
    def mechanism(self) -> Mechanism | None:
        """What `privacy` means for these sums."""
        return self._mechanism(self.update_levels)

    def _mechanism(self, levels: int) -> Mechanism | None:
        if self.privacy is None:
            return None
        silent, s = self.max_colluding_contributors, self.staleness
        errors = ERROR_VARIANCE if self.masks == "keys" else 0
        return Mechanism(self.privacy, self.buffer_size, silent, self.model_size, levels, s, errors)

    @property
    def largest_sum(self) -> int:
        """K·c_g·(c_l·B + 1): no honest sum is larger in any element. With privacy it is the mechanism's.

        With keys 16·K more, so K·(c_l·B + 17).
        """
        return self._largest_sum(self.clip, self.update_levels)

    def _largest_sum(self, clip: float, levels: int) -> int:
        mechanism = self._mechanism(levels)
        if mechanism is not None:
            return mechanism.largest_sum + self.buffer_size * self.error_reach
        largest_update = levels * Fraction(clip) + 1 + self.error_reach
        return int(self.buffer_size * self.field_levels * largest_update)

    @property
    def room_for_sum(self) -> int:
        """(q − 3)/2: the largest magnitude that φ⁻¹ gives back with its sign."""
        return (self.field_size - 3) // 2

    def clipped_to(self, clip: float) -> ProtocolParameters:
        """The same with another clip B, and the finest levels c_l with which no sum wraps around.

        c_l is a power of two, so that scaling a float is exact.
        """
        levels = (2**bits for bits in range(_MOST_LEVEL_BITS, 0, -1))
        fine = (c for c in levels if self._largest_sum(clip, c) <= self.room_for_sum)
        return replace(self, clip=clip, update_levels=next(fine, 1), allow_wraparound=False)


class Rule(NamedTuple):
    """One line of the table: the rule, whether it holds, and what to say when it does not."""

    text: str
    holds: Callable[[ProtocolParameters], bool]
    explain: Callable[[ProtocolParameters], str]


def _at_least(least: int, name: str, symbol: str = "", why: str = "") -> Rule:
    """A rule of one number that must not be too small."""
    named = f"{name} {symbol}".strip()
    must = f"must be at least {least}" if least else "cannot be negative"
    return Rule(
        f"{symbol or name} ≥ {least}",
        lambda p: bool(getattr(p, name) >= least),
        lambda p: f"{named} = {getattr(p, name)} {must}" + (f": {why}" if why else ""),
    )


def _of_privacy(
    text: str,
    holds: Callable[[ProtocolParameters, Privacy, Mechanism], bool],
    explain: Callable[[ProtocolParameters, Privacy, Mechanism], str],
) -> Rule:
    """A rule that only matters where there is a `privacy`."""

    def with_privacy(p: ProtocolParameters) -> tuple[ProtocolParameters, Privacy, Mechanism]:
        assert p.privacy is not None
        assert p.mechanism is not None
        return p, p.privacy, p.mechanism

    return Rule(
        f"privacy: {text}",
        lambda p: p.privacy is None or holds(*with_privacy(p)),
        lambda p: explain(*with_privacy(p)),
    )


def _refusal_of_ring(p: ProtocolParameters) -> str:
    """Why no masks of this length may grow from keys mod q; nothing if they may."""
    try:
        approved_ring(KEY_SIZE, p.field_size, p.padded_size)
    except ParameterError as refusal:
        return str(refusal)
    return ""


PRIVACY_RULES: tuple[Rule, ...] = (
    _of_privacy(
        "unit user: sampling_rate = 1, M = 1",
        lambda _p, v, _m: v.unit == "record" or (v.sampling_rate, v.max_records) == (1, 1),
        lambda _p, v, _m: (
            f"sampling_rate = {v.sampling_rate:g} and max_records M = {v.max_records} are of records, and the"
            " unit is the user: leave them at 1, or set unit = 'record'"
        ),
    ),
    _of_privacy(
        "unit record: z > 0, 0 < sampling_rate ≤ 1, M ≥ 1",
        lambda _p, v, _m: (
            v.unit == "user" or (v.noise > 0 and 0 < v.sampling_rate <= 1 and v.max_records >= 1)
        ),
        lambda _p, v, _m: (
            f"unit 'record' with noise z = {v.noise:g}, sampling_rate = {v.sampling_rate:g} and max_records M ="
            f" {v.max_records}: records are hidden by noise alone; possible: z > 0, a rate above 0 and up to 1,"
            " M ≥ 1"
        ),
    ),
    _of_privacy(
        "10⁻³⁰ ≤ C, M·C ≤ B",
        lambda p, v, _: v.clip_norm >= 1e-30 and v.longest <= p.clip,
        lambda p, v, _: (
            f"clip_norm C = {v.clip_norm:g} is outside 10⁻³⁰…B/M = {p.clip / v.max_records:g}: an element of an"
            f" update that is M·C long may be as large as that; possible: clip B = {max(v.longest, p.clip):g}"
        ),
    ),
    _of_privacy(
        "own weights",
        lambda p, *_: p.weights == "own",
        lambda p, *_: (
            "weights in the field would weigh the noise as well: with privacy contributors weigh their updates"
            " before they add it; possible: weights = 'own'"
        ),
    ),
    _of_privacy(
        "z ≥ 0, and ε > 0 if and only if z > 0",
        lambda _p, v, _m: (
            0 <= v.noise < float("inf")
            and (v.epsilon is None if v.noise == 0 else 0 < (v.epsilon or 0) < float("inf"))
        ),
        lambda _p, v, _m: (
            f"noise z = {v.noise:g} with epsilon ε = {v.epsilon}: with noise there is a positive ε to keep,"
            " without it nothing is promised; possible: noise > 0 and epsilon > 0, or noise 0 and no epsilon"
        ),
    ),
    _of_privacy(
        "0 < δ < 1",
        lambda _p, v, _m: 0 < v.delta < 1,
        lambda _p, v, _m: (
            f"delta δ = {v.delta:g} is a probability between 0 and 1, smaller than one over the number of users"
        ),
    ),
    _of_privacy(
        "k_max ≥ 1",
        lambda _p, v, _m: v.max_uses >= 1,
        lambda _p, v, _m: f"max_uses k_max = {v.max_uses} must be at least 1",
    ),
    _of_privacy(
        "with noise 1 ≤ T_c < K",
        lambda p, v, _: v.noise == 0 or 1 <= p.max_colluding_contributors < p.buffer_size,
        lambda p, _v, _m: (
            f"max_colluding_contributors T_c = {p.max_colluding_contributors} is outside 1…K − 1 ="
            f" {p.buffer_size - 1}: everyone knows its own noise, and somebody's has to be unknown"
        ),
    ),
    _of_privacy(
        "with noise 3 ≤ σ_i ≤ 2¹³ steps",
        lambda _p, v, m: v.noise == 0 or LEAST_DEVIATION**2 <= m.variance <= MOST_DEVIATION**2,
        lambda p, _v, m: (
            f"the noise of one contributor has σ_i = z·C̃/√(K − T_c) = {m.deviation:.3g} steps, outside"
            f" {LEAST_DEVIATION}…{MOST_DEVIATION}: {'raise' if m.deviation < LEAST_DEVIATION else 'lower'}"
            f" update_levels c_l = {p.update_levels}, or change z, C or K"
        ),
    ),
    _of_privacy(
        "K·(⌈c_l·M·C⌉ + 1) + σ_i·√(2K·ln(2d·2⁴⁰)) ≤ (q − 3)/2",
        lambda p, *_: p.largest_sum <= p.room_for_sum,
        lambda p, v, m: (
            f"a sum may reach K·(⌈c_l·M·C⌉ + 1) + σ_i·√(2K·ln(2d·2⁴⁰)) = {p.largest_sum:,} with K ="
            f" {p.buffer_size}, c_l = {p.update_levels}, M·C = {v.longest:g} and σ_i = {m.deviation:.3g},"
            f" but q = {p.field_size} has room for (q − 3)/2 = {p.room_for_sum:,}: lower K, c_l or C"
        ),
    ),
    _of_privacy(
        "c_l·C·s(τ_max) ≥ 1",
        lambda p, _v, m: m.longest_update(p.max_staleness) >= 1,
        lambda p, v, m: (
            f"an update that is C = {v.clip_norm:g} long and τ_max = {p.max_staleness} versions old has"
            f" c_l·C·s(τ_max) = {float(m.longest_update(p.max_staleness)):.3g} steps: raise update_levels c_l ="
            f" {p.update_levels}, lower τ_max, or flatten s"
        ),
    ),
    _of_privacy(
        "δ > 2e^ε·k_max·K·d·2⁻¹²⁷",
        lambda _p, v, m: v.noise == 0 or m.conversion_delta > 0,
        lambda _p, v, _m: (
            f"delta δ = {v.delta:g} is less than what the noise's table costs at ε = {v.epsilon}: raise δ,"
            " or lower ε"
        ),
    ),
    _of_privacy(
        "k_max uploads cost at most ε at δ",
        lambda _p, v, m: v.noise == 0 or m.epsilon <= (v.epsilon or 0),
        lambda _p, v, m: (
            f"k_max = {v.max_uses} uploads with noise z = {v.noise:g} cost ε = {m.epsilon:.4g} at δ ="
            f" {v.delta:g}, more than epsilon = {v.epsilon}; possible: ε = {m.epsilon:.4g}, or a larger z,"
            f" or k_max = {m.uses_within}"
        ),
    ),
)

RULES: list[Rule] = [
    Rule(
        "q is a prime below 2³²",
        lambda p: p.field_size < 2**32 and is_prime(p.field_size),
        lambda p: f"modulus q = {p.field_size} is not a prime below 2³²; the default is 2³² − 5",
    ),
    Rule(
        "2 ≤ N ≤ q − 1",
        lambda p: 2 <= p.num_holders <= p.field_size - 1,
        lambda p: (
            f"num_holders N = {p.num_holders} is outside 2…{p.field_size - 1}: every holder needs a nonzero"
            f" point of its own in a field of {p.field_size} elements"
        ),
    ),
    _at_least(1, "max_colluders", "T", "with T = 0 a single holder reads a piece of every mask"),
    _at_least(0, "max_dropouts", "D"),
    Rule(
        "U ≥ T + 1",
        lambda p: p.recovery_threshold >= p.max_colluders + 1,
        lambda p: (
            f"recovery_threshold U = {p.recovery_threshold} must be at least T + 1 ="
            f" {p.max_colluders + 1}: a mask is cut into U − T = {p.submasks} pieces"
        ),
    ),
    Rule(
        "U ≤ N − D",
        lambda p: p.recovery_threshold <= p.num_holders - p.max_dropouts,
        lambda p: (
            f"recovery_threshold U = {p.recovery_threshold} is more than N − D ="
            f" {p.num_holders} − {p.max_dropouts} = {p.num_holders - p.max_dropouts}:"
            " with D holders gone no sum could be opened"
        ),
    ),
    Rule(
        "certified mode: quorum ⌊(N + T)/2⌋ + 1 ≤ N − D",
        lambda p: p.consistency != "certified" or p.quorum <= p.num_holders - p.max_dropouts,
        lambda p: (
            f"a certificate needs quorum ⌊(N + T)/2⌋ + 1 = {p.quorum} holders but only N − D ="
            f" {p.num_holders - p.max_dropouts} are sure to be there: lower D or T, add holders,"
            " or use consistency='honest-server'"
        ),
    ),
    _at_least(0, "max_colluding_contributors"),
    _at_least(2, "buffer_size", "K", "a sum of one update is that update"),
    Rule(
        "certified mode: K ≥ max_colluding_contributors + 2",
        lambda p: p.consistency != "certified" or p.buffer_size >= p.max_colluding_contributors + 2,
        lambda p: (
            f"buffer_size K = {p.buffer_size} must be at least max_colluding_contributors + 2 ="
            f" {p.max_colluding_contributors + 2}: a server that fills the buffer with its"
            f" {p.max_colluding_contributors} friends would otherwise be left with one honest update"
        ),
    ),
    _at_least(1, "model_size", "d"),
    _at_least(0, "max_staleness", "τ_max"),
    Rule(
        "B > 0 and finite",
        lambda p: 0 < p.clip < float("inf"),
        lambda p: f"clip B = {p.clip} must be a positive, finite number",
    ),
    _at_least(1, "update_levels", "c_l"),
    _at_least(1, "weight_levels", "c_g"),
    Rule(
        "own weights: c_g = 1",
        lambda p: p.weights == "field" or p.field_levels == 1,
        lambda p: (
            f"weight_levels c_g = {p.field_levels} with own weights, which are 1 in the field: leave it out, or"
            " use weights='field'"
        ),
    ),
    Rule(
        "keys: own weights",
        lambda p: p.masks == "long" or p.weights == "own",
        lambda p: (
            "masks = 'keys' with weights in the field: a sum of errors with different weights tells the keys;"
            " possible: weights = 'own', or masks = 'long'"
        ),
    ),
    Rule(
        "keys: n and q are a row of approved rings, at most 2³⁰ words a key",
        lambda p: p.masks == "long" or not _refusal_of_ring(p),
        _refusal_of_ring,
    ),
    Rule(
        "own weights: s(τ_max) > 2⁻³²",
        lambda p: p.weights == "field" or p.staleness.tier(p.max_staleness) < MOST_TIERS,
        lambda p: (
            f"an update of staleness τ_max = {p.max_staleness} would have the weight"
            f" {p.staleness(p.max_staleness):.3g}, which is nothing: lower τ_max, or flatten s"
        ),
    ),
    Rule(
        "field weights: c_g·s(τ_max) ≥ 1",
        lambda p: (
            p.weights == "own" or expected_weight(p.staleness, p.max_staleness, p.field_levels) >= 1
        ),
        lambda p: (
            f"weight_levels c_g = {p.weight_levels} gives an update of staleness τ_max ="
            f" {p.max_staleness} the weight c_g·s(τ_max) ="
            f" {p.field_levels * p.staleness(p.max_staleness):.3g} < 1, which may round to 0:"
            " raise c_g, lower τ_max, or flatten s"
        ),
    ),
    Rule(
        "K·c_g < q",
        lambda p: p.buffer_size * p.field_levels < p.field_size,
        lambda p: (
            f"the weights of a full buffer may add up to K·c_g = {p.buffer_size}·{p.weight_levels} ="
            f" {p.buffer_size * p.field_levels} ≥ q = {p.field_size}"
        ),
    ),
    *PRIVACY_RULES,
    Rule(
        "K·c_g·(c_l·B + 1) ≤ (q − 3)/2, with keys K·(c_l·B + 17)",
        lambda p: p.allow_wraparound or p.privacy is not None or p.largest_sum <= p.room_for_sum,
        lambda p: (
            f"a sum may reach K·c_g·(c_l·B + {1 + p.error_reach}) = {p.buffer_size}·{p.weight_levels}·"
            f"({p.update_levels}·{p.clip:g} + {1 + p.error_reach}) = {p.largest_sum:,}, but q ="
            f" {p.field_size} has room for (q − 3)/2 = {p.room_for_sum:,}: lower K, c_g, c_l or B"
        ),
    ),
    Rule(
        "answers that agree: 0 ≤ E ≤ T",
        lambda p: not p.agreed or 0 <= p.liars <= p.max_colluders,
        lambda p: (
            f"liars E = {p.liars} is outside 0…T = {p.max_colluders}: more than T liars could write a"
            f" sum; possible: E = {min(max(p.liars, 0), p.max_colluders)}"
            + (f", or T = {p.liars}" if p.liars > 0 else "")
        ),
    ),
    Rule(
        "answers that agree: U + T + E ≤ N − D",
        lambda p: not p.agreed or _missing_answers(p) <= 0,
        lambda p: (
            f"a sum opens when U + T = {p.recovery_threshold} + {p.max_colluders} answers agree, but only"
            f" N − D − E = {p.num_holders} − {p.max_dropouts} − {p.liars} ="
            f" {p.num_holders - p.max_dropouts - p.liars} right ones are sure to come; possible:"
            f" {_enough_answers(p)}, or correctness='honest-holders', with which T liars write the sum"
        ),
    ),
    Rule(
        "honest holders: E = 0",
        lambda p: p.agreed or p.liars == 0,
        lambda p: (
            f"liars E = {p.liars} with correctness='honest-holders', where nobody lies and any U"
            " answers open a sum: E = 0, or correctness='agreed'"
        ),
    ),
    Rule(
        "1 ≤ min_per_version ≤ K",
        lambda p: 1 <= p.least_per_version <= p.buffer_size,
        lambda p: f"min_per_version = {p.least_per_version} is outside 1…K = {p.buffer_size}",
    ),
    Rule(
        # The clock that repeats versions draws the version of every update by itself; floors refuse it.
        "own weights, certified: min_per_version ≥ max_colluding_contributors + 2",
        lambda p: (
            (p.weights, p.once_per_version) != ("own", True)
            or p.least_per_version >= p.max_colluding_contributors + 2
        ),
        lambda p: (
            f"min_per_version = {p.least_per_version} must be at least max_colluding_contributors + 2 ="
            f" {p.max_colluding_contributors + 2}: of the members of one version at least two must be honest;"
            " possible: more, a smaller T_c, or weights='field'"
        ),
    ),
    Rule(
        "mask_lifetime > τ_max",
        lambda p: p.mask_lifetime > p.max_staleness,
        lambda p: (
            f"mask_lifetime = {p.mask_lifetime} must exceed τ_max = {p.max_staleness}: a mask dealt"
            " when training starts must outlive the slowest admitted update"
        ),
    ),
    _at_least(1, "mask_quota"),
]


_OF_UPDATES = (
    *("d ≥ 1", "τ_max ≥ 0", "own weights: s(τ_max) > 2⁻³²"),
    *("field weights: c_g·s(τ_max) ≥ 1", "1 ≤ min_per_version ≤ K"),
)
CLEAR_RULES: list[Rule] = [
    Rule(
        "protection none: N = U = T = D = E = 0, consistency 'honest-server', no privacy",
        lambda p: (
            not any((p.num_holders, p.recovery_threshold, p.max_colluders, p.max_dropouts, p.liars))
            and p.consistency == "honest-server"
            and not p.agreed
            and p.privacy is None
        ),
        lambda p: (
            "protection = 'none' with holders, certified or agreed sums, or a budget of privacy: updates are"
            " sent in clear, so nobody holds shares of them and nothing of that is kept; possible:"
            " ProtocolParameters.in_clear(...)"
        ),
    ),
    _at_least(1, "buffer_size", "K"),
    *(rule for rule in RULES if rule.text in _OF_UPDATES),
]
"""The rules of plain FedBuff, where there are no masks."""


def _missing_answers(p: ProtocolParameters) -> int:
    return p.recovery_threshold + p.recovery_margin - (p.num_holders - p.max_dropouts)


def _enough_answers(p: ProtocolParameters) -> str:
    """The nearest values, each of which alone would be enough."""
    missing = _missing_answers(p)
    least = (
        ("U", p.recovery_threshold, p.max_colluders + 1),
        ("T", p.max_colluders, max(1, p.liars)),
        ("D", p.max_dropouts, 0),
        ("E", p.liars, 0),
    )
    lower = [f"{s} = {value - missing}" for s, value, low in least if value - missing >= low]
    return " or ".join([*lower, f"N = {p.num_holders + missing}"])


def usual_correctness(consistency: Consistency) -> Correctness:
    """Who defends against a cheating server defends against its friends among the holders, too."""
    return "agreed" if consistency == "certified" else "honest-holders"


def usual_tolerance(
    num_holders: int,
    buffer_size: int,
    consistency: Consistency,
    correctness: Correctness | None = None,
    *,
    max_dropouts: int | None = None,
    max_colluders: int | None = None,
    recovery_threshold: int | None = None,
    liars: int = 0,
) -> tuple[int, int, int]:
    """D, T and U as chosen; else 30 % of the holders, the largest T up to 8 that fits, the largest U."""
    agreed = (correctness or usual_correctness(consistency)) == "agreed"
    dropouts = int(0.3 * num_holders) if max_dropouts is None else max_dropouts
    quorum = num_holders - 2 * dropouts - 2 if consistency == "certified" else num_holders
    readable = (num_holders - dropouts - liars) // 3 if agreed else num_holders - dropouts - 1
    colluders = max_colluders
    if colluders is None:
        colluders = max(1, liars, min(8, quorum, readable, buffer_size - 2))
    most = num_holders - dropouts - (colluders + liars if agreed else 0)
    return dropouts, colluders, most if recovery_threshold is None else recovery_threshold


def fields_from(wishes: Any, num_holders: int) -> dict[str, Any]:
    """The fields of `ProtocolParameters` that settings have under the same names, with D, T and U filled in.

    Without `protection`: that of a run is another thing, and where there are D, T and U there are holders.
    """
    names = [each.name for each in fields(ProtocolParameters) if each.name != "protection"]
    named = [name for name in names if hasattr(wishes, name)]
    chosen = {name: getattr(wishes, name) for name in named}
    dropouts, colluders, threshold = usual_tolerance(
        num_holders,
        wishes.buffer_size,
        wishes.consistency,
        wishes.correctness,
        max_dropouts=wishes.max_dropouts,
        max_colluders=wishes.max_colluders,
        recovery_threshold=wishes.recovery_threshold,
        liars=wishes.liars,
    )
    return chosen | {
        "num_holders": num_holders,
        "max_dropouts": dropouts,
        "max_colluders": colluders,
        "recovery_threshold": threshold,
    }


def usual_per_version(consistency: Consistency, colluding: int) -> int:
    """The usual m: T_c of the members may work with the server, and two honest ones are left."""
    return max(3, colluding + 2) if consistency == "certified" else 1
