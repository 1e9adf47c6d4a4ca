"""What the settings of a simulated run must obey, as a table.

A setting that a run does not use is not asked for anything: FedAvg has no tiers, FedAsync no buffer.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.staleness import SHAPES
from basecagg.protections.pairs import preset
from basecagg.protocol.step_rule import OPTIMISERS

if TYPE_CHECKING:
    from basecagg.simulation.config import SimulationConfig

_UNTIL = re.compile(r"(updates|seconds)=(?=.*[1-9])\d+(\.\d+)?")
_AT_LEAST_1, _AT_LEAST_0, _SOME = "at least 1", "at least 0", "positive and finite"
_SOME_OR_NONE, _FRACTION, _PART = "finite and at least 0", "in 0…1, below 1", "above 0, at most 1"


class SettingRule(NamedTuple):
    """One line of the table: a setting, whether it fits, what would, and whether the run uses it."""

    name: str
    fits: bool
    wanted: str
    applies: bool = True


def rules_for(c: SimulationConfig) -> list[SettingRule]:
    """All rules, in the order in which they are checked."""
    schedule = c.pair.schedule
    coded, pairwise = (c.pair.guard.masks == masks for masks in ("coded", "pairwise"))
    noisy, private = c.pair.guard.noisy, c.pair.guard.private is not None
    least = 2 if coded or pairwise else 1
    mixes = schedule in ("immediate", "tiered")
    weight, step_uses = (
        c.dp_staleness if private else c.staleness,
        OPTIMISERS[c.server_optimiser].uses,
    )
    numbers = len(SHAPES[weight].numbers)
    full, timeless = c.pair == preset("basecagg"), c.clock == "uniform-staleness"
    users, room = f"and users = {c.users}", (c.modulus - 3) // 2
    one_of_two = f"{'0' if c.local_epochs else 'positive'} while local_epochs = {c.local_epochs}"
    any_version = c.min_per_version == 1 or not (c.min_per_version or c.consistency == "certified")
    return [
        SettingRule("users", c.users >= 1, _AT_LEAST_1),
        SettingRule(
            "buffer_size", least <= c.buffer_size <= c.users, f"between {least} {users}", not mixes
        ),
        SettingRule("concurrency", 1 <= c.concurrency <= c.users, f"between 1 {users}"),
        SettingRule(
            "concurrency",
            c.concurrency >= c.buffer_size,
            f"at least buffer_size = {c.buffer_size}",
            schedule == "synchronous",
        ),
        SettingRule("tiers", 1 <= c.tiers <= c.users, f"between 1 {users}", schedule == "tiered"),
        SettingRule("fedasync_mixing", 0 < c.fedasync_mixing <= 1, _PART, schedule == "immediate"),
        SettingRule("versions", c.versions >= 1, _AT_LEAST_1),
        SettingRule(
            "until",
            _UNTIL.fullmatch(c.until) is not None,
            "updates=NUMBER or seconds=NUMBER, such as updates=600",
            c.until != "",
        ),
        SettingRule(
            "until",
            not timeless,
            "updates=NUMBER on this clock, which has no seconds",
            c.until.startswith("seconds"),
        ),
        SettingRule("max_staleness", c.max_staleness >= 0, _AT_LEAST_0),
        SettingRule("staleness_a", 0 <= c.staleness_a < inf, _SOME_OR_NONE, numbers >= 1),
        SettingRule("staleness_b", 0 <= c.staleness_b < inf, _SOME_OR_NONE, numbers >= 2),
        SettingRule(
            "server_optimiser",
            c.server_optimiser == "sgd",
            "sgd for this schedule: it mixes whole models and takes no steps",
            mixes,
        ),
        SettingRule("global_rate", 0 < c.global_rate <= 1e6, "above 0, at most 1e6"),
        SettingRule(
            "server_momentum", 0 <= c.server_momentum < 1, _FRACTION, "momentum" in step_uses
        ),
        SettingRule(
            "server_second_momentum",
            0 <= c.server_second_momentum < 1,
            _FRACTION,
            "second_momentum" in step_uses,
        ),
        SettingRule(
            "server_epsilon",
            1e-12 <= c.server_epsilon <= 1e6,
            "between 1e-12 and 1e6",
            "epsilon" in step_uses,
        ),
        SettingRule("local_rate", 0 < c.local_rate < inf, _SOME),
        SettingRule("batch_size", c.batch_size >= 1, _AT_LEAST_1),
        SettingRule("weight_decay", 0 <= c.weight_decay < inf, _SOME_OR_NONE),
        SettingRule("local_epochs", c.local_epochs >= 0, _AT_LEAST_0),
        SettingRule("local_steps", c.local_steps >= 0, _AT_LEAST_0),
        SettingRule(
            "local_steps",
            (c.local_steps > 0) != (c.local_epochs > 0),
            f"{one_of_two}: give one of the two",
        ),
        SettingRule(
            "dirichlet_alpha", 0 < c.dirichlet_alpha < inf, _SOME, c.partition == "dirichlet"
        ),
        SettingRule(
            "shards_per_user", c.shards_per_user >= 1, _AT_LEAST_1, c.partition == "shards"
        ),
        SettingRule(
            "holders", c.holders == 0 or c.holders >= 2, "0 (every user) or at least 2", coded
        ),
        SettingRule("dropout", 0 <= c.dropout < 1, _FRACTION),
        SettingRule("holder_dropout", 0 <= c.holder_dropout < 1, _FRACTION),
        SettingRule("availability", 0 < c.availability <= 1, _PART),
        SettingRule("dp_clip_norm", 0 < c.dp_clip_norm < inf, _SOME, noisy),
        SettingRule(
            "dp_noise",
            (c.dp_noise == -1 or 0 < c.dp_noise < inf),
            f"{_SOME}, or -1 to follow from dp_epsilon",
            noisy and not private,
        ),
        SettingRule(
            "dp_noise",
            (c.dp_noise == -1 or 0 <= c.dp_noise < inf),
            f"{_SOME_OR_NONE}, or -1 to follow from dp_epsilon",
            private,
        ),
        SettingRule("dp_epsilon", 0 <= c.dp_epsilon < inf, _SOME_OR_NONE, noisy),
        SettingRule(
            "dp_epsilon",
            c.dp_noise == -1,
            f"0 while dp_noise = {c.dp_noise:g}: one follows from the other",
            noisy and c.dp_epsilon > 0,
        ),
        SettingRule(
            "dp_unit",
            private and c.dp_noise != 0,
            "'user' unless sums have noise (basecagg-dp): records are hidden by nothing else",
            c.dp_unit == "record",
        ),
        SettingRule(
            "local_steps",
            c.local_steps == 1 and c.weight_decay == 0 and not c.weigh_examples,
            "1 with dp_unit = 'record', without weight_decay and weigh_examples",
            c.dp_unit == "record",
        ),
        SettingRule("dp_sampling_rate", 0 < c.dp_sampling_rate <= 1, _PART, c.dp_unit == "record"),
        SettingRule(
            "dp_sampling_rate", c.dp_sampling_rate == 1, "1 for users", c.dp_unit == "user"
        ),
        SettingRule("dp_max_uses", c.dp_max_uses >= 1, _AT_LEAST_1, noisy),
        SettingRule("attackers", 0 <= c.attackers <= c.users, f"between 0 {users}"),
        SettingRule(
            "attackers",
            c.cryptography == "arithmetic",
            "0 unless cryptography is 'arithmetic': whole contributors do not lie",
            private and c.attackers > 0,
        ),
        SettingRule(
            "attack_factor",
            -inf < c.attack_factor < inf and (private or c.attack_factor != 0),
            "finite, and not 0 where sums have no bound",
            c.attackers > 0,
        ),
        SettingRule("dp_levels", c.dp_levels >= 0, _AT_LEAST_0, private),
        SettingRule("dp_delta", 0 < c.dp_delta < 1, "above 0, below 1", noisy),
        SettingRule("clip", 0 < c.clip < inf, _SOME, pairwise),
        SettingRule(
            "modulus", c.modulus == PAPER_MODULUS, f"{PAPER_MODULUS} for this protection", pairwise
        ),
        SettingRule("update_levels", c.update_levels >= 1, _AT_LEAST_1, pairwise),
        SettingRule(
            "update_levels",
            c.buffer_size * (c.update_levels * c.clip + 1) <= room,
            f"less: K·(c_l·B + 1) must be at most {room}",
            pairwise,
        ),
        SettingRule(
            "allow_wraparound",
            full and c.cryptography == "arithmetic",
            "false unless method is basecagg and cryptography 'arithmetic'",
            c.allow_wraparound,
        ),
        SettingRule("auto_tune", full, "false unless method is basecagg", c.auto_tune),
        SettingRule(
            "update_levels",
            c.update_levels * c.clip >= 1,
            "at least 1/clip for auto_tune",
            c.auto_tune,
        ),
        SettingRule("tune_after", c.tune_after >= 1, _AT_LEAST_1, c.auto_tune),
        SettingRule("seconds_per_step", 0 < c.seconds_per_step < inf, _SOME),
        SettingRule("speed_spread", 0 <= c.speed_spread < inf, _SOME_OR_NONE),
        SettingRule("up_mbps", c.up_mbps > 0, "positive"),
        SettingRule("down_mbps", c.down_mbps > 0, "positive"),
        SettingRule("latency", 0 <= c.latency < inf, _SOME_OR_NONE),
        SettingRule(
            "clock",
            schedule in ("buffered", "immediate"),
            "'devices' for this schedule: it has no staleness",
            timeless,
        ),
        SettingRule("min_per_version", c.min_per_version >= 0, _AT_LEAST_0, coded),
        SettingRule(
            "max_colluding_contributors", c.max_colluding_contributors >= -1, "at least -1", coded
        ),
        SettingRule(
            "min_per_version",
            any_version,
            "1 on this clock, which draws the version of every update by itself",
            coded and timeless,
        ),
        SettingRule("seed", c.seed >= 0, _AT_LEAST_0),
        SettingRule("evaluate_every", c.evaluate_every >= 1, _AT_LEAST_1),
        SettingRule("evaluate_last", c.evaluate_last >= 1, _AT_LEAST_1),
        SettingRule(
            "evaluate_last",
            c.evaluate_last == 1,
            f"1 with until = {c.until!r}: which versions are the last is not known before the end",
            c.until != "",
        ),
        SettingRule("checkpoint_every", c.checkpoint_every >= 1, _AT_LEAST_1),
        SettingRule("workers", c.workers >= 0, _AT_LEAST_0),
    ]
