"""The same stack without the protocol: authenticate, hash, store durably, answer."""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from basecagg.protocol.effects import Persist
from basecagg.service.server.group_commit import GroupCommit
from basecagg.service.server.limits import BodyReader, ByteBudget, Strangers
from basecagg.service.server.serving import impatient
from basecagg.service.server.worker import MachineThread
from basecagg.service.signing import Guard
from basecagg.storage.server import ServerStore


class Blobs:
    """What the worker owns here: a store and nothing else."""

    def __init__(self, database: str) -> None:
        """Open the store."""
        self.store = GroupCommit(ServerStore(database, "baseline"))

    def flush(self) -> None:
        """Make everything durable."""
        self.store.flush()

    def recover(self) -> None:
        """Nothing to rebuild."""
        self.store.discard()


async def main(folder: Path, port: int, public_key: bytes) -> None:
    """Serve until killed. Any name is taken: the load has one key for all."""
    blobs = Blobs(f"sqlite:///{folder / 'baseline.db'}")
    worker, numbers = MachineThread(blobs), count()
    guard = Guard("load", lambda name: public_key)
    reader, budget = BodyReader(), ByteBudget(512 * 2**20)

    async def upload(request: Request) -> Response:
        claim = guard.check("POST", request.url.path, request.headers.get("authorization"))
        with budget.account() as take:
            length = request.headers.get("content-length")
            body, digest = await reader.read(request.stream(), length, 2**27, take)
            assert digest == claim.body_hash
            write = Persist("blob", f"{next(numbers):016d}", body)
            await worker.do(lambda: blobs.store.commit([write]))
        return Response(status_code=204)

    app = Starlette(routes=[Route("/v1/messages", upload, methods=["POST"])])
    configuration = uvicorn.Config(
        app,
        port=port,
        http=impatient(15.0, Strangers(1000)),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        ssl_certfile=folder / "operator/server/tls.pem",
        ssl_keyfile=folder / "operator/server/tls.key",
    )
    await uvicorn.Server(configuration).serve()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])))
