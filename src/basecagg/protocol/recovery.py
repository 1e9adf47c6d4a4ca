"""Protection 'basecagg': the server learns the weighted sum of K masked updates and nothing else.

Phase 3 of the paper: ask the holders, decode the sum of the masks from their answers, subtract. One request is
outstanding at a time. It is persisted before it is sent, and is only ever repeated identically or burned: never
shrunk, never reweighted. Differs from the paper: U + T answers have to agree, unless the epoch takes holders to
be honest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from basecagg.errors import (
    AlreadyBuffered,
    DecodingError,
    Malformed,
    MaskExpired,
    NotEnrolled,
    TooFewHolders,
    UnknownMask,
)
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import dequantize, magnitude
from basecagg.maths.randomness import Words
from basecagg.protocol import life
from basecagg.protocol.effects import Effect, Forget, Persist, Send
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.mailroom import Mailroom
from basecagg.protocol.messages import (
    Answer,
    Certificate,
    CertifiedRequest,
    Closing,
    Endorsement,
    MaskName,
    Message,
    Receipt,
    RecoveryRequest,
    Shipment,
    Ticket,
    Upload,
    coin_of,
    content_hash,
    encode,
    signed,
)
from basecagg.protocol.opening import (
    LAST_VERDICT,
    Burned,
    Ending,
    LastVerdict,
    Opened,
    Outcome,
    Stage,
    Step,
    Update,
)
from basecagg.protocol.ports import Records, Signer
from basecagg.protocol.records import BufferedUpdate, load, parse, require
from basecagg.protocol.weighing import Weighing


class Recovery:
    """The server's view of masks, requests and answers. Rebuilt from its records after a restart."""

    def __init__(
        self, agreement: Agreement, signer: Signer, records: Records, retries: int = 1
    ) -> None:
        """Open buffers of the agreed epoch; ask again `retries` times before giving a buffer up."""
        self.agreement = agreement
        self.mailroom = Mailroom(agreement, records)
        self._signer = signer
        self._records = records
        self._retries = retries
        self._parameters = agreement.parameters
        self._weighing = Weighing.of(agreement.parameters)
        self._field = PrimeField(agreement.parameters.modulus)
        self._certificates = load(records, "certificate", Certificate)
        stored = records.read("request", "")
        self._request = parse(stored, RecoveryRequest) if stored else None
        self._start_collecting()

    def _start_collecting(self) -> None:
        """What holders said to the present request. Lost in a restart: they repeat it when asked again."""
        self._endorsements: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        self._certificate = self._stored_certificate()
        self._attempts = 0
        self._worth_decoding = self._parameters.answers_needed
        self._asked = sorted(self.mailroom.common_holders(self.outstanding()))

    def _stored_certificate(self) -> Certificate | None:
        """The certificate of the present request, if it was complete before a restart."""
        if self._request is None:
            return None
        certificate = self._certificates.get(str(self._version))
        ours = certificate is not None and certificate.digest == self._request.digest
        return certificate if ours else None

    # --- admission ----------------------------------------------------------------------------

    def authenticate(self, sender: str, update: Update) -> BufferedUpdate:
        """Refuse an upload whose ticket the dealer of the mask did not sign for these very bytes."""
        if not isinstance(update, Upload):
            raise Malformed("this server takes masked updates only", peer=sender)
        ticket = update.ticket
        self.agreement.require_id(ticket.epoch)
        mask = self.mailroom.find(ticket.mask)
        if mask is None:
            raise UnknownMask(f"mask {ticket.mask.key} was not dealt, or expired", peer=sender)
        if ticket.mask.contributor != sender:
            raise NotEnrolled(f"mask {ticket.mask.key} is not the sender's", peer=sender)
        self.agreement.require_signed(ticket, mask.dealer_key, ticket.signature)
        self._require_words(update)
        return BufferedUpdate(
            name=ticket.mask,
            base_version=ticket.base_version,
            model_hash=ticket.model_hash,
            content_hash=ticket.upload_hash,
            signature=ticket.signature,
        )

    def _require_words(self, upload: Upload) -> None:
        size, words = self._parameters.padded_size, upload.words
        peer = upload.ticket.mask.contributor
        if len(words) != 4 * size:
            raise Malformed(f"an upload has {size} words, this one {len(words)} bytes", peer=peer)
        if content_hash(words) != upload.ticket.upload_hash:
            raise Malformed("the ticket is for other bytes", peer=peer)
        if np.frombuffer(words, "<u4").max() >= self._parameters.modulus:
            raise Malformed("a word of the upload is not below q", peer=peer)

    def last_verdict(self, name: MaskName) -> LastVerdict | None:
        """What became of an update that is over, until its mask expires."""
        mask = self.mailroom.find(name)
        state = mask.state if mask else ""
        return next((verdict for verdict in LAST_VERDICT.values() if verdict == state), None)

    def require_openable(self, update: BufferedUpdate, at: int) -> None:
        """Refuse an update whose mask expires too early, or too few holders keep."""
        mask = self.mailroom.find(update.name)
        assert mask is not None
        if mask.expires < at:
            raise MaskExpired(f"mask {update.name.key} expires before its buffer opens")
        if not life.allows(life.SERVER, mask.state, "admit"):
            raise AlreadyBuffered(f"mask {update.name.key} has hidden another update")
        count, needed = len(self.mailroom.holders_of(update.name)), self.agreement.holders_needed
        if count < needed:
            raise TooFewHolders(
                f"{count} holders keep a share of mask {update.name.key}, {needed} are needed"
            )

    def openable_together(self, updates: Sequence[BufferedUpdate], at: int) -> list[BufferedUpdate]:
        """One after the other, as long as enough holders keep a share of all of them."""
        common = set(range(self._parameters.num_users))
        together: list[BufferedUpdate] = []
        for update in updates:
            mask = self.mailroom.find(update.name)
            assert mask is not None
            both = common & self.mailroom.holders_of(update.name)
            if len(both) >= self.agreement.holders_needed and mask.expires >= at:
                common = both
                together.append(update)
        return together

    def admit(self, update: Update) -> list[Effect]:
        """Store the masked update."""
        assert isinstance(update, Upload)
        name = update.ticket.mask
        return [Persist("upload", name.key, update.words), *self.mailroom.move(name, "admit")]

    # --- asking -------------------------------------------------------------------------------

    def begin(self, version: int, members: Sequence[BufferedUpdate]) -> Step:
        """Ask the holders for the sum of these updates' masks."""
        tickets = sorted((self._ticket(member) for member in members), key=lambda t: t.mask)
        previous = self._certificates.get(str(version - 1))
        request = RecoveryRequest(self.agreement.id, version, tuple(tickets), previous)
        self._request = signed(request, self._signer)
        self._start_collecting()
        moves = [effect for m in members for effect in self.mailroom.move(m.name, "request")]
        stored = Persist("request", "", encode(self._request))
        return [stored, *moves, *self._ask(self._asked)], None

    def _ticket(self, member: BufferedUpdate) -> Ticket:
        return Ticket(
            self.agreement.id,
            member.name,
            member.base_version,
            member.model_hash,
            member.content_hash,
            member.signature,
        )

    def outstanding(self) -> tuple[MaskName, ...]:
        """S(t) of the present request."""
        return self._request.masks if self._request else ()

    def _question(self) -> Message:
        """What holders are asked at this stage."""
        assert self._request is not None
        if self._certificate is None:
            return self._request
        return CertifiedRequest(self._request, self._certificate)

    def _ask(self, holders: Sequence[int]) -> list[Effect]:
        question, names = self._question(), self.agreement.holder_names
        return [Send(names[holder], question) for holder in holders]

    def unanswered(self, holder: str, version: int) -> list[Message]:
        """All that a holder may have missed: what is over, its parcels, and the present question.

        What is over makes room for the parcels, and is said again after them: some of their masks may be.
        """
        index = self.agreement.holder_index(holder)
        if index is None:
            return []
        closings, parcels = self._closings(version), self.mailroom.undelivered(index)
        missed = [*closings, *parcels, *(closings if parcels else [])]
        asked = self._request is not None and index in self._asked
        return [*missed, self._question()] if asked and index not in self._answers else missed

    def _closings(self, version: int) -> list[Message]:
        """Everything that is over, for a holder that would otherwise keep its shares until they expire."""
        opened = [mask.name for mask in self.mailroom.over() if mask.state == "opened"]
        burned = [mask.name for mask in self.mailroom.over() if mask.state != "opened"]
        closings = (
            self._closing(version, opened, "opened"),
            self._closing(version, burned, "burned"),
        )
        return [closing for closing in closings if closing.masks]

    # --- listening ----------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, version: int) -> Step:
        """Handle what contributors deal and holders say."""
        if isinstance(message, Shipment):
            return self.mailroom.relay(sender, message, version), None
        if isinstance(message, Receipt):
            return self.mailroom.confirm(sender, message), None
        handlers: dict[type[Message], Callable[[Any], Step]] = {
            Endorsement: self._count_endorsement,
            Answer: self._count_answer,
        }
        handle = handlers.get(type(message))
        if handle is None:
            raise Malformed(f"a server does not take a {type(message).__name__}", peer=sender)
        return self._hear(sender, message, handle)

    def _hear(self, sender: str, reply: Any, handle: Callable[[Any], Step]) -> Step:
        """Check who speaks and about what; a late word about an earlier request is passed over."""
        self.agreement.require_id(reply.epoch)
        if self.agreement.holder_index(sender) != reply.holder:
            raise NotEnrolled(f"holder {reply.holder} is somebody else", peer=sender)
        if self._request is None or reply.digest != self._request.digest:
            return [], None
        if isinstance(reply, Endorsement) and self._certificate is not None:
            return [], None
        if reply.holder not in self._asked or reply.version != self._request.version:
            raise Malformed(f"holder {reply.holder} was not asked that", peer=sender)
        self.agreement.require_signed_by_holder(reply, reply.holder, reply.signature)
        return handle(reply)

    def _count_endorsement(self, endorsement: Endorsement) -> Step:
        self._endorsements[endorsement.holder] = endorsement.signature
        if len(self._endorsements) < self._parameters.quorum:
            return [], None
        return [*self._certify(), *self._ask(self._asked)], None

    def _certify(self) -> list[Effect]:
        """Enough endorsements: no other request with one of these masks can be certified any more."""
        assert self._request is not None
        self._certificate = Certificate(
            self.agreement.id,
            self._version,
            self._request.digest,
            tuple(sorted(self._endorsements.items())),
        )
        recent = {str(self._version - 1), str(self._version)}
        outdated = [key for key in self._certificates if key not in recent]
        for key in outdated:
            del self._certificates[key]
        self._certificates[str(self._version)] = self._certificate
        return [
            Persist("certificate", str(self._version), encode(self._certificate)),
            *(Forget("certificate", key) for key in outdated),
        ]

    def _count_answer(self, answer: Answer) -> Step:
        if self._parameters.consistency == "certified" and self._certificate is None:
            return [], None  # no sum is opened without its certificate: the next request carries it
        self._require_share(answer)
        if self._answers.setdefault(answer.holder, answer.words) != answer.words:
            raise Malformed(f"holder {answer.holder} answered twice, differently")
        return [], self._open() if len(self._answers) >= self._worth_decoding else None

    def _require_share(self, answer: Answer) -> None:
        size = self._parameters.share_size
        if len(answer.words) != 4 * size:
            raise Malformed(f"holder {answer.holder}: an answer has {size} words")
        if np.frombuffer(answer.words, "<u4").max() >= self._parameters.modulus:
            raise Malformed(f"holder {answer.holder}: a word is not below q")

    @property
    def _version(self) -> int:
        assert self._request is not None
        return self._request.version

    # --- opening ------------------------------------------------------------------------------

    def stage(self) -> Stage | None:
        """Which request is outstanding, and whether it is certified yet."""
        return (
            None if self._request is None else (self._request.digest, self._certificate is not None)
        )

    def deadline(self) -> Step:
        """Ask the silent ones the identical question again; else give up."""
        if self._request is None:
            return [], None
        if self._attempts < self._retries:
            self._attempts += 1
            endorsing = self._parameters.consistency == "certified" and self._certificate is None
            heard = self._endorsements if endorsing else self._answers
            return self._ask([holder for holder in self._asked if holder not in heard]), None
        return [], Burned(
            f"{len(self._endorsements)} endorsements and {len(self._answers)} answers are not enough:"
            f" {self._parameters.answers_needed} answers have to agree"
        )

    def _open(self) -> Outcome | None:
        """Decode, subtract, check; None while more answers may still help.

        Of U + T answers that agree U are honest, and these determine the sum: whoever disagrees is wrong.
        """
        assert self._request is not None
        shares = {h: np.frombuffer(words, "<u4") for h, words in self._answers.items()}
        try:
            masks, wrong = self.agreement.code.correct(shares, self._parameters.answers_needed)
        except DecodingError as error:
            return self._wait_or_burn(error.wrong, str(error))
        weights = [self._weight(ticket) for ticket in self._request.tickets]
        rows = [np.frombuffer(self._upload(mask), "<u4") for mask in self._request.masks]
        total = self._field.weighted_sum(rows, weights)
        return self._judge(self._field.sub(total, masks, out=total), weights, wrong)

    def _judge(self, total: Words, weights: list[int], wrong: tuple[int, ...]) -> Outcome | None:
        """A sum that no honest updates can have is discarded, never applied."""
        p = self._parameters
        update, pad = total[: p.model_size], total[p.model_size :]
        if pad.any():
            reason = "the pad of the sum is not zero: a share or answer is wrong"
            # Another sum has n − U + 1 answers against it or this one: a distance of the code.
            others = len(self._answers) - p.recovery_threshold + 1 - len(wrong)
            return Burned(reason) if p.agreed else self._wait_or_burn(others, reason)
        if magnitude(update, p.modulus) > sum(weights) * (p.update_levels * p.clip + 1):
            return Burned("the sum is larger than clipped updates can make it")
        # |update| ≤ (q − 3)/2 < 2³¹ is exact in float64.
        return Opened(dequantize(update, p.update_levels, p.modulus), tuple(weights), wrong)

    def _wait_or_burn(self, wrong: int, reason: str) -> Burned | None:
        """So many answers are wrong, or more: decode again when there may be enough right ones, if ever."""
        p = self._parameters
        self._worth_decoding = max(p.answers_needed + wrong, p.recovery_threshold + 2 * wrong)
        return Burned(reason) if self._worth_decoding > len(self._asked) else None

    def _weight(self, ticket: Ticket) -> int:
        coin = coin_of(self.agreement.id, ticket.mask)
        return int(self._weighing.weight(self._version, ticket.base_version, coin))

    def _upload(self, mask: MaskName) -> bytes:
        return require(self._records, "upload", mask.key)

    # --- endings ------------------------------------------------------------------------------

    def end(self, version: int, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        """Delete everything about these masks, and tell the holders that they are over."""
        closing = self._closing(version, names, "opened" if how == "open" else "burned")
        effects: list[Effect] = [Send(holder, closing) for holder in self.agreement.holder_names]
        if self._request is not None and set(names) >= set(self._request.masks):
            self._request = None
            effects.append(Forget("request", ""))
        for name in names:
            effects += [Forget("upload", name.key), *self.mailroom.end(name, how)]
        return effects

    def _closing(
        self, version: int, names: Sequence[MaskName], outcome: Literal["opened", "burned"]
    ) -> Closing:
        closing = Closing(self.agreement.id, version, tuple(names), outcome)
        return signed(closing, self._signer)

    def expire(self, version: int) -> list[Effect]:
        """Delete unused masks whose last version has passed."""
        return self.mailroom.expire(version)
