"""What the settings of a simulated run must obey together. The limits of single ones are in `options`.

A setting that a run does not use is not compared with others: FedAvg has no tiers, FedAsync no buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from basecagg.errors import ParameterError
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.robust_means import ROBUST_MEANS
from basecagg.maths.staleness import forms, written
from basecagg.parameters import usual_per_version
from basecagg.protocol.step_rule import OPTIMISERS
from basecagg.simulation.attacks import ATTACKS
from basecagg.simulation.protections import preset
from basecagg.simulation.timing import CLOCKS

if TYPE_CHECKING:
    from basecagg.simulation.config import SimulationConfig

SettingRule: TypeAlias = tuple[str, bool, str]
"""A setting, whether it fits, and what would."""
_UNTIL = re.compile(r"(updates|seconds)=(?=.*[1-9])\d+(\.\d+)?")


def rules_for(c: SimulationConfig) -> Iterator[SettingRule]:
    """All rules for what this run uses, in the order in which they are checked."""
    optimisers = f"one of {', '.join(OPTIMISERS)}"
    yield "server_optimiser", c.server_optimiser in OPTIMISERS, optimisers
    shapes = f"{forms()}, with numbers that are at least 0"
    yield "staleness", _is_written(c.staleness), shapes
    yield "clock", c.clock in CLOCKS, f"one of {', '.join(CLOCKS)}"
    both = f"left out while local_epochs = {c.local_epochs}: give one of the two"
    yield "local_steps", not (c.local_steps and c.local_epochs), both
    yield from _of_end(c)
    yield from _of_schedule(c)
    yield from _of_privacy(c)
    yield from _of_attackers(c)
    yield from _of_buckets(c)
    yield from _of_field(c)


def _is_written(text: str) -> bool:
    try:
        return bool(written(text))
    except ParameterError:
        return False


def _of_schedule(c: SimulationConfig) -> Iterator[SettingRule]:
    kind, masks, timeless = c.pair.timetable.kind, c.pair.guard.masks, c.draws_versions
    least, users = 2 if masks in ("coded", "pairwise") else 1, f"and users = {c.users}"
    if not c.pair.timetable.sums:
        mixes = "sgd for this schedule: it mixes whole models and takes no steps"
        yield "server_optimiser", c.server_optimiser == "sgd", mixes
    else:
        yield "buffer_size", least <= c.buffer_size <= c.users, f"between {least} {users}"
    yield "concurrency", c.users_at_once <= c.users, f"between 1 {users}"
    if kind == "synchronous":
        enough = f"at least buffer_size = {c.buffer_size}"
        yield "concurrency", c.users_at_once >= c.buffer_size, enough
    if kind == "tiered":
        yield "tiers", c.tiers <= c.users, f"between 1 {users}"
    if timeless:
        has_staleness = kind in ("buffered", "immediate")
        yield "clock", has_staleness, "'devices' for this schedule: it has no staleness"
    if timeless and masks == "coded":
        chosen, silent = c.min_per_version, c.max_colluding_contributors
        usual = usual_per_version(c.consistency, silent) if chosen is None else chosen
        drawn = "1 on this clock, which draws the version of every update by itself"
        yield "min_per_version", usual == 1, drawn


def _of_end(c: SimulationConfig) -> Iterator[SettingRule]:
    if c.until is None:
        return
    counted = "updates=NUMBER or seconds=NUMBER, such as updates=600"
    yield "until", _UNTIL.fullmatch(c.until) is not None, counted
    late = f"1 with until = {c.until!r}: which versions are the last is not known before the end"
    yield "evaluate_last", c.evaluate_last == 1, late
    has_seconds = not c.draws_versions or not c.until.startswith("seconds")
    yield "until", has_seconds, "updates=NUMBER on this clock, which has no seconds"


def _of_privacy(c: SimulationConfig) -> Iterator[SettingRule]:
    noisy, private = c.pair.guard.noisy, c.pair.guard.private is not None
    if noisy:
        yield "noise", private or c.noise != 0, "positive: this protection is its noise"
        given = f"left out while noise = {c.noise}: one follows from the other"
        yield "epsilon", c.noise is None or c.epsilon is None, given
    if c.unit == "record":
        hidden = "'user' unless sums have noise (basecagg-dp): records are hidden by nothing else"
        yield "unit", private and c.noise != 0, hidden
        alone = c.local_steps == 1 and c.weight_decay == 0 and c.weigh_examples is None
        step = "1 with unit = 'record', without weight_decay and weigh_examples"
        yield "local_steps", alone, step
        yield "device", c.device == "cpu", "'cpu' with unit = 'record'"
        plain = c.client == "plain" and c.local_optimiser == "sgd"
        yield "client", plain, "'plain' with unit = 'record', and local_optimiser = 'sgd'"
    else:
        yield "sampling_rate", c.sampling_rate == 1, "1 for users"


def _of_attackers(c: SimulationConfig) -> Iterator[SettingRule]:
    yield "attack", c.attack is None or c.attack in ATTACKS, f"one of {', '.join(ATTACKS)}"
    yield "attack", c.attackers == 0 or c.attack is not None, "given: some users are attackers"
    strength, attack = c.attack_strength, ATTACKS.get(c.attack or "")
    some = strength is None or (-inf < strength < inf and strength != 0)
    yield "attack_strength", some, "finite and not 0"
    if attack and attack.usual_strength is None:
        yield "attack_strength", strength is None, "left out: this attack has no strength"
    if c.attackers:
        alone = c.pair.guard.private is None or c.cryptography == "arithmetic"
        whole = "0 unless cryptography is 'arithmetic': whole contributors do not lie"
        yield "attackers", alone, whole


def _of_buckets(c: SimulationConfig) -> Iterator[SettingRule]:
    guard, least = c.pair.guard, c.max_colluding_contributors + 2
    known = f"one of {', '.join(ROBUST_MEANS)}"
    yield "robust_mean", c.robust_mean in ROBUST_MEANS, known
    if c.buckets == 1:
        return
    masked = guard.masks == "coded"
    summed = masked and guard.private is None and c.cryptography == "arithmetic"
    plain = guard.masks == "none" and c.pair.schedule in ("buffered", "synchronous")
    simulated = (
        "1 here: so far only basecagg with cryptography 'arithmetic', and updates in clear, have"
        " buckets"
    )
    yield "buckets", summed or plain, simulated
    yield "buckets", c.buffer_size % c.buckets == 0, f"a divisor of buffer_size = {c.buffer_size}"
    if masked:
        m = c.min_per_version
        least = max(least, usual_per_version(c.consistency, least - 2) if m is None else m)
        few = f"at most {c.buffer_size // least}: a bucket has at least max(m, T_c + 2) = {least} members"
        yield "buckets", c.bucket_size >= least, few
        drawn = "'devices' with buckets: in each of them all members trained from one version"
        yield "clock", c.clock == "devices", drawn


def _of_field(c: SimulationConfig) -> Iterator[SettingRule]:
    full, room = c.pair == preset("basecagg"), (PAPER_MODULUS - 3) // 2
    if c.pair.guard.masks == "pairwise":
        yield "modulus", c.modulus in (None, PAPER_MODULUS), f"{PAPER_MODULUS} for this protection"
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
        exact = "'long' for auto_tune: the errors of masks from keys would hide what users report"
        yield "masks", c.masks != "keys", exact
