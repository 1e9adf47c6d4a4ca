"""A participant across epochs: what it joins, what it holds, and when it forgets.

Joining, leaving and forgetting are decided here and nowhere else. The reasons are an epoch or its end that the
pinned operator signed, a certificate with this participant's own signature, its own clock and its own store.
Everything else that a server says is only a hint to look again. Two ideas carry it: numbers of epochs only
rise, and *key and store share one fate*: when the store may have forgotten something, the sealing keys are
destroyed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from basecagg.errors import (
    BadSignature,
    LocalProtocolError,
    NotEnrolled,
    Refused,
    Retired,
    StorageError,
    WrongEpoch,
)
from basecagg.maths.randomness import SEED_BYTES, system_entropy
from basecagg.protocol import life
from basecagg.protocol.clear_contributor import ClearContributor
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import (
    Convicted,
    Declined,
    Effect,
    Forget,
    Joined,
    Left,
    PartsWanted,
    Persist,
    Send,
    StoreLost,
)
from basecagg.protocol.epoch import SERVER, Agreement, Epoch, accept
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.global_model import Model
from basecagg.protocol.holder import Holder
from basecagg.protocol.key_ring import KeyRing
from basecagg.protocol.ledger import PrivacyLedger, paid_by
from basecagg.protocol.messages import (
    PROTOCOL_VERSION,
    Certificate,
    CertifiedRequest,
    Closing,
    Credential,
    EpochEnd,
    HolderKey,
    Message,
    Parts,
    Receipt,
    RecoveryRequest,
    Release,
    ShortRequest,
    Verdict,
    signed,
    statement,
)
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.ports import LastingRecords, SealingSuite, Signer, Verifier
from basecagg.protocol.proofs import IN_WORDS, Caught, Evidence, Proof
from basecagg.protocol.short_letters import Long, Short
from basecagg.protocol.stored import Membership, Refusals, load, parse, recall, write

GRACE = 86_400
"""Seconds that an epoch is kept after the clock says that it is over: clocks jump."""
_MACHINES = (
    *("held", "share", "answer", "progress", "vote", "question", "certified"),
    *("mask", "dealing", "locks", "ticket", "upload", "contribution"),
    *("base", "summed"),
    *("epoch", "coin", "released", "asked", "checked"),
)
"""The kinds of stored values that end with an epoch."""
TO_CONTRIBUTORS = (Receipt, Verdict)
"""All other letters are for the holder."""


@dataclass(frozen=True, kw_only=True)
class Pins:
    """What a participant learned in a safe way before anything else: its names, its key, the operator's key."""

    federation: str
    name: str
    signing_key: bytes
    operator_key: bytes
    after: int = 0
    """It takes no part in epochs up to this number."""
    contributes: bool = True


