"""From a privacy budget (ε, δ) to noise: the least z that keeps it, and suitable levels c_l. Or from z to ε."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from basecagg.errors import ParameterError
from basecagg.maths.accounting import Cost, affords, epsilon_of, rho_within, sampled_epsilon
from basecagg.maths.norm_bounds import most_sampled
from basecagg.maths.staleness import StalenessFunction
from basecagg.options import PromiseOptions
from basecagg.privacy import LEAST_DEVIATION, MOST_DEVIATION, Mechanism, Privacy

_ROUNDING = 1.02
"""C̃² may be this much more than (c_l·C)²: what rounding to steps costs."""
_QUICK = 2**11
"""σ_i up to which noise is drawn as fast as can be."""
_MOST_BITS = 30
_DIGITS = 4
_PASSES = 3
"""ε costs a little of δ, and so of ε."""
_LEAST_DELTA = 1e-300
_HALVINGS = 20
"""Of the logarithm of z: far below the digits that are kept."""


@dataclass(frozen=True, kw_only=True)
class Budget(PromiseOptions):
    """The privacy that each contributor is promised."""

    epsilon: float = field()


def spend(
    budget: Budget,
    members: int,
    silent: int,
    size: int,
    staleness: StalenessFunction,
    *,
    levels: int | None = None,
) -> Mechanism:
    """The mechanism with the least noise that keeps the budget in sums of K members, T_c of them silent."""
    _require_possible(budget, members, silent)
    shared = ("clip_norm", "epsilon", "delta", "max_uses", "unit", "sampling_rate")
    privacy = Privacy(
        **{name: getattr(budget, name) for name in shared},
        noise=1.0,
        max_records=most_sampled(budget.records, budget.sampling_rate),
    )
    mechanism = Mechanism(privacy, members, silent, size, 1, staleness)
    if mechanism.conversion_delta <= 0:
        raise ParameterError(
            f"δ = {budget.delta:g} is too small for ε = {budget.epsilon:g}, K = {members} and d = {size}",
            rule="privacy: δ > 2e^ε·k_max·K·d·2⁻¹²⁷",
        )
    rate = None if budget.unit == "user" else budget.sampling_rate
    noise = least_noise(budget.epsilon, mechanism.conversion_delta, budget.max_uses, rate)
    return _levelled(replace(mechanism, privacy=replace(privacy, noise=noise)), levels)


def promise(mechanism: Mechanism, levels: int | None = None) -> Mechanism:
    """The mechanism with the ε that k_max fresh uploads cost; without noise only a bound."""
    privacy = mechanism.privacy
    if privacy.noise:
        _require_silent(mechanism.members, mechanism.silent)
    mechanism = _levelled(mechanism, levels)
    if not privacy.noise:
        return mechanism
    for _ in range(_PASSES):
        epsilon = _epsilon(mechanism, max(mechanism.conversion_delta, _LEAST_DELTA))
        mechanism = replace(mechanism, privacy=replace(privacy, epsilon=_readable(epsilon)))
    return mechanism


def _epsilon(mechanism: Mechanism, delta: float) -> float:
    uses = mechanism.privacy.max_uses
    if mechanism.privacy.unit == "record":
        return sampled_epsilon(mechanism.costs(0), uses, delta)[0]
    return epsilon_of(uses * mechanism.cost(0), delta)


def least_noise(epsilon: float, delta: float, uses: int, rate: float | None = None) -> float:
    """The least z = σ/C of Gaussian noise with which `uses` sums, or updates, keep (ε, δ).

    With a `rate` the unit is the record, which is in an upload with that probability. Records are accounted for
    at integer orders only, so a rate of 1 takes a little more noise than no rate.
    """
    exact = math.sqrt(uses / (2 * rho_within(epsilon, delta)))
    return _readable(exact if rate is None else _when_sampled(rate, uses, epsilon, delta, exact))


@lru_cache(maxsize=256)
def _when_sampled(rate: float, uses: int, epsilon: float, delta: float, enough: float) -> float:
    """Between next to none and the z that is enough without sampling, or a little more: orders are fewer."""
    low, high = 1e-3, 1.5 * enough
    for _ in range(_HALVINGS):
        z = math.sqrt(low * high)
        kept = affords(Cost(1 / (2 * z * z), rate), uses, epsilon, delta)
        low, high = (low, z) if kept else (z, high)
    return high


def noise_of(settings: Any) -> float:
    """z, by the settings of a run: as given, else the least that keeps its ε, else 1."""
    s = settings
    if s.noise is not None:
        return float(s.noise)
    return 1.0 if s.epsilon is None else least_noise(s.epsilon, s.delta, s.max_uses)


def private_sums(settings: Any, size: int, silent: int) -> Mechanism:
    """The mechanism by the settings of a run, for updates of d = `size` numbers; T_c is `silent`."""
    s, members, weight = settings, settings.buffer_size, settings.staleness_function
    promised = {
        "delta": s.delta,
        "max_uses": s.max_uses,
        "clip_norm": s.clip_norm,
        "unit": s.unit,
        "sampling_rate": s.sampling_rate,
    }
    # Records of one user whose usual sample is a batch; one where users are the unit.
    records = math.ceil(s.batch_size / s.sampling_rate) if s.unit == "record" else 1
    if s.epsilon is not None and s.noise is None:
        budget = Budget(epsilon=s.epsilon, records=records, **promised)
        return spend(budget, members, silent, size, weight, levels=s.private_levels)
    noise, most = noise_of(s), most_sampled(records, s.sampling_rate)
    epsilon = 1.0 if noise else None  # a placeholder, until `promise` counts what this noise costs
    privacy = Privacy(noise=noise, epsilon=epsilon, max_records=most, **promised)
    mechanism = Mechanism(privacy, members, silent, size, s.private_levels or 1, weight)
    return promise(mechanism, s.private_levels)


def in_parameters(mechanism: Mechanism) -> dict[str, Any]:
    """The fields of `ProtocolParameters` that follow. In the field every update weighs the same."""
    return {
        "weights": "own",
        "staleness": mechanism.staleness,
        "clip": mechanism.privacy.longest,
        "update_levels": mechanism.levels,
        "privacy": mechanism.privacy,
    }


def _require_possible(budget: Budget, members: int, silent: int) -> None:
    b = budget
    if not (b.epsilon > 0 and 0 < b.delta < 1 and b.max_uses >= 1):
        raise ParameterError(
            f"ε = {b.epsilon:g} must be positive, δ = {b.delta:g} between 0 and 1, k_max = {b.max_uses} at"
            " least 1",
            rule="privacy: ε > 0, 0 < δ < 1, k_max ≥ 1",
        )
    _require_silent(members, silent)
    sampled = b.records >= 1 and 0 < b.sampling_rate <= 1
    if not sampled or (b.unit == "user" and (b.records, b.sampling_rate) != (1, 1)):
        raise ParameterError(
            f"{b.records} records, each in an upload with probability {b.sampling_rate:g}, cannot be with unit"
            f" '{b.unit}': a probability above 0 and up to 1, and both at 1 for users",
            rule="privacy: unit user: sampling_rate = 1, M = 1",
        )


def _require_silent(members: int, silent: int) -> None:
    if not 1 <= silent < members:
        raise ParameterError(
            f"of K = {members} members T_c = {silent} may be silent: there must be one, and one less than K",
            rule="privacy: with noise 1 ≤ T_c < K",
        )


def _readable(exact: float) -> float:
    """Round up to four digits."""
    unit = 10.0 ** (math.floor(math.log10(exact)) - _DIGITS + 1)
    return float(f"{math.ceil(exact / unit) * unit:.{_DIGITS}g}")


def _levelled(mechanism: Mechanism, levels: int | None = None) -> Mechanism:
    """With c_l as given, or: the coarsest power of two at which rounding costs next to nothing.

    If there is none, the finest with a table.
    """
    if levels:
        return replace(mechanism, levels=levels)

    def rounding(m: Mechanism) -> float:
        return m.squared_change(0) / (m.levels * m.privacy.clip_norm) ** 2

    choices = [replace(mechanism, levels=2**bits) for bits in range(_MOST_BITS)]
    quiet = not mechanism.privacy.noise
    wide = [m for m in choices if quiet or m.variance >= LEAST_DEVIATION**2]
    fine = [m for m in wide if m.variance <= _QUICK**2 and rounding(m) <= _ROUNDING]
    possible = [m for m in wide if m.variance <= MOST_DEVIATION**2]
    return [*fine[:1], *possible[-1:], *wide[:1], *choices[-1:]][0]


# --- what the noise does to a sum --------------------------------------------------------------


def noise_in_mean(mechanism: Mechanism) -> float:
    """The standard deviation of the noise in one element of the mean of K fresh updates."""
    deviation = math.sqrt(mechanism.members * mechanism.variance)
    return deviation / (mechanism.levels * mechanism.members)


def hidden_lie(mechanism: Mechanism) -> float:
    """How long a lie may be, in what one unit can change, that a sum's bound need not show in its noise."""
    bound = mechanism.squared_sum_bound([0] * mechanism.members)
    noise = mechanism.size * mechanism.members * mechanism.variance
    return math.sqrt(max(0, bound - noise) / mechanism.squared_change(0))
