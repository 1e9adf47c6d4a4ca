"""The operator at work: its machine with its store, and the line to the server."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, pack, unpack, unpack_file
from basecagg.errors import ChannelError, DataError, LocalProtocolError, Refused, ServerCaught
from basecagg.options import EpochOptions, InvitationOptions
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.audit_log import AuditLog, CheckedLog, Fact, purpose_of
from basecagg.protocol.effects import Effect, Persist, Send, perform, writes_of
from basecagg.protocol.epoch import SERVER, Epoch, accept, first_link
from basecagg.protocol.messages import Chain, HolderKey, Link, Parts, encode
from basecagg.protocol.operator import OPERATOR, Foundation, Operator, admission_hash
from basecagg.protocol.proofs import Caught, Evidence, Pedigree
from basecagg.protocol.questions import StudyTerms
from basecagg.protocol.recomputation import trace
from basecagg.protocol.step_rule import PAPER_STEP, StepRule
from basecagg.protocol.stored import Role, parse, write
from basecagg.service import documents
from basecagg.service.connection import Connection, Reply, Unreachable
from basecagg.service.documents import Enrolment, Invitation, Overview, from_json, to_json
from basecagg.service.logs import Log
from basecagg.service.operator.custody import Passphrase, nobody_knows, unseal
from basecagg.service.operator.folder import keep_addresses, open_store, read_keys
from basecagg.service.problems import BUSY, STORE_FAULT, Problem
from basecagg.service.signing import Caller
from basecagg.service.training import Vector
from basecagg.storage.disk import write_private

_TRIES = 10
"""To fetch a model and what leads to it before the next version comes."""
INVITATION_DAYS = InvitationOptions.invitation_days
_REPEATS, _PAUSE = 60, 1.0
"""Of one call, and the seconds in between, while the server waits for its store."""
_LOG = Log("basecagg.operator")
_ENTRY_BYTES = 64
"""What an entry of a log takes in memory besides its bytes, of which it may have none."""
_GONE = 404
_DAY = 86_400
"""Seconds."""
PERSON_BYTES = 6 * 2**10
"""What a server says of one person at most: a member with its sealing key, and another enrolment."""
MAX_LOG_BYTES = 2**28
"""Of a server's audit log: millions of entries."""