class Participant:
    """One participant of a federation. Rebuilt from its records after a restart, it goes on where it was."""

    def __init__(
        self,
        pins: Pins,
        signer: Signer,
        suite: SealingSuite,
        verifier: Verifier,
        records: LastingRecords,
        *,
        floor: LocalFloor | None = None,
        entropy: Callable[[int], bytes] = system_entropy,
        keeps_masks: bool = False,
    ) -> None:
        """Take up the participant that the pins name. Only a simulation replaces the entropy.

        Its contributor gives up unused masks at every start, unless it `keeps_masks`.
        """
        self.pins = pins
        self._signer = signer
        self._suite = suite
        self.keys = KeyRing(suite, records)
        """Every sealing key that is not destroyed."""
        self._verifier = verifier
        self._records = records
        self._floor = floor or LocalFloor()
        self._entropy = entropy
        self._keeps_masks = keeps_masks
        self._now = 0
        self._barred = False
        self.number = max(records.number, pins.after)
        """The highest number of any epoch that it joined. Other epochs up to this number are refused."""
        fresh = Membership(epoch=b"", state="outside")
        self._membership = recall(records, "membership", Membership) or fresh
        self.agreement = self._load_agreement()
        """The epoch that it is in."""
        self._credential = recall(records, "credential", Credential) if self.agreement else None
        self._waiting: Message | None = None
        """A question that has to wait until its version is recomputed."""

    # --- what it is ---------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """'inside' an epoch or 'outside'."""
        return self._membership.state

    @cached_property
    def holder(self) -> Holder | None:
        """Its holder, if the epoch lists a sealing key of it that it still has."""
        key, agreement = self.keys.joined(), self.agreement
        index = agreement.holder_index(self.pins.name) if agreement else None
        if key is None or agreement is None or index is None:
            return None
        return Holder(agreement, index, self._signer, key, self._records)

    @cached_property
    def contributor(self) -> Contributor | ClearContributor | None:
        """Its contributor, once it has a credential. One in clear only where epoch and floor say so."""
        if self.agreement is None or self._credential is None:
            return None
        if not self.agreement.parameters.is_masked:
            if not self._floor.allow_clear:
                return None
            return ClearContributor(
                self.agreement,
                self._credential,
                self._signer,
                self._records,
                entropy=self._entropy,
            )
        return Contributor(
            self.agreement,
            self._credential,
            self._signer,
            self._suite.sealer(),
            self._records,
            entropy=self._entropy,
            keeps_masks=self._keeps_masks,
        )

    @cached_property
    def watch(self) -> ModelWatch:
        """What it knows of the present epoch's models."""
        if self.agreement is None:
            raise LocalProtocolError("this participant is in no epoch")
        share = self._floor.share_to_verify(self.agreement.parameters)
        return ModelWatch(self.agreement, self._records, share)

    def _put_down(self, *machines: str) -> None:
        """Drop machines. Each is made again when it is used, after joining has written the store."""
        for machine in machines:
            vars(self).pop(machine, None)

    def refusals(self) -> dict[str, Refusals]:
        """What it refused to join or to believe, by the kind of refusal."""
        return load(self._records, "refusal", Refusals)

    @property
    def may_train(self) -> bool:
        """Whether it may train: a mask is ready, no update is on its way, the budget allows another.

        There must also be a version that it may train from: for most, one that is newer than the last.
        """
        contributor = self.contributor
        if contributor is None or self._is_over or not contributor.may_spend:
            return False
        return contributor.is_ready and not contributor.is_waiting and not self.is_resting

    @property
    def is_resting(self) -> bool:
        """Whether it waits for a newer version, while no update of its own is on its way."""
        contributor = self.contributor
        if contributor is None or contributor.is_waiting:
            return False
        return not contributor.may_train_from(self.watch.newest)

    # --- joining ------------------------------------------------------------------------------

    def start(self, now: int) -> list[Effect]:
        """Carry this out once after construction, in one transaction, before anything else is written.

        If the store is an older copy, all sealing keys are destroyed. The first write makes it a current one.
        """
        effects: list[Effect] = []
        if self._records.rolled_back:
            effects += self._forget("the store is an older copy of itself, or its anchor is")
            if self.agreement is not None and self.agreement.epoch.number < self.number:
                effects += self._leave("a later one was joined")
        if self.state == "inside" and self.agreement is None:
            effects += self._leave("it was of another version of the protocol")
        effects += [*self._look_at_floor(), *self.tick(now)]
        if self._is_over:
            return effects
        machines = (self.holder, self.contributor)
        return [*effects, *(e for machine in machines if machine for e in machine.start())]

    def _look_at_floor(self) -> list[Effect]:
        """Apply the floor to the present epoch too: it may have been raised. Below it nothing more is sent."""
        try:
            if self.agreement is not None:
                self._floor.require(self.agreement.parameters, self.agreement.epoch.max_burns)
                self._barred = self._is_convicted(self.agreement.epoch)
        except Refused as refusal:
            self._barred = True
            return self._decline(refusal)
        return []

    def announce(self, *, another: bool = False) -> list[Effect]:
        """Tell the operator which key the next epoch is to seal to: the same again, or `another`.

        An operator signs a key only once. If the epoch with the key never arrived, another key is needed.
        """
        created = self.keys.create() if another or not self.keys.announced() else []
        pins, key = self.pins, self.keys.announced()[-1]
        said = HolderKey(pins.federation, pins.name, self._suite.suite, key, self.number)
        return [*created, Send(SERVER, signed(said, self._signer))]

    def offer(self, epoch: Epoch, credential: Credential | None = None) -> list[Effect]:
        """Join an acceptable epoch that the operator signed; or take a credential for the present one."""
        try:
            return self._consider(epoch, credential)
        except Refused as refusal:
            return self._decline(refusal)

    def _consider(self, epoch: Epoch, credential: Credential | None) -> list[Effect]:
        if self._membership.epoch == epoch.id:
            return self._take_credential(credential)
        agreement = accept(epoch, self.pins.operator_key, self._verifier, self._floor)
        self._require_promised(epoch)
        self._require_credential(agreement, credential)
        return self._join(agreement, credential, self._key_in(agreement))

    def _require_promised(self, epoch: Epoch) -> None:
        pins = self.pins
        if (epoch.federation, epoch.suite) != (pins.federation, self._suite.suite):
            raise WrongEpoch(
                f"it is of {epoch.federation} with {epoch.suite}, I belong to {pins.federation} with"
                f" {self._suite.suite}"
            )
        if self._is_convicted(epoch):
            raise WrongEpoch("its server was caught cheating: the operator must find another")
        if epoch.number <= self.number:
            raise WrongEpoch(f"its number {epoch.number} has passed: I have been in {self.number}")
        if epoch.ends <= self._now:
            raise WrongEpoch("its end has passed by my clock")

    def _require_credential(self, agreement: Agreement, credential: Credential | None) -> None:
        if credential is None:
            return
        agreement.require_enrolled(credential, self.pins.name)
        if credential.signing_key != self.pins.signing_key:
            raise NotEnrolled("the credential is for another key than mine")

    def _key_in(self, agreement: Agreement) -> bytes | None:
        """Our sealing key in the epoch, if it lists one that we have; otherwise we only contribute."""
        index = agreement.holder_index(self.pins.name)
        if index is None:
            return None
        listed = agreement.epoch.holders[index]
        if listed.signing_key != self.pins.signing_key:
            raise WrongEpoch("it lists another signing key under my name")
        return listed.sealing_key if self.keys.has(listed.sealing_key) else None

    def _join(
        self, agreement: Agreement, credential: Credential | None, key: bytes | None
    ) -> list[Effect]:
        """In one transaction: store the number and join the key, delete all earlier keys and the last epoch."""
        epoch = agreement.epoch
        effects = [*self._end_machines(), *self.keys.join(key)]
        self.number = epoch.number
        self._move("join", epoch.id)
        self.agreement, self._credential, self._barred = agreement, None, False
        return [
            *effects,
            Persist("highest", "", b"%d" % epoch.number, irreversible=True),
            write("membership", "", self._membership, irreversible=True),
            write("charter", "", epoch),
            Persist("epoch", "", epoch.id),
            Persist("coin", "", self._entropy(SEED_BYTES)),
            *self._keep_credential(credential),
            Joined(epoch.number, epoch.id, holds=key is not None),
        ]

    def _take_credential(self, credential: Credential | None) -> list[Effect]:
        """The present epoch is offered again: nothing happens, but a credential may have come since."""
        if self.agreement is None:
            raise WrongEpoch("this epoch is over for me")
        if credential is None or self._credential is not None:
            return []
        self._require_credential(self.agreement, credential)
        return self._keep_credential(credential)

    def _keep_credential(self, credential: Credential | None) -> list[Effect]:
        if credential is None or not self.pins.contributes:
            return []
        self._credential = credential
        self._put_down("contributor")
        return [write("credential", "", credential), *self._look_at_budget()]

    def _look_at_budget(self) -> list[Effect]:
        """Say at once if no upload of this epoch can be paid for."""
        assert self.agreement is not None
        paid = paid_by(self.agreement.parameters)
        return [] if paid is None else PrivacyLedger(self._records).ended(paid)

    # --- letters ------------------------------------------------------------------------------

    def receive(self, message: Message) -> list[Effect]:
        """Handle a letter, or refuse it with a typed error and no change."""
        if isinstance(message, EpochEnd):
            return self._hear_end(message)
        if self.agreement is None or self._is_over:
            raise Retired("this participant is in no epoch")
        try:
            return self._handle(message)
        except Caught as caught:
            return self._convict(caught.proof)
        except Refused as refusal:
            refusal.peer = refusal.peer or SERVER
            raise

    def _handle(self, message: Message) -> list[Effect]:
        if isinstance(message, Release):
            return self.watch.hear(message)
        if isinstance(message, Parts):
            return [*self.watch.check(message), *self._take_up()]
        if isinstance(message, TO_CONTRIBUTORS):
            if self.contributor is None:
                raise NotEnrolled("this participant does not contribute")
            return self.contributor.receive(message)
        if isinstance(message, Closing):
            machines = (self.holder, self.contributor)
            return [e for machine in machines if machine for e in machine.receive(message)]
        if self.holder is None:
            raise Retired("this participant holds no shares in this epoch")
        return self._ask(self.holder, message)

    def _ask(self, holder: Holder, message: Message) -> list[Effect]:
        if not all(map(holder.remembers, _certificates_in(message))):
            return self._forget("somebody else endorsed a request with my key")
        if isinstance(message, ShortRequest | Certificate):
            # If it cannot be completed, the holder says so.
            message = self._completed(holder, message) or message
        request = message.request if isinstance(message, CertifiedRequest) else message
        if not isinstance(request, RecoveryRequest):
            return holder.receive(message)
        self.watch.require_consistent(request)
        if self.watch.is_due(request.version, request.history.head):
            self._waiting = message
            return [PartsWanted(request.version)]
        return [*holder.receive(message), *self.watch.remember(request)]

    def _completed(self, holder: Holder, letter: Short) -> Long | None:
        """The long form of a short letter. A certificate may be of the question that waits."""
        waiting = self._waiting
        request = waiting.request if isinstance(waiting, CertifiedRequest) else waiting
        is_known = isinstance(request, RecoveryRequest) and request.digest == letter.digest
        if isinstance(letter, Certificate) and isinstance(request, RecoveryRequest) and is_known:
            return CertifiedRequest(request, letter)
        return holder.completed(letter)

    def _take_up(self) -> list[Effect]:
        """Answer the question that had to wait. If it is refused now, the server asks again and hears why."""
        waiting, self._waiting = self._waiting, None
        try:
            return [] if waiting is None else self._handle(waiting)
        except Caught:
            raise
        except Refused:
            return []

    def acknowledge(self) -> list[Effect]:
        """One signed receipt for all parcels taken since the last one."""
        return self.holder.acknowledge() if self.holder else []

    def reconnect(self) -> list[Effect]:
        """The server can be reached again: send again what has had no outcome yet."""
        return self.contributor.reconnect() if self.contributor and not self._is_over else []

    def deal_ahead(self, ahead: int) -> list[Effect]:
        """Have `ahead` masks ready. The newest version that the server has signed counts as the present one."""
        return self.working().deal_ahead(self.watch.newest, ahead)

    def submit(self, update: Model, base_version: int, head: bytes) -> list[Effect]:
        """Mask an update that was trained from the model with this head, and upload it."""
        model = self.watch.model_hash_of(base_version)
        return self.working().submit(update, base_version, head, self.watch.newest, model)

    def working(self) -> Contributor | ClearContributor:
        """The contributor, or an error if there is none."""
        if self.contributor is None or self._is_over:
            raise LocalProtocolError("this participant contributes to no epoch now")
        return self.contributor

    # --- a server that was caught -------------------------------------------------------------

    def _convict(self, proof: Proof) -> list[Effect]:
        """Answer and send nothing any more, in this epoch and in any other with that server's key."""
        assert self.agreement is not None
        self._barred = True
        epoch, reason = self.agreement.epoch, IN_WORDS[type(proof)]
        evidence = Evidence(epoch, proof, self.pins.operator_key)
        return [
            write("convicted", epoch.server_key.hex(), evidence, irreversible=True),
            *self._note("Convicted", reason),
            Convicted(evidence, reason),
        ]

    def _is_convicted(self, epoch: Epoch) -> bool:
        return self._records.read("convicted", epoch.server_key.hex()) is not None

    # --- leaving and forgetting ---------------------------------------------------------------

    def tick(self, now: int) -> list[Effect]:
        """Look at the clock: it is `now`, in seconds. An epoch whose time has passed is over.

        Nothing is answered from then on. The epoch's store is deleted only after `GRACE`, in case the clock has
        jumped.
        """
        self._now = now
        since = min(self._membership.late_since or now, now) if self._is_late else 0
        if self._is_late and now >= since + GRACE:
            return self._leave("its time has passed")
        if since == self._membership.late_since:
            return []
        self._membership.late_since = since
        return [write("membership", "", self._membership)]

    @property
    def _is_late(self) -> bool:
        return self.agreement is not None and self._now >= self.agreement.epoch.ends

    @property
    def _is_over(self) -> bool:
        """Whether nothing may be answered or sent any more in the present epoch."""
        return self._barred or self._is_late

    def _hear_end(self, end: EpochEnd) -> list[Effect]:
        if not self._verifier.verify(self.pins.operator_key, statement(end), end.signature):
            raise BadSignature(
                "the end of the epoch is not signed by the operator's key pinned here"
            )
        if end.epoch != self._membership.epoch:
            raise WrongEpoch("another epoch than mine has ended")
        return [] if self.agreement is None else self._leave("the operator ended it")

    def _leave(self, reason: str) -> list[Effect]:
        """Delete keys and stored values in one transaction. Number and id stay for ever."""
        effects = [*self._end_machines(), *self.keys.leave()]
        self._move("end", self._membership.epoch)
        self.agreement = self._credential = None
        return [
            *effects,
            write("membership", "", self._membership, irreversible=True),
            Forget("charter", ""),
            Forget("credential", ""),
            Left(self.number, reason),
        ]

    def _forget(self, reason: str) -> list[Effect]:
        """Destroy all sealing keys and burn all masks: this store may not know all that was answered.

        Tombstones and the number stay. It can contribute with fresh masks, but not where uploads cost privacy,
        because nobody knows what is left of its budget.
        """
        holder, contributor = self.holder, self.contributor
        burned = [
            *(holder.retire() if holder else []),
            *(contributor.close() if contributor else []),
        ]
        ledger = contributor.ledger if contributor else PrivacyLedger(self._records)
        gone = self.keys.destroy_all()
        self._move("forget", self._membership.epoch)
        self._put_down("holder")
        return [
            *burned,
            *gone,
            ledger.exhaust(),
            write("membership", "", self._membership, irreversible=True),
            *self._note("StoreLost", reason),
            StoreLost(reason),
        ]

    # --- machines and records -----------------------------------------------------------------

    def _end_machines(self) -> list[Effect]:
        """Delete everything of the epoch, except that it was joined."""
        burned = self.contributor.close() if self.contributor else []
        self._put_down("holder", "contributor", "watch")
        self._waiting = None
        kinds = ((kind, key) for kind in _MACHINES for key in self._records.keys(kind))
        return [*burned, *(Forget(kind, key) for kind, key in kinds)]

    def _move(self, event: str, epoch: bytes) -> None:
        state = life.after(life.PARTICIPANT, self._membership.state, event)
        self._membership = Membership(epoch=epoch, state=state)

    def _decline(self, refusal: Refused) -> list[Effect]:
        reason = str(refusal)
        return [*self._note(refusal.code, reason), Declined(refusal.code, reason)]

    def _note(self, code: str, reason: str) -> list[Effect]:
        known = recall(self._records, "refusal", Refusals, code)
        count = known.count if known else 0
        return [write("refusal", code, Refusals(count=count + 1, reason=reason))]

    def _load_agreement(self) -> Agreement | None:
        """The stored epoch. It was checked when it was joined."""
        stored = self._records.read("charter", "")
        try:
            agreement = _agreement_in(stored, self._verifier) if stored else None
        except StorageError:  # of an older basecagg: nobody will ask about it any more
            return None
        return agreement if agreement and agreement.epoch.protocol == PROTOCOL_VERSION else None


def _certificates_in(message: Message) -> list[Certificate]:
    """All certificates in a letter, whether it is a long one, a short one or one of them alone."""
    match message:
        case Certificate():
            return [message]
        case CertifiedRequest(request=request, certificate=certificate):
            return [certificate, *_certificates_in(request)]
        case RecoveryRequest(previous=Certificate() as previous):
            return [previous]
    return []


@lru_cache(maxsize=8)
def _agreement_in(charter: bytes, verifier: Verifier) -> Agreement:
    """For a process that takes up the same participant again and again."""
    return Agreement(parse(charter, Epoch), verifier)
