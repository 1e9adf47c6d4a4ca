"""The contributor: hides each update under a mask, dealt with it or ahead, and never hides an update twice.

Everything is stored before it is sent, so a retry sends identical bytes. After a refusal, a burn or a timeout
the update is gone and the user trains again: the same Δ in two sums would be their difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from basecagg.errors import DataError, LocalProtocolError, Malformed, StorageError, UnknownMask
from basecagg.maths.packing import pack
from basecagg.maths.quantization import require_finite
from basecagg.maths.randomness import SEED_BYTES, Words, system_entropy
from basecagg.protocol import life, merkle
from basecagg.protocol.effects import Effect, Forget, MaskEnded, Persist, Send, Uploaded
from basecagg.protocol.epoch import MAX_VERSIONS, SERVER, Agreement
from basecagg.protocol.global_model import Model
from basecagg.protocol.ledger import PrivacyLedger, SentUpdates, paid_by
from basecagg.protocol.masking import hide, hide_with_noise, mask_of, shares_of
from basecagg.protocol.messages import (
    MAX_MASKS,
    Closing,
    Contribution,
    Credential,
    Dealing,
    MaskName,
    Message,
    Receipt,
    Shipment,
    Ticket,
    Upload,
    Verdict,
    content_hash,
    digest_of,
    sealing_context,
    signed,
)
from basecagg.protocol.ports import Records, Sealer, Signer
from basecagg.protocol.stored import (
    LastBase,
    Locks,
    OwnMask,
    bind,
    load,
    parse,
    recall,
    require,
    write,
)
from basecagg.protocol.weighing import Weighing

_SERIAL_BYTES = 16


class Contributor:
    """One contributor of an epoch. Rebuilt from its records after a restart, it goes on where it was."""

    def __init__(
        self,
        agreement: Agreement,
        credential: Credential,
        signer: Signer,
        sealer: Sealer,
        records: Records,
        *,
        entropy: Callable[[int], bytes] = system_entropy,
        keeps_masks: bool = False,
    ) -> None:
        """Take up the contributor that the credential names. Only a simulation replaces the entropy.

        Unused masks are given up at every start, unless it `keeps_masks`: a Flower node starts at every visit.
        """
        self.agreement = agreement
        self.name = credential.contributor
        self._credential = credential
        self._signer = signer
        self._sealer = sealer
        self._records = records
        self._entropy = entropy
        self._keeps_masks = keeps_masks
        self._parameters = agreement.parameters
        self._paid = paid_by(agreement.parameters)
        self._masks = load(records, "mask", OwnMask)
        self._confirmed: defaultdict[str, set[int]] = defaultdict(set)
        """The holders that confirmed each dealing. Not stored: after a restart all are asked again."""
        self._base = recall(records, "base", LastBase) or self._first_base()
        self._sent = SentUpdates(records, entropy)
        self.ledger = PrivacyLedger(records)
        """What uploads have cost in privacy, in this epoch and before."""

    def states(self) -> dict[str, str]:
        """The state of every live mask, by key."""
        return {key: mask.state for key, mask in self._masks.items()}

    @property
    def ready(self) -> list[MaskName]:
        """Masks that can hide an update now, the first to expire first."""
        masks = [mask for mask in self._masks.values() if mask.state == "ready"]
        # By name among equals: a restarted contributor goes on in the same order.
        return [m.name for m in sorted(masks, key=lambda mask: (mask.name.expires, mask.name.key))]

    @property
    def is_ready(self) -> bool:
        """Whether an update could be hidden now: under a mask that is ready, or one that is dealt with it."""
        return self._parameters.one_visit or bool(self.ready)

    @property
    def is_waiting(self) -> bool:
        """Whether it does not know yet what became of an update."""
        return any(mask.state == "uploaded" for mask in self._masks.values())

    @property
    def may_spend(self) -> bool:
        """Whether the privacy budget allows another update; always, if there is no budget."""
        return self._paid is None or self.ledger.affords(self._paid)

    def receive(self, message: Message) -> list[Effect]:
        """Handle a message from the server, or refuse it with a typed error and no change."""
        match message:
            case Receipt():
                return self._count_receipt(message)
            case Verdict():
                return self._take_verdict(message)
            case Closing():
                return self._note_burned(message)
        raise Malformed(f"a contributor does not take a {type(message).__name__}")

    def start(self) -> list[Effect]:
        """Carry this out once after construction. Masks of an older copy may have been used: burn them.

        The copy does not know what else was uploaded since, so nothing is left of the budget. A host that was
        restored together with its anchor cannot be told from any other that starts. So no mask from before a
        start is used after it.
        """
        bound = bind(self._records, self.agreement.id)
        if self._records.rolled_back:
            return [*bound, *self.close(), self.ledger.exhaust()]
        given_up = [] if self._keeps_masks else self._give_up()
        return [*bound, *given_up, *self.reconnect()]

    def _give_up(self) -> list[Effect]:
        """Forget the seeds of unused masks; their names stay until the server has made room for others."""
        effects: list[Effect] = []
        for key, mask in self._masks.items():
            if life.allows(life.CONTRIBUTOR, mask.state, "give up"):
                effects += self._forget_shipment(mask.dealing)
                mask.state, mask.seed = life.after(life.CONTRIBUTOR, mask.state, "give up"), b""
                effects.append(write("mask", key, mask, irreversible=True))
        return effects

    def reconnect(self) -> list[Effect]:
        """Send again, byte for byte, what has had no outcome yet: the server can be reached again.

        Receipts and verdicts are lost when the server crashes. It delivers a repeated shipment again, and
        answers a repeated upload with its present verdict.
        """
        alive = {mask.dealing for mask in self._masks.values() if mask.state == "dealt"}
        stored = load(self._records, "dealing", Dealing)
        dealings = {key: dealing for key, dealing in stored.items() if key in alive}
        tickets = load(self._records, "ticket", Ticket)
        shipments = [self._stored_shipment(key, dealing) for key, dealing in dealings.items()]
        uploads = [Upload(t, require(self._records, "upload", key)) for key, t in tickets.items()]
        contributions = load(self._records, "contribution", Contribution).values()
        messages = *self._withdrawals(), *shipments, *uploads, *contributions
        return [Send(SERVER, message) for message in messages]

    def _withdrawals(self) -> list[Closing]:
        """Tell the server which masks were given up, so that it makes room; in portions that it accepts."""
        names = [mask.name for mask in self._masks.values() if mask.state == "withdrawn"]
        most, first = self.agreement.masks_per_contributor, self.agreement.epoch.first_version
        some = [tuple(names[at : at + most]) for at in range(0, len(names), most)]
        closings = [Closing(self.agreement.id, first, each, "burned") for each in some]
        return [signed(closing, self._signer) for closing in closings]

    def _stored_shipment(self, key: str, dealing: Dealing) -> Shipment:
        locks = parse(require(self._records, "locks", key), Locks)
        seeds = [self._masks[name.key].seed for name in dealing.masks]
        leaves, sealed = self._seal(seeds, locks, self._contexts(dealing.masks))
        if self._root_of(leaves, sealed) != dealing.root:
            # Two plaintexts sealed with the same keys would give both away.
            raise StorageError(f"the shares of {key} are not those that were dealt")
        return Shipment(dealing, leaves, sealed)

    # --- phase 1: deal a mask -----------------------------------------------------------------

    def deal(self, version: int, count: int = 1) -> list[Effect]:
        """Draw masks z, encode them, and seal to every holder its shares of them (Eq. encoding)."""
        if self._parameters.one_visit:
            raise LocalProtocolError("here a mask is dealt with its update, and none ahead")
        if not 1 <= count <= MAX_MASKS:
            raise LocalProtocolError(f"1 to {MAX_MASKS} masks are dealt at once, not {count}")
        self._require_believable(version)
        if self._ahead + count > self._parameters.mask_quota:
            raise LocalProtocolError(f"{self._ahead} masks are dealt ahead already: use one first")
        expires, draw = version + self._parameters.mask_lifetime, self._entropy
        names = (MaskName(self.name, draw(_SERIAL_BYTES), expires) for _ in range(count))
        seeds = {name: self._entropy(SEED_BYTES) for name in names}
        shipment, locks = self._deal(seeds)
        dealing = shipment.dealing
        state = life.after(life.CONTRIBUTOR, "new", "deal")
        masks = {
            name.key: OwnMask(name=name, dealing=dealing.key, seed=seed, state=state)
            for name, seed in seeds.items()
        }
        self._masks |= masks
        return [
            *(write("mask", key, mask) for key, mask in masks.items()),
            write("dealing", dealing.key, dealing),
            # With the seeds they make the same shipment again: nothing large is written.
            write("locks", dealing.key, locks),
            Send(SERVER, shipment),
        ]

    def _deal(
        self, seeds: Mapping[MaskName, bytes], ticket: Ticket | None = None
    ) -> tuple[Shipment, Locks]:
        """Encode masks, seal the shares and sign; with the ticket of the update that comes along."""
        contexts = self._contexts(tuple(seeds))
        keys = [holder.sealing_key for holder in self.agreement.epoch.holders]
        locks = Locks(of_holders=self._sealer.locks(keys, contexts))
        leaves, sealed = self._seal(list(seeds.values()), locks, contexts)
        root, served = self._root_of(leaves, sealed), digest_of(ticket) if ticket else None
        dealing = Dealing(self.agreement.id, tuple(seeds), root, self._credential, served)
        return Shipment(signed(dealing, self._signer), leaves, sealed), locks

    def deal_ahead(self, version: int, ahead: int) -> list[Effect]:
        """Give up expired masks, then deal until `ahead` masks (or as many as allowed) are dealt or ready.

        None are dealt ahead where each comes with its update.
        """
        self._require_believable(version)  # before anything changes: an error must leave no trace
        effects = self.expire(version)
        if self._parameters.one_visit:
            return effects
        missing = min(ahead, self._parameters.mask_quota) - self._ahead
        return effects if missing <= 0 else [*effects, *self.deal(version, missing)]

    @property
    def _ahead(self) -> int:
        return sum(mask.state in ("dealt", "ready") for mask in self._masks.values())

    def _require_believable(self, version: int) -> None:
        first = self.agreement.epoch.first_version
        if version > first + MAX_VERSIONS:
            raise LocalProtocolError(
                f"version {version} is not believed in an epoch that began at {first} and has"
                f" {MAX_VERSIONS} at most: wait for the next epoch"
            )

    def _seal(
        self, seeds: Sequence[bytes], locks: Locks, contexts: Sequence[bytes]
    ) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """The envelopes, after their leaves in the hash tree."""
        code, p = self.agreement.code, self._parameters
        shares = [shares_of(seed, code, p) for seed in seeds]
        contents = (_joined(each, p.field_size) for each in zip(*shares, strict=True))
        envelopes = zip(locks.of_holders, contexts, contents, strict=True)
        sealed = tuple(self._sealer.seal(*envelope) for envelope in envelopes)
        return tuple(merkle.leaf(*each) for each in enumerate(sealed)), sealed

    def _root_of(self, leaves: tuple[bytes, ...], sealed: tuple[bytes, ...]) -> bytes:
        return merkle.root_of(leaves, merkle.sender_of(sealed[0], self.agreement.epoch.suite))

    def _contexts(self, names: Sequence[MaskName]) -> list[bytes]:
        count = self._parameters.num_holders
        return [sealing_context(self.agreement.id, names, index) for index in range(count)]

    def _count_receipt(self, receipt: Receipt) -> list[Effect]:
        self.agreement.require_id(receipt.epoch)
        self.agreement.require_signed_by_holder(receipt, receipt.holder, receipt.signature)
        own = [self._masks[name.key] for name in receipt.masks if name.key in self._masks]
        dealings = dict.fromkeys(mask.dealing for mask in own if mask.state == "dealt")
        return [e for dealing in dealings for e in self._add_holder(dealing, receipt.holder)]

    def _add_holder(self, dealing: str, holder: int) -> list[Effect]:
        """Count a holder that keeps its shares. All masks of a dealing become ready together.

        They must: while the locks are stored, they open the envelopes of all masks of the dealing.
        """
        self._confirmed[dealing].add(holder)
        if len(self._confirmed[dealing]) < self.agreement.holders_needed:
            return []
        masks = [mask for mask in self._masks.values() if mask.dealing == dealing]
        for mask in masks:
            mask.state = life.after(life.CONTRIBUTOR, mask.state, "enough receipts")
        ready = (write("mask", mask.name.key, mask) for mask in masks)
        return [*ready, *self._forget_shipment(dealing)]

    def _forget_shipment(self, dealing: str) -> list[Forget]:
        """Delete what would make the shipment again: it is delivered, or will not be repeated."""
        self._confirmed.pop(dealing, None)
        return [Forget(kind, dealing) for kind in ("dealing", "locks")]

    # --- phase 2: mask an update --------------------------------------------------------------

    def submit(
        self,
        update: Model,
        base_version: int,
        head: bytes,
        version: int,
        model: bytes = b"",
    ) -> list[Effect]:
        """Clip, weigh, quantise and mask an update Δ (Eq. masked_update), and upload it. The mask is used up.

        Δ is the model before − after training, so the server subtracts it. The model has come to `version`
        since: by that age τ̂ Δ is weighed, unless server and holders do it. `model` is the hash of the model
        before: it is remembered, because another epoch may begin with that model.
        """
        if update.shape != (self._parameters.model_size,):
            raise DataError(
                f"an update has d = {self._parameters.model_size} elements, not {update.shape}"
            )
        if not self.may_train_from(base_version):
            raise LocalProtocolError(
                f"an update from version {base_version} was uploaded already, and the server has not signed"
                " that it is burned: train from a newer version"
            )
        staleness = self._own_staleness(base_version, version)
        name, seed = (
            self._fresh_mask(base_version) if self._parameters.one_visit else self._oldest()
        )
        masked, clipped = self._hide(update, seed, staleness)
        remembered = self._remember(update, staleness)
        words = pack(masked, self._parameters.field_size).tobytes()
        told = base_version, head, content_hash(words), staleness
        ticket = signed(Ticket(self.agreement.id, name, *told), self._signer)
        uploaded = self._contribute if self._parameters.one_visit else self._upload
        return [
            *remembered,
            *self._note_base(base_version, name.key, model),
            *uploaded(ticket, words, seed),
            Uploaded(name, clipped),
        ]

    def _oldest(self) -> tuple[MaskName, bytes]:
        """The mask that was dealt ahead and expires first."""
        ready = self.ready
        if not ready:
            raise LocalProtocolError("no mask is ready: deal one and wait for the receipts")
        return ready[0], self._masks[ready[0].key].seed

    def _fresh_mask(self, base_version: int) -> tuple[MaskName, bytes]:
        """A mask that is dealt with its update, and expires with it."""
        self._require_believable(base_version)
        expires = base_version + self._parameters.max_staleness
        return MaskName(self.name, self._entropy(_SERIAL_BYTES), expires), self._entropy(SEED_BYTES)

    def _upload(self, ticket: Ticket, words: bytes, seed: bytes) -> list[Effect]:
        """Use up a mask that was dealt ahead. Its holders have confirmed their shares."""
        key = ticket.mask.key
        mask = self._masks[key]
        mask.state = life.after(life.CONTRIBUTOR, mask.state, "upload")
        mask.seed = b""  # from now on not even a thief of this store can unmask the update
        return [
            write("mask", key, mask, irreversible=True),
            write("ticket", key, ticket, irreversible=True),
            Persist("upload", key, words, irreversible=True),
            Send(SERVER, Upload(ticket, words)),
        ]

    def _contribute(self, ticket: Ticket, words: bytes, seed: bytes) -> list[Effect]:
        """Deal the mask and send the update in one message; seed and locks are never stored.

        The dealing signs which ticket it is for, so holders open no other update under this mask.
        """
        key, (shipment, _) = ticket.mask.key, self._deal({ticket.mask: seed}, ticket)
        dealing, leaves, sealed = shipment.dealing, shipment.leaves, shipment.sealed
        contribution = Contribution(dealing, leaves, sealed, ticket, words)
        state = life.after(life.CONTRIBUTOR, "new", "contribute")
        self._masks[key] = OwnMask(name=ticket.mask, dealing=dealing.key, seed=b"", state=state)
        return [
            write("mask", key, self._masks[key], irreversible=True),
            write("contribution", key, contribution, irreversible=True),
            Send(SERVER, contribution),
        ]

    def _hide(self, update: Model, seed: bytes, staleness: int) -> tuple[Words, int]:
        """The masked words and the number of clipped elements.

        With differential privacy that number is reported as 0, because it would say something about the update.
        """
        p, keys = self._parameters, self._parameters.masks == "keys"
        fresh = self._entropy(SEED_BYTES) if keys or p.privacy is not None else b""
        mask = mask_of(seed, fresh, self.agreement.id, p)
        if p.privacy is None:
            return hide(update, seed, p.staleness.tier(staleness), p, mask)
        # With noise, NaN and ±Inf count as zeros: a refusal would tell others that they were there.
        if self._paid is None:
            require_finite(update)
        return hide_with_noise(update, staleness, fresh, p, mask), 0

    def _own_staleness(self, base_version: int, version: int) -> int:
        """τ̂, where contributors weigh by it. An update that is too old is refused before it is paid for."""
        return Weighing.of(self._parameters).age_to_tell(version, base_version)

    def _remember(self, update: Model, staleness: int) -> list[Effect]:
        """Store, before the upload leaves, what it costs or which update it is.

        With noise every upload is paid for, also one that is the same as another.
        """
        if self._paid is not None:
            return self.ledger.charge(self._paid, staleness)
        return self._sent.remember(self._sent.require_fresh(update))

    # --- one upload from a version --------------------------------------------------------------

    def may_train_from(self, version: int) -> bool:
        """Whether an update from this version may be uploaded: the first, or one for each that was burned.

        Two updates of one user from one model are almost the same, so sums with both are equations that reveal
        them. The server signs what it burns, and the epoch says how often it may.
        """
        base = self._base
        if not self._parameters.once_per_version or version > base.version:
            return True
        burns = min(len(base.burned), self.agreement.epoch.max_burns)
        most = max(1, base.epochs + burns - base.before)
        return version == base.version and len(base.uploads) < most

    def _first_base(self) -> LastBase:
        """An epoch may begin with a model that this contributor trained from in an earlier epoch.

        The new epoch allows one more upload from it in any case. Burns allow `max_burns` others in all epochs.
        """
        first = self.agreement.epoch.first
        earlier = recall(self._records, "based", LastBase, first.model_hash.hex())
        if earlier is None:
            return LastBase()
        before, epochs = earlier.before + len(earlier.uploads), earlier.epochs + 1
        return LastBase(version=first.version, epochs=epochs, before=before)

    def _note_base(self, version: int, mask: str, model: bytes) -> list[Effect]:
        """Store the base: by its version for this epoch, by its model for later ones that begin with it."""
        if not self._parameters.once_per_version:
            return []
        if version == self._base.version:
            self._base.uploads |= {mask}
        else:
            self._base = LastBase(version=version, uploads=frozenset({mask}))
        first = self.agreement.epoch.first
        known = first.model_hash if version == first.version else model
        lasting = [write("based", known.hex(), self._base)] if known else []
        return [write("base", "", self._base, irreversible=True), *lasting]

    def _note_burned(self, closing: Closing) -> list[Effect]:
        """The server signs that an upload of ours will not be opened, so another may take its place."""
        self.agreement.require_from_server(closing)
        mine = frozenset(mask.key for mask in closing.masks) & self._base.uploads
        if closing.outcome != "burned" or mine <= self._base.burned:
            return []
        self._base.burned |= mine
        return [write("base", "", self._base)]

    # --- endings ------------------------------------------------------------------------------

    def _take_verdict(self, verdict: Verdict) -> list[Effect]:
        self.agreement.require_id(verdict.epoch)
        mask = self._masks.get(verdict.mask.key)
        if mask is None:
            raise UnknownMask(f"{verdict.mask.key} is not a live mask of ours")
        if not life.allows(life.CONTRIBUTOR, mask.state, verdict.outcome):
            raise Malformed(f"a mask that is {mask.state} cannot be {verdict.outcome}")
        if verdict.outcome == "returned" and self._parameters.one_visit:
            # The same bytes are no new update: the server lets them come again.
            again = parse(require(self._records, "contribution", mask.name.key), Contribution)
            return [Send(SERVER, again)]
        state = life.after(life.CONTRIBUTOR, mask.state, verdict.outcome)
        return [] if state == mask.state else self._end(mask, state, verdict.reason)

    def expire(self, version: int) -> list[Effect]:
        """Give up the masks whose last version has passed: the model is at `version`.

        Also unused masks that an update from this version could outlive while it waits to be summed.
        """
        lasting = version + self._parameters.max_staleness
        masks = self._masks.values()
        old = [m for m in masks if m.name.expires < (lasting if m.seed else version)]
        return [effect for mask in old for effect in self._end_by(mask, "expire")]

    def close(self) -> list[Effect]:
        """Burn every mask: the epoch ends, or the store turned out to be an older copy of itself."""
        masks = list(self._masks.values())
        return [effect for mask in masks for effect in self._end_by(mask, "close epoch")]

    def _end_by(self, mask: OwnMask, event: str) -> list[Effect]:
        return self._end(mask, life.after(life.CONTRIBUTOR, mask.state, event), event)

    def _end(self, mask: OwnMask, state: str, reason: str) -> list[Effect]:
        key = mask.name.key
        del self._masks[key]
        # Without its seed a mask is only a name.
        note = Forget("mask", key, harmless=not mask.seed)
        sent = ("contribution",) if self._parameters.one_visit else ("ticket", "upload")
        gone = [note, *(Forget(kind, key) for kind in sent)]
        undelivered = self._forget_shipment(mask.dealing) if mask.state == "dealt" else []
        news = [] if mask.state == "withdrawn" else [MaskEnded(mask.name, state, reason)]
        return [*gone, *undelivered, *news]


def _joined(shares: Sequence[Words], modulus: int) -> bytes | memoryview:
    """A holder's shares of several masks, packed one after the other; not copied if there is only one."""
    packed = [pack(share, modulus).data for share in shares]
    return packed[0] if len(packed) == 1 else b"".join(packed)
