"""Who belongs to the federation, as the server knows it: the operator's word, kept in the server's store."""

from __future__ import annotations

import hashlib
import hmac

from msgspec import Struct

from basecagg.channels.identity import Ed25519Verifier
from basecagg.protocol.effects import Forget, Persist, Store
from basecagg.protocol.records import load, write
from basecagg.service.documents import OPERATOR, Enrolment, HolderKey, Member, Phase
from basecagg.service.problems import Problem

MAX_PENDING = 10_000


class Charter(Struct, kw_only=True):
    """The present epoch, as the operator signed it, and how far it has come."""

    epoch: bytes
    phase: Phase
    learning_rate: float = 1.0


class Registry:
    """Members, invitations and credentials. Written in the worker's thread; keys are looked up anywhere."""

    def __init__(self, federation: str, operator_key: bytes, store: Store) -> None:
        """Read back what the operator said before a restart."""
        self._federation = federation
        self._operator_key = operator_key
        self._store = store
        self.members = load(store, "member", Member)
        self.enrolments = load(store, "enrolment", Enrolment)
        self.holder_keys = load(store, "holder-key", HolderKey)
        self.admissions = dict(store.scan("invitation"))
        self.credentials = dict(store.scan("credential"))
        charters = load(store, "charter", Charter)
        self.charter = charters.get("")

    def key_of(self, name: str) -> bytes | None:
        """The key that signs this caller's requests."""
        if name == OPERATOR:
            return self._operator_key
        member = self.members.get(name)
        return member.signing_key if member else None

    def require_active(self, name: str) -> Member:
        """Refuse a member that the operator has revoked."""
        member = self.members.get(name)
        if member is None or member.revoked:
            raise Problem(403, "Revoked", f"{name} does not belong to this federation any more")
        return member

    # --- joining ----------------------------------------------------------------------------------

    def invite(self, name: str, admission_hash: bytes) -> None:
        """Expect an enrolment under this name."""
        self._require_room()
        self.admissions[name] = admission_hash
        self._store.commit([Persist("invitation", name, admission_hash)])

    def enrol(self, enrolment: Enrolment) -> None:
        """Keep the keys of somebody invited until the operator decides."""
        name = enrolment.name
        expected = self.admissions.get(name, bytes(32))
        if not hmac.compare_digest(hashlib.sha256(enrolment.admission).digest(), expected):
            raise Problem(403, "NotInvited", "no invitation stands behind this enrolment")
        if name in self.members:
            self._require_same(enrolment)
            return
        self._require_holder_key(name, enrolment.signing_key, enrolment.holder_key)
        known = self.enrolments.setdefault(name, enrolment)
        if known != enrolment:
            raise Problem(409, "AlreadyEnrolled", f"{name} enrolled before with other keys")
        self._store.commit([write("enrolment", name, enrolment)])

    def _require_same(self, enrolment: Enrolment) -> None:
        if self.members[enrolment.name].signing_key != enrolment.signing_key:
            raise Problem(409, "AlreadyEnrolled", "this invitation was used with other keys")

    def admit(self, member: Member, credential: bytes | None) -> None:
        """The operator has decided: a member is in."""
        name = member.name
        writes: list[Persist | Forget] = [write("member", name, member), Forget("enrolment", name)]
        enrolment = self.enrolments.pop(name, None)
        if enrolment is not None and name not in self.holder_keys:
            self.holder_keys[name] = enrolment.holder_key
            writes.append(write("holder-key", name, enrolment.holder_key))
        self.members[name] = member
        if credential is not None:
            self.credentials[name] = credential
            writes.append(Persist("credential", name, credential))
        self._store.commit(writes)

    def revoke(self, name: str) -> None:
        """Take nothing more from this member; its invitation is void too."""
        self.admissions.pop(name, None)
        self.enrolments.pop(name, None)
        writes: list[Persist | Forget] = [Forget("invitation", name), Forget("enrolment", name)]
        member = self.members.get(name)
        if member is not None:
            revoked = Member(
                name=name, role=member.role, signing_key=member.signing_key, revoked=True
            )
            self.members[name] = revoked
            writes.append(write("member", name, revoked))
        self._store.commit(writes)

    def publish_key(self, name: str, key: HolderKey) -> None:
        """A member's sealing key for the next epoch."""
        self._require_holder_key(name, self.members[name].signing_key, key)
        self.holder_keys[name] = key
        self._store.commit([write("holder-key", name, key)])

    def _require_holder_key(self, name: str, signing_key: bytes, key: HolderKey) -> None:
        said = HolderKey.statement(self._federation, name, key.sealing_key)
        if not Ed25519Verifier().verify(signing_key, said, key.signature):
            raise Problem(400, "BadSignature", "the sealing key is not signed by its owner")

    def _require_room(self) -> None:
        if len(self.admissions) >= MAX_PENDING:
            raise Problem(409, "TooMany", f"{MAX_PENDING} invitations are open: revoke some")

    # --- the epoch --------------------------------------------------------------------------------

    def begin(self, charter: Charter, credentials: dict[str, bytes]) -> None:
        """A new epoch has the floor: credentials of the last one are worth nothing now."""
        gone = [Forget("credential", name) for name in self.credentials if name not in credentials]
        fresh = [Persist("credential", name, value) for name, value in credentials.items()]
        self.charter, self.credentials = charter, dict(credentials)
        self._store.commit([*gone, *fresh, write("charter", "", charter)])

    def enter(self, phase: Phase) -> None:
        """The epoch moves on."""
        assert self.charter is not None
        self.charter.phase = phase
        self._store.commit([write("charter", "", self.charter)])
