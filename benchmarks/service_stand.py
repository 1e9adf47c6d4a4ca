"""A federation for the load: a real server process, and contributors whose machines run in this process.

The holders have a process of their own (`benchmarks.service_holders`), so that no core of a larger machine is
left idle by the load itself. Everything here runs with the package of the commit that is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, Identity, RememberingVerifier
from basecagg.channels.sealing import SealingSecret, make_sealer
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.clear_contributor import ClearContributor
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, Store, sends_of, writes_of
from basecagg.protocol.epoch import Agreement, Epoch
from basecagg.protocol.messages import Credential, HolderKey, Message, signed
from basecagg.protocol.stored import Role
from basecagg.service import framing
from basecagg.service.connection import Unreachable
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.signing import Caller
from basecagg.storage.in_memory import MemoryStore
from benchmarks.service_line import Line, Reply

FEDERATION = "load"
_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processor_seconds(pid: int) -> float:
    """What a process has used so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def accepted(epoch: Epoch) -> Agreement:
    """Many machines in one process check the same signatures: each is checked once."""
    return Agreement(epoch, RememberingVerifier(Ed25519Verifier()))


class Participant:
    """A user's key and line, and what went over it."""

    def __init__(self, name: str, port: int, tls: ssl.SSLContext, identity: Identity) -> None:
        """Nothing was said yet."""
        self.name = name
        self.identity = identity
        self.line = Line(port, tls, Caller(FEDERATION, name, identity))
        self.store: Store = MemoryStore()
        self.done = ""
        self.errors: list[str] = []
        self.counts: Counter[str] = Counter()
        """Requests of every kind, their bytes up and down, and how often the server was too busy."""

    async def send(self, message: Message) -> Reply:
        """One message. Back-pressure is obeyed; anything but 204 after that is noted as an error."""
        kind = type(message).__name__
        reply = await self.call(kind, "POST", "/v1/messages", pack(message))
        if reply.status != 204:
            self.errors.append(f"{kind}: {reply.status} {reply.body[:200]!r}")
        return reply

    async def mail(self, epoch: str, wait: int) -> list[Message]:
        """The next letters; those before are dealt with."""
        target = f"/v1/mailbox?epoch={epoch}&wait={wait}&done={self.done}"
        reply = await self.call("mailbox", "GET", target)
        if reply.status != 200:
            self.errors.append(f"mailbox: {reply.status} {reply.body[:200]!r}")
            return []
        letters = framing.split(reply.body)
        if letters:
            self.done = f"{reply.headers['basecagg-boot']}.{letters[-1].number}"
        return [unpack(letter.frame, 2**30) for letter in letters]

    async def present(self) -> tuple[int, bytes]:
        """The version of the model and the head of its chain; not the model itself."""
        reply = await self.call("model", "GET", f"/v1/model?newer_than={10**14}")
        version, _, head = reply.headers["etag"].strip('"').partition("-")
        return int(version), bytes.fromhex(head)

    async def call(self, kind: str, method: str, target: str, body: bytes = b"") -> Reply:
        """Call, and call again when the server says that it is busy and how long to wait."""
        while True:
            reply = await self.line.call(method, target, body)
            if reply.status not in (429, 503):
                break
            self.counts["put off"] += 1
            await asyncio.sleep(float(reply.headers.get("retry-after", "1")))
        counted = {kind: 1, f"{kind} up": len(body), f"{kind} down": len(reply.body)}
        self.counts.update(counted)
        return reply

    async def perform(self, effects: list[Effect]) -> None:
        """Store, then send."""
        self.store.commit(writes_of(effects))
        for send in sends_of(effects):
            await self.send(send.message)


def counts_of(crowd: list[Participant]) -> Counter[str]:
    """What all of them said."""
    return sum((who.counts for who in crowd), Counter[str]())


def errors_of(crowd: list[Participant]) -> list[str]:
    """What went wrong for any of them."""
    return [f"{who.name}: {error}" for who in crowd for error in who.errors]


