"""Writes the transcript of a running server from its letters: who, which mask, which weights; no payload."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator

from basecagg.auditing import transcript
from basecagg.errors import Refused
from basecagg.protocol import messages
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.weighing import Weighing

_UPDATE_ID_DIGITS = 32
_REMEMBERED = 64
"""Letters that went to other holders just now. One that comes again later is recorded twice: no harm done."""


class Recorder:
    """Turns the letters to and from the server into lines of a transcript.

    A letter on its way counts as known: the server can read it, even if the network then loses it.
    """

    def __init__(
        self,
        agreement: Agreement,
        sink: Callable[[transcript.AnyLine], object],
        colluders: Iterable[int] = (),
    ) -> None:
        """Record one epoch into `sink`, together with the views of the holders `colluders`."""
        self._agreement = agreement
        self._sink = sink
        self._colluders = sorted(set(colluders))
        self._weighing = Weighing.of(agreement.parameters)
        self._recent: deque[Hashable] = deque(maxlen=_REMEMBERED)
        sink(transcript.EpochLine.of(agreement.epoch, agreement.operator_key))

    def see(self, sender: str, message: messages.Message) -> None:
        """Write down what one letter tells the server; nothing if it tells nothing new."""
        for line in self._lines(sender, message):
            self._sink(line)

    def _lines(self, sender: str, message: messages.Message) -> Iterator[transcript.AnyLine]:
        """The lines of one letter. The server refuses those about another's mask or epoch, and so do we."""
        ours = self._agreement.id
        match message:
            case messages.Contribution(ticket=ticket):
                yield from self._lines(sender, message.shipment)
                yield from self._lines(sender, messages.Upload(ticket, b""))
            case messages.Shipment(dealing=dealing) if dealing.epoch == ours:
                # The server holds every sealed share, delivered or not, and a colluder's key opens one.
                own = [mask for mask in dealing.masks if mask.contributor == sender]
                yield from (
                    transcript.ShareLine(j, mask.key) for mask in own for j in self._colluders
                )
            case messages.Upload(ticket=ticket) if (
                ticket.epoch == ours and ticket.mask.contributor == sender
            ):
                told = ticket.base_version, _update_id(ticket), ticket.staleness
                yield transcript.UploadLine(ticket.mask.key, sender, *told)
            case messages.PlainUpdate(ticket=ticket) if ticket.mask.contributor == sender:
                yield transcript.PlainLine(ticket.mask.key, sender, ticket.base_version)
            case messages.CertifiedRequest(request=request):
                yield from self._request(sender, request)
            case messages.RecoveryRequest() | messages.ShortRequest():
                yield from self._request(sender, message)
            case messages.Answer(epoch=epoch, holder=holder) if epoch == ours:
                if self._agreement.holder_index(sender) == holder:
                    yield transcript.AnswerLine(holder, message.digest.hex())
            case messages.Closing(epoch=epoch) if epoch == ours and sender == SERVER:
                masks = tuple(mask.key for mask in message.masks)
                line = transcript.OutcomeLine(message.version, masks, message.outcome)
                if self._is_news(line):
                    yield line

    def _request(
        self, sender: str, request: messages.RecoveryRequest | messages.ShortRequest
    ) -> Iterator[transcript.AnyLine]:
        ours = sender == SERVER and request.epoch == self._agreement.id
        if not ours or not self._is_news(request.digest):
            return
        try:
            members = tuple(self._member(request.version, ticket) for ticket in request.tickets)
        except Refused:  # trained from a version yet to come: it gets no answer
            return
        yield transcript.RequestLine(request.digest.hex(), request.version, members)

    def _member(
        self, version: int, ticket: messages.Ticket | messages.ShortTicket
    ) -> transcript.RequestMember:
        """One update, with its weight in the field as the holders have it, whatever the server thinks."""
        self._weighing.require_timely(version, ticket)
        coin = messages.coin_of(self._agreement.id, ticket.mask)
        weight = self._weighing.factor(version, ticket, coin)
        return transcript.RequestMember(ticket.mask.key, _update_id(ticket), weight)

    def _is_news(self, letter: Hashable) -> bool:
        """Whether this is the first of the identical letters that all holders are sent."""
        if letter in self._recent:
            return False
        self._recent.append(letter)
        return True


def _update_id(ticket: messages.Ticket | messages.ShortTicket) -> str:
    return ticket.upload_hash.hex()[:_UPDATE_ID_DIGITS]
