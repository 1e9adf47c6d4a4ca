"""Who belongs to the federation, by the operator's word: members, invitations, credentials, and the epoch."""

import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES
from basecagg.protocol.effects import Forget, Persist, Store, Write
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.messages import EpochEnd, HolderKey, statement
from basecagg.protocol.operator import OPERATOR
from basecagg.protocol.stored import HOLDS, load, load_readable, write
from basecagg.service.documents import MAX_KEY_BYTES, Admitted, Enrolment, Phase
from basecagg.service.problems import Problem, unpacked

MAX_PENDING = 10_000
Value = TypeVar("Value", bound=bytes | int | Struct)


class Charter(Struct, kw_only=True):
    """The present epoch, as the operator signed it, and how far it has come. Empty before the first."""

    epoch: bytes = b""
    phase: Phase = "waiting"
    last_version: int | None = None
    """With this version the epoch closes by itself."""
    closes: int = 0
    """The second since 1970 when it does; 0 for never."""
    terms: bytes = b""
    """Of the study that it is; empty for training."""

    @property
    def signed_epoch(self) -> Epoch:
        """The epoch itself."""
        return unpacked(self.epoch, MAX_CONTROL_BYTES, Epoch)


class Table(dict[str, Value], Generic[Value]):
    """What is stored of one kind, by key. A change is made here at once and returned as a write."""

    def __init__(self, kind: str, stored: dict[str, Value]) -> None:
        super().__init__(stored)
        self._kind = kind

    def put(self, key: str, value: Value) -> Persist:
        """Set a value."""
        self[key] = value
        if isinstance(value, Struct):
            return write(self._kind, key, value)
        return Persist(self._kind, key, value if isinstance(value, bytes) else b"%d" % value)

    def drop(self, key: str) -> Forget:
        """Delete a value, if there is one."""
        self.pop(key, None)
        return Forget(self._kind, key)