class Stand:
    """Server, operator, holders and contributors."""

    def __init__(
        self,
        folder: Path,
        parameters: ProtocolParameters,
        contributors: int,
        database: str | None = None,
    ) -> None:
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
        self._database = database
        self.operator = Office(folder / "operator", folder / "anchors")
        self.tls = ssl.create_default_context(cafile=folder / "operator" / "ca.pem")
        self.contributors = self._make("phone", contributors)
        self.server: subprocess.Popen[bytes] | None = None
        self.holders: subprocess.Popen[str] | None = None

    def _make(self, kind: str, count: int) -> list[Participant]:
        names = [f"{kind}-{i:05d}" for i in range(count)]
        return [Participant(name, self.port, self.tls, Identity.create()) for name in names]

    async def start(self) -> None:
        """Start the server, admit everybody, start the epoch and the holders."""
        self.server = self._start_server()
        await self._until_it_answers()
        holders = self._make("holder", self.parameters.num_holders)
        secrets = [SealingSecret.create() for _ in holders]
        for holder, secret in zip(holders, secrets, strict=True):
            await self._admit(holder, "holder")
            said = HolderKey(FEDERATION, holder.name, "x25519", secret.public_key, 0)
            await holder.line.call("PUT", "/v1/holder-key", pack(signed(said, holder.identity)))
            holder.line.close()
        for phone in self.contributors:
            await self._admit(phone, "contributor")
        model = np.zeros(self.parameters.model_size, "<f4")
        await self.operator.set_model(model)
        epoch = await self.operator.start(self.parameters)
        self.agreement, self.epoch = accepted(epoch), epoch.id.hex()
        if self.parameters.is_masked:
            self.holders = self._start_holders(epoch, holders, secrets)

    def _start_server(self) -> subprocess.Popen[bytes]:
        code = "from basecagg.commands.serve import command; command()"
        options = ["--state", "operator/server", "--host", "127.0.0.1", "--open-here"]
        options += ["--port", str(self.port), "--member-rate", "100000", "--answer-timeout", "60"]
        # All contributors may send at once: who is put off comes again, and is paid for twice.
        options += ["--memory", "1024"]
        options += [] if self._database is None else ["--database", self._database]
        with (self._folder / "server.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", code, *options], cwd=self._folder, stdout=log, stderr=log
            )

    def _start_holders(
        self, epoch: Epoch, holders: list[Participant], secrets: list[SealingSecret]
    ) -> subprocess.Popen[str]:
        said = {
            "port": self.port,
            "ca": str((self._folder / "operator" / "ca.pem").resolve()),
            "epoch": pack(epoch).hex(),
            "holders": [
                (who.name, who.identity.secret_bytes().hex(), secret.secret_bytes().hex())
                for who, secret in zip(holders, secrets, strict=True)
            ],
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.service_holders"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(said) + "\n")
        process.stdin.flush()
        return process

    async def holders_report(self) -> dict[str, Any]:
        """What the holders' process has to say of itself."""
        if self.holders is None:
            return {"cpu": 0.0, "counts": {}, "errors": []}

        def ask() -> Any:
            assert self.holders is not None
            assert self.holders.stdin is not None
            assert self.holders.stdout is not None
            self.holders.stdin.write("report\n")
            self.holders.stdin.flush()
            return json.loads(self.holders.stdout.readline())

        report: dict[str, Any] = await asyncio.to_thread(ask)
        return report

    async def _admit(self, who: Participant, role: Role) -> None:
        await self.operator.vouch(who.name, role, who.identity.public_key)

    def require_running(self) -> None:
        """Once a process has ended, whoever waits for it waits in vain."""
        for name, process in (("server", self.server), ("holders", self.holders)):
            assert process is None or process.poll() is None, f"the {name}'s process has ended"

    async def _until_it_answers(self) -> None:
        while True:
            self.require_running()
            try:
                await self.operator.look()
                return
            except Unreachable:
                await asyncio.sleep(0.2)

    async def machine_of(self, phone: Participant) -> Contributor | ClearContributor:
        """A contributor's machine, with the credential that the server gives it."""
        reply = await phone.line.call("GET", "/v1/epoch")
        _, credential = framing.split(reply.body)
        given = unpack(credential.frame, MAX_CONTROL_BYTES)
        assert isinstance(given, Credential)
        if not self.parameters.is_masked:
            return ClearContributor(self.agreement, given, phone.identity, phone.store)
        sealer = make_sealer("x25519")
        return Contributor(self.agreement, given, phone.identity, sealer, phone.store)

    async def version(self) -> int:
        """The present version."""
        return (await self.operator.look()).version

    def memory(self) -> int:
        """Bytes of memory that the server has in use."""
        assert self.server is not None
        pages = int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def stop(self) -> None:
        """End the holders, then the server, however far they came."""
        if self.holders is not None:
            assert self.holders.stdin is not None
            assert self.holders.stdout is not None
            with suppress(OSError):  # if it has ended, nobody reads what may be left
                self.holders.stdin.close()
            _see_end(self.holders)
            self.holders.stdout.close()
        for who in self.contributors:
            who.line.close()
        await self.operator.line.close()
        self.operator.close()
        if self.server is not None:
            self.server.terminate()
            _see_end(self.server)


def _see_end(process: subprocess.Popen[Any]) -> None:
    """Wait for a process that was told to end; one that does not is killed."""
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
