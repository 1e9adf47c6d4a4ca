"""What a contributor's uploads have cost it in privacy: kept by the contributor itself, which trusts nobody.

Every upload counts, written down in the same transaction as the upload and so before it is sent: burned,
refused or lost, there is no refund, and it goes on from epoch to epoch. An older copy of the store does not
know what was uploaded since: everything counts as spent.

Uploads of users add up as ρ, those of records at one Rényi order, which the first of them fixes for good.
Nothing bounds what uploads without noise tell: after one of them no other is paid for.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from basecagg.errors import BudgetSpent
from basecagg.maths.accounting import Cost, total
from basecagg.privacy import Mechanism
from basecagg.protocol.effects import BudgetEnded, Effect
from basecagg.protocol.ports import Records
from basecagg.protocol.records import Refusals, Spent, recall, write


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
        """Uploads without noise. Each has left its fingerprint, also those of an older basecagg."""
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
        """What to tell the driver, and whoever asks later, if no other upload is possible."""
        against = self._reason_against(mechanism, self._with(mechanism, 0))
        if against is None:
            return []
        refusal = Refusals(count=1, reason=against)
        return [write("refusal", BudgetSpent.__name__, refusal), BudgetEnded(against)]

    def exhaust(self) -> Effect:
        """Nobody knows what was uploaded: nothing is left."""
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
