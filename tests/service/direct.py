"""The application without a network: a service in memory with an epoch, and callers with keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
from service_harness import SMALL, enrolment

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import make_sealer
from basecagg.channels.wire import unpack
from basecagg.options import ServiceOptions
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.messages import Credential
from basecagg.protocol.operator import OPERATOR
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Connection
from basecagg.service.documents import from_json, to_json
from basecagg.service.handed_over import ServerFolder
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.page.routes import Page
from basecagg.service.server.app import Api, App
from basecagg.service.server.core import Service
from basecagg.service.server.limits import Limits
from basecagg.service.signing import Caller
from basecagg.storage.in_memory import MemoryStore

URL = "https://test"
NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


class MemoryEpoch(MemoryStore):
    """A store in memory that can be erased."""

    def renew(self, after: float = 0.0) -> None:
        pass

    def close(self) -> None:
        pass

    def erase(self) -> None:
        self.__init__()


class Direct:
    """A running epoch, called without a network."""

    def __init__(self, folder: Path) -> None:
        create(folder / "op", "test", URL, anchor_folder=folder / "anchors")
        self.operator = Office(folder / "op", folder / "anchors")
        given: ServerFolder = from_json(
            (folder / "op/server/server.json").read_bytes(), ServerFolder
        )
        self.service = Service(given, ServiceOptions(), lambda _: MemoryEpoch())
        page = Page(self.service, given.page_token)
        self.api = Api(self.service, Limits(member_rate=1e6, stranger_rate=1e6))
        app = App(self.service, {**self.api.routes(), **page.routes()})
        self.transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(base_url=URL, transport=self.transport)
        self.folder = folder
        self.profiles: dict[str, Profile] = {}
        self.boss = self.operator.line = self.connect(OPERATOR, self.operator.identity)

    def connect(self, name: str, identity: Identity) -> Connection:
        return Connection(URL, "", self.caller(name, identity), self.transport)

    def caller(self, name: str, identity: Identity | None = None) -> Caller:
        return Caller("test", name, identity or self.profiles[name].identity)

    def member(self, name: str) -> Connection:
        return self.connect(name, self.profiles[name].identity)

    async def begin(self) -> None:
        for name in NAMES:
            invitation = await self.operator.invite(name, "both")
            self.profiles[name] = Profile.open(self.folder / name, invitation)
            await self.boss.enrol(to_json(enrolment(self.profiles[name])))
        await self.operator.admit_all()
        await self.operator.set_model(np.zeros(SMALL.model_size, "<f4"))
        await self.operator.start(SMALL)

    @property
    def epoch(self) -> str:
        assert self.service.epochs.host is not None
        return self.service.epochs.host.agreement.id.hex()

    def contributor(self, name: str) -> Contributor:
        """The machine of a member."""
        assert self.service.epochs.host is not None
        credential = unpack(self.service.epochs.registry.credentials[name], 10_000)
        assert isinstance(credential, Credential)
        return Contributor(
            self.service.epochs.host.agreement,
            credential,
            self.profiles[name].identity,
            make_sealer("x25519"),
            MemoryStore(),
        )


@asynccontextmanager
async def direct(folder: Path) -> AsyncIterator[Direct]:
    scene = Direct(folder)
    await scene.begin()
    try:
        yield scene
    finally:
        await scene.service.close()
        scene.operator.close()
