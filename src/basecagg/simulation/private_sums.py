"""Private sums without messages: contributors' ledgers, noise and weights, and the server's bound.

Every contributor's share of the noise is drawn by itself, by the code that contributors run, so sums have the
distribution that they have in a federation. What opened sums had on top of the updates is measured.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from basecagg.baselines.local_noise import clipped
from basecagg.errors import BudgetSpent
from basecagg.maths.accounting import epsilon_after
from basecagg.maths.randomness import Words
from basecagg.parameters import ProtocolParameters
from basecagg.planning.budget import hidden_lie
from basecagg.privacy import Mechanism
from basecagg.protocol.effects import writes_of
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.masking import hide, hide_with_noise, mask_of
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Opened
from basecagg.protocol.recomputation import within_bound
from basecagg.schedules.schedule import Vector
from basecagg.simulation.beginning import user_number
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.sums import Reals, Updates
from basecagg.storage.in_memory import MemoryStore

SIMULATED = bytes(32)
"""The id of an epoch without messages, from which a is drawn where masks grow from keys."""


def fresh_seed(seed: int, name: MaskName) -> bytes:
    """What a contributor draws for one upload alone; repeatable in a simulation."""
    return hashlib.sha256(f"{seed}/{name.key}/noise".encode()).digest()


class Spending:
    """The largest ε of any user so far. Nothing is spent where there is no noise."""

    def __init__(self, mechanism: Mechanism | None, spent: float = 0.0) -> None:
        """Go on with the largest Σρ of a checkpoint."""
        self.mechanism = mechanism if mechanism and mechanism.variance else None
        self.spent = spent
        """Σρ of the user who spent the most."""

    @property
    def epsilon(self) -> float | None:
        """ε at δ; None where nothing is promised."""
        if self.mechanism is None:
            return None
        delta, order = self.mechanism.conversion_delta, self.mechanism.order
        return epsilon_after(self.spent, delta, order)

    def note(self, ledger: PrivacyLedger) -> None:
        """A user has uploaded."""
        self.spent = max(self.spent, ledger.spent)


class PrivateSums:
    """What private sums need beside the field's arithmetic. Attackers hide what they like, without noise."""

    def __init__(
        self, config: SimulationConfig, parameters: ProtocolParameters, state: Mapping[str, Any]
    ) -> None:
        """Go on from a checkpoint, or from nothing."""
        assert parameters.mechanism is not None
        self._config, self._parameters = config, parameters
        self._mechanism = parameters.mechanism
        self._spending = Spending(self._mechanism, state.get("spent", 0.0))
        largest = parameters.room_for_sum / (2 * parameters.buffer_size * parameters.update_levels)
        self._unbounded = replace(
            parameters, privacy=None, clip=largest
        )  # what an attacker goes by
        saved = state.get("ledgers", {})
        self._stores = {user: MemoryStore(stored) for user, stored in saved.items()}
        self._ledgers: dict[int, PrivacyLedger] = {}
        self._told: dict[int, int] = dict(state.get("told", {}))
        """The staleness that each user told of the update that waits."""
        self.noise: dict[str, float] = {"elements": 0, "squared": 0.0, **state.get("noise", {})}
        """What sums had on top of Σ s·Δ so far, element by element, in units of an update."""

    # --- what users spend -------------------------------------------------------------------------

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a user has spent so far."""
        return self._spending.epsilon

    def affords(self, user: int) -> bool:
        """Whether a fresh upload is possible."""
        mechanism = self._spending.mechanism
        return mechanism is None or self._ledger_of(user).affords(mechanism)

    def pay(self, user: int, staleness: int) -> bool:
        """One more upload, written down before it is made; False if there is nothing left for it."""
        if self._spending.mechanism is not None:
            ledger = self._ledger_of(user)
            try:
                effects = ledger.charge(self._mechanism, staleness)
            except BudgetSpent:
                return False
            self._stores[user].commit(writes_of(effects))
            self._spending.note(ledger)
        self._told[user] = staleness
        return True

    def _ledger_of(self, user: int) -> PrivacyLedger:
        if user not in self._ledgers:
            store = self._stores.setdefault(user, MemoryStore())
            self._ledgers[user] = PrivacyLedger(store)
        return self._ledgers[user]

    # --- what they send, and what is opened -------------------------------------------------------

    def hide(self, name: MaskName, update: Vector, seed: bytes) -> Words:
        """The update as its contributor sends it: with noise, under its mask."""
        user = user_number(name.contributor)
        fresh = fresh_seed(self._config.seed, name)
        if user < self._config.num_attackers:
            mask = mask_of(seed, fresh, SIMULATED, self._unbounded)
            return hide(self._lie(update), seed, 0, self._unbounded, mask)[0]
        mask = mask_of(seed, fresh, SIMULATED, self._parameters)
        return hide_with_noise(update, self._told[user], fresh, self._parameters, mask)

    def _lie(self, update: Vector) -> Vector:
        """A lie already; one that was only turned round is made as long as a sum's bound hides."""
        if self._config.attack != "sign-flip" or self._config.attack_strength is not None:
            return update
        bound = math.sqrt(self._mechanism.squared_change(0)) / self._mechanism.levels
        length = hidden_lie(self._mechanism) * bound
        return update * np.float32(length / max(float(np.linalg.norm(update)), 1e-30))

    def opened(self, total: Words, opened: Reals, updates: Updates) -> Opened:
        """Σ s(τ̂)·Δ and noise, from the field and as numbers; not to be applied if a member must have lied."""
        p = self._parameters
        told = [self._told.pop(user_number(name.contributor)) for name in updates]
        weights = tuple(map(self._mechanism.weight, told))
        if not self._config.attackers:
            limit = self._mechanism.privacy.longest
            short = [clipped(update.astype(np.float64), limit) for update in updates.values()]
            noise = opened - np.asarray(weights) @ np.stack(short)
            self.noise["elements"] += noise.size
            self.noise["squared"] += float((noise**2).sum())
        return Opened(opened, weights, applied=within_bound(p, total, told))

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        ledgers = {user: store.snapshot() for user, store in self._stores.items()}
        spent = self._spending.spent
        return {"told": self._told, "noise": self.noise, "spent": spent, "ledgers": ledgers}
