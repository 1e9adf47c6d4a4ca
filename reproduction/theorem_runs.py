"""Runs of the theorem's iteration, many side by side, with the library's own rounding, weights and field."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from basecagg.maths.prime_field import PrimeField
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import dequantize, quantize
from basecagg.maths.staleness import constant, quantized_weight
from basecagg.protocol.step_rule import StepRule
from reproduction.theorem_bounds import Constants, Setting
from reproduction.theorem_problems import Problem, Reals, Seen, Users

_FIELD = PrimeField(PAPER_MODULUS)
_WEIGHT = quantized_weight(constant(), 0, levels=1, coin=b"")
"""s̄ of the theorem: s(τ) = 1, which is exact at c_g = 1."""


def ergodic_norm(
    problem: Problem, setting: Setting, *, repeats: int, seed: int = 1
) -> tuple[float, Constants]:
    """(1/J)·Σ ‖∇F(x^t)‖², the mean over repeats; and the problem's constants on this path."""
    norms, constants = ergodic_norms(problem, setting, repeats=repeats, seed=seed)
    return float(norms.mean()), constants


def ergodic_norms(
    problem: Problem, setting: Setting, *, repeats: int, seed: int = 1
) -> tuple[Reals, Constants]:
    """(1/J)·Σ ‖∇F(x^t)‖² of every repeat; and the problem's constants on the path of all.

    Every buffer holds K different users, drawn anew, each with a staleness uniform on 0…τ_max.
    """
    generator, seen = np.random.default_rng((seed, 0x7EE0)), Seen()
    model: Reals = np.tile(problem.start, (repeats, 1))
    history, total = deque([model], maxlen=setting.max_staleness + 1), np.zeros(repeats)
    everyone = np.arange(problem.users)
    for _ in range(setting.versions):
        gradients = problem.gradient(
            np.tile(everyone, (repeats, 1)), np.repeat(model[:, None], problem.users, axis=1)
        )
        total += (seen.look(gradients) ** 2).sum(axis=-1)
        members = _choose(problem.users, setting.buffer_size, repeats, generator)
        starts = _old_models(history, members, generator)
        updates = _train(problem, setting, members, starts, generator=generator, seen=seen)
        model = _step(model, updates, setting, generator)
        history.append(model)
    return total / setting.versions, problem.constants(seen)


def _choose(users: int, count: int, repeats: int, generator: np.random.Generator) -> Users:
    """K different users for each repeat."""
    return generator.permuted(np.tile(np.arange(users), (repeats, 1)), axis=1)[:, :count]


def _old_models(history: deque[Reals], members: Users, generator: np.random.Generator) -> Reals:
    """x^(t − τ) for every member."""
    ages = generator.integers(0, len(history), members.shape)
    repeats = np.arange(len(members))[:, None]
    return np.stack(history)[len(history) - 1 - ages, repeats]


def _train(
    problem: Problem,
    setting: Setting,
    members: Users,
    starts: Reals,
    *,
    generator: np.random.Generator,
    seen: Seen,
) -> Reals:
    """Δ_i after E local steps, Eqs. (local_update) and (onestep_localSGD)."""
    points = starts
    for _ in range(setting.local_steps):
        gradients = problem.gradient(members, points)
        seen.look_at_members(gradients)
        noisy = gradients + problem.noise(members, points, generator)
        points = points - setting.local_rate * noisy
    return starts - points


def _step(model: Reals, updates: Reals, setting: Setting, generator: np.random.Generator) -> Reals:
    """Quantise, sum in the field, take back, step. Repeats lie side by side as one long model."""
    rows = np.moveaxis(updates, 1, 0).reshape(setting.buffer_size, -1)
    words = generator.integers(0, 2**32, rows.size, dtype=np.uint32)
    quantized = quantize(rows.ravel(), setting.update_levels, PAPER_MODULUS, words)
    weights = [_WEIGHT] * setting.buffer_size
    total = _FIELD.weighted_sum(quantized.reshape(rows.shape), weights)
    opened = dequantize(total, setting.update_levels, PAPER_MODULUS)
    rule = StepRule(rate=setting.global_rate)
    stepped, _ = rule.step(model.ravel(), (), opened, sum(weights))
    return stepped.astype(np.float64, copy=False).reshape(model.shape)


class Variance(NamedTuple):
    """Mean squared distances of the lemma."""

    total: float
    """E‖Q_c(g) − ∇F_i‖²"""
    gradient: float
    """E‖g − ∇F_i‖²"""
    rounding: float
    """E‖Q_c(g) − g‖²"""


def measured_variance(problem: Problem, levels: int, *, samples: int, seed: int = 1) -> Variance:
    """The lemma's variance and its two parts at x⁰, over users, gradients and coins."""
    generator = np.random.default_rng((seed, 0x1E33A))
    users = generator.integers(0, problem.users, samples)
    points = np.tile(problem.start, (samples, 1))
    exact = problem.gradient(users, points)
    noisy = exact + problem.noise(users, points, generator)
    words = generator.integers(0, 2**32, noisy.size, dtype=np.uint32)
    field = quantize(noisy.ravel(), levels, PAPER_MODULUS, words)
    rounded = dequantize(field, levels, PAPER_MODULUS).reshape(noisy.shape)
    parts = (rounded - exact, noisy - exact, rounded - noisy)
    return Variance(*(float((part**2).sum(axis=1).mean()) for part in parts))
