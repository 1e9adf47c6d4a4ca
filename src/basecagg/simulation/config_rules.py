"""What the settings of a simulated run must obey, as a table.

A setting that a run does not use is not asked for anything: FedAvg has no tiers, FedAsync no buffer.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from basecagg.maths.primes import PAPER_MODULUS
from basecagg.protections.pairs import CODED, PAIRWISE, preset

if TYPE_CHECKING:
    from basecagg.simulation.config import SimulationConfig


class SettingRule(NamedTuple):
    """One line of the table: whether the run uses the setting, its name, whether it fits, what would."""

    applies: bool
    name: str
    fits: bool
    wanted: str


def rules_for(c: SimulationConfig) -> list[SettingRule]:
    """All rules, in the order in which they are checked."""
    schedule, protection = c.pair
    coded, pairwise = protection in CODED, protection in PAIRWISE
    noisy, least = protection == "local-dp", 2 if coded or pairwise else 1
    up_to_users, some = f"and users = {c.users}", "positive and finite"
    some_or_none = "finite and at least 0"
    steps, fraction = c.server_optimiser, "in 0…1, below 1"
    full = c.pair == preset("basecagg")
    room = (c.modulus - 3) // 2
    rows = [
        (True, "users", c.users >= 1, "at least 1"),
        (
            schedule in ("synchronous", "buffered"),
            "buffer_size",
            least <= c.buffer_size <= c.users,
            f"between {least} {up_to_users}",
        ),
        (True, "concurrency", 1 <= c.concurrency <= c.users, f"between 1 {up_to_users}"),
        (
            schedule == "synchronous",
            "concurrency",
            c.concurrency >= c.buffer_size,
            f"at least buffer_size = {c.buffer_size}",
        ),
        (schedule == "tiered", "tiers", 1 <= c.tiers <= c.users, f"between 1 {up_to_users}"),
        (
            schedule == "immediate",
            "fedasync_mixing",
            0 < c.fedasync_mixing <= 1,
            "above 0, at most 1",
        ),
        (True, "versions", c.versions >= 1, "at least 1"),
        (
            c.until != "",
            "until",
            re.fullmatch(r"(updates|seconds)=(?=.*[1-9])\d+(\.\d+)?", c.until) is not None,
            "updates=NUMBER or seconds=NUMBER, such as updates=600",
        ),
        (
            c.until.startswith("seconds"),
            "until",
            c.clock == "devices",
            "updates=NUMBER on this clock, which has no seconds",
        ),
        (True, "max_staleness", c.max_staleness >= 0, "at least 0"),
        (c.staleness != "constant", "staleness_a", 0 <= c.staleness_a < inf, some_or_none),
        (c.staleness == "hinge", "staleness_b", 0 <= c.staleness_b < inf, some_or_none),
        (
            schedule in ("immediate", "tiered"),
            "server_optimiser",
            c.server_optimiser == "sgd",
            "sgd for this schedule: it mixes whole models and takes no steps",
        ),
        (True, "global_rate", 0 < c.global_rate <= 1e6, "above 0, at most 1e6"),
        (steps != "sgd", "server_momentum", 0 <= c.server_momentum < 1, fraction),
        (
            steps == "adam",
            "server_second_momentum",
            0 <= c.server_second_momentum < 1,
            fraction,
        ),
        (
            steps == "adam",
            "server_epsilon",
            1e-12 <= c.server_epsilon <= 1e6,
            "between 1e-12 and 1e6",
        ),
        (True, "local_rate", 0 < c.local_rate < inf, some),
        (True, "batch_size", c.batch_size >= 1, "at least 1"),
        (True, "weight_decay", 0 <= c.weight_decay < inf, some_or_none),
        (True, "local_epochs", c.local_epochs >= 0, "at least 0"),
        (True, "local_steps", c.local_steps >= 0, "at least 0"),
        (
            True,
            "local_steps",
            (c.local_steps > 0) != (c.local_epochs > 0),
            f"{'0' if c.local_epochs else 'positive'} while local_epochs = {c.local_epochs}:"
            " give one of the two",
        ),
        (c.partition == "dirichlet", "dirichlet_alpha", 0 < c.dirichlet_alpha < inf, some),
        (c.partition == "shards", "shards_per_user", c.shards_per_user >= 1, "at least 1"),
        (coded, "holders", c.holders == 0 or c.holders >= 2, "0 (every user) or at least 2"),
        (True, "dropout", 0 <= c.dropout < 1, fraction),
        (True, "holder_dropout", 0 <= c.holder_dropout < 1, fraction),
        (True, "availability", 0 < c.availability <= 1, "above 0, at most 1"),
        (noisy, "dp_clip_norm", 0 < c.dp_clip_norm < inf, some),
        (noisy, "dp_noise", 0 < c.dp_noise < inf, some),
        (noisy, "dp_delta", 0 < c.dp_delta < 1, "above 0, below 1"),
        (pairwise, "clip", 0 < c.clip < inf, some),
        (pairwise, "modulus", c.modulus == PAPER_MODULUS, f"{PAPER_MODULUS} for this protection"),
        (pairwise, "update_levels", c.update_levels >= 1, "at least 1"),
        (
            pairwise,
            "update_levels",
            c.buffer_size * (c.update_levels * c.clip + 1) <= room,
            f"less: K·(c_l·B + 1) must be at most {room}",
        ),
        (
            c.allow_wraparound,
            "allow_wraparound",
            full and c.cryptography == "arithmetic",
            "false unless method is basecagg and cryptography 'arithmetic'",
        ),
        (c.auto_tune, "auto_tune", full, "false unless method is basecagg"),
        (
            c.auto_tune,
            "update_levels",
            c.update_levels * c.clip >= 1,
            "at least 1/clip for auto_tune",
        ),
        (c.auto_tune, "tune_after", c.tune_after >= 1, "at least 1"),
        (True, "seconds_per_step", 0 < c.seconds_per_step < inf, some),
        (True, "speed_spread", 0 <= c.speed_spread < inf, some_or_none),
        (True, "up_mbps", c.up_mbps > 0, "positive"),
        (True, "down_mbps", c.down_mbps > 0, "positive"),
        (True, "latency", 0 <= c.latency < inf, some_or_none),
        (
            c.clock == "uniform-staleness",
            "clock",
            schedule in ("buffered", "immediate"),
            "'devices' for this schedule: it has no staleness",
        ),
        (coded, "min_per_version", c.min_per_version >= 0, "at least 0"),
        (
            coded and c.clock == "uniform-staleness",
            "min_per_version",
            c.min_per_version == 1 or (not c.min_per_version and c.consistency != "certified"),
            "1 on this clock, which draws the version of every update by itself",
        ),
        (True, "seed", c.seed >= 0, "at least 0"),
        (True, "evaluate_every", c.evaluate_every >= 1, "at least 1"),
        (True, "evaluate_last", c.evaluate_last >= 1, "at least 1"),
        (
            c.until != "",
            "evaluate_last",
            c.evaluate_last == 1,
            f"1 with until = {c.until!r}: which versions are the last is not known before the end",
        ),
        (True, "checkpoint_every", c.checkpoint_every >= 1, "at least 1"),
        (True, "workers", c.workers >= 0, "at least 0"),
    ]
    return [SettingRule(*row) for row in rows]
