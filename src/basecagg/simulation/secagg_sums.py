"""SecAgg and SecAgg+ in simulated rounds: the threshold and graph of a round, and the sum of its updates."""

from __future__ import annotations

from math import ceil
from typing import Any

from basecagg.baselines.secagg import SecAggParameters
from basecagg.baselines.secagg_graph import choose_degree, complete, random_regular
from basecagg.baselines.secagg_server import RoundFailed
from basecagg.baselines.shamir import SHARE_BYTES
from basecagg.costs import open_pairwise
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import clip_update, quantize, signed
from basecagg.maths.randomness import Words, WordStream, derive_seed
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Burned, Opened, Outcome
from basecagg.schedules.schedule import Vector
from basecagg.simulation.beginning import Beginning, SeededEntropy, user_name
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.loopback import Loopback
from basecagg.simulation.secagg_round import PHASES, CostKey, SecAggRound
from basecagg.simulation.sums import Sums, Updates, in_clear

_ENVELOPE = 2 * SHARE_BYTES + 28
"""Bytes of two sealed shares."""


class SecAggSums(Sums):
    """Protection secagg or secagg+. Users that started but are not among the first K have dropped out.

    Differs from Bonawitz et al.: users that the schedule starts in place of dropouts join the round's roster.
    """

    def __init__(self, beginning: Beginning) -> None:
        """Begin with an empty roster. The network is not metered: costs are booked by the round."""
        self._entropy = SeededEntropy(beginning.config.seed, beginning.state.get("entropy", {}))
        self._roster: list[int] = list(beginning.state.get("roster", []))
        self._seconds = 0.0
        super().__init__(beginning, in_clear(beginning, self.sum_up, network=Loopback()))

    def prepare(self, user: int) -> float:
        """Advertise keys and share secrets with everybody of the round: two round trips."""
        if user not in self._roster:
            self._roster.append(user)
        shares = self._devices.upload(_ENVELOPE * self._config.users_at_once)
        return shares + 3 * self._devices.config.latency

    def sum_up(self, updates: Updates, weights: list[float]) -> Outcome:
        """Run the round: who is on its roster and not among these has dropped out."""
        roster, self._roster = self._roster, []
        seat = {user_name(user): index for index, user in enumerate(roster)}
        inputs = {seat[n.contributor]: self._quantize(n, update) for n, update in updates.items()}
        parameters = round_parameters(self._config, len(roster), self.server.model.size)
        round_ = SecAggRound(
            parameters, entropy=lambda index: self._entropy(f"masks/{user_name(roster[index])}")
        )
        outcome = round_.run(inputs, {"inputs": set(range(len(roster))) - set(inputs)})
        self._seconds = self._charge(round_, parameters)
        if isinstance(outcome, RoundFailed):
            return Burned(outcome.reason)
        total = signed(outcome.total, PAPER_MODULUS) / float(self._config.update_levels)
        return Opened(total, tuple(weights))

    def opening_seconds(self) -> float:
        """As the last round took."""
        return self._seconds

    def _quantize(self, name: MaskName, update: Vector) -> Words:
        config = self._config
        clipped, count = clip_update(update, config.clip)
        self._counts["clipped elements"] += count
        coins = derive_seed(self._entropy(f"masks/{name.contributor}")(32), "rounding")
        words = WordStream(coins).draw(clipped.size)
        return quantize(clipped, config.update_levels, PAPER_MODULUS, words)

    def _charge(self, round_: SecAggRound, parameters: SecAggParameters) -> float:
        """Book the round's costs; return the simulated time from the last upload to the open sum."""
        users = parameters.num_holders
        for account, seconds in round_.seconds.items():
            self._meter.seconds["contributor" if account.role == "user" else "server"] += seconds
        for account, size in round_.sent.items():
            self._meter.add(f"{account.phase} from {account.role}", size)
        work = sum(round_.seconds[CostKey("server", phase)] for phase in PHASES)
        work += round_.seconds[CostKey("user", "unmasking")] / users
        if self._config.crypto_time == "prices":
            survivors, neighbours = self._config.buffer_size, len(parameters.graph[0])
            dropped, size = users - survivors, self.server.model.size
            work = open_pairwise(size, survivors, dropped, neighbours, parameters.threshold)
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
