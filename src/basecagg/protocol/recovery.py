"""Protection 'basecagg': the server learns the weighted sum of K masked updates and nothing else.

Phase 3 of the paper: ask the holders, decode the sum of the masks from their answers, subtract. One request is
outstanding at a time. It is stored before it is sent, and then repeated identically or burned: never made
smaller, never reweighted. Differs from the paper: U + T answers have to agree, unless the epoch takes holders
to be honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from basecagg.errors import (
    AlreadyBuffered,
    KnownMask,
    Malformed,
    MaskExpired,
    NotEnrolled,
    QuotaExceeded,
    TooFewHolders,
    UnknownMask,
    VersionTaken,
)
from basecagg.maths.randomness import system_entropy
from basecagg.protocol import life
from basecagg.protocol.effects import Effect, Forget, Send
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.kept_versions import KeptVersions
from basecagg.protocol.mailroom import Mailroom
from basecagg.protocol.messages import (
    Answer,
    CannotFollow,
    Certificate,
    CertifiedRequest,
    Closing,
    Contribution,
    Endorsement,
    History,
    Inquiry,
    MaskName,
    Message,
    PlainUpdate,
    Receipt,
    RecoveryRequest,
    Release,
    Shipment,
    Slot,
    Verdict,
    Witness,
    certificate_of,
    content_hash,
    signed,
    signed_digest,
    statement,
)
from basecagg.protocol.once_per_version import OncePerVersion
from basecagg.protocol.opening import (
    LAST_VERDICT,
    Burned,
    Ending,
    LastVerdict,
    Move,
    Opened,
    Opening,
    Outcome,
    Stage,
    Update,
)
from basecagg.protocol.ports import Records, Signer
from basecagg.protocol.recomputation import NotOpenable, open_sum
from basecagg.protocol.short_letters import shortened
from basecagg.protocol.stored import (
    BufferedUpdate,
    Made,
    Past,
    recall,
    write,
)

_NONCE_BYTES = 16
_NOTHING = (-1, -1)


class Doubt:
    """How far the holders have seen the server go, whose store may be an older copy.

    It must not sign a second request for a slot, so it signs none until every holder has spoken and nobody has
    seen more than it knows. When more than T holders have, something is certainly forgotten: the way on is a
    new epoch with a new key for the server. Holders who lie can only keep it waiting for that.
    """

    def __init__(self, agreement: Agreement, slot: Slot | None) -> None:
        """`slot` is the last one that the store knows a request for."""
        self._agreement = agreement
        self._known = slot or _NOTHING
        self._inquiry = Inquiry(agreement.id, system_entropy(_NONCE_BYTES))
        self._seen: dict[int, Slot] = {}

    def ask(self) -> list[Effect]:
        """Send the question to all holders who have not answered it."""
        names = enumerate(self._agreement.holder_names)
        return [Send(name, self._inquiry) for holder, name in names if holder not in self._seen]

    def unanswered(self, holder: int) -> list[Inquiry]:
        """The question again, for a holder who has not answered it."""
        return [] if holder in self._seen else [self._inquiry]

    def hear(self, sender: str, witness: Witness) -> None:
        """Take a holder's word, or refuse it."""
        self._agreement.require_id(witness.epoch)
        self._agreement.require_holder(witness.holder, sender)
        if witness.nonce != self._inquiry.nonce:
            raise Malformed("that was not asked now")
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


