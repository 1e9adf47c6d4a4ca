"""The holder: keeps one encoded share of every live mask, and answers a recovery once.

It trusts nobody. A request that breaks a rule is refused with a typed error, and changes nothing. The holder
stores what it endorses or answers before the signature leaves, and uses each mask for one request only, ever.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from basecagg.errors import (
    BadCertificate,
    ChannelError,
    KnownMask,
    Malformed,
    MaskExpired,
    MaskTaken,
    QuotaExceeded,
    Retired,
    SlotTaken,
    UnknownMask,
    WrongMembers,
    WrongModel,
    WrongRecipient,
    WrongVersion,
)
from basecagg.maths.packing import pack, sum_packed
from basecagg.maths.prime_field import PrimeField
from basecagg.protocol import life, merkle
from basecagg.protocol.effects import Effect, Forget, Persist, Send
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.messages import (
    Answer,
    CannotFollow,
    Certificate,
    CertifiedRequest,
    Closing,
    Dealing,
    Endorsement,
    Inquiry,
    MaskName,
    Message,
    Parcel,
    Receipt,
    RecoveryRequest,
    ShortRequest,
    Ticket,
    Witness,
    endorsement_of,
    sealing_context,
    signed,
)
from basecagg.protocol.once_per_version import OncePerVersion
from basecagg.protocol.ports import Opener, Records, Signer
from basecagg.protocol.short_letters import LastQuestion, Long, Short
from basecagg.protocol.stored import HeldShare, Progress, bind, load, recall, require, write
from basecagg.protocol.weighing import Weighing

_LIVE = ("held", "endorsed")
_NEVER = sys.maxsize
MAX_LAG = 10_000
"""How many versions a holder that was away may be behind. A mask that expires later is refused: else dealer and
server could make the holder remember a name for ever."""


class Holder:
    """One holder of an epoch. Rebuilt from its records after a restart, it goes on where it was."""

    def __init__(
        self, agreement: Agreement, index: int, signer: Signer, opener: Opener, records: Records
    ) -> None:
        """Take up holder number `index` of the agreed epoch."""
        self.agreement = agreement
        self.index = index
        self._signer = signer
        self._opener = opener
        self._records = records
        self._parameters = agreement.parameters
        self._weighing = Weighing.of(agreement.parameters)
        self._field = PrimeField(agreement.parameters.field_size)
        self._held = load(records, "held", HeldShare)
        self._answers = load(records, "answer", Answer)
        self._votes = set(records.keys("vote"))
        """The digests of all requests that this holder has endorsed in this epoch."""
        first = Progress(version=agreement.epoch.first_version, heads={})
        self._progress = recall(records, "progress", Progress) or first
        self._once = OncePerVersion(agreement, records)
        self._last = LastQuestion(agreement, records)
        self._live = Counter(h.name.contributor for h in self._held.values() if h.state in _LIVE)
        self._first_expiry = min(
            (held.name.expires for held in self._held.values()), default=_NEVER
        )
        self._unacknowledged: list[MaskName] = []

    @property
    def version(self) -> int:
        """t: the highest version of any request that was endorsed or answered here."""
        return self._progress.version

    def states(self) -> dict[str, str]:
        """The state of every mask that is known here, by key."""
        return {key: held.state for key, held in self._held.items()}

    def receive(self, message: Message) -> list[Effect]:
        """Handle a message from the server, or refuse it with a typed error and no change."""
        if self._progress.retired:
            raise Retired("this holder restarted from an old copy and waits for the next epoch")
        if isinstance(message, ShortRequest | Certificate):
            self.agreement.require_id(message.epoch)
            whole = self.completed(message)
            if whole is None:
                return [Send(SERVER, CannotFollow(message.epoch, message.digest))]
            message = whole
        match message:
            case Parcel():
                return self._keep(message)
            case RecoveryRequest():
                return self._consider(message)
            case CertifiedRequest():
                return self._answer_certified(message)
            case Closing():
                return self._close(message)
            case Inquiry():
                return self._bear_witness(message)
        raise Malformed(f"a holder does not take a {type(message).__name__}")

    def completed(self, letter: Short) -> Long | None:
        """The long form of a short letter, or None: then this holder says that it cannot follow."""
        return self._last.completed(letter)

    def acknowledge(self) -> list[Effect]:
        """One signed receipt for all parcels taken since the last one."""
        if not self._unacknowledged:
            return []
        masks, self._unacknowledged = tuple(dict.fromkeys(self._unacknowledged)), []
        receipt = signed(Receipt(self.agreement.id, self.index, masks), self._signer)
        return [Send(SERVER, receipt)]

    def start(self) -> list[Effect]:
        """Carry this out once after construction. An older copy of the store ends this holder's epoch.

        The copy does not know what was answered since, so a replayed parcel could look fresh. So the holder
        burns all masks and refuses everything until the next epoch.
        """
        bound = bind(self._records, self.agreement.id)
        return [*bound, *(self.retire() if self._records.rolled_back else [])]

    def retire(self) -> list[Effect]:
        """Burn all masks and refuse everything from now on, because the store may have forgotten something."""
        if self._progress.retired:
            return []
        self._progress.retired = True
        burned = self._end(self._held.values())
        return [write("progress", "", self._progress, irreversible=True), *burned]

    def remembers(self, certificate: Certificate) -> bool:
        """False if the certificate carries our valid signature but our store does not know it."""
        if certificate.epoch != self.agreement.id or certificate.digest.hex() in self._votes:
            return True
        vote, index = endorsement_of(certificate, self.index), self.index
        ours = [signature for holder, signature in certificate.signatures if holder == index]
        return not any(self.agreement.signed_by_holder(vote, index, each) for each in ours)

    # --- phase 1: keep a share ----------------------------------------------------------------

    def _keep(self, parcel: Parcel) -> list[Effect]:
        dealing = parcel.dealing
        self.agreement.require_id(dealing.epoch)
        parcel_hash = merkle.leaf(self.index, parcel.sealed)
        known = [self._held[mask.key] for mask in dealing.masks if mask.key in self._held]
        if known:
            return self._keep_again(dealing, known, parcel_hash)
        self._require_room(dealing)
        self._require_mine(parcel)
        shares = self._open(dealing, parcel.sealed)
        self._first_expiry = min(self._first_expiry, dealing.expires)
        self._unacknowledged += dealing.masks
        effects: list[Effect] = []
        for mask, share in zip(dealing.masks, shares, strict=True):
            held = self._held[mask.key] = HeldShare(
                name=mask,
                dealer_key=dealing.credential.signing_key,
                parcel_hash=parcel_hash,
                state="unknown",
                ticket=dealing.ticket,
            )
            self._move(held, "parcel")
            effects += [Persist("share", mask.key, share), write("held", mask.key, held)]
        return effects

    def _keep_again(
        self, dealing: Dealing, known: Sequence[HeldShare], parcel_hash: bytes
    ) -> list[Effect]:
        """Confirm the same parcel again, for the receipt may have been lost. Refuse any other."""
        hashes = {held.parcel_hash for held in known}
        same = hashes == {parcel_hash} and len(known) == len(dealing.masks)
        live = [held.name for held in known if held.state in _LIVE]
        if not same or not live:
            name, state = known[0].name, known[0].state
            raise KnownMask(f"mask {name.key} is {state} here; a name is used once")
        self._unacknowledged += live
        return []

    def _require_room(self, dealing: Dealing) -> None:
        if dealing.expires < self.version:
            raise MaskExpired(
                f"mask {dealing.masks[0].key} expired at version {dealing.expires}, the model is at"
                f" {self.version}"
            )
        latest = self.version + self._parameters.mask_lifetime + MAX_LAG
        if dealing.expires > latest:
            raise WrongVersion(
                f"mask {dealing.masks[0].key} is to expire at version {dealing.expires}, from here"
                f" {latest} is the last that is possible: deal it at the present version"
            )
        dealer = dealing.credential.contributor
        # The new masks themselves are not counted: some may be over already, and the server has counted them.
        if self._live[dealer] >= self.agreement.masks_per_contributor:
            raise QuotaExceeded(f"{self._live[dealer]} masks are live already", peer=dealer)

    def _require_mine(self, parcel: Parcel) -> None:
        dealing, count = parcel.dealing, self._parameters.num_holders
        suite = self.agreement.epoch.suite
        root = merkle.root_by(parcel.path, self.index, count, parcel.sealed, suite)
        if parcel.holder != self.index or root != dealing.root:
            raise WrongRecipient(
                f"the envelope of {dealing.masks[0].key} is not the one dealt to holder {self.index}"
            )
        self.agreement.require_dealt(dealing)

    def _open(self, dealing: Dealing, sealed: bytes) -> list[bytes]:
        """The shares of the dealing's masks, which lie one after the other in the envelope."""
        dealer, count = dealing.credential.contributor, len(dealing.masks)
        try:
            context = sealing_context(self.agreement.id, dealing.masks, self.index)
            shares = self._opener.open(context, sealed)
        except ChannelError:
            raise WrongRecipient(
                f"the envelope of {dealing.masks[0].key} does not open here", peer=dealer
            ) from None
        size = self._parameters.share_size
        self.agreement.require_words(shares, count * size, f"an envelope of {dealer}")
        each = size * self._parameters.word_bytes
        return [shares[begin : begin + each] for begin in range(0, len(shares), each)]

    # --- phase 3: endorse and answer ----------------------------------------------------------

    def _consider(self, request: RecoveryRequest) -> list[Effect]:
        """A request without a certificate: endorse it, or (honest-server mode) answer it."""
        digest = request.digest
        answer, voted = self._answers.get(digest.hex()), digest.hex() in self._votes
        if (answer and voted) or self._endorsed(request, digest):
            # The server lost our vote, or the certificate.
            return [Send(SERVER, self._endorsement(request))]
        if answer:
            return [Send(SERVER, answer)]
        self._check(request, certified=False)
        if self._parameters.consistency != "certified":
            return self._answer(request, digest)
        return [
            *self._bind(request, digest, "endorse"),
            *self._once.note(request),
            *self._vote(digest),
            *self._last.note(request),
            *self._advance(request),
            Send(SERVER, self._endorsement(request)),
        ]

    def _answer_certified(self, certified: CertifiedRequest) -> list[Effect]:
        request, digest = certified.request, certified.request.digest
        self.agreement.require_id(request.epoch)
        if answer := self._answers.get(digest.hex()):
            return [Send(SERVER, answer)]  # the identical bytes, for the answer may have been lost
        if certified.certificate.endorsed != request.endorsed:
            raise BadCertificate("the certificate is for another request")
        self.agreement.require_certificate(certified.certificate)
        vote: list[Effect] = []
        if not self._endorsed(request, digest):
            self._check(request, certified=True)
            # So a server that loses its certificate can ask for it again. Not if we endorsed another request.
            if all(self._held[mask.key].state == "held" for mask in request.masks):
                vote = self._vote(digest)
        return [*vote, *self._answer(request, digest, certified.certificate)]

    def _endorsed(self, request: RecoveryRequest, digest: bytes) -> bool:
        """Whether every member is endorsed here for this very request, so that its rules were checked."""
        held = [self._held.get(mask.key) for mask in request.masks]
        return bool(held) and all(
            share is not None and share.state == "endorsed" and share.digest == digest
            for share in held
        )

    def _bind(self, request: RecoveryRequest, digest: bytes, event: str) -> list[Effect]:
        """Every member's share serves this request, and no other from now on."""
        for mask in request.masks:
            held = self._held[mask.key]
            self._move(held, event)
            held.digest = digest
        return [write("held", m.key, self._held[m.key], irreversible=True) for m in request.masks]

    def _vote(self, digest: bytes) -> list[Effect]:
        """Note that we endorse this request, and no other with one of its masks from now on."""
        self._votes.add(digest.hex())
        return [Persist("vote", digest.hex(), b"", irreversible=True)]

    def _endorsement(self, request: RecoveryRequest) -> Endorsement:
        return signed(endorsement_of(request, self.index), self._signer)

    def _answer(
        self, request: RecoveryRequest, digest: bytes, certificate: Certificate | None = None
    ) -> list[Effect]:
        """Σ s̄·share, with weights computed here. The shares are deleted before the answer leaves."""
        weights = self._weighing.in_field(request)
        shares = [require(self._records, "share", mask.key) for mask in request.masks]
        q = self._parameters.field_size
        words = pack(sum_packed(self._field, shares, weights), q).tobytes()
        answer = signed(
            Answer(self.agreement.id, request.version, digest, self.index, words), self._signer
        )
        self._answers[digest.hex()] = answer
        return [
            *self._bind(request, digest, "answer"),
            *self._once.note(request),
            *(Forget("share", mask.key) for mask in request.masks),
            write("answer", digest.hex(), answer, irreversible=True),
            *self._last.note(request, certificate),
            *self._advance(request),
            Send(SERVER, answer),
        ]

    # --- the rules ----------------------------------------------------------------------------

    def _check(self, request: RecoveryRequest, *, certified: bool) -> None:
        """Check every rule for a request. A certificate overrides an endorsement of another request."""
        self.agreement.require_from_server(request)
        self._require_members(request)
        self._require_version(request)
        self._require_history(request)
        if not certified:
            self._require_slot(request)
        heads = request.history.heads
        for ticket in request.tickets:
            self._require_usable(ticket, request.version, certified=certified)
            self._weighing.require_timely(request.version, ticket)
            if heads.get(ticket.base_version) != ticket.head:
                raise WrongModel(
                    f"{ticket.mask.contributor} had another model of version {ticket.base_version}"
                )
        if not certified:
            self._require_free(request)

    def _require_members(self, request: RecoveryRequest) -> None:
        wanted, masks = self._parameters.buffer_size, request.masks
        if len(masks) != wanted:
            raise WrongMembers(f"{len(masks)} members, not exactly K = {wanted}")
        if list(masks) != sorted(masks):
            raise WrongMembers("the members are not in the order of their names")
        if len({mask.contributor for mask in masks}) != wanted:
            raise WrongMembers("a contributor is a member twice")
        least = self._parameters.least_per_version
        kinds = Counter(self._weighing.kinds(request.tickets))
        if min(kinds.values()) < least:
            raise WrongMembers(
                f"a base version has {min(kinds.values())} members, fewer than min_per_version = {least}"
            )
        # What each tier brings can be told apart where values lie on a grid.
        if least > 1 and len({version for version, _ in kinds}) < len(kinds):
            raise WrongMembers("members of one base version have different tiers")

    def _require_version(self, request: RecoveryRequest) -> None:
        version, first = request.version, self.agreement.epoch.first_version
        if version < max(self.version, first):
            raise WrongVersion(f"version {version} has passed, here it is {self.version}")
        if self._parameters.consistency != "certified" or version == first:
            return
        previous = request.previous
        if previous is None or previous.version != version - 1:
            raise WrongVersion(f"version {version} comes without the certificate of {version - 1}")
        if previous != self._last.certificate:  # that one was checked
            self.agreement.require_certificate(previous)

    def _require_history(self, request: RecoveryRequest) -> None:
        """Refuse links that do not follow from what a quorum endorsed, or from a head that is known here."""
        history, first = request.history, self.agreement.beginning
        told = max(
            1, self._parameters.max_staleness
        )  # at least the last link: it names the certified sum
        root = max(first.version, request.version - told)
        if (history.version, history.last) != (root, request.version) or not history.is_whole:
            raise WrongModel(f"the links do not lead from {root} to {request.version}")
        known = self._progress.heads | {first.version: first.root}
        for version, head in history.heads.items():
            if known.get(version, head) != head:
                raise WrongModel(f"version {version} has two different models")
        if self._parameters.consistency != "certified" or request.version == first.version:
            return
        previous, link = request.previous, history.links[-1]
        assert previous is not None
        if previous.digest != link.digest:
            raise WrongModel(
                f"version {request.version} was not made from the sum that was certified"
            )
        if previous.head != history.heads[previous.version]:
            raise WrongModel("the links do not lead from the model that was certified")

    def _require_slot(self, request: RecoveryRequest) -> None:
        """Refuse a second sum for the same attempt, and refuse too many attempts.

        Each attempt could be opened, even if the server says that it was burned.
        """
        most = self.agreement.epoch.max_burns
        if request.attempt > most:
            raise SlotTaken(
                f"attempt {request.attempt} of version {request.version}: only {most} sums of it may be"
                " given up; a new epoch is needed"
            )
        slots = self._progress.slots if request.version == self.version else {}
        if slots.get(request.attempt, request.digest) != request.digest:
            raise SlotTaken(
                f"attempt {request.attempt} of version {request.version} is given to another sum"
            )

    def _require_free(self, request: RecoveryRequest) -> None:
        """Refuse a contributor's second sum with an update from one version, unless the first was given up.

        A certified request needs no such check: any two certificates have an honest holder in common.
        """
        opened, digest = request.history.opened, request.digest
        for ticket in request.tickets:
            self._once.require_free(ticket.mask.contributor, ticket.base_version, opened, digest)

    def _require_usable(self, ticket: Ticket, version: int, *, certified: bool) -> None:
        self.agreement.require_id(ticket.epoch)
        held = self._held.get(ticket.mask.key)
        if held is None:
            raise UnknownMask(f"no share of {ticket.mask.key} is held here")
        if held.state == "endorsed" and not certified:
            raise MaskTaken(f"mask {ticket.mask.key} is endorsed for another request")
        if held.state not in _LIVE:
            raise MaskTaken(f"mask {ticket.mask.key} is {held.state}")
        if ticket.mask.expires < version:
            raise MaskExpired(f"mask {ticket.mask.key} has expired at {version}")
        self.agreement.require_promised(ticket, held.ticket)
        self.agreement.require_signed(ticket, held.dealer_key, ticket.signature)

    # --- time and endings ---------------------------------------------------------------------

    def _advance(self, request: RecoveryRequest) -> list[Effect]:
        """Store version, slot and heads; delete what has expired or been superseded.

        A late answer to an earlier request must not turn time back: replayed parcels would look fresh.
        """
        version = max(self.version, request.version)
        oldest = version - self._parameters.max_staleness
        heads = self._progress.heads | request.history.heads
        self._progress.heads = {v: head for v, head in heads.items() if v >= oldest}
        slots = self._progress.slots if version == self.version else {}
        if request.version == version:
            slots = slots | {request.attempt: request.digest}
        self._progress.slots = slots
        self._progress.version = version
        superseded = [key for key, a in self._answers.items() if a.version < request.version]
        return [
            write("progress", "", self._progress, irreversible=True),
            *self._drop_answers(superseded),
            *self._expire(),
        ]

    def _bear_witness(self, inquiry: Inquiry) -> list[Effect]:
        """Tell the server how far we have seen it go: its store may be an older copy of itself."""
        self.agreement.require_id(inquiry.epoch)
        slots = self._progress.slots
        slot = (self.version, max(slots)) if slots else None
        said = Witness(self.agreement.id, inquiry.nonce, self.index, slot)
        return [Send(SERVER, signed(said, self._signer))]

    def _expire(self) -> list[Effect]:
        """Forget masks whose last version has passed, and their names: the signed expiry keeps replays out.

        `_first_expiry` saves looking through all masks at every request.
        """
        if self.version <= self._first_expiry:
            return []
        effects: list[Effect] = []
        expired = [key for key, held in self._held.items() if held.name.expires < self.version]
        for key in expired:
            held = self._held.pop(key)
            effects += [*self._drop_share(held), Forget("held", key)]
            self._move(held, "expire")
        kept = (held.name.expires for held in self._held.values())
        self._first_expiry = min(kept, default=_NEVER)
        return effects

    def _close(self, closing: Closing) -> list[Effect]:
        self.agreement.require_from_server(closing)
        return self._end(self._held[mask.key] for mask in closing.masks if mask.key in self._held)

    def _end(self, masks: Iterable[HeldShare]) -> list[Effect]:
        effects: list[Effect] = []
        for held in masks:
            if held.state != "closed":
                effects += self._drop_share(held)
                self._move(held, "close")
                effects.append(write("held", held.name.key, held, irreversible=True))
                effects += self._drop_answers([held.digest.hex()])
        return effects

    def _drop_share(self, held: HeldShare) -> list[Forget]:
        """Delete the share, if no answer has been made of it yet: then it is gone already."""
        return [Forget("share", held.name.key)] if held.state in _LIVE else []

    def _move(self, held: HeldShare, event: str) -> None:
        """Move a share on in its life, and count the live ones."""
        was_live = held.state in _LIVE
        held.state = life.after(life.HOLDER, held.state, event)
        self._live[held.name.contributor] += (held.state in _LIVE) - was_live

    def _drop_answers(self, digests: Iterable[str]) -> list[Effect]:
        gone = [digest for digest in digests if self._answers.pop(digest, None) is not None]
        return [Forget("answer", digest) for digest in gone]
