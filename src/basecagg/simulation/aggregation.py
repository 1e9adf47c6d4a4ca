"""The server of a simulated run, plain or secure: takes updates, and publishes a model when its sum is open.

Opening takes simulated time; users can download the new version only when it is over.
"""

from __future__ import annotations

import hashlib
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, RememberingVerifier
from basecagg.costs import Prices, share_bytes, shares_bytes
from basecagg.errors import BudgetSpent, LocalProtocolError
from basecagg.maths.randomness import Seed, WordStream, derive_seed
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Abandoned, Effect, MaskEnded, Released, Uploaded
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.messages import MAX_MASKS, MaskName, PlainUpdate
from basecagg.protocol.plain import PlainOpening
from basecagg.protocol.recomputation import recompute
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.server import Server, ServerSettings
from basecagg.protocol.step_rule import StepRule
from basecagg.protocol.weighing import Weighing
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.devices import Devices
from basecagg.simulation.federation import Federation
from basecagg.simulation.loopback import AT_SERVER, Address, Letter
from basecagg.simulation.metering import MeteredLoopback
from basecagg.simulation.spending import Spending
from basecagg.simulation.step_log import StepLog
from basecagg.simulation.summing import Summing, Watch
from basecagg.storage.memory import MemoryStore

_TOGETHER, _UNDELIVERED_BYTES = 64, 2**26
"""Users whose dealings are delivered at once, and the most that may wait meanwhile."""
_AHEAD_BYTES = 2**29
"""Shares of masks that are dealt ahead take so much memory at most; else users deal one mask at a time."""
_HELD_BYTES = 2**30
"""Shares of those who train and wait take so much at most; else a mask is dealt when its update is there."""
_ANSWER_DEADLINE = 10.0
"""Simulated seconds that the server waits for answers before it asks again."""


class Publication(NamedTuple):
    """A version of the model, and the simulated time from which users can download it."""

    at: float
    version: int
    model: Vector


def user_name(user: int) -> str:
    """The name of a simulated user."""
    return f"user-{user}"


def user_number(name: str) -> int:
    """The simulated user of this name."""
    return int(name.rpartition("-")[2])


@dataclass(frozen=True, eq=False)
class Beginning:
    """What the server of one epoch is made from. `state` is that of a checkpoint, or nothing."""

    config: SimulationConfig
    model: Vector
    step: StepRule
    devices: Devices
    state: Mapping[str, Any] = field(default_factory=dict)

    def store(self, at: Address) -> MemoryStore:
        """The store of a machine, as it was saved."""
        return MemoryStore(self.state.get("stores", {}).get(f"{at.role}/{at.name}"))


