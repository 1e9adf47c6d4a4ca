"""A federation over real TLS on this machine, all in one event loop: server, operator and agents."""

from __future__ import annotations

import asyncio
import gc
import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvicorn

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.channels.wire import pack
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import HolderKey, signed
from basecagg.protocol.stored import Role
from basecagg.service.agent.agent import Agent, AgentOptions
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience
from basecagg.service.documents import Enrolment, Invitation
from basecagg.service.logs import log_to
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.server.serving import ServeOptions, running
from basecagg.service.training import RoundInfo, Vector
from free_ports import free_port

log_to(io.StringIO(), "DEBUG")  # every line is written, so that a bad one is found

GIVE_UP = 120.0
"""Seconds after which nobody waits any longer: many, for a machine that is busy with other things."""
SMALL = ProtocolParameters(
    num_holders=7,
    recovery_threshold=3,
    max_colluders=2,
    max_dropouts=2,
    buffer_size=4,
    model_size=50,
    max_staleness=10,
    clip=4.0,
    update_levels=2**16,
)


class Nudge:
    """A training that moves the model half of the way to a target."""

    def __init__(self, target: float = 1.0, seconds: float = 0.0) -> None:
        self.target = target
        self.seconds = seconds
        self.calls = 0
        self.closed = False

    async def __call__(self, model: Vector, info: RoundInfo) -> Vector:
        self.calls += 1
        await asyncio.sleep(self.seconds)
        # A tiny difference each time: the same update is never sent twice.
        return model + (self.target - model) * np.float32(0.5) + np.float32(1e-4 * self.calls)

    def close(self) -> None:
        self.closed = True


def announced(profile: Profile, **changes: Any) -> HolderKey:
    """A fresh sealing key of a user, signed."""
    invitation, sealing = profile.invitation, SealingSecret.create().public_key
    key = HolderKey(
        invitation.federation, profile.name, invitation.suite, sealing, invitation.after
    )
    return signed(msgspec.structs.replace(key, **changes), profile.identity)


def enrolment(profile: Profile) -> Enrolment:
    """What a user hands in, with a sealing key that nobody keeps."""
    return profile.enrolment(pack(announced(profile)))


def swapped(profile: Profile) -> Enrolment:
    """The same with a thief's keys: what a server makes of it that wants to be this user."""
    thief = Identity.create()
    return msgspec.structs.replace(
        enrolment(profile),
        signing_key=thief.public_key,
        holder_key=pack(signed(announced(profile), thief)),
    )


