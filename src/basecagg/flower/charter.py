"""The operator's part, which the ServerApp plays on Flower: keys, the epoch, and who is admitted.

Operator and server are one party here, and the SuperLink ships the very code that clients run. So whatever an
epoch says, an honest but curious server is all that is covered; docs/how-to/flower.md says so too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Persist, Store
from basecagg.protocol.epoch import Agreement, Epoch, Holder, accept, draft_epoch
from basecagg.protocol.messages import Credential, EpochEnd, signed

_ROLES = ("operator", "enrolment", "server")
_FEDERATION_BYTES = 16


class Charter:
    """Keys and epoch of one federation, kept in the server's store."""

    def __init__(self, store: Store) -> None:
        """Go on with the stored federation, or found one."""
        self._store = store
        if store.read("federation", "") is None:
            keys = [Persist("key", role, Identity.create().secret_bytes()) for role in _ROLES]
            name = os.urandom(_FEDERATION_BYTES).hex()
            store.commit([Persist("federation", "", name.encode()), *keys])
        self.federation = self._read("federation").decode()
        self._operator, self._enrolment, self.server = (self._identity(role) for role in _ROLES)

    @property
    def operator_key(self) -> bytes:
        """What nodes pin."""
        return self._operator.public_key

    @property
    def agreement(self) -> Agreement | None:
        """The epoch, if one was signed."""
        frame = self._store.read("signed-epoch", "")
        if frame is None:
            return None
        epoch = unpack(frame, MAX_CONTROL_BYTES)
        assert isinstance(epoch, Epoch)
        return accept(epoch, self.operator_key, Ed25519Verifier())

    def sign_epoch(
        self, parameters: ProtocolParameters, holders: Sequence[Holder], charge: bytes
    ) -> Agreement:
        """Lay down who holds shares, under which parameters."""
        epoch = draft_epoch(
            federation=self.federation,
            parameters=parameters,
            holders=holders,
            server_key=self.server.public_key,
            enrolment_key=self._enrolment.public_key,
            operator=self._operator,
            charge=charge,
        )
        self._store.commit([Persist("signed-epoch", "", pack(epoch))])
        return accept(epoch, self.operator_key, Ed25519Verifier())

    def admit(self, agreement: Agreement, name: str, signing_key: bytes) -> Credential:
        """Let a node contribute."""
        return enrol(self._enrolment, agreement.id, name, signing_key)

    def end(self, agreement: Agreement, version: int, model_hash: bytes) -> EpochEnd:
        """The federation is over: nodes believe nothing less."""
        return signed(EpochEnd(agreement.id, version, model_hash), self._operator)

    def _read(self, kind: str, key: str = "") -> bytes:
        value = self._store.read(kind, key)
        assert value is not None
        return value

    def _identity(self, role: str) -> Identity:
        return Identity.from_secret(self._read("key", role))
