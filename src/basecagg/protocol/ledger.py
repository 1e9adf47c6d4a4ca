"""What a contributor's uploads have cost it in privacy: kept by the contributor itself, which trusts nobody.

Every upload counts, written down in the same transaction as the upload and so before it is sent: burned,
refused or lost, there is no refund, and it goes on from epoch to epoch. An older copy of the store does not
know what was uploaded since: everything counts as spent.
"""

from __future__ import annotations

import math

from basecagg.errors import BudgetSpent
from basecagg.privacy import Mechanism
from basecagg.protocol.effects import BudgetEnded, Effect
from basecagg.protocol.ports import Records
from basecagg.protocol.records import Refusals, Spent, parse, write


class PrivacyLedger:
    """The budget of one participant in one federation."""

    def __init__(self, records: Records) -> None:
        """Go on with what was spent before a restart."""
        stored = records.read("ledger", "")
        self._spent = parse(stored, Spent) if stored else Spent()

    @property
    def uses(self) -> int:
        """Uploads so far."""
        return sum(count for _, count in self._spent.uploads)

    @property
    def spent(self) -> float:
        """Σρ so far."""
        if self._spent.everything:
            return math.inf
        return math.fsum(rho * count for rho, count in self._spent.uploads)

    def affords(self, mechanism: Mechanism) -> bool:
        """Whether a fresh upload is possible."""
        return self._reason_against(mechanism, self._with(mechanism, 0)) is None

    def charge(self, mechanism: Mechanism, staleness: int) -> list[Effect]:
        """One more upload, by the bound of its length and never by its actual one; or `BudgetSpent`."""
        uploads = self._with(mechanism, staleness)
        against = self._reason_against(mechanism, uploads)
        if against is not None:
            raise BudgetSpent(against)
        self._spent = Spent(uploads=sorted(uploads.items()))
        written = write("ledger", "", self._spent, irreversible=True)
        last = self._reason_against(mechanism, self._with(mechanism, 0))
        return [written] if last is None else [written, *_told(last)]

    def exhaust(self) -> Effect:
        """Nobody knows what was uploaded: nothing is left."""
        self._spent = Spent(uploads=self._spent.uploads, everything=True)
        return write("ledger", "", self._spent, irreversible=True)

    def _with(self, mechanism: Mechanism, staleness: int) -> dict[float, int]:
        """All uploads, and one more."""
        uploads, cost = dict(self._spent.uploads), mechanism.cost(staleness)
        return uploads | {cost: uploads.get(cost, 0) + 1}

    def _reason_against(self, mechanism: Mechanism, uploads: dict[float, int]) -> str | None:
        privacy = mechanism.privacy
        promise = f"ε = {privacy.epsilon:g} at δ = {privacy.delta:g}"
        if self._spent.everything:
            return (
                f"this store is an older copy of itself, so all of {promise} counts as spent: begin with a new"
                " name and new data, or not at all"
            )
        if sum(uploads.values()) > privacy.max_uses:
            return f"all k_max = {privacy.max_uses} uploads of {promise} are made"
        if math.fsum(rho * many for rho, many in uploads.items()) > mechanism.budget:
            return f"after {self.uses} uploads {promise} leaves no room for another"
        return None


def _told(reason: str) -> list[Effect]:
    """For the driver, and for whoever asks later why nothing is uploaded any more."""
    return [
        write("refusal", BudgetSpent.__name__, Refusals(count=1, reason=reason)),
        BudgetEnded(reason),
    ]
