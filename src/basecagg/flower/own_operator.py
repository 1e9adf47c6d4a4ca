"""The operator's part, which the ServerApp plays on Flower: keys, the epoch, and who is admitted.

Operator and server are one party here, and the SuperLink ships the very code that clients run. So whatever an
epoch says, an honest but curious server is all that is covered; docs/how-to/flower.md says so too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.errors import StorageError
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Effect, Persist, Store, perform
from basecagg.protocol.epoch import Agreement, accept
from basecagg.protocol.messages import Credential, EpochEnd, HolderKey, Link, Message, Suite
from basecagg.protocol.operator import Foundation, Operator, found
from basecagg.protocol.ports import LastingRecords
from basecagg.protocol.step_rule import StepRule

_ROLES = ("operator", "enrolment", "server")
_FEDERATION_BYTES = 16
_SUITE: Suite = "x25519"


class LastingStore(Store, LastingRecords, Protocol):
    """Records that can be written, with the highest number of an epoch among them."""


class OwnOperator:
    """Keys and epoch of one federation: the operator's machine, kept in the server's store."""

    def __init__(self, store: LastingStore) -> None:
        """Go on with the stored federation, or found one."""
        self._store = store
        if store.read("federation", "") is None:
            keys = [Persist("key", role, Identity.create().secret_bytes()) for role in _ROLES]
            name = os.urandom(_FEDERATION_BYTES).hex()
            store.commit([Persist("federation", "", name.encode()), *keys, *found()])
        if store.read("standing", "") is None:
            raise StorageError(
                "server_state is of an older basecagg, whose epoch no node takes any more: choose another file"
            )
        self.federation = self._read("federation").decode()
        self._operator, self._enrolment, self.server = (
            Identity.from_secret(self._read("key", role)) for role in _ROLES
        )
        self._machine = self._build()

    def _build(self) -> Operator:
        verifier, key = Ed25519Verifier(), self.server.public_key
        foundation = Foundation(federation=self.federation, suite=_SUITE, server_key=key)
        return Operator(foundation, self._operator, self._enrolment, verifier, self._store)

    @property
    def operator_key(self) -> bytes:
        """What nodes pin."""
        return self._operator.public_key

    @property
    def agreement(self) -> Agreement | None:
        """The epoch, if one was signed."""
        epoch = self._machine.epoch
        return None if epoch is None else accept(epoch, self.operator_key, Ed25519Verifier())

    def sign_epoch(
        self,
        parameters: ProtocolParameters,
        holders: Iterable[tuple[bytes, HolderKey]],
        contract: bytes,
        first: Link,
        step: StepRule,
        *,
        max_burns: int = 1,
    ) -> Agreement:
        """Lay down who holds shares, by their signing keys and what they announced, under which parameters."""
        machine, effects = self._build(), list[Effect]()
        for signing_key, announced in holders:
            effects += machine.vouch(announced.name, "both", signing_key)
            effects += machine.hear(announced.name, announced)
        effects += machine.expect(first, parameters.model_size)  # the ServerApp's own model
        effects += machine.begin(
            parameters, first, step=step, max_burns=max_burns, contract=contract
        )
        self._perform(effects)
        self._machine = machine
        assert self.agreement is not None
        return self.agreement

    def require_fit(self, signing_key: bytes, announced: HolderKey) -> None:
        """Refuse a node with whose keys no epoch could be signed, before it can spoil one for all."""
        if self._machine.epoch is None:
            machine = self._build()
            machine.vouch(announced.name, "both", signing_key)
            machine.hear(announced.name, announced)

    def admit(self, agreement: Agreement, name: str, signing_key: bytes) -> Credential:
        """Let a node contribute, under the name and key that are on the roll."""
        return enrol(self._enrolment, agreement.id, name, signing_key)

    def end(self, version: int, head: bytes) -> EpochEnd:
        """The federation is over: nodes believe nothing less. It is signed once."""
        (end,) = self._perform(self._machine.end(version, head))
        assert isinstance(end, EpochEnd)
        return end

    def _perform(self, effects: list[Effect]) -> list[Message]:
        return [send.message for send in perform(self._store, effects)]

    def _read(self, kind: str, key: str = "") -> bytes:
        value = self._store.read(kind, key)
        assert value is not None
        return value
