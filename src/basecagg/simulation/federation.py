"""A federation in one process: operator, server, holders and contributors, wired to a loopback.

Machines are made when they are first needed, so an idle contributor costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SECRET_BYTES, SealingSecret, make_sealer
from basecagg.channels.unprotected import NoIdentity, NoSealing, NoVerifier
from basecagg.errors import DataError
from basecagg.maths.randomness import system_entropy
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import News, Released, Store
from basecagg.protocol.epoch import Agreement, Seat, accept, draft_epoch, first_link
from basecagg.protocol.global_model import Model
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import Credential, Suite
from basecagg.protocol.ports import Verifier
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.server import Server, ServerSettings
from basecagg.protocol.step_rule import PAPER_STEP, StepRule
from basecagg.simulation.loopback import AT_SERVER, Address, Loopback, Machine
from basecagg.storage.in_memory import MemoryStore


class Federation:
    """All parties of one epoch, in memory: real machines and keys, and a network that loses nothing.

    Users `contribute` updates, holders `vanish`, and `run` opens the sum of K updates. Whoever wants to decide
    about every message uses `network`. With `cryptography=False` nothing is sealed or signed: arithmetic only.
    """

    def __init__(
        self,
        parameters: ProtocolParameters,
        initial_model: Model | None = None,
        *,
        holders: Sequence[str] | None = None,
        suite: Suite = "x25519",
        cryptography: bool = True,
        step: StepRule = PAPER_STEP,
        max_burns: int = 1,
        keep: int = 1,
        retries: int = 1,
        make_store: Callable[[Address], Store] = lambda address: MemoryStore(),
        network: Loopback | None = None,
        verifier: Verifier | None = None,
        entropy: Callable[[str], Callable[[int], bytes]] = lambda purpose: system_entropy,
        keeps_masks: bool = False,
    ) -> None:
        """Draft the epoch with fresh keys, and start the server and the holders.

        Holders are called user-0, user-1, … and the first model is all zeros, unless given.
        `entropy` gives each key and each contributor its own source of randomness; a simulation that must be
        repeatable replaces the operating system's. A contributor that is started again gives up its unused
        masks unless it `keeps_masks`, as in a simulation that goes on from a checkpoint.
        """
        self.network = network or Loopback()
        self._verifier = verifier
        self._entropy = entropy
        self._keeps_masks = keeps_masks
        self._cryptography = cryptography
        self._suite: Suite = suite
        self._make_store = make_store
        self._stores: dict[Address, Store] = {}
        self._retries = retries
        self._keep = keep
        if initial_model is None:
            initial_model = np.zeros(parameters.model_size, np.float32)
        self._initial_model = initial_model
        self._identities: dict[str, Identity | NoIdentity] = {}
        self._secrets: dict[str, SealingSecret | NoSealing] = {}
        self._credentials: dict[str, Credential] = {}
        names = holders or [f"user-{index}" for index in range(parameters.num_holders)]
        terms = {"parameters": parameters, "first": first_link(initial_model)}
        self.agreement = self._agree(names, step=step, max_burns=max_burns, **terms)
        for address in (AT_SERVER, *(Address("holder", name) for name in names)):
            self.start(address)

    # --- from updates to a sum ----------------------------------------------------------------

    def contribute(self, name: str, update: Model) -> None:
        """Let a user deal a mask, hide an update made from the newest model under it, and send it.

        An update is the model before − after training. It is on its way then; `run` brings it to the server.
        """
        if not self.contributor(name).ready:
            self.deal(name)
            self.network.run()
        self.submit(name, update, self.server.version, self.server.head)

    def vanish(self, *holders: str) -> None:
        """Take these holders offline, without a word."""
        for name in holders:
            if Address("holder", name) not in self.network.nodes:
                raise DataError(f"{name} cannot vanish: no holder of this name is there")
            self.stop(Address("holder", name))

    def come_back(self, *holders: str) -> None:
        """Bring holders back that vanished, with all that they had stored."""
        for name in holders:
            if name not in self.agreement.holder_names:
                raise DataError(f"{name} cannot come back: it is no holder of this epoch")
            self.start(Address("holder", name))

    def run(self) -> list[Released]:
        """Deliver all that is on its way; the sums that were opened since the last time.

        All other news stays for `take_news`: masks that ended and why, buffers that were given up.
        """
        self.network.run()
        news = self.take_news()
        self.network.news = [each for each in news if not isinstance(each, Released)]
        return [each for each in news if isinstance(each, Released)]

    # --- machines and messages, one by one ------------------------------------------------------

    @property
    def server(self) -> Server:
        """The server's machine."""
        return self.network.server

    def contributor(self, name: str) -> Contributor:
        """The contributor of this name, enrolled and started when first asked for."""
        address = Address("contributor", name)
        if address not in self.network.nodes:
            self.start(address)
        machine = self.network.nodes[address].machine
        assert isinstance(machine, Contributor)
        return machine

    def holder(self, name: str) -> Holder:
        """The holder of this name."""
        machine = self.network.nodes[Address("holder", name)].machine
        assert isinstance(machine, Holder)
        return machine

    def start(self, address: Address, store: Store | None = None) -> None:
        """Build a machine from its store, or from the given one, and let it take up its work.

        Doing so again is a restart: everything that was only in memory is lost.
        """
        if store is not None:
            self._stores[address] = store
        elif address not in self._stores:
            self._stores[address] = self._make_store(address)
        machine = self._build(address, self._stores[address])
        self.network.add(address, machine, self._stores[address])
        if isinstance(machine, Holder) and AT_SERVER in self.network.nodes:
            self.network.perform(AT_SERVER, self.server.reconnect(address.name))

    def stop(self, address: Address) -> None:
        """Take a machine offline; its store stays for `start`."""
        del self.network.nodes[address]

    def deal(self, name: str) -> None:
        """Let a contributor deal one mask."""
        contributor = self.contributor(name)
        self.network.perform(Address("contributor", name), contributor.deal(self.server.version))

    def submit(self, name: str, update: Model, base_version: int, head: bytes) -> None:
        """Let a contributor mask and upload one update."""
        effects = self.contributor(name).submit(update, base_version, head, self.server.version)
        self.network.perform(Address("contributor", name), effects)

    def take_news(self) -> list[News]:
        """What the machines reported since the last time."""
        news, self.network.news = self.network.news, []
        return news

    # --- keys and machines --------------------------------------------------------------------

    def _agree(self, names: Sequence[str], **terms: Any) -> Agreement:
        operator, enrolment, server = (
            self.identity(role) for role in ("operator", "enrolment", "server")
        )
        epoch = draft_epoch(
            federation="loopback",
            holders=[
                Seat(name, self.identity(name).public_key, self._secret(name).public_key)
                for name in names
            ],
            server_key=server.public_key,
            enrolment_key=enrolment.public_key,
            operator=operator,
            suite=self._suite,
            **terms,
        )
        default = Ed25519Verifier() if self._cryptography else NoVerifier()
        return accept(epoch, operator.public_key, self._verifier or default)

    def identity(self, name: str) -> Identity | NoIdentity:
        """The signing identity of a role or participant."""
        if name not in self._identities:
            secret = self._entropy(f"signing/{name}")(32)
            identity = Identity.from_secret(secret) if self._cryptography else NoIdentity(secret)
            self._identities[name] = identity
        return self._identities[name]

    def _secret(self, name: str) -> SealingSecret | NoSealing:
        if name not in self._secrets:
            secret = self._entropy(f"sealing/{name}")(SECRET_BYTES[self._suite])
            sealing = SealingSecret(self._suite, secret) if self._cryptography else NoSealing()
            self._secrets[name] = sealing
        return self._secrets[name]

    def _build(self, address: Address, store: Store) -> Machine:
        builders: dict[str, Callable[[str, Store], Machine]] = {
            "server": self._build_server,
            "holder": self._build_holder,
            "contributor": self._build_contributor,
        }
        return builders[address.role](address.name, store)

    def _build_server(self, name: str, store: Store) -> Server:
        recovery = Recovery(self.agreement, self.identity(name), store, self._retries, self._keep)
        settings = ServerSettings.of(self.agreement)
        return Server(settings, recovery, store, self._initial_model)

    def _build_holder(self, name: str, store: Store) -> Holder:
        index = self.agreement.holder_names.index(name)
        return Holder(self.agreement, index, self.identity(name), self._secret(name), store)

    def _build_contributor(self, name: str, store: Store) -> Contributor:
        identity = self.identity(name)
        if name not in self._credentials:
            self._credentials[name] = enrol(
                self.identity("enrolment"), self.agreement.id, name, identity.public_key
            )
        sealer = make_sealer(self._suite) if self._cryptography else NoSealing()
        credential, entropy = self._credentials[name], self._entropy(f"masks/{name}")
        return Contributor(
            self.agreement,
            credential,
            identity,
            sealer,
            store,
            entropy=entropy,
            keeps_masks=self._keeps_masks,
        )
