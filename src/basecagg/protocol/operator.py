"""The operator: who belongs to the federation, the counter of epochs, and what it signs.

It believes its own store and what its people signed. What a server says about numbers, members, keys or models
decides nothing. The operator stores an epoch before anybody can have it, so no number and no sealing key is
ever signed twice. An epoch begins with a model that the operator gave, or with the one that the last epoch came
to: the operator follows the chain of its models, and recomputes the last of them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from basecagg.errors import (
    BadSignature,
    DataError,
    LocalProtocolError,
    Malformed,
    MissingHolders,
    NotEnrolled,
    PartsDamaged,
    Refused,
    StorageError,
    WrongEpoch,
    WrongModel,
    WrongVersion,
)
from basecagg.parameters import ProtocolParameters
from basecagg.protocol import life
from basecagg.protocol.effects import Effect, Forget, Persist, Send
from basecagg.protocol.epoch import NEVER, SERVER, Epoch, Seat, accept, draft_epoch
from basecagg.protocol.messages import (
    Credential,
    EpochEnd,
    HolderKey,
    Link,
    Name,
    Parts,
    Suite,
    admission_statement,
    signed,
    statement,
)
from basecagg.protocol.ports import LastingRecords, Signer, Verifier
from basecagg.protocol.proofs import Pedigree
from basecagg.protocol.recomputation import last_link, recompute
from basecagg.protocol.step_rule import PAPER_STEP, StepRule
from basecagg.protocol.stored import (
    CONTRIBUTES,
    HOLDS,
    Expectation,
    Person,
    Role,
    Standing,
    load,
    load_readable,
    write,
)

OPERATOR = "operator"
RESERVED = (OPERATOR, SERVER)
PRESENT = ("invited", "admitted")
"""The states of people who belong to the federation."""


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """The federation's name, suite and first server key. Only the server's key may change later."""

    federation: str
    suite: Suite
    server_key: bytes


def found() -> list[Persist]:
    """What a new operator stores first. A store without it is not new, but was lost."""
    return [_kept(Standing())]


class Operator:
    """The operator of a federation. Rebuilt from its records after a restart, it goes on where it was."""

    def __init__(
        self,
        foundation: Foundation,
        signer: Signer,
        enrolment: Signer,
        verifier: Verifier,
        records: LastingRecords,
    ) -> None:
        self._foundation = foundation
        self._signer = signer
        self._enrolment = enrolment
        self._verifier = verifier
        self._records = records
        self.number = records.number
        """The highest number that an epoch of this federation may have."""
        self.people = load(records, "person", Person)
        """Everybody who was ever invited, by name."""
        self._announced = load_readable(records, "announced", HolderKey)
        self._used = {key: int(number) for key, number in records.scan("used")}
        """Sealing keys that were signed into an epoch, with its number."""
        self._admitted_keys = {key: name.decode() for key, name in records.scan("admitted")}
        """Signing keys that were ever admitted, with the name."""
        self._refused: dict[str, str] = {}
        """Why the last key that somebody announced was refused."""
        self._server_key = records.read("server-key", "") or foundation.server_key
        self._standing = Standing.read_back(records.read("standing", ""))

    def start(self) -> list[Effect]:
        """Carry this out once after construction. An older copy signs nothing until `recover`."""
        if self._standing.suspended or not self._records.rolled_back:
            return []
        self._standing.suspended = True
        return [_kept(self._standing)]

    @property
    def epoch(self) -> Epoch | None:
        """The last epoch that was signed."""
        return self._standing.epoch

    @property
    def server_keys(self) -> set[bytes]:
        """The server's keys: the one in the last epoch, and the one for the next."""
        present = {self.epoch.server_key} if self.epoch else set()
        return present | {self._server_key}

    @property
    def suspended(self) -> bool:
        """Whether nothing is signed because this is an older copy."""
        return self._standing.suspended

    # --- people -----------------------------------------------------------------------------------

    def invite(
        self, name: str, role: Role, token: bytes, *, expires: int = NEVER, now: int = 0
    ) -> list[Effect]:
        """Invite somebody new. An open invitation of the same person stands until it expires."""
        self._require_store()
        require_free(name)
        known = self.people.get(name)
        is_invited = known is not None and known.state == "invited" and known.role == role
        if is_invited and not _is_over(known, now):
            return []
        if known is not None and not is_invited:
            raise DataError(f"the name {name} is taken: {known.role}, {known.state}")
        fresh = self._newcomer(role, token, after=self._closed_number(), expires=expires)
        return [self._enter(name, fresh)]

    def replace(self, name: str, token: bytes, *, expires: int = NEVER) -> list[Effect]:
        """Let a person begin again with the next epoch, after a lost disk or invitation."""
        self._require_store()
        old = self._step(name, "replace")
        fresh = self._newcomer(old.role, token, after=self.number, expires=expires)
        self._announced.pop(name, None)  # it is signed with the old key
        return [self._enter(name, fresh), Forget("announced", name)]

    def revoke(self, name: str) -> list[Effect]:
        """Exclude a person: at once for the server, and from the next epoch on for the holders."""
        self._require_store()
        known = self.people.get(name)
        if known is not None and known.state == "revoked":
            return []
        return [self._enter(name, self._step(name, "revoke"))]

    def admit(
        self, name: str, signing_key: bytes, evidence: bytes, *, now: int = 0
    ) -> list[Effect]:
        """Admit the key that comes with an invitation's proof. The same key again gets the same answer."""
        self._require_store()
        person = self.people.get(name)
        if person is None or not life.allows(life.PERSON, person.state, "admit"):
            raise NotEnrolled("no invitation stands behind this enrolment", peer=name)
        expected = proof(person.token, self._foundation.federation, name, signing_key)
        if not hmac.compare_digest(evidence, expected):
            raise NotEnrolled("the key does not come with the invitation's proof", peer=name)
        if person.state == "invited" and _is_over(person, now):
            raise NotEnrolled("its invitation has expired: invite again", peer=name)
        return self._take(name, person, "admit", signing_key)

    def vouch(self, name: str, role: Role, signing_key: bytes) -> list[Effect]:
        """Admit a key that the operator got in person, without an invitation."""
        self._require_store()
        require_free(name)
        fresh = Person(role=role, state="unknown", after=self._closed_number())
        person = self.people.get(name, fresh)
        if person.role != role or not life.allows(life.PERSON, person.state, "vouch"):
            raise DataError(f"the name {name} is taken: {person.role}, {person.state}")
        return self._take(name, person, "vouch", signing_key)

    def _take(self, name: str, person: Person, event: str, signing_key: bytes) -> list[Effect]:
        if person.signing_key == signing_key:
            return self._credentials(name)
        if person.signing_key:
            raise NotEnrolled("this invitation was used with another key", peer=name)
        former = self._admitted_keys.get(signing_key.hex())
        if former is not None:
            raise NotEnrolled(f"this key was admitted before, as {former}", peer=name)
        person.state = life.after(life.PERSON, person.state, event)
        person.signing_key = signing_key
        self._admitted_keys[signing_key.hex()] = name
        noted = Persist("admitted", signing_key.hex(), name.encode(), irreversible=True)
        return [noted, self._enter(name, person), *self._credentials(name)]

    def _newcomer(self, role: Role, token: bytes, *, after: int, expires: int) -> Person:
        state = life.after(life.PERSON, "unknown", "invite")
        return Person(role=role, state=state, after=after, token=token, expires=expires)

    def _step(self, name: str, event: str) -> Person:
        if name not in self.people:
            raise DataError(f"nobody is called {name}")
        person = self.people[name]
        if not life.allows(life.PERSON, person.state, event):
            raise DataError(f"{name} is {person.state} already: invite under another name")
        person.state = life.after(life.PERSON, person.state, event)
        return person

    def _enter(self, name: str, person: Person) -> Persist:
        self.people[name] = person
        return write("person", name, person, irreversible=True)

    def _closed_number(self) -> int:
        """The last epoch that a newcomer takes no part in: the one before the present one."""
        return self.number - 1 if self._present is not None else self.number

    # --- keys of holders --------------------------------------------------------------------------

    def hear(self, name: str, key: HolderKey) -> list[Effect]:
        """Take the key that somebody announces for the next epoch: its shares will be sealed to it."""
        if key == self._announced.get(name):
            return []
        try:
            self._require_good(name, key)
        except Refused as refusal:
            self._refused[name] = str(refusal)
            raise
        self._refused.pop(name, None)
        self._announced[name] = key
        return [write("announced", name, key)]

    def _require_good(self, name: str, key: HolderKey) -> None:
        person, founded = self.people.get(name), self._foundation
        if person is None or person.state != "admitted":
            raise NotEnrolled("its key was not asked for")
        if not self._verifier.verify(person.signing_key, statement(key), key.signature):
            raise BadSignature("its key is not signed by its owner")
        if (key.federation, key.name, key.suite) != (founded.federation, name, founded.suite):
            raise WrongEpoch("its key is for another federation, name or suite")
        if not self._verifier.fits(founded.suite, key.sealing_key):
            raise Malformed(f"its key is none of the suite {founded.suite}")
        self._require_new(name, key)

    def _require_new(self, name: str, key: HolderKey) -> None:
        known, used = self._announced.get(name), self._used.get(_hash(key.sealing_key))
        if used is not None:
            raise WrongVersion(f"its key was signed into epoch {used} already")
        if known is not None and key.after < known.after:
            raise WrongVersion(f"its key is from before epoch {known.after}, which it has joined")
        if key.after > self.number:
            raise WrongVersion(
                f"its key is from after epoch {key.after}, and {self.number} is the last one known"
                " here: if this is an older copy of the operator, `operator recover` it"
            )

    def missing(self, without: Collection[str] = ()) -> dict[str, str]:
        """Holders that could not be in the next epoch, each with the reason."""
        objections = {name: self._objection(name) for name in self.holders(without)}
        return {name: reason for name, reason in objections.items() if reason}

    def holders(self, without: Collection[str] = ()) -> list[str]:
        """The holders of the next epoch, in order."""
        return sorted(
            name
            for name, person in self.people.items()
            if person.state == "admitted" and person.role in HOLDS and name not in without
        )

    def _objection(self, name: str) -> str:
        key = self._announced.get(name)
        if key is None:
            return self._refused.get(name, "it has announced no key")
        used = self._used.get(_hash(key.sealing_key))
        if used is not None:
            return self._refused.get(name, f"its key was signed into epoch {used} already")
        others = (n for n, k in self._announced.items() if k.sealing_key == key.sealing_key)
        twin = next((other for other in others if other != name), None)
        return "" if twin is None else f"its key is {twin}'s too"

    # --- the model that an epoch begins with ------------------------------------------------------

    def expect(self, first: Link | None, size: int = 0) -> list[Effect]:
        """Let the next epoch begin with this model of `size` numbers, not with what the server says.

        The operator made its hash from its own numbers, or accepts it knowingly. None: begin with the model
        that the last epoch came to, if it can be followed.
        """
        self._require_store()
        expected = None if first is None else Expectation(first=first, size=size)
        return self._keep_expected(expected)

    def follow(self, pedigree: Pedigree, parts: Parts | None) -> list[Effect]:
        """Let the next epoch begin with the model that the last one came to, if that can be proved.

        The proof leads from the epoch that was signed here, along the chain of models that the holders
        certified, to the newest version, which is recomputed from its parts. `Caught` if the server released
        another.
        """
        self._require_store()
        epoch, end = self._standing.epoch, self._standing.end
        if epoch is None or pedigree.epoch.id != epoch.id:
            raise WrongEpoch("it is not in the epoch that was signed here last", peer=SERVER)
        agreement = accept(epoch, self._signer.public_key, self._verifier)
        link, head = last_link(agreement, pedigree)
        if end is not None and (link.version, head) != (end.last_version, end.head):
            raise WrongVersion(
                f"the epoch ended with version {end.last_version}, it shows version {link.version}"
                " or another chain of models",
                peer=SERVER,
            )
        if pedigree.release is not None:
            if parts is None or parts.release != pedigree.release:
                raise PartsDamaged(f"it has not kept what version {link.version} was made from")
            recompute(agreement, parts)
        first = Link(link.version, link.model_hash, bytes(32), head)
        size = agreement.parameters.model_size
        return self._keep_expected(Expectation(first=first, size=size))

    def expected_at(self, first: Link) -> Expectation | None:
        """The model that is expected in the place of this one, if there is one.

        The place is a version and the head of the chain before it. If nothing was said or followed, the model
        of an epoch that was signed counts, for it may never have arrived; but no server chooses between them.
        """
        expected = self._standing.expected
        if expected is None and self._present is not None:
            size = self._present.parameters.model_size
            expected = Expectation(first=self._present.first, size=size)
        place = (first.version, first.digest)
        if expected is None or (expected.first.version, expected.first.digest) != place:
            return None
        return expected

    def require_expected(self, first: Link) -> Expectation:
        """Refuse the model that the server wants to begin with, unless it is the expected one."""
        expected = self.expected_at(first)
        if expected is None:
            raise WrongModel(f"nobody has said or followed here what version {first.version} is")
        if expected.first != first:
            raise WrongModel(
                f"for version {first.version} it names the model {first.model_hash.hex()}, and the one that was"
                f" given, traced or accepted here is {expected.first.model_hash.hex()}: nothing is signed",
                peer=SERVER,
            )
        return expected

    def _keep_expected(self, expected: Expectation | None) -> list[Effect]:
        if expected == self._standing.expected:
            return []
        self._standing.expected = expected
        return [_kept(self._standing)]

    # --- epochs -----------------------------------------------------------------------------------

    def trust_server(self, key: bytes) -> list[Effect]:
        """From the next epoch on, the server signs with this key."""
        self._require_store()
        if key == self._server_key:
            return []
        self._server_key = key
        return [Persist("server-key", "", key, irreversible=True)]

    def begin(
        self,
        parameters: ProtocolParameters,
        first: Link,
        *,
        step: StepRule = PAPER_STEP,
        max_burns: int = 1,
        without: Collection[str] = (),
        contract: bytes = bytes(32),
        ends: int = NEVER,
    ) -> list[Effect]:
        """Sign the next epoch, with every admitted holder but those whom the operator leaves out by name.

        With nobody where the parameters say that updates are in clear.

        `first` is what the server wants to begin with: no other model than the expected one is signed. If the
        last epoch has all that is wished for and has not ended, it is sent again: it may never have arrived.
        """
        self._require_store()
        expected, size = self.require_expected(first), parameters.model_size
        if expected.size != size:
            raise WrongModel(f"the model has {expected.size} numbers, the parameters say {size}")
        strangers = sorted(set(without) - set(self.holders()))
        if strangers:
            raise DataError(f"no holder is called {strangers[0]}: nobody is left out by that name")
        wishes = {
            "server_key": self._server_key,
            "parameters": parameters,
            "first": first,
            "step": step,
            "max_burns": max_burns,
            "contract": contract,
        }
        signed_now = [] if self._is_last(wishes, without) else self._sign(wishes, without, ends)
        assert self._present is not None
        credentials = (send for name in sorted(self.people) for send in self._credentials(name))
        return [*signed_now, Send(SERVER, self._present), *credentials]

    def _is_last(self, wishes: Mapping[str, Any], without: Collection[str]) -> bool:
        last = self._present
        if last is None or any(getattr(last, name) != wish for name, wish in wishes.items()):
            return False
        names = self.holders(without) if last.parameters.is_masked else []
        wanted = [(name, self.people[name].signing_key) for name in names]
        return wanted == [(holder.name, holder.signing_key) for holder in last.holders]

    def _sign(self, wishes: Mapping[str, Any], without: Collection[str], ends: int) -> list[Effect]:
        founded, number = self._foundation, self.number + 1
        epoch = draft_epoch(
            federation=founded.federation,
            holders=self._committee(without) if wishes["parameters"].is_masked else [],
            enrolment_key=self._enrolment.public_key,
            operator=self._signer,
            number=number,
            ends=ends,
            suite=founded.suite,
            **wishes,
        )
        # An epoch that nobody would accept is not signed.
        accept(epoch, self._signer.public_key, self._verifier)
        used = {_hash(holder.sealing_key): number for holder in epoch.holders}
        self._used |= used
        self._standing = Standing(epoch=epoch)
        return [*_used(used), self._count(number), _kept(self._standing)]

    def _count(self, number: int) -> Persist:
        self.number = number
        return Persist("highest", "", b"%d" % number, irreversible=True)

    def _committee(self, without: Collection[str]) -> list[Seat]:
        missing = self.missing(without)
        if missing:
            raise MissingHolders(missing)
        names = self.holders(without)
        return [Seat(n, self.people[n].signing_key, self._announced[n].sealing_key) for n in names]

    def end(self, last_version: int, head: bytes) -> list[Effect]:
        """Sign the end of the present epoch, or send the signed end again."""
        self._require_store()
        epoch, end = self._standing.epoch, self._standing.end
        if epoch is None:
            raise LocalProtocolError("no epoch has begun")
        if end is not None:
            return [Send(SERVER, end)]
        if last_version < epoch.first_version:
            raise WrongVersion(f"it began with version {epoch.first_version}", peer=SERVER)
        end = signed(EpochEnd(epoch.id, last_version, head), self._signer)
        self._standing.end = end
        return [_kept(self._standing), Send(SERVER, end)]

    def adopt(self, epoch: Epoch) -> list[Effect]:
        """Take up an epoch that this operator signed and has forgotten, so that it can be ended.

        The signature must be our own.
        """
        self._require_store()
        if self._standing.epoch is not None:
            raise LocalProtocolError(f"epoch {self._standing.epoch.number} is remembered here")
        accept(epoch, self._signer.public_key, self._verifier)
        if epoch.federation != self._foundation.federation:
            raise WrongEpoch(f"it is of {epoch.federation}", peer=SERVER)
        if epoch.number > self.number:
            raise DataError(
                f"this operator has signed epoch {epoch.number} and does not remember it: run"
                f" `basecagg operator recover --above {epoch.number}`"
            )
        self._standing = Standing(epoch=epoch, expected=self._standing.expected)
        return [_kept(self._standing)]

    @property
    def has_ended(self) -> bool:
        """Whether the end of the last epoch is signed."""
        return self._standing.end is not None

    @property
    def _present(self) -> Epoch | None:
        """The last epoch, unless it has ended."""
        return self._standing.epoch if self._standing.end is None else None

    def _credentials(self, name: str) -> list[Effect]:
        """Somebody's credential for the present epoch, unless it has no part in it."""
        person, epoch = self.people[name], self._present
        takes_part = person.state == "admitted" and person.role in CONTRIBUTES
        if epoch is None or not takes_part or person.after >= epoch.number:
            return []
        credential = Credential(epoch.id, name, person.signing_key)
        return [Send(name, signed(credential, self._enrolment))]

    # --- a lost store -----------------------------------------------------------------------------

    def recover(self, above: int, confirmed: Collection[str]) -> list[Effect]:
        """Go on from an older copy: no epoch up to `above` is signed again, and only these people are in.

        Keys that were announced here may stand in an epoch that is forgotten: they count as used.
        """
        present = {name for name, person in self.people.items() if person.state in PRESENT}
        strangers = sorted(set(confirmed) - present)
        if strangers:
            raise DataError(f"{strangers[0]} is not among the people here: invite them afterwards")
        if above < self.number:
            raise DataError(f"epoch {self.number} was signed here: --above {self.number} at least")
        used = {_hash(key.sealing_key): above for key in self._announced.values()}
        used = {key: number for key, number in used.items() if key not in self._used}
        self._used |= used
        self._standing = Standing()
        gone = sorted(present - set(confirmed))
        revoked = [self._enter(name, self._step(name, "revoke")) for name in gone]
        return [*_used(used), *revoked, self._count(above), _kept(self._standing)]

    def _require_store(self) -> None:
        if self.suspended:
            raise StorageError(
                "this is an older copy of the operator, which may have signed more epochs than it knows of:"
                " nothing is signed until `basecagg operator recover --above N`, N being the number of"
                " the last epoch that anybody has seen"
            )


