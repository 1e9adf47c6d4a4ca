"""One epoch after the other: how an epoch begins, closes and ends, and which model the next one begins with.

Everything here but `phase` and `overview` runs in the machine's thread.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.wire import MAX_CONTROL_BYTES, is_of_another_version, pack
from basecagg.errors import BASecAggError, DataError, Malformed
from basecagg.options import ServiceOptions
from basecagg.protocol.audit_log import AuditLog, Fact
from basecagg.protocol.effects import Forget, Persist
from basecagg.protocol.epoch import SERVER, Agreement, Epoch, accept, first_link
from basecagg.protocol.global_model import Model
from basecagg.protocol.messages import Credential, EpochEnd, Link, statement
from basecagg.protocol.questions import Board, StudyTerms, read
from basecagg.service.documents import AuditPage, Overview, Phase, StartEpoch
from basecagg.service.handed_over import ServerFolder
from basecagg.service.logs import Log
from basecagg.service.problems import Problem, unpacked
from basecagg.service.server.buffer_log import BufferEntry, entry_key, stored_entries
from basecagg.service.server.group_commit import GroupCommit
from basecagg.service.server.host import CONTROL_BYTES, EpochHost
from basecagg.service.server.registry import Charter, Registry
from basecagg.storage.lease import RENEWS
from basecagg.storage.server_store import ServerStore

_LOG = Log("basecagg.service")
_AUDIT_PAGE = 1000
"""Entries of the audit log that are handed out at once."""
MODEL_DTYPE = "<f4"
SERVICE = "service"
"""The namespace of all that outlives epochs. The process that has its lease is the server."""
EPOCH = "epoch:"
"""How the namespaces of epochs begin. What they store must not be undone by restoring an older copy."""


class Epochs:
    """The registry, and one epoch after the other, each with a store of its own."""

    def __init__(
        self,
        folder: ServerFolder,
        settings: ServiceOptions,
        open_store: Callable[[str], ServerStore],
    ) -> None:
        self._folder = folder
        self._settings = settings
        identities = [Identity.from_secret(secret) for secret in (folder.server, *folder.former)]
        self._identities = {identity.public_key: identity for identity in identities}
        """The server's keys, new and former. An epoch names the one that the server signs with."""
        self._stores: dict[str, ServerStore] = {}
        self._open_store = open_store
        self._durable = self._open(SERVICE)
        self.store = GroupCommit(self._durable)
        self._read()
        self._identity = identities[0]
        """The key that the server signs with if there is no epoch to name one."""
        self.host: EpochHost | None = None
        self._board: Board | None = None
        self.host = self._resume_host()
        self._catch_up()

    def _open(self, namespace: str) -> ServerStore:
        if namespace not in self._stores:
            self._stores[namespace] = self._open_store(namespace)
        return self._stores[namespace]

    def _read(self) -> None:
        federation = self._folder.federation
        self.registry = Registry(federation, self._folder.operator_key, self.store)
        self._audit = AuditLog(federation, SERVER, self.store)

    def close(self) -> None:
        """Let go of all stores."""
        for store in self._stores.values():
            store.close()

    def recover(self) -> None:
        """Go back to what is durable; `LeaseLost` if another server has it by now, and writes while we read."""
        self.store.discard()
        self.renew(0.0)
        self._read()
        if self.host is not None and self.registry.charter.epoch == self.host.frame:
            self.host.recover(self.registry.charter)
        else:  # the failure came while one epoch took the other's place
            self.host = self._resume_host()
        self._board = None
        self._catch_up()
        self.store.prove()

    def renew(self, after: float = RENEWS) -> None:
        """Give a sign of life in all stores; `LeaseLost` if another server has taken over meanwhile."""
        for store in self._stores.values():
            store.renew(after)

    def probe(self) -> None:
        """Commit nothing, to test that the store is writable."""
        self._durable.renew(0.0)

    @property
    def phase(self) -> Phase:
        """Where the present epoch stands."""
        return self.registry.charter.phase

    def require_host(self) -> EpochHost:
        """The present epoch, or 503."""
        if self.host is None:
            raise Problem(503, "NoEpoch", "no epoch has begun yet", retry_after=2.0)
        return self.host

    def overview(self, uptime: int, seen: dict[str, int]) -> Overview:
        """What the operator needs to know to go on; `seen` says how long ago each member was heard of."""
        host, registry, first = self.host, self.registry, self._first()
        return Overview(
            phase=self.phase,
            version=first.version,
            head=first.digest,
            model_size=len(self._next_model()) // 4,
            model_hash=first.model_hash,
            epoch_number=host.agreement.epoch.number if host else 0,
            epoch_id=host.agreement.id if host else bytes(32),
            enrolments=tuple(registry.enrolments.values()),
            members=tuple(registry.members.values()),
            holder_keys={name: pack(key) for name, key in registry.holder_keys.items()},
            inconsistent=dict(host.buffer_log.inconsistent) if host else {},
            unapplied=dict(host.buffer_log.unapplied) if host else {},
            trouble=host.trouble if host else "",
            uptime=uptime,
            seen={name: age for name, age in seen.items() if name in registry.members},
            retired=tuple(sorted(host.retired)) if host else (),
            last_version=registry.charter.last_version,
            closes=registry.charter.closes,
            protection=host.agreement.parameters.protection if host else "basecagg",
        )

    @property
    def board(self) -> Board:
        """The questions of the study that the present epoch is, or 404."""
        host, terms = self.require_host(), self.registry.charter.terms
        if not terms:
            raise Problem(404, "NoStudy", "this epoch trains a model: it is no study")
        if self._board is None:
            epoch = host.agreement
            verifier = Ed25519Verifier()
            self._board = Board(epoch.id, _terms(terms), epoch.holder_names, verifier, self.store)
            self.store.commit(self._board.start())
        return self._board

    # --- the audit log ----------------------------------------------------------------------------

    def note(self, event: str, /, **facts: Fact) -> None:
        """Something happened that concerns everybody: write it into the audit log and the log."""
        self._note(self.host, event, **facts)

    def _note(self, host: EpochHost | None, event: str, **facts: Fact) -> None:
        signer = self._identities[host.agreement.epoch.server_key] if host else self._identity
        self.store.commit(self._audit.note(signer, int(time.time()), event, **facts))
        _LOG.info(event, **facts)

    def note_sums(self, entries: Sequence[BufferEntry]) -> None:
        """Buffers ended: each gets one entry in the audit log, whatever crashes in between."""
        for entry in entries:
            self.store.commit([Persist("audited", entry_key(entry), b"")])
            why = {"reason": entry.reason} if entry.reason else {}
            self.note(entry.outcome, version=entry.version, members=len(entry.members), **why)

    def _catch_up(self) -> None:
        """Make up the entries of buffers that ended just before a crash."""
        if self.host is not None:
            known = set(self.store.keys("audited"))
            entries = self.host.buffer_log.entries()
            self.note_sums([entry for entry in entries if entry_key(entry) not in known])
            self.store.flush()

    def audit_page(self, start: int) -> AuditPage:
        """Some entries of the log from a number on, and its end as it is now."""
        return AuditPage(entries=self._audit.entries(start, _AUDIT_PAGE), end=self._audit.end)

    # --- the end of an epoch ----------------------------------------------------------------------

    def begin_closing(self) -> None:
        """Take no more updates."""
        if self.phase == "open":
            self._enter("closing")

    @property
    def is_due(self) -> bool:
        """Whether the operator's last version or closing time has come."""
        if self.host is None or self.phase != "open":
            return False
        return not self.host.machine.may_open or 0 < self.registry.charter.closes <= time.time()

    @property
    def may_finish_closing(self) -> bool:
        """Whether the last full buffer is open. Updates that still wait are fewer than K, and never summed."""
        return self.phase == "closing" and self.host is not None and self.host.may_end

    def finish_closing(self) -> None:
        """Now the operator can end it."""
        if self.may_finish_closing:
            self._enter("closed")

    def _enter(self, phase: Phase) -> None:
        host = self.require_host()
        self.registry.enter(phase)
        self._note_epoch(host, f"epoch {phase}")

    def _note_epoch(self, host: EpochHost, event: str) -> None:
        number, version = host.agreement.epoch.number, host.published.version
        self._note(host, event, number=number, version=version, **_unprotected(host))

    def end(self, frame: bytes) -> None:
        """Only the operator's signature ends an epoch for its participants, not a word of the server."""
        host = self.require_host()
        end = unpacked(frame, CONTROL_BYTES, EpochEnd)
        key = self._folder.operator_key
        if not Ed25519Verifier().verify(key, statement(end), end.signature):
            raise Problem(400, "BadSignature", "the end is not signed by the operator")
        if end.epoch != host.agreement.id:
            raise Problem(409, "WrongEpoch", "that is the end of another epoch")
        if self.phase != "closed":
            raise Problem(409, "NotClosed", f"the epoch is {self.phase}: close it first")
        if end.epoch.hex() not in self.registry.ends:
            self._note_epoch(host, "epoch ended")
        self.registry.end(frame, end)

    # --- its successor ----------------------------------------------------------------------------

    def set_model(self, data: bytes) -> None:
        """The model that the next epoch begins with, as little-endian float32; if empty, the last epoch's."""
        if self.phase in ("open", "closing"):
            raise Problem(409, "EpochOpen", "a model begins an epoch: close the present one first")
        if not data:
            self.store.commit([Forget("initial-model", "")])
            return
        model = np.frombuffer(data, MODEL_DTYPE) if len(data) % 4 == 0 else None
        if model is None or not np.isfinite(model).all():
            raise Problem(400, "Malformed", "a model is finite little-endian float32 numbers")
        self.store.commit([Persist("initial-model", "", data)])
        self.note("model given", numbers=len(data) // 4)

    def start(self, order: StartEpoch) -> None:
        """Begin the epoch that the operator signed. To send the same one again changes nothing."""
        if self.registry.charter.epoch == order.epoch:
            return
        if self.phase in ("open", "closing"):
            raise Problem(409, "EpochOpen", "close the present epoch first")
        agreement = self._accept(order.epoch)
        self._require_successor(agreement.epoch)
        for name, frame in order.credentials.items():
            check_credential(agreement, name, frame)
        if order.terms and _terms(order.terms).contract != agreement.epoch.contract:
            raise Problem(400, "BadTerms", "the epoch was not signed for a study of these terms")
        last, closes = order.last_version, order.closes
        charter = Charter(
            epoch=order.epoch, phase="open", last_version=last, closes=closes, terms=order.terms
        )
        host = self._make_host(agreement, charter, self._model_for(agreement))
        self.registry.begin(charter, order.credentials)
        self.store.commit([Forget("initial-model", "")])
        self._note_epoch(host, "epoch begun")
        self.store.flush()
        self.host, self._board = host, None
        self.archive()

    def _accept(self, frame: bytes) -> Agreement:
        try:
            epoch = unpacked(frame, MAX_CONTROL_BYTES, Epoch)
            return accept(epoch, self._folder.operator_key, Ed25519Verifier())
        except BASecAggError as error:
            raise Problem(400, "BadEpoch", str(error)) from None

    def _require_successor(self, epoch: Epoch) -> None:
        number = self.host.agreement.epoch.number if self.host else 0
        first = self._first()
        keys = {member.name: member.signing_key for member in self.registry.active}
        wrong = (
            (epoch.federation != self._folder.federation, "it is for another federation"),
            (epoch.server_key not in self._identities, "it names another server's key"),
            (epoch.number <= number, f"epoch {number} was here already, {epoch.number} is older"),
            (epoch.first != first, f"it must begin with the model of version {first.version}"),
            (
                any(keys.get(holder.name) != holder.signing_key for holder in epoch.holders),
                "a holder is not a member, or has another key",
            ),
        )
        for is_wrong, reason in wrong:
            if is_wrong:
                raise Problem(409, "BadEpoch", reason)

    def _next_model(self) -> bytes:
        """The model for the next epoch: the operator's, if it gave one since the present epoch began."""
        given = self.store.read("initial-model", "")
        return given or (self.host.published.data if self.host else b"")

    def _first(self) -> Link:
        """The link that the next epoch begins with."""
        model = np.frombuffer(self._next_model(), MODEL_DTYPE)
        if self.host is not None:
            return first_link(model, self.host.published.version, self.host.published.head)
        return first_link(model, int(self.store.read("carried-version", "") or 0))

    def _model_for(self, agreement: Agreement) -> Model:
        data, size = self._next_model(), agreement.parameters.model_size
        if not data:
            raise Problem(409, "NoModel", "send the initial model first")
        if len(data) != 4 * size:
            raise Problem(409, "WrongModel", f"the model has {len(data) // 4} numbers, d = {size}")
        return np.frombuffer(data, MODEL_DTYPE)

    def _make_host(self, agreement: Agreement, charter: Charter, model: Model) -> EpochHost:
        return EpochHost(
            agreement,
            self._signer(agreement.epoch.server_key),
            self._open(EPOCH + agreement.id.hex()),
            model,
            charter,
            retries=self._settings.retries,
            keep=self._settings.keep_versions,
        )

    def _signer(self, key: bytes) -> Identity:
        """The identity with the key that the epoch names. Another machine may have made that key."""
        if key not in self._identities:
            self.close()
            raise DataError(
                f"the present epoch names the server's key {key.hex()}, which is not in this server.json: copy"
                " server.json from the machine where `basecagg serve --new-key` made it, then start again"
            )
        return self._identities[key]

    def _resume_host(self) -> EpochHost | None:
        charter = self.registry.charter
        if not charter.epoch:
            return None
        if is_of_another_version(charter.epoch):
            self._carry_over()
            return None
        agreement = self._accept(charter.epoch)
        # The epoch's own store has the model by now; this one only gives its size.
        model = np.zeros(agreement.parameters.model_size, MODEL_DTYPE)
        return self._make_host(agreement, charter, model)

    def archive(self) -> None:
        """Keep only the buffer log of an epoch that is over. A failure in between leaves the rest for later."""
        for epoch, number in self.registry.leaving.items():
            store = self._open(EPOCH + epoch)
            for key, value in stored_entries(store):
                kept = Persist(f"ledger:{number}", key, value)
                self.store.commit([kept, Forget("audited", key)])
            self.store.flush()
            store.erase()
            del self._stores[EPOCH + epoch]
        self.registry.forget_left()

    def _carry_over(self) -> None:
        """An epoch of an older basecagg cannot go on: its people stay, and its model begins the next epoch."""
        ids = [name.removeprefix(EPOCH) for name in self._durable.namespaces(EPOCH)]
        models = [(key, each) for each in ids for key in self._open(EPOCH + each).keys("model")]
        version, epoch = max(models)
        model = self._open(EPOCH + epoch).read("model", version) or b""
        self.registry.leave_behind(ids)
        carried = Persist("carried-version", "", version.encode())
        self.store.commit([Persist("initial-model", "", model), carried])
        self.note("epoch carried over", version=int(version), numbers=len(model) // 4)
        self.store.flush()
        self.archive()


def _unprotected(host: EpochHost) -> dict[str, str]:
    """For the logs, where it has to be said."""
    p = host.agreement.parameters
    return {} if p.is_masked else {"protection": p.protection}


def _terms(frame: bytes) -> StudyTerms:
    try:
        return read(frame, StudyTerms)
    except Malformed as error:
        raise Problem(400, "BadTerms", str(error)) from None


def check_credential(agreement: Agreement, name: str, frame: bytes) -> None:
    """Refuse a credential that does not let this name contribute to the epoch."""
    try:
        agreement.require_enrolled(unpacked(frame, CONTROL_BYTES, Credential), name)
    except BASecAggError as error:
        raise Problem(400, "BadCredential", str(error)) from None
