"""A server that says what a test tells it to say, to the real agent of Ann, over a mock transport."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
from participants import ANN, Judge, Town

from basecagg.channels.wire import pack, unpack
from basecagg.protocol.effects import Forget
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import CertifiedRequest, HolderKey, Message, RecoveryRequest
from basecagg.protocol.stored import StoredSealingKey, load, write
from basecagg.service import framing
from basecagg.service.agent.agent import Agent, AgentOptions
from basecagg.service.agent.local_member import LocalMember
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Connection, Patience
from basecagg.service.documents import Enrolment, Invitation, from_json
from basecagg.service.signing import Caller

URL = "https://server.invalid"


def frames(messages: Sequence[Message]) -> bytes:
    """A body with these letters."""
    return b"".join(framing.join([framing.Numbered(i, pack(m)) for i, m in enumerate(messages)]))


class PuppetServer:
    """By default honest: shows `epoch`, delivers `mail` once, takes everything, and keeps it in `inbox`."""

    def __init__(self) -> None:
        self.town = Town()
        self.judge = Judge()
        self.keys: list[bytes] = []
        self.epoch: list[Message] = []
        self.mail: deque[Message] = deque()
        self.inbox: list[Message] = []
        self.fault: AssertionError | None = None
        self.task: asyncio.Task[None] | None = None
        """The agent's."""
        self.kicks = 0
        """How often the mailbox says 409 next."""
        self.looks = 0
        """How often somebody asked for the epoch."""

    def post(self, *messages: Message) -> None:
        for message in messages:
            request = message.request if isinstance(message, CertifiedRequest) else message
            if isinstance(request, RecoveryRequest):
                self.judge.requests[request.digest] = request
        self.mail.extend(messages)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        self.note(path, request.content)
        if path == "epoch":
            self.looks += 1
            await asyncio.sleep(0.01)
            return httpx.Response(200, content=frames(self.epoch))
        if path == "mailbox":
            return await self.deliver()
        return httpx.Response(204)

    def note(self, path: str, body: bytes) -> None:
        """What the agent hands in."""
        if path == "enrolment":
            self.keep_key(from_json(body, Enrolment).holder_key)
        if path == "holder-key":
            self.keep_key(body)
        if path == "messages":
            self.inbox.append(unpack(body, 2**24))
            try:
                self.judge.hear(self.inbox[-1])
            except AssertionError as fault:  # to the agent it would be a reply that did not come
                self.fault = fault

    def keep_key(self, frame: bytes) -> None:
        key = unpack(frame, 10_000)
        assert isinstance(key, HolderKey)
        self.keys.append(key.sealing_key)

    async def deliver(self) -> httpx.Response:
        if self.kicks:
            self.kicks -= 1
            return httpx.Response(409, json={"code": "WrongEpoch", "reason": "another one"})
        letters = list(self.mail)
        self.mail.clear()
        await asyncio.sleep(0.01)
        return httpx.Response(200, content=frames(letters), headers={"basecagg-boot": "x"})

    async def until(self, done) -> None:
        """Wait for something to have happened."""
        async with asyncio.timeout(30):
            while not done() and self.fault is None:
                await asyncio.sleep(0.01)
                if self.task is not None and self.task.done():
                    await self.task  # the agent has ended
        if self.fault is not None:
            raise self.fault

    async def received(self, kind: type[Message], count: int = 1) -> None:
        await self.until(lambda: sum(isinstance(m, kind) for m in self.inbox) >= count)

    async def found(self, number: int = 1) -> Epoch:
        """An epoch with Ann's newest key, which she is shown from now on."""
        await self.until(lambda: self.keys)
        epoch = self.town.epoch(self.keys[-1], number)
        self.epoch = [epoch]
        return epoch


def profile_in(folder: Path, town: Town) -> Profile:
    invitation = Invitation(
        federation=town.federation,
        name=ANN,
        role="both",
        url=URL,
        operator_key=town.key("operator"),
        token=bytes(32),
        after=0,
    )
    profile = Profile.open(folder, invitation)
    town.identities[ANN] = profile.identity
    return profile


class Watched(Agent):
    """An agent whose member can be looked at."""

    member: LocalMember

    def _open(self) -> LocalMember:
        self.member = super()._open()
        return self.member

    async def look(self, judge: Judge) -> None:
        member = self.member
        watched = SimpleNamespace(store=member._store, machine=member.participant)
        await self._in_thread(lambda: judge.look(watched))


@asynccontextmanager
async def agent_of(server, folder: Path, train=None, **options) -> AsyncIterator[Watched]:
    """Ann's agent, running; if it ended by itself, that is raised."""
    town = server.town
    folder.mkdir(exist_ok=True)
    profile = profile_in(folder / ANN, town)
    given = {"patience": Patience(0.0, 0.02), "breath": 0.01, "anchor_folder": folder / "anchors"}
    given["floor"] = LocalFloor(consistency="certified", min_per_version=1)
    agent = Watched(profile, AgentOptions(**given | options), train)
    caller = Caller(town.federation, ANN, profile.identity)
    agent._connection = Connection(URL, "", caller, httpx.MockTransport(server))
    task = server.task = asyncio.create_task(agent.run())
    try:
        yield agent
        if task.done():
            await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):  # said above, if it ended by itself
            await task


_hear = LocalMember.hear_of_epochs


def erase(member, frames_of_epoch):
    """The old reaction: memory and anchor are erased, the keys are not; then the same epoch is taken."""
    store, kinds = member._store, ("held", "share", "answer", "vote", "progress", "epoch")
    kinds += ("membership", "charter", "highest", "mask", "dealing", "locks", "ticket", "upload")
    kinds += ("coin", "released", "asked", "checked")
    keys = load(store, "sealing", StoredSealingKey)
    for record in keys.values():
        record.state = "announced"
    store.commit(
        [
            *(Forget(kind, key) for kind in kinds for key in store.keys(kind)),
            *(write("sealing", key, record) for key, record in keys.items()),
        ]
    )
    store.number, store._mark = 0, store._mark._replace(number=0)
    machine = member.participant
    member.participant = type(machine)(
        machine.pins, machine._signer, machine._suite, machine._verifier, store
    )
    _hear(member, frames_of_epoch)