class ServerAggregation(Summing):
    """What plain and secure runs share: a server machine, and when its versions are published."""

    def __init__(self, beginning: Beginning) -> None:
        """Publish the first model at once, or go on from a saved state."""
        self._config, self._devices = beginning.config, beginning.devices
        self._uploaded: dict[int, int] = {}
        """The last version that each user uploaded from, where nobody may upload from one twice."""
        self._once = False
        self.network = self._wire(beginning)
        self.now = 0.0
        self.steps = StepLog()
        self.counts: Counter[str] = Counter()
        self.version, self.model = self.server.version, self.server.model
        """t and x^(t), as published at present."""
        self.pending: deque[Publication] = deque()
        if beginning.state:
            self._restore(beginning.state)

    @abstractmethod
    def _wire(self, beginning: Beginning) -> MeteredLoopback:
        """The network, with the server's machine on it."""

    @property
    def server(self) -> Server:
        """The server's machine."""
        return self.network.server

    @property
    def is_opening(self) -> bool:
        """Whether K updates have met, and the version that they make is not published yet."""
        return bool(self.pending)

    def waiting(self) -> set[int]:
        """The users whose updates wait to be summed, or who may not train from the present version again."""
        buffered = {user_number(update.name.contributor) for update in self.server.buffer.waiting}
        resting = (user for user, base in self._uploaded.items() if base >= self.version)
        return buffered.union(filter(self._rests, resting))

    def _rests(self, user: int) -> bool:
        """Whether a user that has uploaded from the present version has to wait for the next."""
        return True

    def _note_upload(self, user: int, base_version: int) -> None:
        if self._once:
            self._uploaded[user] = base_version

    def advance(self, now: float) -> float:
        """Publish what is due; returns when the next version is."""
        self.now = now
        while self.pending and self.pending[0].at <= now:
            _, self.version, self.model = self.pending.popleft()
        return self.pending[0].at if self.pending else inf

    def take_step(self, version: int) -> tuple[Released | None, int]:
        """The sum that made this version, and how many were burned."""
        return self.steps.take(version)

    @abstractmethod
    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Take the update of a user that trained from version t_i."""

    def totals(self, updates: int) -> dict[str, Any]:
        """What it cost, and what happened."""
        meter = self.network.meter
        return {
            "crypto seconds": dict(meter.seconds),
            "bytes": dict(meter.bytes_sent),
            "counts": dict(self.counts),
        }

    def _publish(self, before: int, seconds: float) -> None:
        """A new version can be downloaded once the time to open it has passed."""
        server = self.server
        if server.version != before:
            begun = max(self.now, self.pending[-1].at if self.pending else 0.0)  # one at a time
            self.pending.append(Publication(begun + seconds, server.version, server.model))

    def _collect_news(self) -> None:
        for news in self.network.news:
            if isinstance(news, Released | Abandoned):
                self.steps.append(news)
                if isinstance(news, Released) and not news.applied:
                    self.counts["sums not applied"] += 1
            elif isinstance(news, Uploaded):
                self.counts["clipped elements"] += news.clipped
            elif isinstance(news, MaskEnded):
                self.counts[f"updates {news.state}"] += 1
        self.network.news = []

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "published": [self.version, self.model],
            "waiting": [list(publication) for publication in self.pending],
            "steps": self.steps.state(),
            "counts": dict(self.counts),
            "uploaded": self._uploaded,
            "seconds": dict(self.network.meter.seconds),
            "bytes": dict(self.network.meter.bytes_sent),
            "messages": dict(self.network.meter.messages),
            "stores": {
                f"{address.role}/{address.name}": node.store.snapshot()
                for address, node in self.network.nodes.items()
                if isinstance(node.store, MemoryStore)
            },
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the stores were there from the beginning."""
        self.pending = deque(Publication(*each) for each in state["waiting"])
        self.version, self.model = state["published"]
        self.steps = StepLog.restored(state["steps"])
        self.counts = Counter(state["counts"])
        self._uploaded = dict(state.get("uploaded", {}))
        meter = self.network.meter
        meter.seconds.update(state["seconds"])
        meter.bytes_sent = Counter(state["bytes"])
        meter.messages = Counter(state["messages"])


