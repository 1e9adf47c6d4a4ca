"""A federation of real processes that can be killed, behind a network that can be cut."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from service_harness import all_hung_up, stop_accepting

from basecagg.errors import ChannelError
from basecagg.maths.kernels import warm_up
from basecagg.parameters import ProtocolParameters
from basecagg.service.documents import Invitation
from basecagg.service.handed_over import write_invitation
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.problems import Problem
from free_ports import free_port

PARAMETERS = ProtocolParameters(
    num_holders=5,
    recovery_threshold=3,
    max_colluders=1,
    max_dropouts=1,
    buffer_size=3,
    model_size=200,
    max_staleness=20,
    weights="field",  # own weights ask for m = 3
    min_per_version=1,  # nobody gives way, so whatever is missing in the end was lost
)
NAMES = [f"user-{index}" for index in range(PARAMETERS.num_holders)]


class Proxy:
    """Passes bytes on; during a cut it takes them and drops them, as a dead line does."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._calls: set[asyncio.Task[None] | None] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        await stop_accepting(self._server)
        self._server.close()
        await all_hung_up()  # also for whoever was taken in just now
        await asyncio.gather(*filter(None, self._calls), return_exceptions=True)
        await asyncio.sleep(0)  # for transports that were aborted

    async def cut(self, seconds: float) -> None:
        self._cut = True
        await asyncio.sleep(seconds)
        self._cut = False
        self._hang_up()  # what was swallowed is lost for good

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._calls.add(asyncio.current_task())
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        self._writers -= {writer, far_writer}
        self._calls.discard(asyncio.current_task())

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if not self._cut:
                    writer.write(data)
                    await writer.drain()
        writer.close()


class Chaos:
    """The processes, and the operator who watches."""

    prelude = ""
    """Python that a user's process runs before its command."""
    parameters = PARAMETERS
    """Of its epoch."""

    def __init__(
        self, folder: Path, database: str | None = None, standbys: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.database = database or f"sqlite:///{folder / 'operator' / 'server' / 'server.db'}"
        self._port = free_port()
        self.proxy = Proxy(self._port)
        url = f"https://127.0.0.1:{self.proxy.port}"
        anchors = folder / "anchors"
        create(folder / "operator", "chaos", url, standbys=standbys, anchor_folder=anchors)
        self.operator = Office(folder / "operator", folder / "anchors")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0
        self.versions: list[int] = []

    @property
    def server_url(self) -> str:
        """Past the proxy."""
        return f"https://127.0.0.1:{self._port}"

    def _start(self, name: str, command: str, *arguments: str) -> None:
        code = f"{self.prelude}\nfrom basecagg.commands.{command} import command; command()"
        self.run(name, sys.executable, "-c", code, *arguments)

    def run(self, name: str, *command: str) -> None:
        """Start a process under this name."""
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def start_server(self) -> None:
        self._start("server", "serve", *self.server_arguments(), "--anchors", "anchors")

    def server_arguments(self) -> tuple[str, ...]:
        """What `basecagg serve` is given."""
        return (
            *("--state", "operator/server", "--host", "127.0.0.1", "--port", str(self._port)),
            *("--answer-timeout", "1", "--retries", "1000", "--database", self.database),
        )

    def start_user(self, name: str) -> None:
        self._start(
            name,
            "join",
            *(f"{name}.invitation", "--state", name, "--anchors", "anchors"),
            *("--train", "chaos_training:train", "--longest-wait", "0.5"),
            *("--min-per-version", "1"),
        )

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name)
        assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-3000:]
        process.kill()
        process.wait()
        self.kills += 1

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()

    async def begin(self) -> None:
        warm_up()  # once, into numba's cache, and not in six processes at one time
        await self.proxy.start()
        self.start_server()
        for name in NAMES:
            write_invitation(self.folder / f"{name}.invitation", await self._invite(name))
            self.start_user(name)
        missing = set(NAMES)
        async with asyncio.timeout(180):
            while missing:
                missing -= set(await self.operator.admit_all())
                await asyncio.sleep(0.2)
        await self.operator.set_model(np.zeros(self.parameters.model_size, "<f4"))
        await self.operator.start(self.parameters)

    async def _invite(self, name: str) -> Invitation:
        """The server may still be starting."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await self.operator.invite(name, "both")
                except ChannelError:
                    await asyncio.sleep(0.2)

    async def look(self) -> int | None:
        """The version, if the server answers."""
        try:
            version = (await self.operator.look()).version
        except (ChannelError, Problem):
            return None
        self.versions.append(version)
        return version

    async def reach(self, version: int, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while (await self.look() or 0) < version:
                await asyncio.sleep(0.2)

    async def end(self) -> None:
        await self.operator.line.close()
        self.operator.close()
        self.kill_all()
        await self.proxy.stop()
