"""Who belongs to the federation, as the server knows it: the operator's word, kept in the server's store."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES
from basecagg.protocol.effects import Forget, Persist, Store, Write
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.messages import EpochEnd, HolderKey, statement
from basecagg.protocol.operator import OPERATOR
from basecagg.protocol.records import load, load_readable, write
from basecagg.service.documents import MAX_KEY_BYTES, Admitted, Enrolment, Phase
from basecagg.service.problems import Problem, unpacked

MAX_PENDING = 10_000


class Charter(Struct, kw_only=True):
    """The present epoch, as the operator signed it, and how far it has come."""

    epoch: bytes
    phase: Phase
    last_version: int | None = None
    """With this version the epoch closes by itself."""
    closes: int = 0
    """The second since 1970 when it does; 0 for never."""

    @property
    def signed_epoch(self) -> Epoch:
        """The epoch itself."""
        return unpacked(self.epoch, MAX_CONTROL_BYTES, Epoch)


class Registry:
    """Members, invitations and credentials. Written in the worker's thread; keys are looked up anywhere."""

    def __init__(self, federation: str, operator_key: bytes, store: Store) -> None:
        self._federation = federation
        self._operator_key = operator_key
        self._store = store
        self.members = load(store, "member", Admitted)
        self.enrolments = load(store, "enrolment", Enrolment)
        self.holder_keys = load_readable(store, "holder-key", HolderKey)
        self.admissions = dict(store.scan("invitation"))
        self._expiries = {name: int(ends) for name, ends in store.scan("invitation-end")}
        self.spent = dict(store.scan("spent-invitation"))
        self.ends = dict(store.scan("epoch-end"))
        """The operator's word on epochs that are over, as frames by their ids."""
        self.credentials = dict(store.scan("credential"))
        self.leaving = {key: int(number) for key, number in store.scan("leaving-epoch")}
        """Numbers of epochs that are over, by their ids, until their records are put away."""
        self.charter = load(store, "charter", Charter).get("")

    def key_of(self, name: str) -> bytes | None:
        """The key that signs this caller's requests."""
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
        """Expect an enrolment under this name; whether that is news.

        A member that gets another invitation is to be replaced.
        """
        if len(self.admissions) >= MAX_PENDING:
            raise Problem(409, "TooMany", f"{MAX_PENDING} invitations are open: revoke some")
        ends = Persist("invitation-end", name, b"%d" % expires)
        writes: list[Write] = [Persist("invitation", name, admission_hash), ends]
        self._expiries[name] = expires
        is_news = self.admissions.get(name) != admission_hash
        if is_news:
            self.enrolments.pop(name, None)
            writes.append(Forget("enrolment", name))
        self.admissions[name] = admission_hash
        self._store.commit(writes)
        return is_news

    def enrol(self, enrolment: Enrolment) -> bool:
        """Keep the keys of somebody invited until the operator decides; whether they are news."""
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
        self.enrolments[name] = enrolment  # a newer sealing key is as good
        self._store.commit([write("enrolment", name, enrolment)])
        return known is None

    def admit(self, member: Admitted, credential: bytes | None) -> bool:
        """The operator has decided: a member is in. Whether its key is news."""
        name = member.name
        writes: list[Write] = [write("member", name, member), Forget("enrolment", name)]
        enrolment = self.enrolments.pop(name, None)
        if enrolment is not None and enrolment.signing_key == member.signing_key:
            key = self._parse_key(name, member.signing_key, enrolment.holder_key)
            self.spent[name] = self.admissions.get(name, b"")
            spent = Persist("spent-invitation", name, self.spent[name])
            writes += [self._keep_key(name, key), spent]
        is_news = self.key_of(name) != member.signing_key
        if is_news:
            self.credentials.pop(name, None)  # of the key that was replaced
            writes.append(Forget("credential", name))
        self.members[name] = member
        if credential is not None:
            self.credentials[name] = credential
            writes.append(Persist("credential", name, credential))
        self._store.commit(writes)
        return is_news

    def revoke(self, name: str) -> None:
        """Take nothing more from this member; its invitation is void too."""
        self.admissions.pop(name, None)
        self.enrolments.pop(name, None)
        kinds = ("invitation", "invitation-end", "enrolment")
        writes: list[Write] = [Forget(kind, name) for kind in kinds]
        member = self.members.get(name)
        if member is not None:
            self.members[name] = replace(member, revoked=True)
            writes.append(write("member", name, self.members[name]))
        self._store.commit(writes)

    # --- sealing keys for the next epoch ----------------------------------------------------------

    def publish_key(self, name: str, frame: bytes) -> None:
        """A member announces its sealing key."""
        key = self._parse_key(name, self.members[name].signing_key, frame)
        if key.sealing_key in self._present_keys():
            raise Problem(409, "KeyUsed", "this key stands in the present epoch: announce another")
        self._store.commit([self._keep_key(name, key)])

    def forget_keys(self, names: tuple[str, ...]) -> None:
        """The operator wants other keys than these."""
        for name in names:
            self.holder_keys.pop(name, None)
        self._store.commit([Forget("holder-key", name) for name in names])

    def lacks_key(self, name: str) -> bool:
        """Whether a member's key for the next epoch is missing."""
        member = self.members.get(name)
        holds = member is not None and member.role != "contributor"
        return holds and name not in self.holder_keys

    def _keep_key(self, name: str, key: HolderKey) -> Persist:
        self.holder_keys[name] = key
        return write("holder-key", name, key)

    def _present_keys(self) -> set[bytes]:
        if self.charter is None:
            return set()
        return {holder.sealing_key for holder in self.charter.signed_epoch.holders}

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
        """A new epoch has the floor: credentials of the last one are worth nothing, and its keys are used."""
        gone = [Forget("credential", name) for name in self.credentials if name not in credentials]
        fresh = [Persist("credential", name, value) for name, value in credentials.items()]
        left = self._leave()
        self.charter, self.credentials = charter, dict(credentials)
        self._store.commit([*gone, *fresh, *left, write("charter", "", charter)])
        used = self._present_keys()
        self.forget_keys(tuple(n for n, key in self.holder_keys.items() if key.sealing_key in used))

    def _leave(self) -> list[Persist]:
        """The last epoch's records have to be put away, whatever comes in between."""
        if self.charter is None:
            return []
        epoch = self.charter.signed_epoch
        self.leaving[epoch.id.hex()] = epoch.number
        return [Persist("leaving-epoch", epoch.id.hex(), b"%d" % epoch.number)]

    def forget_left(self) -> None:
        """The records of past epochs are put away."""
        gone = [Forget("leaving-epoch", epoch) for epoch in self.leaving]
        self.leaving = {}
        self._store.commit(gone)

    def leave_behind(self, epochs: Sequence[str]) -> None:
        """Nothing that was said under an older protocol means anything now: other keys are wanted."""
        kinds = ("charter", "credential", "holder-key", "epoch-end")
        gone = [Forget(kind, key) for kind in kinds for key in self._store.keys(kind)]
        self.charter = None
        for known in (self.credentials, self.holder_keys, self.ends):
            known.clear()
        self.leaving |= dict.fromkeys(epochs, 0)
        left = [Persist("leaving-epoch", epoch, b"0") for epoch in epochs]
        self._store.commit([*gone, *left])

    def end(self, frame: bytes, end: EpochEnd) -> None:
        """The operator has signed that the present epoch is over. Whoever asks is told so from now on."""
        key = end.epoch.hex()
        self.ends.setdefault(key, frame)
        self._store.commit([Persist("epoch-end", key, self.ends[key])])

    def enter(self, phase: Phase) -> None:
        """The epoch moves on."""
        assert self.charter is not None
        self.charter.phase = phase
        self._store.commit([write("charter", "", self.charter)])
