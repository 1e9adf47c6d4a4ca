"""What the settings of a simulated run must obey.

A setting that a run does not use is not asked for anything: FedAvg has no tiers, FedAsync no buffer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.staleness import SHAPES
from basecagg.protocol.step_rule import OPTIMISERS
from basecagg.simulation.protections import preset

if TYPE_CHECKING:
    from basecagg.simulation.config import SimulationConfig

SettingRule: TypeAlias = tuple[str, bool, str]
"""A setting, whether it fits, and what would."""
_UNTIL = re.compile(r"(updates|seconds)=(?=.*[1-9])\d+(\.\d+)?")
_LIMITS: dict[str, Callable[[float], bool]] = {
    "at least 1": lambda value: value >= 1,
    "at least 0": lambda value: value >= 0,
    "at least -1": lambda value: value >= -1,
    "positive": lambda value: value > 0,
    "positive and finite": lambda value: 0 < value < inf,
    "finite and at least 0": lambda value: 0 <= value < inf,
    "in 0…1, below 1": lambda value: 0 <= value < 1,
    "above 0, at most 1": lambda value: 0 < value <= 1,
    "above 0, below 1": lambda value: 0 < value < 1,
    "between 0 (as usual) and 1e6": lambda value: 0 <= value <= 1e6,
    "between 1e-12 and 1e6": lambda value: 1e-12 <= value <= 1e6,
}


def rules_for(c: SimulationConfig) -> Iterator[SettingRule]:
    """All rules for what this run uses, in the order in which they are checked."""
    for wanted, names, used in _numbers(c):
        for name in names.split() if used else ():
            yield name, _LIMITS[wanted](getattr(c, name)), wanted
    yield from _of_federation(c)
    yield from _of_privacy(c)
    yield from _of_field(c)


def _numbers(c: SimulationConfig) -> list[tuple[str, str, bool]]:
    """The limits of single numbers, and whether the run uses them."""
    guard, step = c.pair.guard, OPTIMISERS[c.server_optimiser].uses
    weight = SHAPES[c.dp_staleness if guard.private else c.staleness]
    private, pairwise = guard.private is not None, guard.masks == "pairwise"
    return [
        ("at least 1", "users versions batch_size", True),
        ("at least 1", "evaluate_every evaluate_last checkpoint_every", True),
        ("at least 0", "max_staleness local_epochs local_steps seed workers", True),
        ("positive", "up_mbps down_mbps", True),
        ("positive and finite", "local_rate seconds_per_step", True),
        ("finite and at least 0", "weight_decay speed_spread latency", True),
        ("in 0…1, below 1", "dropout holder_dropout", True),
        ("above 0, at most 1", "availability", True),
        ("between 0 (as usual) and 1e6", "global_rate", True),
        ("finite and at least 0", "staleness_a", len(weight.numbers) >= 1),
        ("finite and at least 0", "staleness_b", len(weight.numbers) >= 2),
        ("in 0…1, below 1", "server_momentum", "momentum" in step),
        ("in 0…1, below 1", "server_second_momentum", "second_momentum" in step),
        ("between 1e-12 and 1e6", "server_epsilon", "epsilon" in step),
        ("above 0, at most 1", "fedasync_mixing", c.pair.schedule == "immediate"),
        ("positive and finite", "dirichlet_alpha", c.partition == "dirichlet"),
        ("at least 1", "shards_per_user", c.partition == "shards"),
        ("positive and finite", "dp_clip_norm", guard.noisy),
        ("finite and at least 0", "dp_epsilon", guard.noisy),
        ("at least 1", "dp_max_uses", guard.noisy),
        ("above 0, below 1", "dp_delta", guard.noisy),
        ("at least 0", "dp_levels", private),
        ("above 0, at most 1", "dp_sampling_rate", c.dp_unit == "record"),
        ("positive and finite", "clip", pairwise),
        ("at least 1", "update_levels", pairwise),
        ("at least 0", "min_per_version", guard.masks == "coded"),
        ("at least -1", "max_colluding_contributors", guard.masks == "coded"),
        ("at least 1", "tune_after", c.auto_tune),
    ]


def _of_federation(c: SimulationConfig) -> Iterator[SettingRule]:
    schedule, masks, timeless = c.pair.schedule, c.pair.guard.masks, c.clock == "uniform-staleness"
    least, users = 2 if masks in ("coded", "pairwise") else 1, f"and users = {c.users}"
    both = f"{'0' if c.local_epochs else 'positive'} while local_epochs = {c.local_epochs}"
    one = (c.local_steps > 0) != (c.local_epochs > 0)
    yield "local_steps", one, f"{both}: give one of the two"
    if c.until:
        counted = "updates=NUMBER or seconds=NUMBER, such as updates=600"
        yield "until", _UNTIL.fullmatch(c.until) is not None, counted
        unknown = (
            f"1 with until = {c.until!r}: which versions are the last is not known before the end"
        )
        yield "evaluate_last", c.evaluate_last == 1, unknown
    if c.until.startswith("seconds"):
        yield "until", not timeless, "updates=NUMBER on this clock, which has no seconds"
    if schedule in ("immediate", "tiered"):
        mixes = "sgd for this schedule: it mixes whole models and takes no steps"
        yield "server_optimiser", c.server_optimiser == "sgd", mixes
    else:
        yield "buffer_size", least <= c.buffer_size <= c.users, f"between {least} {users}"
    yield "concurrency", 1 <= c.users_at_once <= c.users, f"between 1 {users}"
    if schedule == "synchronous":
        enough = f"at least buffer_size = {c.buffer_size}"
        yield "concurrency", c.users_at_once >= c.buffer_size, enough
    if schedule == "tiered":
        yield "tiers", 1 <= c.tiers <= c.users, f"between 1 {users}"
    if masks == "coded":
        yield "holders", c.holders == 0 or c.holders >= 2, "0 (every user) or at least 2"
    yield "attackers", 0 <= c.attackers <= c.users, f"between 0 {users}"
    if timeless:
        has_staleness = schedule in ("buffered", "immediate")
        yield "clock", has_staleness, "'devices' for this schedule: it has no staleness"
    if timeless and masks == "coded":
        any_version = c.min_per_version == 1 or not (
            c.min_per_version or c.consistency == "certified"
        )
        drawn = "1 on this clock, which draws the version of every update by itself"
        yield "min_per_version", any_version, drawn


def _of_privacy(c: SimulationConfig) -> Iterator[SettingRule]:
    noisy, private = c.pair.guard.noisy, c.pair.guard.private is not None
    if noisy:
        least = "finite and at least 0" if private else "positive and finite"
        fits = c.dp_noise == -1 or _LIMITS[least](c.dp_noise)
        yield "dp_noise", fits, f"{least}, or -1 to follow from dp_epsilon"
    if noisy and c.dp_epsilon > 0:
        given = f"0 while dp_noise = {c.dp_noise:g}: one follows from the other"
        yield "dp_epsilon", c.dp_noise == -1, given
    if c.dp_unit == "record":
        hidden = "'user' unless sums have noise (basecagg-dp): records are hidden by nothing else"
        yield "dp_unit", private and c.dp_noise != 0, hidden
        alone = c.local_steps == 1 and c.weight_decay == 0 and not c.weigh_examples
        step = "1 with dp_unit = 'record', without weight_decay and weigh_examples"
        yield "local_steps", alone, step
    else:
        yield "dp_sampling_rate", c.dp_sampling_rate == 1, "1 for users"
    if c.attackers > 0:
        scales = -inf < c.attack_factor < inf and (private or c.attack_factor != 0)
        yield "attack_factor", scales, "finite, and not 0 where sums have no bound"
    if c.attackers > 0 and private:
        whole = "0 unless cryptography is 'arithmetic': whole contributors do not lie"
        yield "attackers", c.cryptography == "arithmetic", whole


def _of_field(c: SimulationConfig) -> Iterator[SettingRule]:
    full, room = c.pair == preset("basecagg"), (c.modulus - 3) // 2
    if c.pair.guard.masks == "pairwise":
        yield "modulus", c.modulus == PAPER_MODULUS, f"{PAPER_MODULUS} for this protection"
        fits = c.buffer_size * (c.update_levels * c.clip + 1) <= room
        yield "update_levels", fits, f"less: K·(c_l·B + 1) must be at most {room}"
    if c.allow_wraparound:
        without_masks = full and c.cryptography == "arithmetic"
        wanted = "false unless method is basecagg and cryptography 'arithmetic'"
        yield "allow_wraparound", without_masks, wanted
    if c.auto_tune:
        yield "auto_tune", full, "false unless method is basecagg"
        some = c.update_levels * c.clip >= 1
        yield "update_levels", some, "at least 1/clip for auto_tune"
