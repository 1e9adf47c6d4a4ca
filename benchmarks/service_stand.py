"""A federation for the load: a real server process, and participants whose machines run in this process."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import SealingSecret, make_sealer
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, Store, sends_of, writes_of
from basecagg.protocol.epoch import Agreement, Epoch
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import Credential, HolderKey, Message, signed
from basecagg.protocol.records import Role
from basecagg.service import framing
from basecagg.service.connection import Connection, Unreachable
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.signing import Caller
from basecagg.storage.memory import MemoryStore
from benchmarks.service_line import Line, Reply

FEDERATION = "load"
_TOGETHER = 16
Errand: TypeAlias = Callable[[], Awaitable[object]]


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Participant:
    """A user's key and line."""

    def __init__(self, name: str, port: int, tls: ssl.SSLContext) -> None:
        """Make a fresh key."""
        self.name = name
        self.identity = Identity.create()
        self.line = Line(port, tls, Caller(FEDERATION, name, self.identity))
        self.store: Store = MemoryStore()
        self.done = ""
        self.errors: list[str] = []
        self.put_off = 0
        """How often the server was too busy and said so."""

    async def send(self, message: Message) -> Reply:
        """One message. Back-pressure is obeyed; anything but 204 after that is noted as an error."""
        frame = pack(message)
        reply = await self._call("POST", "/v1/messages", frame)
        if reply.status != 204:
            self.errors.append(f"{type(message).__name__}: {reply.status} {reply.body[:200]!r}")
        return reply

    async def mail(self, epoch: str, wait: int) -> list[Message]:
        """The next letters; those before are dealt with."""
        target = f"/v1/mailbox?epoch={epoch}&wait={wait}&done={self.done}"
        reply = await self._call("GET", target)
        if reply.status != 200:
            self.errors.append(f"mailbox: {reply.status} {reply.body[:200]!r}")
            return []
        letters = framing.split(reply.body)
        if letters:
            self.done = f"{reply.headers['basecagg-boot']}.{letters[-1].number}"
        return [unpack(letter.frame, 2**30) for letter in letters]

    async def _call(self, method: str, target: str, body: bytes = b"") -> Reply:
        """Call, and call again when the server says that it is busy and how long to wait."""
        while True:
            reply = await self.line.call(method, target, body)
            if reply.status not in (429, 503):
                return reply
            self.put_off += 1
            await asyncio.sleep(float(reply.headers.get("retry-after", "1")))

    async def perform(self, effects: list[Effect]) -> None:
        """Store, then send."""
        self.store.commit(writes_of(effects))
        for send in sends_of(effects):
            await self.send(send.message)


class Stand:
    """Server, operator, holders and contributors."""

    def __init__(self, folder: Path, parameters: ProtocolParameters, contributors: int) -> None:
        """Lay out the folder; nothing runs yet."""
        self.port = free_port()
        self.parameters = parameters
        create(
            folder / "operator",
            FEDERATION,
            f"https://127.0.0.1:{self.port}",
            anchor_folder=folder / "anchors",
        )
        self._folder = folder
        self._operator = Office(folder / "operator", folder / "anchors")
        self.connection: Connection = self._operator.connect()
        self.tls = ssl.create_default_context(cafile=folder / "operator" / "ca.pem")
        self.holders = self._make("holder", parameters.num_holders)
        self.contributors = self._make("phone", contributors)
        self.server: subprocess.Popen[bytes] | None = None

    def _make(self, kind: str, count: int) -> list[Participant]:
        return [Participant(f"{kind}-{i:05d}", self.port, self.tls) for i in range(count)]

    async def start(self) -> None:
        """Start the server, admit everybody, start the epoch."""
        code = "from basecagg.commands.serve import command; command()"
        options = ["--state", "operator/server", "--host", "127.0.0.1", "--open-here"]
        options += ["--port", str(self.port)]
        limits = ["--member-rate", "100000", "--answer-timeout", "60"]
        with (self._folder / "server.log").open("wb") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-c", code, *options, *limits],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        await self._until_it_answers()
        secrets = {holder.name: SealingSecret.create() for holder in self.holders}
        for holder in self.holders:
            await self._admit(holder, "holder")
            key = secrets[holder.name].public_key
            said = HolderKey(FEDERATION, holder.name, "x25519", key, 0)
            frame = pack(signed(said, holder.identity))
            await holder.line.call("PUT", "/v1/holder-key", frame)
        for phone in self.contributors:
            await self._admit(phone, "contributor")
        model = np.zeros(self.parameters.model_size, "<f4")
        await self._operator.set_model(self.connection, model)
        epoch = await self._operator.start(self.connection, self.parameters)
        self.agreement = self._accept(epoch)
        self.epoch = epoch.id.hex()
        self.machines = [
            Holder(self.agreement, i, h.identity, secrets[h.name], h.store)
            for i, h in enumerate(self.holders)
        ]

    def _accept(self, epoch: Epoch) -> Agreement:
        from basecagg.channels.identity import Ed25519Verifier, RememberingVerifier

        # 50 holders in one process check the same signatures: each is checked once.
        return Agreement(epoch, RememberingVerifier(Ed25519Verifier()))

    async def _admit(self, who: Participant, role: Role) -> None:
        await self._operator.vouch(self.connection, who.name, role, who.identity.public_key)

    async def _until_it_answers(self) -> None:
        while True:
            try:
                await self._operator.look(self.connection)
                return
            except Unreachable:
                await asyncio.sleep(0.2)

    async def machine_of(self, phone: Participant) -> Contributor:
        """A contributor's machine, with the credential that the server gives it."""
        reply = await phone.line.call("GET", "/v1/epoch")
        _, credential = framing.split(reply.body)
        given = unpack(credential.frame, MAX_CONTROL_BYTES)
        assert isinstance(given, Credential)
        return Contributor(
            self.agreement,
            given,
            phone.identity,
            make_sealer("x25519"),
            phone.store,
        )

    async def hold(self, index: int) -> None:
        """A holder's life: take letters, answer."""
        holder, machine = self.holders[index], self.machines[index]
        await holder.perform(machine.start())
        while True:
            messages = await holder.mail(self.epoch, 20)
            for at in range(0, len(messages), _TOGETHER):
                group = messages[at : at + _TOGETHER]
                effects = [effect for message in group for effect in machine.receive(message)]
                await holder.perform([*effects, *machine.acknowledge()])

    async def version(self) -> int:
        """The present version."""
        return (await self._operator.look(self.connection)).version

    def errors(self) -> list[str]:
        """What went wrong for anybody."""
        everybody = [*self.holders, *self.contributors]
        return [f"{who.name}: {error}" for who in everybody for error in who.errors]

    def put_off(self) -> int:
        """How often the server was too busy for anybody."""
        return sum(who.put_off for who in (*self.holders, *self.contributors))

    def memory(self) -> int:
        """Bytes of memory that the server has in use."""
        assert self.server is not None
        pages = int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def stop(self) -> None:
        """End the server."""
        for who in (*self.holders, *self.contributors):
            who.line.close()
        await self.connection.close()
        if self.server is not None:
            self.server.terminate()
            self.server.wait()


async def in_parallel(jobs: Sequence[Errand], width: int) -> None:
    """Run the jobs, so many at one time."""
    waiting = list(reversed(jobs))

    async def work() -> None:
        while waiting:
            await waiting.pop()()

    await asyncio.gather(*(work() for _ in range(width)))
