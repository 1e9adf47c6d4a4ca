"""Protection 'none' in an epoch: the server sees every update, sums K of them at once, and says which.

What it does with updates is as public as with masked ones. It signs which members a sum has and which model it
makes, so forks are proven, and whoever fetches the parts of a version makes it again. That a member's update is
the member's own is checked by the server alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from basecagg.errors import Malformed, NotEnrolled
from basecagg.protocol.effects import Effect
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.kept_versions import KeptVersions
from basecagg.protocol.messages import (
    History,
    MaskName,
    PlainUpdate,
    RecoveryRequest,
    Release,
    signed,
)
from basecagg.protocol.opening import Ending, Move, Opened, PlainOpening, Update
from basecagg.protocol.ports import Records, Signer
from basecagg.protocol.recomputation import sum_in_clear
from basecagg.protocol.stored import BufferedUpdate, Made, Past, load, write
from basecagg.protocol.weighing import Weighing


class ClearOpening(PlainOpening):
    """Plain FedBuff in an epoch that the operator signed. Rebuilt from its records after a restart."""

    def __init__(
        self, agreement: Agreement, signer: Signer, records: Records, keep: int = 1
    ) -> None:
        """Keep what the last `keep` versions (R) were made from."""
        p = agreement.parameters
        super().__init__(p.model_size, Weighing.of(p), records)
        self.agreement = agreement
        self._signer = signer
        waiting = load(records, "buffered", BufferedUpdate).values()
        self.kept = KeptVersions(records, keep, [update.name for update in waiting])
        self._request: RecoveryRequest | None = None
        self._may_sign = not records.rolled_back
        """Not if this store is an older copy: it may have signed another model for the next version."""

    def authenticate(self, sender: str, update: Update) -> BufferedUpdate:
        """Refuse an update that is not of this epoch, or not signed by an enrolled contributor."""
        if not isinstance(update, PlainUpdate) or update.credential is None:
            raise Malformed("this server takes signed updates in clear")
        self.agreement.require_id(update.ticket.epoch)
        if sender != update.credential.contributor:
            raise NotEnrolled("the update is not the sender's")
        self.agreement.require_enrolled(update.credential, sender)
        key = update.credential.signing_key
        self.agreement.require_signed(update.ticket, key, update.ticket.signature)
        return super().authenticate(sender, update)

    def keep(self, update: Update, version: int) -> list[Effect]:
        """Store the update. What is outdated makes room."""
        assert isinstance(update, PlainUpdate)
        self._last = update.ticket.mask, update.values
        outdated = self.kept.forget_outdated()
        return [*self.kept.uploads.store(update.ticket.mask, update.values), *outdated]

    def may_begin(self, version: int) -> bool:
        """Whether nothing is forgotten that was signed. There are no holders who could tell."""
        return self._may_sign

    def trouble(self, version: int) -> str:
        """For the operator: why no sum is opened until somebody acts; empty if all is well."""
        if self._may_sign:
            return ""
        return (
            "the server's store is an older copy of itself, and nobody can say what it has signed since; give"
            " the server a new key (basecagg serve --new-key) and begin a new epoch (basecagg operator rotate"
            " --server-key)"
        )

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Move:
        """Σ s·Δ, at once, over the members that the server will sign."""
        epoch = self.agreement.id
        tickets = tuple(member.ticket(epoch) for member in members)
        request = RecoveryRequest(epoch, history.last, 0, history, tickets, None)
        self._request = signed(request, self._signer)
        updates = map(self._read, request.masks)
        return [], sum_in_clear(self.agreement, self._request, updates)

    def publish(self, history: History, opened: Opened) -> list[Effect]:
        """Sign what the new version was made from, and keep that for a while."""
        assert self._request is not None
        release = signed(Release(self.agreement.id, history, (), ()), self._signer)
        made = Made(release=release, request=self._request, certificate=None)
        past = Past(slot=(self._request.version, self._request.attempt))
        return [*self.kept.add(made, {}), write("past", "", past, irreversible=True)]

    def _forget(self, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        """Summed updates stay for a while, so that others can check the sum."""
        return [] if how == "open" else [self.kept.uploads.forget(name) for name in names]
