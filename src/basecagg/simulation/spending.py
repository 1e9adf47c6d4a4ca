"""What the users of a run have spent of their privacy: by the ledger of each, as contributors keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from basecagg.errors import BudgetSpent
from basecagg.maths.accounting import epsilon_after
from basecagg.privacy import Mechanism
from basecagg.protocol.effects import Persist
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.storage.memory import MemoryStore


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


class RunLedgers(Spending):
    """The ledgers of users who have no contributor's machine to keep them."""

    def __init__(self, mechanism: Mechanism | None, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, or from nothing."""
        super().__init__(mechanism, state.get("spent", 0.0))
        saved = state.get("ledgers", {})
        self._stores = {user: MemoryStore(records) for user, records in saved.items()}
        self._ledgers = {user: PrivacyLedger(store) for user, store in self._stores.items()}

    def affords(self, user: int) -> bool:
        """Whether a fresh upload is possible."""
        return self.mechanism is None or self._of(user).affords(self.mechanism)

    def pay(self, user: int, staleness: int) -> bool:
        """One more upload, written down before it is made; False if there is nothing left for it."""
        if self.mechanism is None:
            return True
        ledger = self._of(user)
        try:
            effects = ledger.charge(self.mechanism, staleness)
        except BudgetSpent:
            return False
        self._stores[user].commit([each for each in effects if isinstance(each, Persist)])
        self.note(ledger)
        return True

    def _of(self, user: int) -> PrivacyLedger:
        if user not in self._ledgers:
            self._stores[user] = MemoryStore()
            self._ledgers[user] = PrivacyLedger(self._stores[user])
        return self._ledgers[user]

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        ledgers = {user: store.snapshot() for user, store in self._stores.items()}
        return {"spent": self.spent, "ledgers": ledgers}