def _is_over(person: Person | None, now: int) -> bool:
    """Whether an invitation has expired; those of an older basecagg never do."""
    return person is not None and 0 < person.expires <= now


def require_name(name: str) -> None:
    """Refuse what cannot be a name of a person or federation: names become part of paths and messages."""
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise DataError(
            f"{name!r} is no name: up to 64 letters, digits, '.', '_', '@', '-', not with a dot first"
        ) from None


def require_free(name: str) -> None:
    """Refuse what no person can be called."""
    require_name(name)
    if name in RESERVED:
        raise DataError(f"the name {name} is taken: it is the {name}'s own")


def _hash(sealing_key: bytes) -> str:
    return hashlib.sha256(sealing_key).hexdigest()


def _used(keys: Mapping[str, int]) -> list[Persist]:
    return [Persist("used", key, b"%d" % number, irreversible=True) for key, number in keys.items()]


def _kept(standing: Standing) -> Persist:
    return write("standing", "", standing, irreversible=True)


# --- invitations ----------------------------------------------------------------------------------
#
# A secret token admits one key, through a server that never sees the token.


def admission(token: bytes) -> bytes:
    """What the server may know of a token."""
    return hmac.digest(token, b"basecagg/admission", "sha256")


def admission_hash(token: bytes) -> bytes:
    """How the server recognises an admission before it has seen it."""
    return hashlib.sha256(admission(token)).digest()


def proof(token: bytes, federation: str, name: str, signing_key: bytes) -> bytes:
    """What ties a key to the invitation, for the operator: a server in between cannot make it."""
    return hmac.digest(token, admission_statement(federation, name, signing_key), "sha256")
