"""The server's process: folder, store, TLS, uvicorn, and an end in good order."""

import asyncio
import resource
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from basecagg.options import ServingOptions
from basecagg.service.handed_over import read_server_folder
from basecagg.service.logs import Log
from basecagg.service.page.routes import Page
from basecagg.service.server import process_memory
from basecagg.service.server.app import Api, App
from basecagg.service.server.certificate import ServerCertificate
from basecagg.service.server.core import Service
from basecagg.service.server.epoch_sequence import EPOCH, SERVICE
from basecagg.service.server.evaluation import Evaluator
from basecagg.service.server.limits import Limits
from basecagg.service.server.open_connections import CallerConnection, OpenConnections
from basecagg.storage import anchor, lease
from basecagg.storage.server_store import ServerStore
from basecagg.storage.standby import Standby

_LOG = Log("basecagg.service")
MOST_CONNECTIONS = 8192
"""Beyond it uvicorn answers 503 to everybody, so strangers, members and operator together have fewer."""
_OPEN_FILES = 2 * MOST_CONNECTIONS
"""Twice as many as connections, so that silent callers do not use them up."""
_LOOK_TICKS = 10
"""Ticks of uvicorn, ten a second, between two looks at the certificate's files."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ServingOptions, Limits):
    """All that makes a server."""

    folder: Path
    anchors: Path | None = None
    """Where the counters are kept that show whether the database is an older copy."""
    wait: float = lease.EXPIRES + 1.0
    """Seconds for which another server may have the database before it is an error: it may have crashed."""

    @property
    def place(self) -> tuple[str, Path]:
        """The database's URL and the folder of the anchors."""
        here = f"sqlite:///{self.folder.resolve() / 'server.db'}"
        return self.database or here, self.anchors or anchor.default_folder()


async def serve(options: ServeOptions) -> None:
    """Serve until the process is told to stop."""
    async with running(options) as server:
        await server.serve()


@asynccontextmanager
async def running(options: ServeOptions) -> AsyncIterator[uvicorn.Server]:
    """A server that is ready to serve; everything else about it is taken care of."""
    folder = read_server_folder(options.folder)
    certificate = ServerCertificate(options.folder) if options.tls else None
    database, anchors = options.place

    def open_store(namespace: str) -> ServerStore:
        kept = anchors if namespace.startswith(EPOCH) else None
        return ServerStore(database, namespace, wait=options.wait, anchor_folder=kept)

    service = Service(folder, options, open_store)
    service.activity.certificate = certificate
    page = Page(service, folder.page_token, open_here=options.open_here)
    evaluator = Evaluator(service, options.evaluate) if options.evaluate else None
    _LOG.info("serving", federation=folder.federation, port=options.port)
    try:
        connections = OpenConnections(options)
        app = App(service, {**Api(service, options, connections).routes(), **page.routes()})
        protocol = partial(CallerConnection, options.header_seconds, connections)
        yield _Server(_configuration(options, certificate, app, protocol), service)
    finally:
        if evaluator is not None:
            await evaluator.close()
        await service.close()
        _LOG.info("stopped")
    if service.worker.defect is not None:
        raise service.worker.defect


class _Server(uvicorn.Server):
    """uvicorn, but at its end callers that wait for news are let go first: it need not wait for them."""

    def __init__(self, configuration: uvicorn.Config, service: Service) -> None:
        super().__init__(configuration)
        self._service = service

    async def on_tick(self, counter: int) -> bool:
        """Whether to end: also when another process has the database, or it is damaged."""
        certificate = self._service.activity.certificate
        if certificate is not None and self.config.ssl is not None and counter % _LOOK_TICKS == 0:
            certificate.look(self.config.ssl)
        return await super().on_tick(counter) or not self._service.worker.can_go_on

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in good order."""
        self._service.waiting.close()
        await super().shutdown(sockets)


def _configuration(
    options: ServeOptions, certificate: ServerCertificate | None, app: Any, protocol: Any
) -> uvicorn.Config:
    chain, key = certificate.files if certificate is not None else (None, None)
    return uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,  # idle lines do not see that they are closed
        limit_concurrency=MOST_CONNECTIONS,
        backlog=1024,
        ssl_certfile=chain,
        ssl_keyfile=key,
    )


def run(options: ServeOptions) -> None:
    """The whole program."""
    process_memory.prepare()
    _allow_open_files()
    if options.standby:
        Standby(options.place[0], SERVICE, options.place[1]).wait(
            lambda reason: _LOG.info("standing by", reason=reason)
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn stops by itself, and then raises the signal again: let us come to our own end first.
        signal.signal(number, lambda *_: None)
    with asyncio.Runner() as runner:
        runner.run(serve(options))


def _allow_open_files() -> None:
    """Ask for more open files: a shell often allows 1024, though the system would allow more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not 0 <= soft < _OPEN_FILES:  # below zero means without limit
        return
    is_enough = not 0 <= hard < _OPEN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES if is_enough else hard, hard))
    if not is_enough:
        _LOG.warning("few files may be open", allowed=hard, wanted=_OPEN_FILES)
