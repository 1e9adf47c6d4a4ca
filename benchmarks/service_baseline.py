"""The same stack without the protocol: authenticate, hash, store durably, hand out as many bytes.

As a program it is the server; `measure` is its load, which repeats the traffic of one update as it was counted
at the real service: so many requests of each kind, of so many bytes each way.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import uvicorn

from basecagg.channels.identity import Identity
from basecagg.protocol.effects import Forget, Persist, Write
from basecagg.service.operator.folder import create
from basecagg.service.server.limits import ByteBudget, declared, read_body
from basecagg.service.server.worker import MachineThread
from basecagg.service.signing import Caller, Guard
from basecagg.storage.database import SERVER_FILE
from basecagg.storage.disk import configure_sqlite
from benchmarks.service_line import Line
from benchmarks.service_stand import FEDERATION, free_port, processor_seconds

_STORED = ("Shipment", "Upload", "Contribution", "Receipt", "Answer")
_KEPT = 25
"""Bodies of each kind that are there at one time: what is over is deleted."""
_LANES = 16
_PIECE = 2**18


class Rows:
    """One table, by the driver alone; what was written since the last time is one transaction."""

    def __init__(self, path: Path) -> None:
        """Create it."""
        self._connection = sqlite3.connect(path, check_same_thread=False)
        configure_sqlite(self._connection, *SERVER_FILE)
        self._connection.execute("CREATE TABLE r (k TEXT PRIMARY KEY, v BLOB)")
        self._pending: list[Write] = []

    def commit(self, writes: Sequence[Write]) -> None:
        """Later, with others."""
        self._pending += writes

    def flush(self) -> None:
        """Make everything durable."""
        pending, self._pending = self._pending, []
        stored = [(w.key, w.value) for w in pending if isinstance(w, Persist)]
        deleted = [(w.key,) for w in pending if isinstance(w, Forget)]
        if not pending:
            return
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO r VALUES (?, ?)", stored)
        self._connection.executemany("DELETE FROM r WHERE k = ?", deleted)
        self._connection.execute("COMMIT")

    def recover(self) -> None:
        """Nothing to rebuild."""
        self._pending = []


class Bare:
    """The application. Any name is taken: the load has one key for all."""

    def __init__(self, folder: Path, public_key: bytes) -> None:
        """Start with an empty table."""
        self._rows = Rows(folder / "bare.db")
        self._worker, self._numbers = MachineThread(self._rows.flush, self._rows.recover), count()
        self._guard = Guard(FEDERATION, lambda name: public_key)
        self._budget = ByteBudget(512 * 2**20)
        self._there: defaultdict[str, deque[str]] = defaultdict(deque)
        self._last = bytes(2**20)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request: a body is stored if its kind is, and some bytes of the last one are handed out."""
        headers, (_, kind, wanted) = dict(scope["headers"]), scope["path"].split("/")
        claim = self._guard.check(
            scope["method"], scope["path"], headers[b"authorization"].decode()
        )
        with self._budget.account(claim.name, 2**27) as take:
            length = declared(headers[b"content-length"].decode(), 2**27)
            body, digest = await read_body(_chunks(receive), length, take)
            assert digest == claim.body_hash
            if kind in _STORED:
                await self._worker.do(lambda: self._store(kind, body))
        self._last = body if len(body) > _PIECE else self._last
        answer = bytes(memoryview(self._last)[: int(wanted)])
        size = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [size]})
        await send({"type": "http.response.body", "body": answer})

    def _store(self, kind: str, body: bytes) -> None:
        key, there = f"{kind}/{next(self._numbers):016d}", self._there[kind]
        there.append(key)
        over = [Forget(kind, there.popleft())] if len(there) > _KEPT else []
        self._rows.commit([Persist(kind, key, body), *over])


async def _chunks(receive: Any) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


async def serve(folder: Path, port: int, public_key: bytes) -> None:
    """Serve until killed."""
    configuration = uvicorn.Config(
        Bare(folder, public_key),
        port=port,
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        ssl_certfile=folder / "operator/server/tls.pem",
        ssl_keyfile=folder / "operator/server/tls.key",
    )
    await uvicorn.Server(configuration).serve()


# --- its load ---------------------------------------------------------------------------------------


def script(traffic: Mapping[str, float]) -> list[tuple[str, float, int, int]]:
    """What one update takes: kind, how often, bytes up, bytes down."""
    kinds = [k for k in traffic if k != "put off" and not k.endswith((" up", " down"))]
    return [
        (
            kind,
            traffic[kind],
            round(traffic.get(f"{kind} up", 0) / traffic[kind]),
            round(traffic.get(f"{kind} down", 0) / traffic[kind]),
        )
        for kind in kinds
    ]


async def measure(traffic: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The bare stack under the traffic of as many updates as it takes."""
    key, port = Identity.create(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"https://127.0.0.1:{port}"
        create(folder / "operator", FEDERATION, url, anchor_folder=folder / "anchors")
        tls = ssl.create_default_context(cafile=folder / "operator" / "ca.pem")
        arguments = [name, str(port), key.public_key.hex()]
        server = subprocess.Popen([sys.executable, "-m", "benchmarks.service_baseline", *arguments])
        caller = Caller(FEDERATION, "anybody", key)
        lines = [Line(port, tls, caller) for _ in range(_LANES)]
        try:
            await _until_open(port, server)
            return await _run(server.pid, lines, script(traffic), seconds)
        finally:
            for line in lines:
                line.close()
            await asyncio.sleep(0)
            server.kill()  # it has nothing to finish, and would wait for calls that were cut off
            server.wait()


async def _run(
    pid: int, lines: list[Line], steps: list[tuple[str, float, int, int]], seconds: float
) -> dict[str, float]:
    done, owed = 0, Counter[str]()
    bodies = {kind: os.urandom(up) for kind, _, up, _ in steps}

    async def lane(line: Line) -> None:
        nonlocal done
        while True:
            for kind, often, _, down in steps:
                owed[kind] += often  # type: ignore[assignment]
                while owed[kind] >= 1:
                    owed[kind] -= 1
                    reply = await line.call("POST", f"/{kind}/{down}", bodies[kind])
                    assert reply.status == 200, reply
            done += 1

    lanes = [asyncio.create_task(lane(line)) for line in lines]
    try:
        await _go_on(lanes, 2)
        before, cpu, began = done, processor_seconds(pid), time.monotonic()
        await _go_on(lanes, seconds)
        # A busy machine may not have come to an update yet, nor to a tick of the processor's clock.
        while not (updates := done - before) or not (spent := processor_seconds(pid) - cpu):
            await _go_on(lanes, 0.1)
        took = time.monotonic() - began
    finally:
        for task in lanes:
            task.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
    return {"server_ms_per_update": 1e3 * spent / updates, "updates_per_second": updates / took}


async def _go_on(lanes: list[asyncio.Task[None]], seconds: float) -> None:
    """Let time pass. A lane never ends by itself: one that did says why."""
    ended, _ = await asyncio.wait(lanes, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for lane in ended:
        lane.result()


async def _until_open(port: int, server: subprocess.Popen[bytes]) -> None:
    while True:
        assert server.poll() is None, "the bare server has ended"
        try:
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            return
        except OSError:
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])))
