"""How the updates of a run are protected, sent and summed: each protection is a kind of `Sums`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.maths.robust_means import ROBUST_MEANS, distance
from basecagg.parties.epoch_server import EpochServer, Server, ServerSettings
from basecagg.planning.budget import noise_of
from basecagg.protocol.buckets import Bucket, agreements, partition
from basecagg.protocol.effects import Store
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.messages import History, MaskName, PlainUpdate
from basecagg.protocol.opening import Burned, Move, Opened, Outcome, PlainOpening, sum_of_numbers
from basecagg.protocol.ports import Signer
from basecagg.protocol.stored import BufferedUpdate
from basecagg.protocol.weighing import Weighing
from basecagg.schedules.schedule import Vector
from basecagg.simulation.beginning import NOISE, Beginning, user_name
from basecagg.simulation.loopback import Loopback
from basecagg.simulation.metering import MeteredLoopback

Updates: TypeAlias = Mapping[MaskName, Vector]
Reals: TypeAlias = npt.NDArray[np.float64]
SumUp: TypeAlias = Callable[[Updates, list[float]], Outcome]
Watch: TypeAlias = Callable[[Agreement, Loopback, Signer], object]
"""Is shown an epoch, its network and its server's signer."""


class Sums:
    """Protection none: updates are sent in clear, and the server adds them up at once.

    FedBuff, or FedAvg when all updates of a buffer come from one version. Kinds that take updates in clear too
    replace `sum_up`; a kind with messages of its own replaces `send`.
    """

    once = False
    """Whether nobody may upload twice from one version."""

    def __init__(self, beginning: Beginning, network: Loopback | None = None) -> None:
        """Use a network with the server on it, or make one."""
        self._config, self._devices = beginning.config, beginning.devices
        self._counts, self._meter = beginning.counts, beginning.meter
        self._serial = beginning.state.get("serial", 0)
        self._stores = beginning.stores
        self.network = network or in_clear(beginning, self.sum_up)

    @property
    def server(self) -> Server:
        """The server's machine."""
        return self.network.server.machine

    # --- before an update is there --------------------------------------------------------------

    def affords(self, user: int) -> bool:
        """Whether the user's budget of privacy allows another update."""
        return True

    def prepare(self, user: int) -> float:
        """What the user does before it has an update; returns the simulated seconds this takes."""
        return 0.0

    @property
    def upload_bytes(self) -> int:
        """Bytes of one upload."""
        return 4 * self.server.model.size

    def rests(self, user: int, version: int) -> bool:
        """Whether a user that has uploaded from this version, which is published, waits for the next one."""
        return True

    # --- from updates to a sum ------------------------------------------------------------------

    def send(self, user: int, update: Vector, base_version: int) -> bool:
        """Send the update, and open the sum if it fills the buffer. False if it was not sent."""
        name, digest = user_name(user), self.server.head_of(base_version)
        own = self.server.settings.weighing.by == "own"
        if own and digest is None:
            self._counts["updates too stale"] += 1
            return False
        self._serial += 1
        mask = MaskName(name, self._serial.to_bytes(16, "big"))
        values = update.astype("<f4", copy=False).tobytes()
        told = self.server.version - base_version if own else 0
        message = PlainUpdate.unsigned(mask, base_version, digest or bytes(32), values, told)
        self.network.send(name, [message])
        self.network.run()
        return True

    def sum_up(self, updates: Updates, weights: list[float]) -> Outcome:
        """From the updates of a full buffer to Σ s·Δ."""
        return Opened(self._plain_sum(updates, weights), tuple(weights))

    def _plain_sum(self, updates: Updates, weights: list[float]) -> Reals:
        return sum_of_numbers(updates.values(), weights, self.server.model.size)

    def opening_seconds(self) -> float:
        """Simulated time from the last upload to the open sum."""
        return 0.0

    # --- what is known of it --------------------------------------------------------------------

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a user has spent so far; None where sums promise nothing."""
        return None

    def watch(self, watch: Watch) -> None:
        """Show the epoch, if it has keys."""

    def totals(self) -> dict[str, Any]:
        """What else is to be told at the end of the run."""
        return {}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"stores": self._stores.state(), "serial": self._serial}


class TrustedSums(Sums):
    """Central differential privacy: a server that sees every update is trusted to add noise to their sums.

    It is there to be compared with sums for which nobody has to be trusted. Users have clipped their updates,
    and noise of σ = z·C is added once.
    """

    def __init__(self, beginning: Beginning) -> None:
        """Weigh as private sums do, which these are compared with."""
        config = beginning.config
        weighing = Weighing(config.max_staleness, config.staleness_function)
        super().__init__(beginning, in_clear(beginning, self.sum_up, weighing))

    def sum_up(self, updates: Updates, weights: list[float]) -> Outcome:
        """Σ s·Δ + N(0, σ²)."""
        generator = np.random.default_rng((self._config.seed, NOISE, self.server.version))
        total = self._plain_sum(updates, weights)
        noise = generator.normal(0, noise_of(self._config) * self._config.clip_norm, total.size)
        return Opened(total + noise, tuple(weights))


class _SummedHere(PlainOpening):
    """Takes updates in clear, and hands those of a full buffer with their weights to `sum_up`.

    Where there are buckets, those of each by themselves.
    """

    def __init__(
        self,
        size: int,
        weighing: Weighing,
        store: Store,
        sum_up: SumUp,
        buckets: tuple[int, str],
    ) -> None:
        super().__init__(size, weighing, store)
        self._sum_up = sum_up
        self._bucket_size, self._robust_mean = buckets

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Move:
        """The sum, at once, or why there is none."""
        if self._bucket_size == len(members):
            return [], self._sum(history.last, members)
        # Here the chain of models stands for the certificate: nobody knows it before the last sum is open.
        named = [(member.base_version, member.name) for member in members]
        places = partition(named, history.head, self._bucket_size)
        groups = [[members[place] for place in bucket] for bucket in places]
        sums = list[Opened]()
        for group in groups:
            match self._sum(history.last, group):
                case Opened() as opened:
                    sums.append(opened)
                case Burned() as burned:
                    return [], burned
        return [], robust(self._robust_mean, groups, sums)

    def _sum(self, version: int, members: Sequence[BufferedUpdate]) -> Outcome:
        weights = [self._weight(version, member) for member in members]
        updates = {member.name: self._numbers(member.name) for member in members}
        return self._sum_up(updates, weights)


def robust(kind: str, groups: Sequence[Sequence[BufferedUpdate]], sums: Sequence[Opened]) -> Opened:
    """The sums of all buckets as one: their robust mean, times the weight of all."""
    means = [each.weighted_sum / each.total_weight for each in sums]
    centre = ROBUST_MEANS[kind].of(means)
    weights = tuple(weight for each in sums for weight in each.weights)
    buckets = tuple(
        Bucket(
            tuple(member.name for member in group),
            group[0].base_version,
            agreement,
            distance(mean, centre),
        )
        for group, mean, agreement in zip(groups, means, agreements(means), strict=True)
    )
    return Opened(
        centre * math.fsum(weights),
        weights,
        applied=all(each.applied for each in sums),
        buckets=buckets,
    )


def in_clear(
    beginning: Beginning,
    sum_up: SumUp,
    weighing: Weighing | None = None,
    min_per_version: int = 1,
    network: Loopback | None = None,
    *,
    masked: bool = False,
) -> Loopback:
    """A network with a server that takes updates in clear, on which it weighs them by their age.

    It reads every update and learns nothing more from a version with one member, so m = 1 unless given.
    """
    config, store = beginning.config, beginning.stores.open(SERVER)
    # FedBuff's own: s(τ) with all its digits.
    weighing = weighing or Weighing(config.max_staleness, config.staleness_function, "field")
    buckets = config.bucket_size, config.robust_mean
    opening = _SummedHere(beginning.model.size, weighing, store, sum_up, buckets)
    # Where updates are masked a bucket has members of one version. In clear nobody hides behind another.
    together = config.bucket_size if masked and config.buckets > 1 else 1
    settings = ServerSettings(
        config.buffer_size, weighing, min_per_version, beginning.step, together=together
    )
    network = network or MeteredLoopback(beginning.meter)
    network.server = EpochServer(
        settings, opening, store, beginning.model, post=network.post_all, tell=network.tell
    )
    network.server.start()
    return network