class Registry:
    """Members, invitations and credentials. Written in the machine's thread; any thread may look up keys."""

    def __init__(self, federation: str, operator_key: bytes, store: Store) -> None:
        self._federation = federation
        self._operator_key = operator_key
        self._store = store
        self.members = Table("member", load(store, "member", Admitted))
        self.enrolments = Table("enrolment", load(store, "enrolment", Enrolment))
        self.holder_keys = Table("holder-key", load_readable(store, "holder-key", HolderKey))
        self.admissions = _bytes(store, "invitation")
        self._expiries = _numbers(store, "invitation-end")
        self.spent = _bytes(store, "spent-invitation")
        self.ends = _bytes(store, "epoch-end")
        """The operator's word on epochs that are over, as frames by their ids."""
        self.credentials = _bytes(store, "credential")
        self.leaving = _numbers(store, "leaving-epoch")
        """Numbers of epochs that are over, by their ids, until what they stored is put away."""
        self.charter = load(store, "charter", Charter).get("") or Charter()

    def key_of(self, name: str) -> bytes | None:
        """The key that signs this caller's requests, or None."""
        if name == OPERATOR:
            return self._operator_key
        member = self.members.get(name)
        return member.signing_key if member else None

    @property
    def active(self) -> list[Admitted]:
        """Members whom the operator has not revoked."""
        return [member for member in self.members.values() if not member.revoked]

    def require_active(self, name: str) -> None:
        """Refuse a member that the operator has revoked."""
        member = self.members.get(name)
        if member is None or member.revoked:
            raise Problem(403, "Revoked", f"{name} does not belong to this federation any more")

    # --- joining ----------------------------------------------------------------------------------

    def invite(self, name: str, admission_hash: bytes, expires: int = 0) -> bool:
        """Expect an enrolment under this name, and return whether that is news.

        A member that gets another invitation is to be replaced.
        """
        if len(self.admissions) >= MAX_PENDING:
            raise Problem(409, "TooMany", f"{MAX_PENDING} invitations are open: revoke some")
        is_news = self.admissions.get(name) != admission_hash
        writes: list[Write] = [self.enrolments.drop(name)] if is_news else []
        ends = self._expiries.put(name, expires)
        self._store.commit([*writes, self.admissions.put(name, admission_hash), ends])
        return is_news

    def enrol(self, enrolment: Enrolment) -> bool:
        """Keep the keys of an invited person until the operator decides, and return whether they are news."""
        name = enrolment.name
        expected = self.admissions.get(name, bytes(32))
        if not hmac.compare_digest(hashlib.sha256(enrolment.admission).digest(), expected):
            raise Problem(403, "NotInvited", "no invitation stands behind this enrolment")
        if self.spent.get(name) == expected:
            if self.members[name].signing_key != enrolment.signing_key:
                raise Problem(409, "AlreadyEnrolled", "this invitation was used with another key")
            return False
        if 0 < self._expiries.get(name, 0) <= time.time():
            raise Problem(403, "InvitationExpired", "this invitation has expired: ask for another")
        self._parse_key(name, enrolment.signing_key, enrolment.holder_key)
        known = self.enrolments.get(name)
        if known is not None and known.signing_key != enrolment.signing_key:
            raise Problem(409, "AlreadyEnrolled", f"{name} enrolled before with another key")
        self._store.commit([self.enrolments.put(name, enrolment)])  # a newer sealing key is as good
        return known is None

    def admit(self, member: Admitted, credential: bytes | None) -> bool:
        """The operator has decided: a member is in. Return whether its key is news."""
        name, writes = member.name, list[Write]()
        enrolment = self.enrolments.get(name)
        if enrolment is not None and enrolment.signing_key == member.signing_key:
            key = self._parse_key(name, member.signing_key, enrolment.holder_key)
            spent = self.spent.put(name, self.admissions.get(name, b""))
            writes += [self.holder_keys.put(name, key), spent]
        is_news = self.key_of(name) != member.signing_key
        if is_news:
            writes.append(self.credentials.drop(name))  # of the key that was replaced
        if credential is not None:
            writes.append(self.credentials.put(name, credential))
        writes += [self.members.put(name, member), self.enrolments.drop(name)]
        self._store.commit(writes)
        return is_news

    def revoke(self, name: str) -> None:
        """Take nothing more from this member; its invitation is void too."""
        joining = (self.admissions, self._expiries, self.enrolments)
        writes: list[Write] = [table.drop(name) for table in joining]
        member = self.members.get(name)
        if member is not None:
            writes.append(self.members.put(name, replace(member, revoked=True)))
        self._store.commit(writes)

    # --- sealing keys for the next epoch ----------------------------------------------------------

    def publish_key(self, name: str, frame: bytes) -> None:
        """A member announces its sealing key."""
        key = self._parse_key(name, self.members[name].signing_key, frame)
        if key.sealing_key in self._present_keys():
            raise Problem(409, "KeyUsed", "this key stands in the present epoch: announce another")
        self._store.commit([self.holder_keys.put(name, key)])

    def forget_keys(self, names: tuple[str, ...]) -> None:
        """The operator wants other keys than these."""
        self._store.commit([self.holder_keys.drop(name) for name in names])

    def lacks_key(self, name: str) -> bool:
        """Whether a member's key for the next epoch is missing."""
        member = self.members.get(name)
        holds = member is not None and member.role in HOLDS
        return holds and name not in self.holder_keys

    def _present_keys(self) -> set[bytes]:
        holders = self.charter.signed_epoch.holders if self.charter.epoch else ()
        return {holder.sealing_key for holder in holders}

    def _parse_key(self, name: str, signing_key: bytes, frame: bytes) -> HolderKey:
        key = unpacked(frame, MAX_KEY_BYTES, HolderKey)
        if (key.federation, key.name) != (self._federation, name):
            raise Problem(400, "Malformed", "that is not your sealing key for this federation")
        verifier = Ed25519Verifier()
        if not verifier.verify(signing_key, statement(key), key.signature):
            raise Problem(400, "BadSignature", "the sealing key is not signed by its owner")
        if not verifier.fits(key.suite, key.sealing_key):
            raise Problem(400, "Malformed", f"the sealing key is none of the suite {key.suite}")
        return key

    # --- the epoch --------------------------------------------------------------------------------

    def begin(self, charter: Charter, credentials: dict[str, bytes]) -> None:
        """A new epoch: credentials of the last one become void, and the holders' keys for it are used up."""
        writes = list[Write]()
        if self.charter.epoch:  # what it stored has to be put away, whatever comes in between
            last = self.charter.signed_epoch
            writes.append(self.leaving.put(last.id.hex(), last.number))
        writes += [self.credentials.drop(name) for name in self.credentials.keys() - credentials]
        writes += [self.credentials.put(name, frame) for name, frame in credentials.items()]
        self.charter = charter
        self._store.commit([*writes, write("charter", "", charter)])
        used = self._present_keys()
        self.forget_keys(tuple(n for n, key in self.holder_keys.items() if key.sealing_key in used))

    def forget_left(self) -> None:
        """What past epochs stored is put away."""
        self._store.commit([self.leaving.drop(epoch) for epoch in list(self.leaving)])

    def leave_behind(self, epochs: Sequence[str]) -> None:
        """What was said under an older protocol means nothing now: forget it, and ask for other keys."""
        kinds = ("charter", "credential", "holder-key", "epoch-end")
        gone = [Forget(kind, key) for kind in kinds for key in self._store.keys(kind)]
        self.charter = Charter()
        for known in (self.credentials, self.holder_keys, self.ends):
            known.clear()
        self._store.commit([*gone, *(self.leaving.put(epoch, 0) for epoch in epochs)])

    def end(self, frame: bytes, end: EpochEnd) -> None:
        """The operator has signed that the present epoch is over. From now on everyone who asks is told so."""
        key = end.epoch.hex()
        self._store.commit([self.ends.put(key, self.ends.get(key, frame))])

    def enter(self, phase: Phase) -> None:
        """The epoch moves on."""
        self.charter.phase = phase
        self._store.commit([write("charter", "", self.charter)])


def _bytes(store: Store, kind: str) -> Table[bytes]:
    return Table(kind, dict(store.scan(kind)))


def _numbers(store: Store, kind: str) -> Table[int]:
    return Table(kind, {key: int(number) for key, number in store.scan(kind)})
