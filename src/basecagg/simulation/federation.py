"""A federation in one process: operator, server and members, wired to a loopback."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SealingKeys
from basecagg.channels.unprotected import NoIdentity, NoSealing, NoVerifier
from basecagg.errors import DataError
from basecagg.maths.randomness import system_entropy
from basecagg.parameters import ProtocolParameters
from basecagg.parties.epoch_server import EpochServer, Server
from basecagg.parties.member import Member, Pins
from basecagg.protocol.effects import News, Released
from basecagg.protocol.epoch import SERVER, Seat, accept, draft_epoch, first_link
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.global_model import Model
from basecagg.protocol.messages import Suite
from basecagg.protocol.ports import Verifier
from basecagg.protocol.step_rule import PAPER_STEP, StepRule
from basecagg.simulation.loopback import Loopback
from basecagg.storage.in_memory import MemoryStore

_NAME = "loopback"


class Federation:
    """All parties of one epoch, in memory: real machines and keys, and a network that loses nothing.

    Users `contribute` updates, holders `vanish`, and `run` opens the sum of K updates. To decide about every
    message use `network`. With `cryptography=False` nothing is sealed or signed: arithmetic only.

    Example:
        federation = Federation(plan(num_holders=7, max_dropouts=2, buffer_size=3, model_size=4).parameters)
        for user in ("user-0", "user-1", "user-2"):
            federation.contribute(user, np.array([1.0, 2.0, 3.0, 4.0]))
        (opened,) = federation.run()
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
        make_store: Callable[[str], MemoryStore] = lambda name: MemoryStore(),
        network: Loopback | None = None,
        verifier: Verifier | None = None,
        entropy: Callable[[str], Callable[[int], bytes]] = lambda purpose: system_entropy,
        keeps_masks: bool = False,
    ) -> None:
        """Draft the epoch with fresh keys; server and holders take up their work.

        holders: their names; user-0, user-1, … unless given.
        initial_model: all zeros unless given.
        suite, cryptography: how shares are sealed; whether anything is sealed and signed.
        step, max_burns: the server's step, and how many sums of a version may be given up for others.
        keep: for how many versions to keep the parts that each was made from.
        retries: how often the server asks again before answers that disagree are given up.
        make_store: the store of a party, by its name. With stores of an earlier federation this one goes on.
        network, verifier: to watch messages and checks.
        entropy: a source of randomness for each key and each member. Only a simulation that must be repeatable
            replaces the operating system's.
        keeps_masks: whether masks that were dealt before a party was started again may be used after it.
        """
        self.network = network or Loopback()
        self._verifier = verifier or (Ed25519Verifier() if cryptography else NoVerifier())
        self._entropy, self._keeps_masks = entropy, keeps_masks
        self._cryptography, self._suite = cryptography, suite
        self._make_store = make_store
        unit = parameters.privacy.unit if parameters.privacy else "user"
        self._floor = LocalFloor(unit=unit)
        self._identities: dict[str, Identity | NoIdentity] = {}
        if initial_model is None:
            initial_model = np.zeros(parameters.model_size, np.float32)
        names = holders or [f"user-{index}" for index in range(parameters.num_holders)]
        members = [self._start(name) for name in names]
        stored = members[0].participant.agreement
        epoch = (
            stored.epoch
            if stored
            else draft_epoch(
                federation=_NAME,
                parameters=parameters,
                holders=[
                    Seat(name, self.identity(name).public_key, member.announce().sealing_key)
                    for name, member in zip(names, members, strict=True)
                ],
                server_key=self.identity(SERVER).public_key,
                enrolment_key=self.identity("enrolment").public_key,
                operator=self.identity("operator"),
                first=first_link(initial_model),
                step=step,
                max_burns=max_burns,
                suite=suite,
            )
        )
        self.agreement = accept(epoch, self.identity("operator").public_key, self._verifier)
        """The epoch, as everybody has accepted it."""
        self.network.server = EpochServer.of(
            self.agreement,
            self.identity(SERVER),
            make_store(SERVER),
            initial_model,
            post=self.network.post_all,
            tell=self.network.tell,
            retries=retries,
            keep=keep,
        )
        self.network.server.start()
        for name, member in zip(names, members, strict=True):
            member.offer([epoch])
            self.network.server.reconnect(name)

    # --- from updates to a sum ----------------------------------------------------------------

    def contribute(self, name: str, update: Model) -> None:
        """Let a user hide an update made from the newest model under a mask, and send it.

        An update is the model before − after training. It is on its way then; `run` brings it to the server.
        """
        if not self.member(name).participant.working().is_ready:
            self.deal(name)
            self.network.run()
        self.submit(name, update, self.server.version, self.server.head)

    def vanish(self, *holders: str) -> None:
        """Take these holders offline, without a word."""
        for name in holders:
            if name not in self.agreement.holder_names or name in self.network.away:
                raise DataError(f"{name} cannot vanish: no holder of this name is there")
            self.network.away.add(name)

    def come_back(self, *holders: str) -> None:
        """Bring holders back that vanished, with all that they had stored."""
        for name in holders:
            if name not in self.agreement.holder_names:
                raise DataError(f"{name} cannot come back: it is no holder of this epoch")
            self.network.away.discard(name)
            self.network.send(name, self.network.members[name].reconnect())
            self.network.server.reconnect(name)

    def run(self) -> list[Released]:
        """Deliver all that is on its way; the sums that were opened since the last time.

        All other news stays for `take_news`: masks that ended and why, buffers that were given up.
        """
        self.network.run()
        news = self.take_news()
        self.network.news = [each for each in news if not isinstance(each, Released)]
        return [each for each in news if isinstance(each, Released)]

    # --- parties and messages, one by one --------------------------------------------------------

    @property
    def server(self) -> Server:
        """The server's machine, to look at: its version, its model, what is buffered."""
        return self.network.server.machine

    def member(self, name: str) -> Member:
        """The member of this name. It joins the epoch, and may contribute, when it is first asked for."""
        member = self.network.members.get(name) or self._start(name)
        if member.participant.contributor is None:
            key = self.identity(name).public_key
            credential = enrol(self.identity("enrolment"), self.agreement.id, name, key)
            declined = member.offer([self.agreement.epoch, credential])
            if declined is not None:
                raise DataError(f"{name} does not join: {declined.reason}")
        return member

    def informed(self, name: str) -> Member:
        """The member, once it has heard of the newest version: it believes what the server has signed only."""
        member, version = self.member(name), self.server.version
        if not member.has_heard_of(version):
            release = self.network.server.kept.release(version)
            assert release is not None
            self.network.send(name, member.take([release]))
        return member

    def deal(self, name: str, ahead: int = 1) -> None:
        """Let a user have masks for its next updates: this many are on their way then, or ready."""
        self.network.send(name, self.informed(name).deal(ahead))

    def submit(self, name: str, update: Model, base_version: int, head: bytes) -> None:
        """Let a user mask and upload one update, made from the model with this head."""
        self.network.send(name, self.informed(name).submit(update, base_version, head))

    def take_news(self) -> list[News]:
        """What the parties reported since the last time."""
        news, self.network.news = self.network.news, []
        return news

    def identity(self, name: str) -> Identity | NoIdentity:
        """The signing identity of a role ('operator', 'enrolment', 'server') or of a member."""
        if name not in self._identities:
            secret = self._entropy(f"signing/{name}")(32)
            identity = Identity.from_secret(secret) if self._cryptography else NoIdentity(secret)
            self._identities[name] = identity
        return self._identities[name]

    # --- keys and parties ---------------------------------------------------------------------

    def _start(self, name: str) -> Member:
        network, identity = self.network, self.identity(name)
        keys = SealingKeys(self._suite, self._entropy(f"sealing/{name}"))
        member = Member(
            Pins(
                federation=_NAME,
                name=name,
                signing_key=identity.public_key,
                operator_key=self.identity("operator").public_key,
            ),
            identity,
            keys if self._cryptography else NoSealing(),
            self._verifier,
            self._make_store(name),
            floor=self._floor,
            tell=network.tell,
            refused=lambda message, refusal: network.refusals.append((name, refusal)),
            entropy=self._entropy(f"masks/{name}"),
            keeps_masks=self._keeps_masks,
        )
        network.members[name] = member
        network.send(name, member.start(0))
        return member
