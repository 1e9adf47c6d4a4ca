"""SecAgg and SecAgg+ under the synchronous schedule: a round of users, and their sum when K updates are in."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import numpy as np

from basecagg.costs import open_pairwise
from basecagg.maths.quantization import clip_update, quantize, signed
from basecagg.maths.randomness import Words, WordStream, derive_seed
from basecagg.protections.secagg import SecAggParameters
from basecagg.protections.secagg_graph import choose_degree, random_regular
from basecagg.protections.secagg_server import RoundFailed
from basecagg.protections.shamir import SHARE_BYTES
from basecagg.protocol.effects import Abandoned, Released
from basecagg.protocol.messages import MaskName
from basecagg.protocol.step_rule import StepRule
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import (
    Publication,
    SeededEntropy,
    ServerAggregation,
    user_name,
)
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.devices import Devices
from basecagg.simulation.metering import MeteredLoopback
from basecagg.simulation.secagg_round import PHASES, CostKey, SecAggRound

_ENVELOPE = 2 * SHARE_BYTES + 28
"""Bytes of two sealed shares."""


class SecAggAggregation(ServerAggregation):
    """Protection secagg or secagg+. Users that started but are not among the first K have dropped out.

    Differs from Bonawitz et al.: users that the schedule starts in place of dropouts join the round's roster.
    """

    def __init__(
        self,
        config: SimulationConfig,
        model: Vector,
        step: StepRule,
        devices: Devices,
        state: Mapping[str, Any],
    ) -> None:
        """Start with the model, or with a saved state."""
        super().__init__(MeteredLoopback(), Publication(0.0, 0, model))
        self._config = config
        self._devices = devices
        self._entropy = SeededEntropy(config.seed, state.get("entropy", {}))
        self._latest = self.published
        self._step_rule, self._optimiser_state = step, step.fresh_state(model)
        self._roster: list[int] = []
        self._updates: dict[int, Vector] = {}
        if state:
            self.restore(state)

    def waiting(self) -> set[int]:
        """The users whose updates wait to be summed."""
        return set(self._updates)

    def prepare(self, user: int) -> float:
        """Advertise keys and share secrets with everybody of the round: two round trips."""
        if user not in self._roster:
            self._roster.append(user)
        shares = self._devices.upload(_ENVELOPE * self._config.concurrency)
        return shares + 3 * self._devices.config.latency

    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Take the update; the K-th of the round makes the step."""
        if base_version != self._latest.version:
            return
        self._updates[user] = update
        if len(self._updates) == self._config.buffer_size:
            self._sum_up()

    def _sum_up(self) -> None:
        roster, updates = self._roster, self._updates
        self._roster, self._updates = [], {}
        seat = {user: index for index, user in enumerate(roster)}
        inputs = {seat[user]: self._quantize(user, update) for user, update in updates.items()}
        round_ = self._begin_round(roster)
        outcome = round_.run(inputs, {"inputs": set(range(len(roster))) - set(inputs)})
        seconds = self._charge(round_, len(roster))
        version = self._latest.version
        names = tuple(MaskName(user_name(u), version.to_bytes(16, "big")) for u in sorted(updates))
        if isinstance(outcome, RoundFailed):
            self.steps.append(Abandoned(version, names, outcome.reason))
            return
        count = len(updates)
        total = signed(outcome.total, self._config.modulus) / float(self._config.update_levels)
        self.steps.append(Released(version, names, (version,) * count, (1.0,) * count, total))
        model, self._optimiser_state = self._step_rule.step(
            self._latest.model, self._optimiser_state, total, float(count)
        )
        self._publish_at(self.now + seconds, version + 1, model)

    def _begin_round(self, roster: list[int]) -> SecAggRound:
        parameters = round_parameters(self._config, len(roster), self._latest.model.size)
        return SecAggRound(
            parameters, entropy=lambda index: self._entropy(f"masks/{user_name(roster[index])}")
        )

    def _quantize(self, user: int, update: Vector) -> Words:
        config = self._config
        clipped, count = clip_update(update, config.clip)
        self.counts["clipped elements"] += count
        coins = derive_seed(self._entropy(f"masks/{user_name(user)}")(32), "rounding")
        words = WordStream(coins).draw(clipped.size)
        return quantize(clipped, config.update_levels, config.modulus, words)

    def _charge(self, round_: SecAggRound, users: int) -> float:
        """Book the round's costs; return the simulated time from the last upload to the open sum."""
        meter = self.network.meter
        for account, seconds in round_.seconds.items():
            meter.seconds["contributor" if account.role == "user" else "server"] += seconds
        for account, size in round_.sent.items():
            meter.bytes_sent[f"{account.phase} from {account.role}"] += size
            meter.messages[f"{account.phase} from {account.role}"] += 1
        work = sum(round_.seconds[CostKey("server", phase)] for phase in PHASES)
        work += round_.seconds[CostKey("user", "unmasking")] / users
        if self._config.crypto_time == "prices":
            work = self._priced(users)
        answers = round_.sent[CostKey("user", "unmasking")] / users
        return work + self._devices.config.latency + self._devices.upload(answers)

    def _priced(self, users: int) -> float:
        survivors, size = self._config.buffer_size, self._latest.model.size
        parameters = round_parameters(self._config, users, size)
        neighbours, dropped = len(parameters.graph[0]), users - survivors
        return open_pairwise(size, survivors, dropped, neighbours, parameters.threshold)

    def _publish_at(self, at: float, version: int, model: Vector) -> None:
        self._latest = Publication(at, version, model)
        self.pending.append(self._latest)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        latest = self._latest
        return super().state() | {
            "entropy": dict(self._entropy.drawn),
            "latest": {"at": latest.at, "version": latest.version, "model": latest.model},
            "optimiser": list(self._optimiser_state),
            "roster": self._roster,
            "users": list(self._updates),
            "updates": list(self._updates.values()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        super().restore(state)
        self._latest = Publication(**state["latest"])
        self._optimiser_state = tuple(map(np.asarray, state["optimiser"]))
        self._roster = list(state["roster"])
        self._updates = dict(zip(state["users"], map(np.asarray, state["updates"]), strict=True))


def round_parameters(config: SimulationConfig, users: int, model_size: int) -> SecAggParameters:
    """t = ⌈2K/3⌉ on the complete graph; for SecAgg+ the sparsest graph that keeps a tenth of the users out."""
    survivors = config.buffer_size
    if config.pair.protection == "secagg+":
        sparse = choose_degree(users, max(1, users // 10), users - survivors)
        if sparse is not None:
            degree, threshold = sparse
            graph = random_regular(users, degree)
            return SecAggParameters(
                num_users=users, threshold=threshold, vector_size=model_size, graph=graph
            )
    threshold = max(2, ceil(2 * survivors / 3))
    return SecAggParameters(num_users=users, threshold=threshold, vector_size=model_size)
