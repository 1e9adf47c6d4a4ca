"""SecAgg and SecAgg+ in simulated rounds: the threshold and graph of a round, and the sum of its updates."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from basecagg.baselines.secagg import SecAggParameters
from basecagg.baselines.secagg_graph import choose_degree, complete, random_regular
from basecagg.baselines.secagg_server import RoundFailed
from basecagg.baselines.shamir import SHARE_BYTES
from basecagg.costs import open_pairwise
from basecagg.maths.quantization import clip_update, quantize, signed
from basecagg.maths.randomness import Words, WordStream, derive_seed
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Burned, Opened, Outcome
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import Beginning, SeededEntropy, user_name
from basecagg.simulation.arithmetic import SummedHere
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.loopback import Letter
from basecagg.simulation.metering import MeteredLoopback
from basecagg.simulation.secagg_round import PHASES, CostKey, SecAggRound

_ENVELOPE = 2 * SHARE_BYTES + 28
"""Bytes of two sealed shares."""


class Unmetered(MeteredLoopback):
    """Brings updates to the server's machine. Their cost is measured where they are masked: in the round."""

    def charge(self, role: str, started: float, remembered: int) -> float:
        """Nothing."""
        return 0.0

    def _weigh(self, letter: Letter) -> None:
        """Nothing."""


class SecAggAggregation(SummedHere):
    """Protection secagg or secagg+. Users that started but are not among the first K have dropped out.

    Differs from Bonawitz et al.: users that the schedule starts in place of dropouts join the round's roster.
    """

    _network = Unmetered

    def _wire(self, beginning: Beginning) -> MeteredLoopback:
        self._entropy = SeededEntropy(self._config.seed, beginning.state.get("entropy", {}))
        self._roster: list[int] = list(beginning.state.get("roster", []))
        self._size = beginning.model.size
        self._seconds = 0.0
        return super()._wire(beginning)

    def prepare(self, user: int) -> float:
        """Advertise keys and share secrets with everybody of the round: two round trips."""
        if user not in self._roster:
            self._roster.append(user)
        shares = self._devices.upload(_ENVELOPE * self._config.users_at_once)
        return shares + 3 * self._devices.config.latency

    def _sum_up(self, updates: Mapping[MaskName, Vector], weights: list[float]) -> Outcome:
        roster, self._roster = self._roster, []
        seat = {user_name(user): index for index, user in enumerate(roster)}
        inputs = {seat[n.contributor]: self._quantize(n, update) for n, update in updates.items()}
        parameters = round_parameters(self._config, len(roster), self._size)
        round_ = SecAggRound(
            parameters, entropy=lambda index: self._entropy(f"masks/{user_name(roster[index])}")
        )
        outcome = round_.run(inputs, {"inputs": set(range(len(roster))) - set(inputs)})
        self._seconds = self._charge(round_, parameters)
        if isinstance(outcome, RoundFailed):
            return Burned(outcome.reason)
        total = signed(outcome.total, self._config.modulus) / float(self._config.update_levels)
        return Opened(total, tuple(weights))

    def _opening_seconds(self) -> float:
        return self._seconds

    def _quantize(self, name: MaskName, update: Vector) -> Words:
        config = self._config
        clipped, count = clip_update(update, config.clip)
        self.counts["clipped elements"] += count
        coins = derive_seed(self._entropy(f"masks/{name.contributor}")(32), "rounding")
        words = WordStream(coins).draw(clipped.size)
        return quantize(clipped, config.update_levels, config.modulus, words)

    def _charge(self, round_: SecAggRound, parameters: SecAggParameters) -> float:
        """Book the round's costs; return the simulated time from the last upload to the open sum."""
        meter, users = self.network.meter, parameters.num_holders
        for account, seconds in round_.seconds.items():
            meter.seconds["contributor" if account.role == "user" else "server"] += seconds
        for account, size in round_.sent.items():
            meter.bytes_sent[f"{account.phase} from {account.role}"] += size
            meter.messages[f"{account.phase} from {account.role}"] += 1
        work = sum(round_.seconds[CostKey("server", phase)] for phase in PHASES)
        work += round_.seconds[CostKey("user", "unmasking")] / users
        if self._config.crypto_time == "prices":
            survivors, neighbours = self._config.buffer_size, len(parameters.graph[0])
            dropped = users - survivors
            work = open_pairwise(self._size, survivors, dropped, neighbours, parameters.threshold)
        answers = round_.sent[CostKey("user", "unmasking")] / users
        return work + self._devices.config.latency + self._devices.upload(answers)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return super().state() | {"entropy": dict(self._entropy.drawn), "roster": self._roster}


def round_parameters(config: SimulationConfig, users: int, model_size: int) -> SecAggParameters:
    """t = ⌈2K/3⌉ on the complete graph; for SecAgg+ the sparsest graph that keeps a tenth of the users out."""
    survivors, graph = config.buffer_size, complete(users)
    threshold = max(2, ceil(2 * survivors / 3))
    if config.pair.guard.sparse:
        sparse = choose_degree(users, max(1, users // 10), users - survivors)
        if sparse is not None:
            degree, threshold = sparse
            graph = random_regular(users, degree)
    return SecAggParameters(
        num_holders=users, threshold=threshold, vector_size=model_size, graph=graph
    )