class Office:
    """The operator at work: moves what its machine wants done into its store, then to the server.

    Every change is durable before the server hears of it. Nobody else can open the folder meanwhile.
    """

    def __init__(
        self,
        folder: Path,
        anchor_folder: Path | None = None,
        passphrase: Passphrase = nobody_knows,
    ) -> None:
        """Open the folder that `create` made; the passphrase is asked for if its keys are encrypted."""
        self.folder = folder
        self._stored = s = read_keys(folder / "operator.json")
        self.identity = Identity.from_secret(unseal(s.operator, passphrase))
        self._enrolment = enrolment = Identity.from_secret(unseal(s.enrolment, passphrase))
        self._store = open_store(folder, anchor_folder)
        foundation = Foundation(federation=s.federation, suite=s.suite, server_key=s.server_key)
        verifier = Ed25519Verifier()
        self.machine = Operator(foundation, self.identity, enrolment, verifier, self._store)
        self._audit = AuditLog(s.federation, OPERATOR, self._store)
        self._perform(self.machine.start())

    def close(self) -> None:
        """Let others open the folder."""
        self._store.close()

    @property
    def federation(self) -> str:
        """Its name."""
        return self._stored.federation

    @property
    def epoch(self) -> Epoch | None:
        """The last epoch that was signed."""
        return self.machine.epoch

    def connect(self) -> Connection:
        """Another line to the server; requests on it are signed with the operator's key."""
        s = self._stored
        return Connection(s.addresses, self._ca(), Caller(s.federation, OPERATOR, self.identity))

    @cached_property
    def line(self) -> Connection:
        """The line to the server that all of these methods call on. Hang up with `line.close()`."""
        return self.connect()

    def move(self, urls: Sequence[str]) -> None:
        """The server is at these addresses from now on: invitations name them, and `connect` calls there."""
        self._stored = keep_addresses(self.folder, urls)
        self._perform(self._note("addresses changed", urls=" ".join(urls)))

    # --- members ----------------------------------------------------------------------------------

    async def invite(self, name: str, role: Role, days: float = INVITATION_DAYS) -> Invitation:
        """An invitation, the same again while nobody has used it. It admits one key under one name."""
        now = int(time.time())
        ends = int(now + days * _DAY)
        effects = self.machine.invite(name, role, os.urandom(32), expires=ends, now=now)
        self._perform(effects, "invited", name=name, role=role)
        return await self._hand_out(name)

    async def replace(self, name: str, days: float = INVITATION_DAYS) -> Invitation:
        """Another invitation for somebody whose disk was lost; the old key is out with the next epoch."""
        ends = int(time.time() + days * _DAY)
        self._perform(
            self.machine.replace(name, os.urandom(32), expires=ends), "replaced", name=name
        )
        return await self._hand_out(name)

    async def _hand_out(self, name: str) -> Invitation:
        person, s = self.machine.people[name], self._stored
        invitation = Invitation(
            federation=s.federation,
            name=name,
            role=person.role,
            url=s.url,
            standbys=s.standbys,
            operator_key=self.identity.public_key,
            token=person.token,
            after=person.after,
            suite=s.suite,
            ca=self._ca(),
            expires=person.expires,
        )
        proof = admission_hash(person.token)
        order = documents.Invite(name=name, admission_hash=proof, expires=person.expires)
        await self._order(order)
        return invitation

    async def admit_all(self) -> list[str]:
        """Admit everybody who has enrolled with an invitation's proof; give their names."""
        overview = await self.look()
        admitted = []
        for enrolment in overview.enrolments:
            try:
                effects = self.machine.admit(
                    enrolment.name, enrolment.signing_key, enrolment.proof, now=int(time.time())
                )
            except Refused as refusal:
                self._note_refused(enrolment, str(refusal))
                continue
            key = enrolment.signing_key.hex()
            credentials = self._perform(effects, "admitted", name=enrolment.name, key=key)
            await self._announce(overview, enrolment.name, credentials)
            admitted.append(enrolment.name)
        return admitted

    def _note_refused(self, enrolment: Enrolment, reason: str) -> None:
        """Once for each key: the server shows it again whenever somebody looks."""
        _LOG.warning("enrolment", refused=reason)
        mark = f"{enrolment.name}/{enrolment.signing_key.hex()}"
        if self._store.read("refused", mark) is None:
            facts = {"name": enrolment.name, "key": enrolment.signing_key.hex(), "reason": reason}
            self._perform([Persist("refused", mark, b"-")], "refused", **facts)

    async def vouch(self, name: str, role: Role, signing_key: bytes) -> None:
        """Admit a key that the operator got in person, without an invitation."""
        overview = await self.look()
        effects = self.machine.vouch(name, role, signing_key)
        credentials = self._perform(effects, "admitted", name=name, key=signing_key.hex())
        await self._announce(overview, name, credentials)

    async def _announce(self, overview: Overview, name: str, credentials: Sequence[Send]) -> None:
        """Tell the server of a member, with its credential if the server has the epoch that it is for."""
        person = self.machine.people[name]
        member = documents.Admitted(name=name, role=person.role, signing_key=person.signing_key)
        present = self.epoch is not None and overview.epoch_id == self.epoch.id
        credential = pack(credentials[0].message) if credentials and present else None
        await self._order(documents.Admit(member=member, credential=credential))

    async def revoke(self, name: str) -> None:
        """Take nothing more from a member. Other holders forget it with the next epoch."""
        self._perform(self.machine.revoke(name), "revoked", name=name)
        await self._order(documents.Revoke(name=name))

    # --- epochs -----------------------------------------------------------------------------------

    async def look(self, *, patient: bool = True) -> Overview:
        """What the server says about itself; keys in it that people signed are heard."""
        limit = MAX_CONTROL_BYTES + PERSON_BYTES * len(self.machine.people)
        ask = partial(self.line.call, "GET", "/v1/operator", limit=limit)
        reply = await (_while_it_waits(ask) if patient else ask())
        overview = from_json(reply.content, Overview)
        self._hear(overview)
        return overview

    async def fetch_model(self) -> tuple[int, Vector, bytes]:
        """The present version and its numbers, and the frame that leads to them from my key; it was checked."""
        for _ in range(_TRIES):
            pedigree, frame = await self._fetch_pedigree()
            # The server says how large its model is; what this operator signed bounds what is read.
            agreement = accept(pedigree.epoch, self.identity.public_key, Ed25519Verifier())
            size = 4 * agreement.parameters.model_size
            reply = await self.line.call("GET", "/v1/model", limit=size)
            if len(reply.content) != size:
                raise DataError(f"the server's model has {len(reply.content)} bytes, not {size}")
            version = reply.number("basecagg-version")
            if pedigree.version == version:
                vector = np.frombuffer(reply.content, "<f4")
                trace(pedigree, vector, self.identity.public_key, Ed25519Verifier())
                return version, vector, frame
        raise DataError("the server moved on whenever its model was fetched: try again")

    async def _fetch_pedigree(self) -> tuple[Pedigree, bytes]:
        """What leads from a key to the server's present model, and the frame that it came in."""
        frame = (await self.line.call("GET", "/v1/pedigree")).content
        pedigree = unpack_file(frame, len(frame))
        if not isinstance(pedigree, Pedigree):
            raise DataError("the server does not show the epoch that it is in")
        return pedigree, frame

    def _hear(self, overview: Overview) -> None:
        heard: list[Effect] = []
        for name, frame in overview.holder_keys.items():
            try:
                key = unpack(frame, documents.MAX_KEY_BYTES)
                if isinstance(key, HolderKey):
                    heard += self.machine.hear(name, key)
            except (ChannelError, Refused) as error:
                _LOG.info("key", of=name, refused=str(error))
        self._perform(heard)

    async def ask_for_keys(self, names: Iterable[str]) -> None:
        """Let members know that other sealing keys than theirs are wanted."""
        await self._order(documents.AskForKeys(names=tuple(names)))

    async def set_model(self, model: Vector | None) -> None:
        """The model that the next epoch begins with; None: with what the last one made.

        Its hash is written down here first: an epoch with any other is not signed.
        """
        if model is None:
            effects, data = self.machine.expect(None), b""
        else:
            vector, said = np.asarray(model, "<f4"), await self.look()
            first = first_link(vector, said.version, said.head)
            effects, data = self.machine.expect(first, vector.size), vector.tobytes()
        self._perform(effects)
        await _while_it_waits(partial(self.line.call, "PUT", "/v1/model", data))

    async def settle_model(self, accepted: bytes | None = None) -> int:
        """Make sure which model the next epoch begins with, and give how many numbers it has.

        It is the one that was given here, or that the last epoch came to; or the one with the hash `accepted`,
        which the operator takes though nothing leads to it.
        """
        first = await self._settle(accepted)
        return self.machine.require_expected(first).size

    async def _settle(self, accepted: bytes | None = None) -> Link:
        """End the last epoch, and see what leads to the model that the server wants to go on with."""
        overview = await self.look()
        if overview.phase in ("open", "closing"):
            raise LocalProtocolError("an epoch is open: rotate, or close it first")
        await self._end(overview)
        first = Link(overview.version, overview.model_hash, bytes(32), overview.head)
        if accepted is not None:
            taken = Link(first.version, accepted, bytes(32), first.digest)
            effects = self.machine.expect(taken, overview.model_size)
            told = accepted.hex()
            self._perform(effects, "model accepted", version=first.version, hash=told)
        if self.machine.expected_at(first) is None:
            await self._follow(first, overview.epoch_number)
        return first

    async def _follow(self, first: Link, number: int) -> None:
        """Trace the model to the epoch that was signed here, or say what the operator can do about it."""
        try:
            if self.epoch is None or number == 0:
                raise DataError(
                    "no epoch leads to it that the server is in and this operator remembers"
                )
            pedigree, _ = await self._fetch_pedigree()
            parts = await self._fetch_parts(self.epoch, pedigree)
            self._perform(self.machine.follow(pedigree, parts))
        except Unreachable:  # the line is at fault, not the model
            raise
        except Caught as caught:
            raise self._accuse(caught, first.version) from None
        except (ChannelError, DataError, Refused) as reason:
            raise DataError(
                f"the server's word on the model of version {first.version} is not enough: {reason}. Begin"
                " with a model of yours (`start --model`); or, if you know from elsewhere that this one is"
                f" right, accept it: --accept-model {first.model_hash.hex()}"
            ) from None

    async def _fetch_parts(self, epoch: Epoch, pedigree: Pedigree) -> Parts | None:
        """What the newest version was made from; None if it is the first, or nothing is kept."""
        if pedigree.release is None:
            return None
        limit = limit_for(Parts, epoch.parameters)
        ask = partial(self.line.call, "GET", f"/v1/parts/{pedigree.version}", limit=limit)
        try:
            parts = unpack((await _while_it_waits(ask)).content, limit)
        except Problem as problem:
            if problem.status != _GONE:
                raise
            return None
        return parts if isinstance(parts, Parts) else None

    def _accuse(self, caught: Caught, version: int) -> ServerCaught:
        """The server released a model that does not follow from its parts: leave the proof in a file."""
        assert self.epoch is not None
        path = self.folder / f"evidence-{self.epoch.number}-{version}.bin"
        evidence = Evidence(self.epoch, caught.proof, self.identity.public_key)
        write_private(path, pack(evidence))
        return ServerCaught(f"{caught}. The evidence is in {path}; run: basecagg verify {path}")

    async def start(
        self,
        parameters: ProtocolParameters,
        step: StepRule = PAPER_STEP,
        without: Collection[str] = (),
        days: float = EpochOptions.epoch_days,
        *,
        max_burns: int = EpochOptions.max_burns,
        server_key: bytes | None = None,
        versions: int | None = None,
        until: int | None = None,
        terms: StudyTerms | None = None,
    ) -> Epoch:
        """Sign the next epoch with all holders but those left out by name, and start it for some days.

        With the terms of a study it is that study, and trains nothing.
        The server closes it by itself after so many versions, or at the second `until`, if either is given.
        """
        first = await self._settle()
        ends = int(time.time() + days * _DAY)
        if server_key is not None:
            trusted = self.machine.trust_server(server_key)
            self._perform(trusted, "server key trusted", key=server_key.hex())
        effects = self.machine.begin(
            parameters,
            first,
            step=step,
            max_burns=max_burns,
            without=without,
            contract=bytes(32) if terms is None else terms.contract,
            ends=ends,
        )
        sends = self._perform(effects, "epoch signed", number=self.machine.number)
        frames = {send.recipient: pack(send.message) for send in sends}
        epoch = frames.pop(SERVER)
        assert self.epoch is not None
        last = None if versions is None else self.epoch.first_version + versions
        order = documents.StartEpoch(
            epoch=epoch,
            credentials=frames,
            last_version=last,
            closes=until or 0,
            terms=b"" if terms is None else encode(terms),
        )
        await self._order(order)
        return self.epoch

    async def close_epoch(self) -> None:
        """Let the present epoch come to an end. Its last full buffer opens; the rest is given up."""
        await self._order(documents.CloseEpoch())

    async def end_epoch(self) -> Overview:
        """Tell everybody that the closed epoch is over; what the server says of its model is signed with it."""
        overview = await self.look()
        if overview.phase != "closed":
            raise LocalProtocolError(f"the epoch is {overview.phase}: close it first")
        await self._end(overview)
        return overview

    async def _end(self, overview: Overview) -> None:
        """Sign the end of the epoch that the server has, so that its members are free for the next one.

        An epoch that this operator signed and forgot is shown by the server, and ended like any other. If the
        server has an earlier epoch than the last that was signed here, that one has its end already.
        """
        known, number = self.epoch, overview.epoch_number
        is_known = known is not None and known.id == overview.epoch_id
        if not is_known and (number == 0 or (known is not None and known.number > number)):
            return
        if known is None:
            await self._adopt()
        elif not is_known:
            raise LocalProtocolError(
                f"the server is in an epoch {number} that was not signed here: if this is an older copy of"
                f" the folder, run `basecagg operator recover --above {number}`"
            )
        await self._send_end(overview.version, overview.head)

    async def _adopt(self) -> None:
        pedigree, _ = await self._fetch_pedigree()
        effects = self.machine.adopt(pedigree.epoch)
        self._perform(effects, "epoch found again", number=pedigree.epoch.number)

    async def _send_end(self, version: int, head: bytes) -> None:
        assert self.epoch is not None
        effects = self.machine.end(version, head)
        facts = {"number": self.epoch.number, "version": version}
        (end,) = self._perform(effects, "epoch ended", **facts)
        await self._order(documents.EndEpoch(frame=pack(end.message)))

    async def recover(self, above: int, confirmed: Collection[str]) -> None:
        """Go on from an older copy of the folder: above a number, with the people who were confirmed."""
        effects = self.machine.recover(above, confirmed)
        self._perform(effects, "recovered", above=above, confirmed=" ".join(sorted(confirmed)))
        for name, person in self.machine.people.items():
            if person.state == "revoked":
                await self._order(documents.Revoke(name=name))

    # --- the audit log ----------------------------------------------------------------------------

    def note_export(self, version: int, path: Path) -> None:
        """The model has left the federation: say so before it does."""
        self._perform(self._note("exported", version=version, path=str(path)))

    def own_log(self) -> CheckedLog:
        """What this operator did. `DataError` if its log was changed."""
        audit, keys = self._audit, {self.identity.public_key}
        return CheckedLog(audit.purpose, audit.entries(), audit.end, keys, Ed25519Verifier())

    async def server_log(self) -> CheckedLog:
        """What the server did. `DataError` if its log was changed, or is not what was seen here before."""
        purpose, keys = purpose_of(self._stored.federation, SERVER), self.machine.server_keys
        page = await self._audit_page(0)
        end, entries = page.end, page.entries
        if end is not None:
            end.require_signed(purpose, keys, Ed25519Verifier())
            entries = await self._audit_entries(page, end.chain.length)
        log = CheckedLog(purpose, entries, end, keys, Ed25519Verifier())
        seen = self._store.read("seen-log", "")
        if seen is not None:
            log.require_extends(parse(seen, Chain))
        self._perform([write("seen-log", "", log.head)])
        return log

    async def _audit_entries(self, page: documents.AuditPage, length: int) -> list[bytes]:
        """As many entries as the server has signed for, or fewer if it stops. What it adds later is left."""
        entries, size = list(page.entries), 0
        while page.entries and len(entries) < length:
            size += sum(len(entry) + _ENTRY_BYTES for entry in page.entries)
            if size > MAX_LOG_BYTES:
                raise DataError(
                    f"the first {len(entries)} of {length} entries of the server's audit log have more than"
                    f" {MAX_LOG_BYTES // 2**20} MB: nobody reads on"
                )
            page = await self._audit_page(len(entries))
            entries += page.entries
        return entries[:length]

    async def _audit_page(self, start: int) -> documents.AuditPage:
        reply = await self.line.call("GET", "/v1/audit", query={"start": start})
        return from_json(reply.content, documents.AuditPage)

    # --- the folder and the line ------------------------------------------------------------------

    async def _order(self, order: documents.Order) -> None:
        """The very same order is repeated while the server waits for its store: nothing is signed again."""
        body = to_json(order)
        await _while_it_waits(partial(self.line.call, "POST", "/v1/operator", body))

    def _note(self, event: str, /, **facts: Fact) -> list[Persist]:
        return self._audit.note(self.identity, int(time.time()), event, **facts)

    def _perform(self, effects: Sequence[Effect], event: str = "", /, **facts: Fact) -> list[Send]:
        """Carry out what the machine wants, with an entry in the audit log if that changes anything."""
        if event and writes_of(effects):
            effects = [*effects, *self._note(event, **facts)]
        try:
            return perform(self._store, effects)
        except BaseException:
            self.close()  # the machine is ahead of its records: it must not go on
            raise

    def _ca(self) -> str:
        return "" if self._stored.public_pki else (self.folder / "ca.pem").read_text()


async def _while_it_waits(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """Call again while the server waits for its store, or has no room at present, for a minute or so."""
    for _ in range(_REPEATS):
        try:
            return await call()
        except Problem as problem:
            if problem.code not in (STORE_FAULT, BUSY):
                raise
            _LOG.warning("the server does not go on yet", reason=problem.reason)
            await asyncio.sleep(_PAUSE)
    return await call()