class Recovery(Opening):
    """The server's view of masks, requests and answers. Rebuilt from its records after a restart."""

    def __init__(
        self,
        agreement: Agreement,
        signer: Signer,
        records: Records,
        retries: int = 1,
        keep: int = 1,
    ) -> None:
        """Open buffers of the agreed epoch; ask again `retries` times before unequal answers burn a sum.

        Keep what the last `keep` versions (R) were made from, for everybody who wants to check them.
        """
        self.agreement = agreement
        self.mailroom = Mailroom(agreement, records)
        self._signer = signer
        self._records = records
        self._retries = retries
        self._parameters = agreement.parameters
        self._request = recall(records, "request", RecoveryRequest)
        self._past = recall(records, "past", Past) or Past()
        self._once = OncePerVersion(agreement, records)
        self._doubt = Doubt(agreement, self._past.slot) if records.rolled_back else None
        self.kept = KeptVersions(records, keep, [mask.name for mask in self.mailroom.live()])
        self._start_collecting()

    def _start_collecting(self) -> None:
        """Begin without replies. They are not stored, because holders repeat them when asked again."""
        self._endorsements: dict[int, bytes] = {}
        self._answers: dict[int, Answer] = {}
        request = self._request
        stored = recall(self._records, "certificate", Certificate) if request else None
        known = stored and request and stored.endorsed == request.endorsed
        self._certificate = stored if known else None
        self._attempts, self._fault = 0, ""
        self._worth_decoding = self._parameters.answers_needed
        self._asked = sorted(self.mailroom.common_holders(self.outstanding()))

    # --- admission ----------------------------------------------------------------------------

    def authenticate(self, sender: str, update: Update) -> BufferedUpdate:
        """Refuse an upload whose ticket the dealer of the mask did not sign for these very bytes."""
        if isinstance(update, PlainUpdate):
            raise Malformed("this server takes masked updates only")
        ticket, agreement = update.ticket, self.agreement
        agreement.require_id(ticket.epoch)
        if isinstance(update, Contribution):
            dealer_key = self._dealer_of(sender, update)
        else:
            dealer_key = self._known_dealer_of(sender, ticket.mask)
        if ticket.mask.contributor != sender:
            raise NotEnrolled(f"mask {ticket.mask.key} is not the sender's")
        agreement.require_signed(ticket, dealer_key, ticket.signature)
        agreement.require_words(update.words, self._parameters.padded_size, "an upload")
        if content_hash(update.words) != ticket.upload_hash:
            raise Malformed("the ticket is for other bytes")
        return BufferedUpdate.of(ticket)

    def _known_dealer_of(self, sender: str, name: MaskName) -> bytes:
        """The key of who dealt a mask ahead."""
        if self._parameters.one_visit:
            raise Malformed("here an update comes together with its mask")
        mask = self.mailroom.find(name)
        if mask is None:
            refusal = UnknownMask(f"mask {name.key} was not dealt, or expired")
            if name.contributor == sender:
                refusal.also = self._end_unknown(name)
            raise refusal
        return mask.dealer_key

    def _dealer_of(self, sender: str, update: Contribution) -> bytes:
        """The key of who deals a mask with its update; refuse a dealing for another update."""
        dealing, ticket = update.dealing, update.ticket
        if ticket.mask not in dealing.masks:
            raise Malformed("the dealing is of another mask than the update's")
        mask = self.mailroom.find(ticket.mask)
        if mask is not None and mask.dealing != dealing.key:
            raise KnownMask(f"mask {ticket.mask.key} is {mask.state}; a name is used once")
        if mask is None:  # a known one was looked at when it came first
            self.mailroom.require_genuine(sender, dealing)
        self.agreement.require_promised(ticket, dealing.ticket)
        return dealing.credential.signing_key

    def _end_unknown(self, name: MaskName) -> list[Effect]:
        """The sender's own mask, dealt after the backup that this store was: the word that its update is over.

        Without it the contributor could not train from its version again. All holders have said by now that no
        sum is forgotten here, so it was in none that was opened.
        """
        present = self._past.slot[0] if self._past.slot else self.agreement.epoch.first_version
        if self._doubt is not None or name.expires <= present:
            return []
        return [Send(name.contributor, self._closing(present, [name], "burn"))]

    def last_verdict(self, name: MaskName) -> LastVerdict | None:
        """What became of an update that is over, until its mask expires."""
        mask = self.mailroom.find(name)
        state = mask.state if mask else ""
        return next((verdict for verdict in LAST_VERDICT.values() if verdict == state), None)

    def require_openable(self, update: BufferedUpdate, at: int, history: History) -> None:
        """Refuse an update that holders would refuse, or whose mask too few keep or expires too early."""
        mask = self.mailroom.find(update.name)
        self._require_free(update.name.contributor, update.base_version, history)
        if update.name.expires < at:
            raise MaskExpired(f"mask {update.name.key} expires before its buffer opens")
        if self._parameters.one_visit:  # it is parked until enough holders keep a share
            return
        assert mask is not None
        if not life.allows(life.SERVER, mask.state, "admit"):
            raise AlreadyBuffered(f"mask {update.name.key} has hidden another update")
        count, needed = len(self.mailroom.holders_of(update.name)), self.agreement.holders_needed
        if count < needed:
            raise TooFewHolders(
                f"{count} holders keep a share of mask {update.name.key}, {needed} are needed"
            )

    def may_come(self, contributor: str) -> bool:
        """Who has dealt a mask may; anybody, where masks come with the updates."""
        return self._parameters.one_visit or contributor in self.mailroom.dealers

    def may_contribute(self, contributor: str, history: History) -> bool:
        """Whether an update of this contributor from the present version could be summed."""
        try:
            self._require_free(contributor, history.last, history)
        except VersionTaken:
            return False
        return True

    def _require_free(self, contributor: str, base_version: int, history: History) -> None:
        """Refuse what holders would: another update from a version whose sum was opened or is being opened."""
        present = {self._request.digest} if self._request else set()
        self._once.require_free(contributor, base_version, history.opened | present)

    def openable_together(self, updates: Sequence[BufferedUpdate], at: int) -> list[BufferedUpdate]:
        """Take one after the other, as long as enough holders keep a share of all of them.

        A contributor that may have spoiled a sum of this version is left out, if enough others have dealt
        masks.
        """
        suspects = self._past.suspects
        others = self.mailroom.dealers - suspects if suspects else frozenset()
        if len(others - self.gone) >= self._parameters.buffer_size:
            updates = [update for update in updates if update.name.contributor in others]
        common = set(range(self._parameters.num_holders))
        together: list[BufferedUpdate] = []
        for update in updates:
            both = common & self.mailroom.holders_of(update.name)
            if len(both) >= self.agreement.holders_needed and update.name.expires >= at:
                common = both
                together.append(update)
        return together

    def keep(self, update: Update, version: int) -> list[Effect]:
        """Store the masked update, and relay the dealing that came with it."""
        assert not isinstance(update, PlainUpdate)
        shares: list[Effect] = []
        if isinstance(update, Contribution):
            shares = self.mailroom.park(update.shipment, version)
        outdated = self.kept.forget_outdated()
        stored = self.kept.uploads.store(update.ticket.mask, update.words)
        return [*stored, *shares, *outdated]

    def may_admit(self, name: MaskName) -> bool:
        """Whether enough holders confirmed their shares."""
        return len(self.mailroom.holders_of(name)) >= self.agreement.holders_needed

    def is_parked(self, name: MaskName) -> bool:
        """As its mask's life says."""
        mask = self.mailroom.find(name)
        return mask is not None and mask.state == "parked"

    def admit(self, name: MaskName) -> list[Effect]:
        """The mask's holders may be asked for it from now on."""
        return self.mailroom.move(name, "admit")

    def repeat(self, update: Update) -> list[Effect]:
        """Holders that have not confirmed their shares get them again."""
        assert isinstance(update, Contribution)
        return self.mailroom.remind(update.dealing)

    def give_back(self, name: MaskName) -> list[Effect]:
        """Holders keep their shares: the update is the same when it comes again."""
        return [self.kept.uploads.forget(name), *self.mailroom.end(name, "return")]

    def turn_away(self, version: int, update: Update, name: MaskName) -> list[Effect]:
        """Keep its name, so that it cannot come again, and tell the contributor so with a signature.

        No holder has heard of a mask that comes with its update for the first time. As long as this store may
        be an older copy, nothing is signed about a mask that it does not know.
        """
        if self.mailroom.find(name) is not None or not isinstance(update, Contribution):
            return super().turn_away(version, update, name)
        if self._doubt is not None or not self.mailroom.may_refuse(update.dealing, version):
            return []
        closing = self._closing(version, [name], "refuse")
        return [*self.mailroom.refuse(update.dealing), Send(name.contributor, closing)]

    # --- asking -------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """If this store is an older copy, ask the holders: there may be requests that it does not know."""
        return self._doubt.ask() if self._doubt else []

    @property
    def leaves_out(self) -> bool:
        """Whether a sum of this version was given up: its members are left out if others may come."""
        return bool(self._past.suspects)

    def pardon(self) -> list[Effect]:
        """Let contributors that may have spoiled a sum into the next: it has waited long enough for others."""
        if not self._past.suspects:
            return []
        self._past.suspects = frozenset()
        return [write("past", "", self._past)]

    def may_begin(self, version: int) -> bool:
        """Whether an attempt is left, and no holder has seen a request that this store does not know."""
        return not self._is_used_up(version) and self._doubt is None

    def trouble(self, version: int) -> str:
        """For the operator: why no sum is opened until somebody acts; empty if all is well."""
        if self._doubt is not None:
            return self._doubt.in_words()
        if self._request is not None or not self._is_used_up(version):
            return ""
        return (
            f"{self.agreement.epoch.max_burns + 1} sums of version {version} were given up, and no more may be"
            " asked for: begin a new epoch (basecagg operator rotate)"
        )

    @property
    def is_stuck(self) -> bool:
        """Whether the present sum may never open, so that the end of the epoch need not wait for it."""
        return self._doubt is not None or self._attempts > self._retries

    def _is_used_up(self, version: int) -> bool:
        return self._next_attempt(version) > self.agreement.epoch.max_burns

    def _next_attempt(self, version: int) -> int:
        last = self._past.slot
        return last[1] + 1 if last is not None and last[0] == version else 0

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Move:
        """Ask the holders for the sum of these updates' masks."""
        version, epoch = history.last, self.agreement.id
        by_name = sorted(members, key=lambda member: member.name)
        tickets = tuple(member.ticket(epoch) for member in by_name)
        self._past.slot = slot = version, self._next_attempt(version)
        request = RecoveryRequest(epoch, *slot, history, tickets, self._past.opened)
        self._request = signed(request, self._signer)
        self._start_collecting()
        moves = [effect for m in members for effect in self.mailroom.move(m.name, "request")]
        return [
            write("request", "", self._request),
            write("past", "", self._past, irreversible=True),
            *self._once.note(self._request),
            *moves,
            *self._ask(self._asked, short=True),
        ], None

    def outstanding(self) -> tuple[MaskName, ...]:
        """S(t) of the present request."""
        return self._request.masks if self._request else ()

    def _question(self, *, short: bool = False) -> Message:
        """What holders are asked at this stage: in short, or in a form that anybody can follow."""
        assert self._request is not None
        if self._certificate is None:
            return shortened(self._request) if short else self._request
        return self._certificate if short else CertifiedRequest(self._request, self._certificate)

    def _ask(self, holders: Sequence[int], *, short: bool = False) -> list[Effect]:
        question, names = self._question(short=short), self.agreement.holder_names
        return [Send(names[holder], question) for holder in holders]

    def _ask_also(self, holder: int) -> list[Effect]:
        """A holder that kept its shares only after the sum was asked for is asked, too.

        A mask that came with its update is asked for as soon as enough holders keep a share of it.
        """
        if self._request is None or self._doubt is not None or holder in self._asked:
            return []
        if not all(holder in self.mailroom.holders_of(mask) for mask in self._request.masks):
            return []
        self._asked = sorted([*self._asked, holder])
        return self._ask([holder])

    def unanswered(self, holder: str, version: int) -> list[Message]:
        """All that a holder may have missed: masks that are over, its parcels, and the present question.

        Masks that are over come first, to make room for the parcels, and again after the parcels, because some
        masks in them may be over.
        """
        index = self.agreement.holder_index(holder)
        if index is None:
            return []
        closings, parcels = self._closings(version), self.mailroom.undelivered(index)
        doubts = self._doubt.unanswered(index) if self._doubt else []
        missed = [*doubts, *closings, *parcels, *(closings if parcels else [])]
        asked = self._request is not None and index in self._asked and self._doubt is None
        return [*missed, self._question()] if asked and index not in self._answers else missed

    def _closings(self, version: int) -> list[Message]:
        """Everything that is over, for a holder that would otherwise keep its shares until they expire."""
        names: dict[Ending, list[MaskName]] = {"open": [], "burn": []}
        for mask in self.mailroom.over():
            names["open" if mask.state == "opened" else "burn"].append(mask.name)
        return [self._closing(version, over, how) for how, over in names.items() if over]

    # --- listening ----------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, version: int) -> Move:
        """Handle what contributors deal and holders say."""
        match message:
            case Shipment() if not self._parameters.one_visit:
                effects = self.mailroom.relay(sender, message, version)
            case Receipt():
                confirmed = self.mailroom.confirm(sender, message)
                effects = [*confirmed, *self._ask_also(message.holder)]
            case Witness():
                effects = self._hear_witness(sender, message)
            case Closing():
                effects = self._make_room(sender, message, version)
            case CannotFollow():
                effects = self._repeat_in_full(sender, message)
            case Endorsement() | Answer():
                return self._hear(sender, message)
            case _:
                return super().receive(sender, message, version)
        return effects, None

    def _make_room(self, sender: str, closing: Closing, version: int) -> list[Effect]:
        """End the masks that a contributor gives up, if they hid no update; tell it which of them are over."""
        self.agreement.require_id(closing.epoch)
        most = self.agreement.masks_per_contributor
        if len(closing.masks) > most:
            raise QuotaExceeded(f"{len(closing.masks)} masks are given up at once, {most} may live")
        named = dict.fromkeys(closing.masks)
        known = [mask for name in named if (mask := self.mailroom.find(name))]
        for mask in known:
            self.agreement.require_signed(closing, mask.dealer_key, closing.signature)
        if any(name.contributor != sender for name in closing.masks):
            raise NotEnrolled("somebody else's mask is given up")
        unused = [m.name for m in known if life.allows(life.SERVER, m.state, "refuse")]
        ended = self.end(version, unused, "refuse") if unused else []
        in_use = {mask.name for mask in self.mailroom.live()}
        over = {n: self.last_verdict(n) or "refused" for n in closing.masks if n not in in_use}
        verdicts = [Verdict(self.agreement.id, *each, "it was given up") for each in over.items()]
        return [*ended, *(Send(sender, verdict) for verdict in verdicts)]

    def _repeat_in_full(self, sender: str, lost: CannotFollow) -> list[Effect]:
        """Send the long form of the present question to a holder that cannot follow the short one.

        It is not signed: all that it brings is what a holder that reconnects is sent as well.
        """
        self.agreement.require_id(lost.epoch)
        index = self.agreement.holder_index(sender)
        if index is None:
            raise NotEnrolled(f"{sender} is no holder", peer=sender)
        is_present = self._request is not None and lost.digest == self._request.digest
        is_awaited = index in self._asked and index not in self._answers and self._doubt is None
        return self._ask([index]) if is_present and is_awaited else []

    def _hear_witness(self, sender: str, witness: Witness) -> list[Effect]:
        """Note how far a holder saw the server go. The doubt ends when all have spoken and none saw more."""
        if self._doubt is None:
            return []
        self._doubt.hear(sender, witness)
        if not self._doubt.is_settled:
            return []
        self._doubt = None
        again = self._ask(self._asked) if self._request is not None else []
        return [write("past", "", self._past, irreversible=True), *again]

    def _hear(self, sender: str, reply: Endorsement | Answer) -> Move:
        """Check sender and request of a reply; pass over a late reply to an earlier request."""
        self.agreement.require_id(reply.epoch)
        self.agreement.require_holder(reply.holder, sender)
        if self._doubt is not None:
            return [], None  # the request may have ended, and this older copy does not know it
        if self._request is None or reply.digest != self._request.digest:
            return [], None
        if isinstance(reply, Endorsement) and self._certificate is not None:
            return [], None
        if reply.holder not in self._asked or reply.version != self._request.version:
            raise Malformed(f"holder {reply.holder} was not asked that")
        self.agreement.require_signed_by_holder(reply, reply.holder, reply.signature)
        if isinstance(reply, Answer):
            return self._count_answer(reply)
        return self._count_endorsement(reply, self._request), None

    def _count_endorsement(
        self, endorsement: Endorsement, request: RecoveryRequest
    ) -> list[Effect]:
        self._endorsements[endorsement.holder] = endorsement.signature
        if len(self._endorsements) < self._parameters.quorum:
            return []
        # From now on no other request with one of these masks can be certified.
        votes = tuple(sorted(self._endorsements.items()))
        self._certificate = certificate_of(request, votes)
        ask = self._ask(self._asked, short=True)
        return [write("certificate", "", self._certificate), *ask]

    def _count_answer(self, answer: Answer) -> Move:
        if self._parameters.consistency == "certified" and self._certificate is None:
            return (
                [],
                None,
            )  # no sum is opened without its certificate, which the next request carries
        share_size, what = self._parameters.share_size, f"the answer of holder {answer.holder}"
        self.agreement.require_words(answer.words, share_size, what)
        if self._answers.setdefault(answer.holder, answer) != answer:
            raise Malformed(f"holder {answer.holder} answered twice, differently")
        return [], self._open() if len(self._answers) >= self._worth_decoding else None

    # --- opening ------------------------------------------------------------------------------

    def stage(self) -> Stage | None:
        """Which request is outstanding, and whether it is certified yet."""
        request = self._request
        return (request.digest, self._certificate is not None) if request else None

    def deadline(self) -> Move:
        """Ask the silent holders the identical question again. Silence burns nothing: few sums may be given up.

        Only answers that disagree burn a sum, once the silent holders have been asked often enough.
        """
        if self._doubt is not None:
            return self._doubt.ask(), None
        if self._request is None:
            return [], None
        disagree = self._worth_decoding > self._parameters.answers_needed
        if disagree and self._attempts >= self._retries:
            return [], Burned(
                f"{len(self._answers)} answers disagree:"
                f" {self._parameters.answers_needed} have to agree ({self._fault})"
            )
        self._attempts += 1
        endorsing = self._parameters.consistency == "certified" and self._certificate is None
        heard = self._endorsements if endorsing else self._answers
        return self._ask([holder for holder in self._asked if holder not in heard]), None

    def _open(self) -> Outcome | None:
        """The sum; None while more answers may still help."""
        assert self._request is not None
        uploads = map(self.kept.uploads.read, self._request.masks)
        try:
            return open_sum(self.agreement, self._request, uploads, self._answers)
        except NotOpenable as fault:
            if fault.helpless:
                return Burned(str(fault))
            # At least `wrong` answers are wrong: decode again when enough others may have come, if ever.
            p, wrong, self._fault = self._parameters, fault.wrong, str(fault)
            self._worth_decoding = max(p.answers_needed + wrong, p.recovery_threshold + 2 * wrong)
            # All others may still confirm their shares, where those come with the updates.
            most = p.num_holders if p.one_visit else len(self._asked)
            return Burned(str(fault)) if self._worth_decoding > most else None

    # --- what others may check ----------------------------------------------------------------

    def publish(self, history: History, opened: Opened) -> list[Effect]:
        """Say what the new version was made from, and keep that for a while."""
        assert self._request is not None
        made_from = tuple(
            (holder, signed_digest(statement(answer), answer.signature))
            for holder, answer in sorted(self._answers.items())
        )
        wrong, applied = opened.inconsistent_holders, opened.applied
        release = Release(self.agreement.id, history, made_from, wrong, applied)
        release, certificate = signed(release, self._signer), self._certificate
        made = Made(release=release, request=self._request, certificate=certificate)
        self._past.opened, self._past.suspects = certificate, frozenset()
        past = write("past", "", self._past, irreversible=True)
        return [*self.kept.add(made, self._answers), past]

    # --- endings ------------------------------------------------------------------------------

    def end(self, version: int, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        """Delete everything about these masks, and tell the holders that they are over."""
        closing = self._closing(version, names, how)
        told = dict.fromkeys(self.agreement.holder_names)
        if (
            how != "open"
        ):  # a contributor trains from the same version again only with the signed closing
            told |= dict.fromkeys(name.contributor for name in names)
        effects: list[Effect] = [Send(name, closing) for name in told]
        if self._request is not None and set(names) >= set(self._request.masks):
            self._request = None
            effects.append(Forget("request", ""))
            if how == "burn":
                self._past.suspects |= {name.contributor for name in names}
                effects.append(write("past", "", self._past))
        for name in names:
            # Opened uploads stay for a while, so that others can check the sum.
            gone = [self.kept.uploads.forget(name)] if how != "open" else []
            effects += [*gone, *self.mailroom.end(name, how)]
        return effects

    def repeat_end(self, version: int, name: MaskName) -> list[Effect]:
        """The signed word on an update that was not opened, for its contributor, who may have missed it."""
        if self.last_verdict(name) == "opened":
            return []
        return [Send(name.contributor, self._closing(version, [name], "burn"))]

    def _closing(self, version: int, names: Sequence[MaskName], how: Ending) -> Closing:
        outcome: Literal["opened", "burned"] = "opened" if how == "open" else "burned"
        return signed(Closing(self.agreement.id, version, tuple(names), outcome), self._signer)

    def expire(self, version: int) -> list[Effect]:
        """Delete unused masks whose last version has passed."""
        return self.mailroom.expire(version)
