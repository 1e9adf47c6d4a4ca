"""Write the transcript of a running server, from its letters: who, which mask, which weights; no payload."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from basecagg.auditing.transcript import (
    AnswerLine,
    AnyLine,
    EpochLine,
    OutcomeLine,
    PlainLine,
    RequestLine,
    RequestMember,
    ShareLine,
    UploadLine,
)
from basecagg.errors import ParameterError
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.messages import (
    Answer,
    CertifiedRequest,
    Closing,
    Message,
    PlainUpdate,
    RecoveryRequest,
    Shipment,
    Ticket,
    Upload,
    coin_of,
)
from basecagg.protocol.weighing import Weighing

_UPDATE_ID_DIGITS = 32
_REMEMBERED = 64
"""Letters that went to other holders just now. One that comes again later is recorded twice: no harm done."""


class Recorder:
    """Turns the letters to and from the server into lines of a transcript.

    What is on its way counts as known: a letter that the network then loses was still in the server's reach.
    """

    def __init__(
        self,
        agreement: Agreement,
        sink: Callable[[AnyLine], object],
        colluders: Iterable[int] = (),
    ) -> None:
        """Record one epoch into `sink`, together with the views of the holders `colluders`."""
        self._agreement = agreement
        self._sink = sink
        self._colluders = sorted(set(colluders))
        self._weighing = Weighing.of(agreement.parameters)
        self._recent: deque[Hashable] = deque(maxlen=_REMEMBERED)
        sink(EpochLine.of(agreement.epoch, agreement.operator_key))

    def see(self, sender: str, message: Message) -> None:
        """Take note of one letter; what teaches the server nothing leaves no line."""
        handlers: dict[type[Message], Callable[[str, Any], None]] = {
            Shipment: self._see_shipment,
            Upload: self._see_upload,
            PlainUpdate: self._see_plain,
            RecoveryRequest: self._see_request,
            CertifiedRequest: lambda server, certified: self._see_request(
                server, certified.request
            ),
            Answer: self._see_answer,
            Closing: self._see_closing,
        }
        handle = handlers.get(type(message))
        if handle is not None:
            handle(sender, message)

    def _see_shipment(self, sender: str, shipment: Shipment) -> None:
        """The server has every sealed share in its hands, and a colluder's key opens one, delivered or not."""
        dealing = shipment.dealing
        for mask in dealing.masks:
            if self._is_owner(sender, dealing.epoch, mask.contributor):
                for holder in self._colluders:
                    self._sink(ShareLine(holder, mask.key))

    def _see_upload(self, sender: str, upload: Upload) -> None:
        ticket = upload.ticket
        mask = ticket.mask
        if self._is_owner(sender, ticket.epoch, mask.contributor):
            told = ticket.base_version, _update_id(ticket), ticket.staleness
            self._sink(UploadLine(mask.key, mask.contributor, *told))

    def _see_plain(self, sender: str, update: PlainUpdate) -> None:
        mask = update.mask
        if sender == mask.contributor:
            self._sink(PlainLine(mask.key, mask.contributor, update.base_version))

    def _see_request(self, sender: str, request: RecoveryRequest) -> None:
        digest = request.digest
        ours = sender == SERVER and request.epoch == self._agreement.id
        if not ours or not self._is_news(digest):
            return
        try:
            members = tuple(self._member(request.version, ticket) for ticket in request.tickets)
        except ParameterError:  # trained from a version yet to come: it has no weight, so no answer
            return
        self._sink(RequestLine(digest.hex(), request.version, members))

    def _member(self, version: int, ticket: Ticket) -> RequestMember:
        """Weighed as the holders do it, whatever the server thinks."""
        coin = coin_of(self._agreement.id, ticket.mask)
        weight = int(self._weighing.weight(version, ticket.base_version, coin))
        return RequestMember(ticket.mask.key, _update_id(ticket), weight)

    def _see_answer(self, sender: str, answer: Answer) -> None:
        known = answer.epoch == self._agreement.id
        if known and self._agreement.holder_index(sender) == answer.holder:
            self._sink(AnswerLine(answer.holder, answer.digest.hex()))

    def _see_closing(self, sender: str, closing: Closing) -> None:
        if sender == SERVER and closing.epoch == self._agreement.id:
            masks = tuple(mask.key for mask in closing.masks)
            line = OutcomeLine(closing.version, masks, closing.outcome)
            if self._is_news(line):
                self._sink(line)

    def _is_news(self, letter: Hashable) -> bool:
        """Whether this is the first of the identical letters that all holders are sent."""
        if letter in self._recent:
            return False
        self._recent.append(letter)
        return True

    def _is_owner(self, sender: str, epoch: bytes, contributor: str) -> bool:
        """Others cannot say anything about a mask: the server refuses them."""
        return epoch == self._agreement.id and sender == contributor


def _update_id(ticket: Ticket) -> str:
    return ticket.upload_hash.hex()[:_UPDATE_ID_DIGITS]
