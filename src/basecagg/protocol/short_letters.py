"""Short letters: a holder is not sent again what it has.

A request comes without the links, heads and certificate that its holders have from the one before, and its
certificate comes alone. The holder completes such a letter, and what comes out must have the digest that the
server signed. Then it is the long letter, and everything behind this file sees long ones only. Who lacks what
a letter builds on says that it cannot follow, and gets the long one.
"""

from __future__ import annotations

from typing import TypeAlias

from basecagg.protocol.effects import Effect
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import (
    Certificate,
    CertifiedRequest,
    History,
    RecoveryRequest,
    ShortRequest,
    ShortTicket,
    Slot,
    Ticket,
)
from basecagg.protocol.ports import Records
from basecagg.protocol.stored import recall, write

Short: TypeAlias = ShortRequest | Certificate
Long: TypeAlias = RecoveryRequest | CertifiedRequest
QUESTIONS = (RecoveryRequest, CertifiedRequest, ShortRequest, Certificate)
"""What holders are asked, in either form."""


def shortened(request: RecoveryRequest) -> ShortRequest:
    """The request for holders who answered for the version before."""
    links = request.history.links
    return ShortRequest(
        request.epoch,
        request.version,
        request.attempt,
        links[-1] if links else None,
        tuple(map(_short, request.tickets)),
        request.signature,
        request.digest,
    )


def _short(t: Ticket) -> ShortTicket:
    mask, told = t.mask, (t.base_version, t.staleness, t.signature, t.upload_hash)
    return ShortTicket(mask.contributor, mask.serial, mask.expires, *told)


class LastQuestion:
    """What short letters to one holder build on: its last request and its last certificate."""

    def __init__(self, agreement: Agreement, records: Records) -> None:
        """Go on with what was written down before a restart."""
        self._agreement = agreement
        self._request = recall(records, "question", RecoveryRequest)
        self.certificate = recall(records, "certified", Certificate)
        """The last one that was checked here."""

    def note(
        self, request: RecoveryRequest, certificate: Certificate | None = None
    ) -> list[Effect]:
        """The holder endorses this request, or answers it with this certificate. Earlier ones are no news."""
        effects: list[Effect] = []
        last = self._request
        is_new = last is None or request.digest != last.digest  # a copy may bear another signature
        if is_new and _slot(request) >= _slot(last):
            self._request = request
            effects.append(write("question", "", request))
        known = self.certificate
        if certificate and certificate != known and _slot(certificate) >= _slot(known):
            self.certificate = certificate
            effects.append(write("certified", "", certificate))
        return effects

    def completed(self, letter: Short) -> Long | None:
        """The long form of a short letter; None if what it builds on is not here."""
        known = self._request
        if isinstance(letter, Certificate):
            is_known = known is not None and known.digest == letter.digest
            return CertifiedRequest(known, letter) if known is not None and is_known else None
        context = self._context_of(letter)
        if context is None:
            return None
        history, previous = context
        heads = history.heads
        if any(ticket.base_version not in heads for ticket in letter.tickets):
            return None
        tickets = tuple(_whole(letter.epoch, each, heads) for each in letter.tickets)
        slot = letter.version, letter.attempt
        said = RecoveryRequest(letter.epoch, *slot, history, tickets, previous, letter.signature)
        return said if said.digest == letter.digest else None

    def _context_of(self, letter: ShortRequest) -> tuple[History, Certificate | None] | None:
        """History and previous certificate of the whole request, as far as this holder can know them."""
        last = self._request
        if letter.link is None:
            return self._agreement.beginning, None
        if last is not None and last.version == letter.version:  # another attempt
            return last.history, last.previous
        if last is None or last.version != letter.version - 1:
            return None
        most = self._agreement.parameters.max_staleness
        return last.history.after(letter.link, most), self.certificate


def _whole(epoch: bytes, t: ShortTicket, heads: dict[int, bytes]) -> Ticket:
    head = heads[t.base_version]
    return Ticket(
        epoch, t.mask, t.base_version, head, t.upload_hash, t.staleness, signature=t.signature
    )


def _slot(known: RecoveryRequest | Certificate | None) -> Slot:
    return (known.version, known.attempt) if known is not None else (-1, -1)
