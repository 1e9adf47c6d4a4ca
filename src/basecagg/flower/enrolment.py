"""The operator's part, which the ServerApp plays on Flower: keys, the epoch, and who is admitted by which name.

Operator and server are one party here, and the SuperLink ships the very code that clients run. So an honest but
curious server is all that is covered, whatever an epoch says; docs/how-to/flower.md says so too.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import Protocol

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack
from basecagg.errors import ChannelError, Malformed, NotEnrolled
from basecagg.flower.visits import NodeReport
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Effect, Persist, Store, perform
from basecagg.protocol.epoch import Agreement, accept
from basecagg.protocol.messages import Credential, EpochEnd, HolderKey, Link, Suite, statement
from basecagg.protocol.operator import Foundation, Operator, found
from basecagg.protocol.ports import LastingRecords
from basecagg.protocol.step_rule import StepRule

_ROLES = ("operator", "enrolment", "server")
_FEDERATION_BYTES = 16
_SUITE: Suite = "x25519"
_ROLL = "roll"
"""The kind of what is stored of the roll."""
_VERIFIER = Ed25519Verifier()


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
        self.federation = self._read("federation").decode()
        self._operator, self._enrolment, self.server = (
            Identity.from_secret(self._read("key", role)) for role in _ROLES
        )
        self._machine = self._build()

    def _build(self) -> Operator:
        key = self.server.public_key
        foundation = Foundation(federation=self.federation, suite=_SUITE, server_key=key)
        return Operator(foundation, self._operator, self._enrolment, _VERIFIER, self._store)

    @property
    def operator_key(self) -> bytes:
        """The key that nodes pin."""
        return self._operator.public_key

    @property
    def agreement(self) -> Agreement | None:
        """The epoch, if one was signed."""
        epoch = self._machine.epoch
        return None if epoch is None else accept(epoch, self.operator_key, _VERIFIER)

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
        perform(self._store, effects)  # nodes are told of the epoch when they are visited
        self._machine = machine
        assert self.agreement is not None
        return self.agreement

    def require_fit(self, signing_key: bytes, announced: HolderKey) -> None:
        """Refuse a node if its keys would make an epoch invalid, before it can spoil one for all."""
        if self._machine.epoch is None:
            machine = self._build()
            machine.vouch(announced.name, "both", signing_key)
            machine.hear(announced.name, announced)

    def admit(self, agreement: Agreement, name: str, signing_key: bytes) -> Credential:
        """Let a node contribute, under the name and key that are on the roll."""
        return enrol(self._enrolment, agreement.id, name, signing_key)

    def end(self, version: int, head: bytes) -> EpochEnd:
        """The federation is over: nodes believe nothing less. It is signed once."""
        (send,) = perform(self._store, self._machine.end(version, head))
        assert isinstance(send.message, EpochEnd)
        return send.message

    def _read(self, kind: str, key: str = "") -> bytes:
        value = self._store.read(kind, key)
        assert value is not None
        return value


class Roll:
    """The names of a run: one name and one key for every node, bound at its first hello.

    The operator signs a credential for any name on the roll. If one node were believed under several names, it
    alone could fill a buffer but for one place. The keys outlive a server that restarts.
    """

    def __init__(self, store: Store) -> None:
        """Go on with the names that the store has."""
        self._store = store
        self._keys = dict(store.scan(_ROLL))
        self._nodes: dict[str, int] = {}

    def require(self, node_id: int, name: str) -> None:
        """Refuse a node that speaks under a name which is not its own."""
        if self._nodes.get(name) != node_id:
            raise NotEnrolled(f"it calls itself {name!r:.80}, which is not its name in this run")

    def bind(self, node_id: int, report: NodeReport, present: Container[int]) -> HolderKey:
        """Write a node down under the name and key that it shows, or refuse; give what to seal to.

        A node is called by its id. One that came back under another id may keep the name it had, if the name is
        bound to its key and no node that is there has it.
        """
        name, key = report.name, report.signing_key
        announced = _read_holder_key(report)
        is_known, is_own = self._keys.get(name) == key, name == str(node_id)
        if not (is_own or is_known):
            raise NotEnrolled(f"it calls itself {name!r:.80}: neither its id nor bound to its key")
        taken = self._nodes.get(name, node_id)
        if taken != node_id and taken in present and not (is_own and is_known):
            raise NotEnrolled(f"the name {name} is bound to node {taken}")
        if any(bound == node_id and each != name for each, bound in self._nodes.items()):
            raise NotEnrolled(f"it has another name in this run than {name}")
        if any(bound == key and each != name for each, bound in self._keys.items()):
            raise NotEnrolled("it shows the key of somebody else")
        self._nodes[name] = node_id
        if not is_known:
            self._keys[name] = key
            self._store.commit([Persist(_ROLL, name, key)])
        return announced


def _read_holder_key(report: NodeReport) -> HolderKey:
    """The sealing key that a node announces, if it is one and the node signed it."""
    try:
        said = unpack(report.holder_key, MAX_CONTROL_BYTES)
    except ChannelError as error:
        raise Malformed(f"it shows no sealing key: {error}") from None
    if not (
        isinstance(said, HolderKey)
        and said.name == report.name
        and _VERIFIER.verify(report.signing_key, statement(said), said.signature)
        and _VERIFIER.fits(said.suite, said.sealing_key)
    ):
        raise Malformed("it shows keys that are not its own, or that nobody could use")
    return said
