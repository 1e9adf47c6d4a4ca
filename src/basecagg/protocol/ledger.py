"""What a contributor remembers of its uploads: what they cost in privacy, and which updates they were.

The contributor keeps this itself, because it trusts nobody.

Every upload counts. Its cost is stored in the same transaction, before it is sent; if it is burned, refused or
lost there is no refund, and the ledger goes on from epoch to epoch. An older copy of the store does not know
what was uploaded since, so everything counts as spent.

Uploads of users add up as ρ, those of records at one Rényi order, which the first of them fixes for good.
Nothing bounds what an upload without noise reveals, so after one of them no other can be paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from basecagg.errors import BudgetSpent, LocalProtocolError
from basecagg.maths.accounting import Cost, total
from basecagg.maths.randomness import SEED_BYTES, fingerprint
from basecagg.parameters import ProtocolParameters
from basecagg.privacy import Mechanism
from basecagg.protocol.effects import BudgetEnded, Effect, Persist
from basecagg.protocol.global_model import Model
from basecagg.protocol.ports import Records
from basecagg.protocol.stored import Refusals, Spent, recall, write


def paid_by(parameters: ProtocolParameters) -> Mechanism | None:
    """The mechanism that uploads are paid by; None where they have no noise."""
    mechanism = parameters.mechanism
    return mechanism if mechanism is not None and mechanism.variance else None


class PrivacyLedger:
    """The budget of one participant in one federation."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._spent = recall(records, "ledger", Spent) or Spent()

    @property
    def uses(self) -> int:
        """Uploads so far."""
        return sum(self._uploads.values()) + self._clear

    @property
    def spent(self) -> float:
        """Σρ so far, or the sum of divergences at its order."""
        bounded = not self._spent.everything and not self._clear
        return total(self._uploads, self._spent.order) if bounded else math.inf

    @property
    def _clear(self) -> int:
        """Uploads without noise, by their fingerprints."""
        return len(list(self._records.keys("sent")))

    @property
    def _uploads(self) -> dict[Cost, int]:
        return {Cost(rho, rate): count for rho, rate, count in self._spent.uploads}

    def affords(self, mechanism: Mechanism) -> bool:
        """Whether a fresh upload is possible."""
        return self._reason_against(mechanism, self._with(mechanism, 0)) is None

    def charge(self, mechanism: Mechanism, staleness: int) -> list[Effect]:
        """One more upload, by the bound of its length and never by its actual one; or `BudgetSpent`."""
        uploads = self._with(mechanism, staleness)
        against = self._reason_against(mechanism, uploads)
        if against is not None:
            raise BudgetSpent(against)
        rows = sorted((*cost, count) for cost, count in uploads.items())
        self._spent = Spent(uploads=rows, order=self._order(mechanism))
        return [write("ledger", "", self._spent, irreversible=True), *self.ended(mechanism)]

    def ended(self, mechanism: Mechanism) -> list[Effect]:
        """Tell the driver if no other upload is possible, and store the reason for later."""
        against = self._reason_against(mechanism, self._with(mechanism, 0))
        if against is None:
            return []
        refusal = Refusals(count=1, reason=against)
        return [write("refusal", BudgetSpent.__name__, refusal), BudgetEnded(against)]

    def exhaust(self) -> Effect:
        """Count everything as spent, because nobody knows what was uploaded."""
        self._spent = replace(self._spent, everything=True)
        return write("ledger", "", self._spent, irreversible=True)

    def _with(self, mechanism: Mechanism, staleness: int) -> dict[Cost, int]:
        """All uploads, and one more."""
        uploads, cost = self._uploads, mechanism.costs(staleness)
        return uploads | {cost: uploads.get(cost, 0) + 1}

    def _order(self, mechanism: Mechanism) -> int | None:
        return mechanism.order if self._spent.order is None else self._spent.order

    def _reason_against(self, mechanism: Mechanism, uploads: dict[Cost, int]) -> str | None:
        privacy = mechanism.privacy
        promise = f"ε = {privacy.epsilon:g} at δ = {privacy.delta:g}"
        if self._spent.everything:
            return (
                f"this store is an older copy of itself, so all of {promise} counts as spent: begin with a new"
                " name and new data, or not at all"
            )
        if self._clear:
            return (
                f"{self._clear} earlier uploads from this store had no noise, so {promise} cannot cover all"
                " that was uploaded: begin with a new name and new data"
            )
        if sum(uploads.values()) > privacy.max_uses:
            return f"all k_max = {privacy.max_uses} uploads of {promise} are made"
        if privacy.unit == "user" and self._spent.order is not None:
            return (
                "earlier uploads from this store hid single records, which bounds nothing of all that a user"
                " uploads: begin with a new name and new data"
            )
        order = self._order(mechanism)
        if total(uploads, order) > mechanism.budget_at(order):
            return f"after {self.uses} uploads {promise} leaves no room for another"
        return None


class SentUpdates:
    """Keyed fingerprints of all updates that were ever masked from one store, so that none is masked twice.

    The same Δ in two sums would be their difference, in one epoch or in two. So fingerprints outlive epochs,
    and federations that share a store.
    """

    def __init__(self, records: Records, entropy: Callable[[int], bytes]) -> None:
        self._records = records
        self._entropy = entropy
        self._salt = b""
        self._recent: set[str] = set()
        """Fingerprints since the start, which may not be stored yet."""

    def require_fresh(self, update: Model) -> str:
        """The fingerprint of an update; one that was masked before is refused."""
        # Another federation's machine, which shares the store's fingerprints, may have drawn it meanwhile.
        self._salt = self._records.read("salt", "") or self._salt or self._entropy(SEED_BYTES)
        # Numbers that agree to float32 are the same update, in any precision and with either sign of zero.
        with np.errstate(over="ignore"):
            numbers = np.add(update, 0.0, dtype=np.float32)
        own = fingerprint(self._salt, numbers).hex()
        if own in self._recent or self._records.read("sent", own) is not None:
            raise LocalProtocolError(
                "this update was masked before; one local update is sent at most once: train again"
            )
        return own

    def remember(self, own: str) -> list[Effect]:
        """An update with this fingerprint is masked."""
        self._recent.add(own)
        return [Persist("salt", "", self._salt), Persist("sent", own, b"")]