class Federation:
    """The operator's folder with a server that can be started and stopped, and agents."""

    def __init__(self, folder: Path, **serve: Any) -> None:
        self.floor = LocalFloor(consistency="certified", correctness="agreed", verify="always")
        """Of the agents that are launched from now on."""
        self.folder = folder
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        anchors = folder / "anchors"
        self.found()
        self.operator = Office(folder / "operator", anchors)
        options = ServeOptions(
            folder=folder / "operator" / "server",
            host="127.0.0.1",
            port=self.port,
            answer_timeout=1.0,
            anchors=anchors,
            member_rate=1000.0,
            stranger_rate=1000.0,
        )
        self.options = replace(options, **serve)
        self.agents: dict[str, asyncio.Task[None]] = {}
        self._server: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self.uvicorn: uvicorn.Server | None = None

    def found(self) -> None:
        """Make the folders."""
        anchors = self.folder / "anchors"
        create(self.folder / "operator", "test", self.url, anchor_folder=anchors)

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "operator" / "ca.pem")

    async def start_server(self) -> None:
        ready = asyncio.Event()

        async def work() -> None:
            async with running(self.options) as server:
                self.uvicorn = server
                server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
                server.shutdown = partial(_shut_down, server)  # type: ignore[method-assign]
                task = asyncio.create_task(server._serve())
                while not server.started:
                    await asyncio.sleep(0.01)
                ready.set()
                await task

        self._server = asyncio.create_task(work())
        waiter = asyncio.create_task(ready.wait())
        await asyncio.wait({self._server, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self._server.done():
            await self._server

    async def stop_server(self) -> None:
        if self._server is not None and self.uvicorn is not None:
            self.uvicorn.should_exit = True
            await self._server
            self._server = None

    async def invite(self, name: str, role: Role = "both") -> Invitation:
        return await self.operator.invite(name, role)

    def profile(self, name: str, invitation: Invitation | None = None) -> Profile:
        return Profile.open(self.folder / name, invitation)

    def launch(self, profile: Profile, train: Any) -> None:
        options = AgentOptions(
            floor=self.floor,
            patience=Patience(0.02, 0.3),
            anchor_folder=self.folder / "anchors",
        )
        agent = Agent(profile, options, train)
        self.agents[profile.name] = asyncio.create_task(agent.run())

    async def stop(self, name: str) -> None:
        task = self.agents.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def join(self, names: list[str], train: Callable[[str], Any]) -> None:
        """Invite, launch and admit users."""
        for name in names:
            self.launch(self.profile(name, await self.invite(name)), train(name))
        await self.admit(names)

    async def admit(self, names: list[str]) -> None:
        missing = set(names)
        async with asyncio.timeout(GIVE_UP):
            while missing:
                missing -= set(await self.operator.admit_all())
                await asyncio.sleep(0.05)

    async def start_epoch(self, parameters: ProtocolParameters = SMALL) -> None:
        async def keys_are_there() -> bool:
            await self.operator.look()
            return not self.operator.machine.missing()

        await self.until(keys_are_there)
        overview = await self.operator.look()
        if overview.epoch_number == 0:
            await self.operator.set_model(np.zeros(parameters.model_size, "<f4"))
        await self.operator.start(parameters)

    async def begin(self, names: list[str]) -> None:
        """All of them join, an epoch begins, and they train."""
        await self.join(names, lambda name: Nudge())
        await self.start_epoch()

    async def close_epoch(self) -> None:
        """Close it, and wait for its last sum."""

        async def is_closed() -> bool:
            return (await self.operator.look()).phase == "closed"

        await self.operator.close_epoch()
        await self.until(is_closed)

    async def version(self) -> int:
        return (await self.operator.look()).version

    async def reach(self, version: int, seconds: float = GIVE_UP) -> None:
        """Wait for a version, and notice an agent that fails."""

        async def reached() -> bool:
            return await self.version() >= version

        await self.until(reached, seconds)

    async def until(
        self, condition: Callable[[], Awaitable[bool]], seconds: float = GIVE_UP
    ) -> None:
        async with asyncio.timeout(seconds):
            while not await condition():
                for task in self.agents.values():
                    if task.done():
                        await task
                await asyncio.sleep(0.05)

    async def model(self) -> Vector:
        reply = await self.operator.line.call("GET", "/v1/model")
        return np.frombuffer(reply.content, "<f4")


@asynccontextmanager
async def federation(folder: Path, **serve: Any) -> AsyncIterator[Federation]:
    fed = Federation(folder, **serve)
    async with stopped_at_last(fed):
        await fed.start_server()
        yield fed


@asynccontextmanager
async def stopped_at_last(fed: Federation) -> AsyncIterator[None]:
    """Everybody, and every socket."""
    with uncollected():
        try:
            yield
        finally:
            for name in list(fed.agents):
                await fed.stop(name)
            await fed.operator.line.close()
            await fed.stop_server()
            fed.operator.close()
            await all_hung_up()


async def _shut_down(server: uvicorn.Server, **more: Any) -> None:
    for each in server.servers:
        await stop_accepting(each)
    await type(server).shutdown(server, **more)


async def stop_accepting(server: asyncio.Server) -> None:
    """Before it is closed, or asyncio forgets the socket of whoever was taken in and has no transport yet."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    await asyncio.sleep(0)  # for their transports


@contextmanager
def uncollected() -> Iterator[None]:
    """Or the collector finds the sockets of `all_hung_up` before that does."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def all_hung_up() -> None:
    """Hang up for httpcore, which forgets a socket if it is cancelled in the handshake."""
    transports = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]
    async with asyncio.timeout(GIVE_UP):
        while left := [each for each in transports.values() if each._sock is not None]:
            for transport in left:
                transport.abort()
            await asyncio.sleep(0.01)
