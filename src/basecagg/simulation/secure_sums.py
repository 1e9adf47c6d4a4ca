"""Protections basecagg and lightsecagg as they are: the machines themselves, sealed and signed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, RememberingVerifier
from basecagg.costs import Prices, shares_bytes
from basecagg.errors import BudgetSpent, LocalProtocolError
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.messages import MAX_MASKS, Message
from basecagg.protocol.recomputation import recompute
from basecagg.schedules.schedule import Vector
from basecagg.simulation.beginning import Beginning, SeededEntropy, user_name
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.federation import Federation
from basecagg.simulation.field_sums import travel
from basecagg.simulation.metering import MeteredLoopback
from basecagg.simulation.private_sums import Spending
from basecagg.simulation.sums import Sums, Watch

_TOGETHER, _UNDELIVERED_BYTES = 64, 2**26
"""Users whose dealings are delivered at once, and the most that may wait meanwhile."""
_AHEAD_BYTES = 2**29
"""Shares of masks that are dealt ahead take so much RAM at most; else users deal one mask at a time."""
_HELD_BYTES = 2**30
"""Shares of those who train and wait take so much at most; else a mask is dealt when its update is there."""
_PARTS_BYTES = 2**28
"""Parts of a version take so much at most; else no version is made again."""


def deals_late(config: SimulationConfig, shipment: int) -> bool:
    """Whether a mask is dealt when its update is there: for large models, if time is charged by price."""
    held = min(config.users, config.users_at_once + config.buffer_size)
    return held * shipment > _HELD_BYTES and config.crypto_time == "prices"


def makes_again(config: SimulationConfig, parameters: ProtocolParameters) -> bool:
    """Whether versions are made again from their parts: not of large models, whose parts take too much."""
    return config.verify == "always" and parameters.parts_bytes <= _PARTS_BYTES


class SecureSums(Sums):
    """A federation in memory. Users' masks are dealt before they train, several users' at once."""

    def __init__(self, beginning: Beginning) -> None:
        """Begin the epoch with its operator, server and holders; contributors come when they are needed."""
        verifier = RememberingVerifier(Ed25519Verifier())
        self._metered = MeteredLoopback(beginning.meter, verifier)
        super().__init__(beginning, self._metered)
        config, state = beginning.config, beginning.state
        # The first draw of a member is its coin when it joins; masks are numbered from 1.
        self._entropy = SeededEntropy(config.seed, state.get("entropy", {}), first=0)
        self._parameters = config.protocol_parameters(beginning.model.size)
        self.once = self._parameters.once_per_version
        self._spending = Spending(self._parameters.mechanism, state.get("spent", 0.0))
        self._prices = Prices(self._parameters, cryptography=True)
        self._seconds = 0.0
        self._absent = np.random.default_rng((config.seed, 0xAB5E))
        if "absent" in state:
            self._absent.bit_generator.state = state["absent"]
        self._undelivered: dict[str, list[Message]] = {}
        quota, size = self._parameters.mask_quota, shares_bytes(self._parameters)
        self._late = deals_late(config, size)
        ahead = config.users * quota * size
        self._at_once = min(quota, MAX_MASKS) if ahead <= _AHEAD_BYTES else 1
        self._together = max(1, min(_TOGETHER, _UNDELIVERED_BYTES // (self._at_once * size)))
        prefix = "holder" if config.holders else "user"
        self._federation = Federation(
            self._parameters,
            beginning.model,
            holders=[f"{prefix}-{index}" for index in range(self._parameters.num_holders)],
            step=beginning.step,
            keep=int(makes_again(config, self._parameters)),
            make_store=beginning.stores.open,
            network=self.network,
            verifier=verifier,
            entropy=self._entropy,
            keeps_masks=True,
        )
        self._metered.saved = lambda: self._federation.agreement.checks_saved

    # --- before an update is there --------------------------------------------------------------

    def affords(self, user: int) -> bool:
        """As its own machine says."""
        contributor = self._federation.member(user_name(user)).participant.working()
        return contributor.may_spend

    def rests(self, user: int, version: int) -> bool:
        """As its own machine says."""
        contributor = self._federation.member(user_name(user)).participant.working()
        return not contributor.may_train_from(version)

    def prepare(self, user: int) -> float:
        """Deal masks, unless one is left or each comes with its update.

        A user pays for a mask when it begins to train, not when it deals it.
        """
        if self._parameters.one_visit:
            return 0.0
        seconds = 0.0 if self._late else self._deal(user_name(user))
        if self._config.crypto_time == "prices":
            seconds = self._prices.deal()
        return seconds + self._devices.upload(shares_bytes(self._parameters))

    @property
    def upload_bytes(self) -> int:
        """Bytes of one upload, with the shares of its mask if they come with it."""
        p = self._parameters
        return p.word_bytes * p.padded_size + (shares_bytes(p) if p.one_visit else 0)

    def _deal(self, name: str) -> float:
        if name in self._undelivered:
            return 0.0
        before = self._meter.seconds["contributor"]
        with self._metered.charging("contributor"):
            member = self._federation.informed(name)
            # A mask may have to wait in the buffer until its update is too old.
            lasting = self.server.version + self._parameters.max_staleness
            ready = member.participant.working().ready
            is_ready = any(mask.expires >= lasting for mask in ready)
            dealt = member.deal(1 if is_ready else self._at_once)
        if dealt:
            self._undelivered[name] = dealt
        seconds = self._meter.seconds["contributor"] - before
        if len(self._undelivered) == self._together:
            self._deliver()
        return seconds

    def _deliver(self) -> None:
        """Dealings of several users at once: a holder looks into its mailbox now and then, and confirms all."""
        for name, dealt in self._undelivered.items():
            self.network.send(name, dealt)
        self._undelivered.clear()
        self.network.run()

    # --- from updates to a sum ------------------------------------------------------------------

    def send(self, user: int, update: Vector, base_version: int) -> bool:
        """Mask the update, upload it, and open the sum if the buffer is full."""
        before, name = self.server.version, user_name(user)
        digest = self.server.head_of(base_version)
        if self._late and digest is not None and not self._parameters.one_visit:
            self._deal(name)
        if name in self._undelivered:
            self._deliver()
        contributor = self._federation.member(name).participant.working()
        if digest is None or not contributor.is_ready:
            self._counts["updates too stale"] += 1
            return False
        spent = self._meter.seconds.copy()
        try:
            with self._metered.charging("contributor"):
                self._federation.submit(name, update, base_version, digest)
        except BudgetSpent:
            self._counts["updates beyond the budget"] += 1
            return False
        except LocalProtocolError:  # the same examples from the same version gave the same update
            self._counts["updates sent before"] += 1
            return False
        masking = self._meter.seconds["contributor"] - spent["contributor"]
        self._spending.note(contributor.ledger)
        self._choose_absent_holders()
        deadlines = self._open()
        self._make_again(before)
        work = masking + self._measured_opening(spent)
        if self._config.crypto_time == "prices":
            work = self._prices.upload() + self._prices.open() + self._prices.answer()
        waited = deadlines * self._config.answer_timeout
        self._seconds = work + waited + travel(self._parameters, self._devices)
        return True

    def _open(self) -> int:
        """Deliver everything; return how often the server's deadline had to pass.

        Holders who were absent are back after the first: silence burns nothing, so the server waits for them.
        """
        deadlines = 0
        self.network.run()
        while self.server.is_opening or self.server.waits_for_others:
            deadlines += 1
            if deadlines > 1:
                self._metered.deaf = set()
            self.network.server.deadline()
            self.network.run()
        return deadlines

    def _choose_absent_holders(self) -> None:
        names = self._federation.agreement.holder_names
        count = int(self._config.holder_dropout * len(names))
        absent = self._absent.choice(len(names), count, replace=False)
        self._metered.deaf = {names[index] for index in absent}

    def _make_again(self, before: int) -> None:
        """Every member can do this: it is nobody's work in the simulated time."""
        if self._config.verify == "never":
            return
        for version in range(before + 1, self.server.version + 1):
            parts = self.network.server.kept.parts(version)
            if parts is not None:
                recompute(self._federation.agreement, parts)
                self._counts["versions recomputed, all equal"] += 1

    def _measured_opening(self, before: Mapping[str, float]) -> float:
        """Work from the last upload to the open sum: holders work side by side."""
        seconds = self._meter.seconds
        holders = (seconds["holder"] - before["holder"]) / self._parameters.num_holders
        return seconds["server"] - before["server"] + holders

    def opening_seconds(self) -> float:
        """As the last opening took."""
        return self._seconds

    # --- what is known of it --------------------------------------------------------------------

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a contributor has spent so far."""
        return self._spending.epsilon

    def watch(self, watch: Watch) -> None:
        """Show the epoch."""
        watch(self._federation.agreement, self.network, self._federation.identity(SERVER))

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        self._deliver()
        return super().state() | {
            "entropy": dict(self._entropy.drawn),
            "absent": self._absent.bit_generator.state,
            "spent": self._spending.spent,
        }
