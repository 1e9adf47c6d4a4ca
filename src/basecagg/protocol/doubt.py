"""A server whose store may be an older copy: how far did its holders see it go?

It must not sign a second request for a slot, so it signs none until every holder has spoken and nobody has seen
more than it knows. When more than T holders have, something is certainly forgotten: the way on is a new epoch
with a new key for the server. Holders who lie can do no more than to keep it waiting for that.
"""

from __future__ import annotations

from basecagg.errors import Malformed
from basecagg.maths.randomness import system_entropy
from basecagg.protocol.effects import Effect, Send
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import Inquiry, Slot, Witness

_NONCE_BYTES = 16
_NOTHING = (-1, -1)


class Doubt:
    """What the holders have said so far."""

    def __init__(self, agreement: Agreement, slot: Slot | None) -> None:
        """`slot` is the last one that the store knows a request for."""
        self._agreement = agreement
        self._known = slot or _NOTHING
        self._inquiry = Inquiry(agreement.id, system_entropy(_NONCE_BYTES))
        self._seen: dict[int, Slot] = {}

    def ask(self) -> list[Effect]:
        """The question, for all holders who have not answered it."""
        names = enumerate(self._agreement.holder_names)
        return [
            Send(name, inquiry) for holder, name in names for inquiry in self.unanswered(holder)
        ]

    def unanswered(self, holder: int) -> list[Inquiry]:
        """The question again, for one who has not answered it."""
        return [] if holder in self._seen else [self._inquiry]

    def hear(self, sender: str, witness: Witness) -> None:
        """Take a holder's word, or refuse it."""
        self._agreement.require_id(witness.epoch)
        self._agreement.require_holder(witness.holder, sender)
        if witness.nonce != self._inquiry.nonce:
            raise Malformed("that was not asked now", peer=sender)
        self._agreement.require_signed_by_holder(witness, witness.holder, witness.signature)
        self._seen[witness.holder] = witness.slot or _NOTHING

    @property
    def ahead(self) -> list[int]:
        """The holders who have seen more than the store knows."""
        return [holder for holder, slot in self._seen.items() if slot > self._known]

    @property
    def is_settled(self) -> bool:
        """Whether all have spoken and the store knows everything."""
        return len(self._seen) == len(self._agreement.holder_names) and not self.ahead

    def in_words(self) -> str:
        """For the operator."""
        seen, ahead = f"{len(self._seen)} of {len(self._agreement.holder_names)}", len(self.ahead)
        certain = ahead > self._agreement.parameters.max_colluders
        store = f"the server's store {'is' if certain else 'may be'} an older copy of itself"
        if not ahead:
            return f"{store}: {seen} holders saw no more; it goes on when all have said so"
        more = "saw more than it knows" if certain else "say that they saw more"
        return (
            f"{store}: {ahead} holders {more}; give the server a new key (basecagg serve --new-key) and begin a"
            " new epoch (basecagg operator rotate --server-key)"
        )