class PlainAggregation(ServerAggregation):
    """Protection none: FedBuff, or FedAvg when all updates of a buffer come from one version."""

    _network = MeteredLoopback
    _serial = 0

    def _wire(self, beginning: Beginning) -> MeteredLoopback:
        config, store = beginning.config, beginning.store(AT_SERVER)
        weighing, least = self._weighing(beginning)
        settings = ServerSettings(config.buffer_size, weighing, least, beginning.step)
        opening = self._opening(beginning, weighing, store)
        network = self._network()
        network.add(AT_SERVER, Server(settings, opening, store, beginning.model), store)
        return network

    def _weighing(self, beginning: Beginning) -> tuple[Weighing, int]:
        """And m: whoever reads every update learns nothing more from a version with one member."""
        config = beginning.config
        return Weighing(config.max_staleness, config.staleness_function, weight_levels=None), 1

    def _opening(
        self, beginning: Beginning, weighing: Weighing, store: MemoryStore
    ) -> PlainOpening:
        return PlainOpening(beginning.model.size, weighing, store)

    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Send the update in clear."""
        before, name = self.server.version, user_name(user)
        self._serial += 1
        mask = MaskName(name, self._serial.to_bytes(16, "big"))
        digest = self.server.head_of(base_version) or bytes(32)
        values = update.astype("<f4", copy=False).tobytes()
        message = PlainUpdate(mask, base_version, digest, values)
        self._note_upload(user, base_version)
        self.network.post(Letter(name, AT_SERVER, message))
        self.network.run()
        self._collect_news()
        self._publish(before, self._opening_seconds())

    def _opening_seconds(self) -> float:
        """Simulated time from the last upload to the open sum."""
        return 0.0

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return super().state() | {"serial": self._serial}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        self._serial = state["serial"]


def travel(parameters: ProtocolParameters, devices: Devices) -> float:
    """Simulated time of questions and answers on the wire."""
    questions = 2 if parameters.consistency == "certified" else 1
    answer = devices.upload(share_bytes(parameters))
    return (2 * questions - 1) * devices.config.latency + answer


def deals_late(config: SimulationConfig, shipment: int) -> bool:
    """Whether a mask is dealt when its update is there: for large models, if time is charged by price."""
    held = min(config.users, config.users_at_once + config.buffer_size)
    return held * shipment > _HELD_BYTES and config.crypto_time == "prices"


def seed_of(run: int, name: MaskName) -> bytes:
    """The seed of one mask in a run without contributors: the same in every run with this seed."""
    return hashlib.sha256(f"{run}/{name.key}".encode()).digest()


class SeededEntropy:
    """Randomness of a repeatable run: every key and mask from the run's seed. Only for simulations."""

    def __init__(self, seed: int, drawn: Mapping[str, int]) -> None:
        """Go on after the masks that were drawn before; keys are drawn once, and so again the same."""
        self._root = Seed(seed.to_bytes(32, "big"))
        self.drawn = Counter({key: n for key, n in drawn.items() if key.startswith("masks/")})

    def __call__(self, purpose: str) -> Callable[[int], bytes]:
        """A source of bytes for one purpose."""

        def draw(count: int) -> bytes:
            self.drawn[purpose] += 1
            child = derive_seed(self._root, f"{purpose}/{self.drawn[purpose]}")
            return WordStream(child).draw(-(-count // 4)).tobytes()[:count]

        return draw


class SecureAggregation(ServerAggregation):
    """Protection basecagg: the machines themselves, sealed and signed."""

    def _wire(self, beginning: Beginning) -> MeteredLoopback:
        config, state = beginning.config, beginning.state
        # Of contributors that have not been needed since the run was resumed.
        self._dormant = state.get("stores", {})
        self._entropy = SeededEntropy(config.seed, state.get("entropy", {}))
        self._parameters = config.protocol_parameters(beginning.model.size)
        self._once = self._parameters.once_per_version
        self._spending = Spending(self._parameters.mechanism, state.get("spent", 0.0))
        self._prices = Prices(self._parameters, cryptography=True)
        self._absent = np.random.default_rng((config.seed, 0xAB5E))
        self._undelivered: dict[str, list[Effect]] = {}
        quota, size = self._parameters.mask_quota, shares_bytes(self._parameters)
        self._late = deals_late(config, size)
        ahead = config.users * quota * size
        self._at_once = min(quota, MAX_MASKS) if ahead <= _AHEAD_BYTES else 1
        self._together = max(1, min(_TOGETHER, _UNDELIVERED_BYTES // (self._at_once * size)))
        verifier = RememberingVerifier(Ed25519Verifier())
        network = MeteredLoopback(verifier)
        prefix = "holder" if config.holders else "user"
        self._federation = Federation(
            self._parameters,
            beginning.model,
            holders=[f"{prefix}-{index}" for index in range(self._parameters.num_holders)],
            step=beginning.step,
            keep=int(config.verify and not self._late),
            make_store=beginning.store,
            network=network,
            verifier=verifier,
            entropy=self._entropy,
            keeps_masks=True,
        )
        network.saved = lambda: self.agreement.checks_saved
        return network

    def watch(self, watch: Watch) -> None:
        """Show the epoch."""
        watch(self.agreement, self.network, self._federation.identity(SERVER))

    @property
    def agreement(self) -> Agreement:
        """The epoch."""
        return self._federation.agreement

    def _rests(self, user: int) -> bool:
        return not self._federation.contributor(user_name(user)).may_train_from(self.version)

    def affords(self, user: int) -> bool:
        """As its own machine says."""
        return self._federation.contributor(user_name(user)).may_spend

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a contributor has spent so far."""
        return self._spending.epsilon

    def prepare(self, user: int) -> float:
        """Deal masks, unless one is left. A user pays for one when it begins to train, not when it deals it."""
        seconds = 0.0 if self._late else self._deal(user_name(user))
        if self._config.crypto_time == "prices":
            seconds = self._prices.deal()
        return seconds + self._devices.upload(shares_bytes(self._parameters))

    def _deal(self, name: str) -> float:
        version = self.server.version
        if name in self._undelivered:
            return 0.0
        contributor = self._federation.contributor(name)
        self.network.perform(Address("contributor", name), contributor.expire(version))
        if contributor.ready:
            return 0.0
        started, remembered = time.process_time(), self.network.remembered
        self._undelivered[name] = contributor.deal_ahead(version, self._at_once)
        seconds = self.network.charge("contributor", started, remembered)
        if len(self._undelivered) == self._together:
            self._deliver()
        return seconds

    def _deliver(self) -> None:
        """Dealings of several users at once: a holder looks into its mailbox now and then, and confirms all."""
        for name, dealt in self._undelivered.items():
            self.network.perform(Address("contributor", name), dealt)
        self._undelivered.clear()
        self.network.run()
        self._collect_news()

    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Mask the update, upload it, and open the sum if the buffer is full."""
        before, name = self.server.version, user_name(user)
        digest = self.server.head_of(base_version)
        if self._late and digest is not None:
            self._deal(name)
        if name in self._undelivered:
            self._deliver()
        if digest is None or not self._federation.contributor(name).ready:
            self.counts["updates too stale"] += 1
            return
        started, remembered = time.process_time(), self.network.remembered
        try:
            self._federation.submit(name, update, base_version, digest)
        except BudgetSpent:
            self.counts["updates beyond the budget"] += 1
            return
        except LocalProtocolError:  # the same examples from the same version gave the same update
            self.counts["updates sent before"] += 1
            return
        self._note_upload(user, base_version)
        self._spending.note(self._federation.contributor(name).ledger)
        masking = self.network.charge("contributor", started, remembered)
        self._choose_absent_holders()
        spent = dict(self.network.meter.seconds)
        deadlines = self._run()
        self._collect_news()
        self._make_again(before)
        if self._config.crypto_time == "prices":
            work = self._prices.mask() + self._prices.open() + self._prices.answer()
        else:
            work = masking + self._measured_opening(spent)
        waited = deadlines * _ANSWER_DEADLINE
        self._publish(before, work + waited + travel(self._parameters, self._devices))

    def _make_again(self, before: int) -> None:
        """Whoever is a member can do this: it is nobody's work in the simulated time."""
        opening = self.server.opening
        if not self._config.verify or not isinstance(opening, Recovery):
            return
        for version in range(before + 1, self.server.version + 1):
            parts = opening.parts(version)
            if parts is not None:
                recompute(self.agreement, parts)
                self.counts["versions recomputed, all equal"] += 1

    def _run(self) -> int:
        """Deliver everything; return how often the server's deadline had to pass.

        Holders who were absent are back after the first: silence burns nothing, so the server waits for them.
        """
        deadlines = 0
        self.network.run()
        while self.server.is_opening:
            deadlines += 1
            if deadlines > 1:
                self.network.deaf = set()
            self.network.perform(AT_SERVER, self.server.deadline())
            self.network.run()
        return deadlines

    def _choose_absent_holders(self) -> None:
        names = self._federation.agreement.holder_names
        count = int(self._config.holder_dropout * len(names))
        absent = self._absent.choice(len(names), count, replace=False)
        self.network.deaf = {names[index] for index in absent}

    def _measured_opening(self, before: Mapping[str, float]) -> float:
        """Work from the last upload to the open sum: holders work side by side."""
        seconds = self.network.meter.seconds
        server = seconds["server"] - before.get("server", 0.0)
        holders = seconds["holder"] - before.get("holder", 0.0)
        return server + holders / self._parameters.num_holders

    def upload_bytes(self, model_size: int) -> int:
        """Bytes of one upload."""
        return 4 * self._parameters.padded_size

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        self._deliver()
        state = super().state()
        return state | {
            "entropy": dict(self._entropy.drawn),
            "absent": self._absent.bit_generator.state,
            "spent": self._spending.spent,
            "stores": {**self._dormant, **state["stores"]},
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        self._absent.bit_generator.state = state["absent"]
