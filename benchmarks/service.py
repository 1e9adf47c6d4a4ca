"""`python -m benchmarks.service`: what the service carries, next to the same stack without the protocol.

1. Uploads per second with 1,000 contributors and 50 holders, d = 10⁵, against the same server stack that only
   authenticates, hashes and stores the same bytes: rounds of both take turns. The timed uploads fill a buffer
   but for the last few, so that what is timed is the upload and not the opening.
2. Everything at once for some minutes: dealing, uploading, opening. Updates per second, and the memory.
3. From the last upload to the new version, N = 12, d = 10⁶, with its breakdown.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from basecagg.channels.identity import Identity
from basecagg.channels.wire import pack
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import sends_of, writes_of
from basecagg.protocol.messages import Message, Upload
from basecagg.service.signing import Caller
from benchmarks.service_line import Line
from benchmarks.service_stand import FEDERATION, Errand, Participant, Stand, free_port, in_parallel
from reproduction import machine, report

RESULTS = Path("benchmarks/results/service.json")
WIDTH = 16
"""Uploads on their way at one time."""
SPARE = 10
"""Uploads that fill the buffer after the timed ones."""
BAR = 0.6


@dataclass
class Phone:
    """A contributor of the load."""

    who: Participant
    machine: Contributor

    async def deal(self, version: int) -> None:
        """Deal one mask."""
        await self.who.perform(self.machine.deal(version))

    async def until(self, epoch: str, condition: Callable[[Phone], object]) -> None:
        """Take letters until something is so."""
        while not condition(self):
            for message in await self.who.mail(epoch, 20):
                self.who.store.commit(writes_of(self.machine.receive(message)))

    def prepare(self, version: int, head: bytes, d: int, rng: np.random.Generator) -> Message:
        """A masked random update, ready to be sent."""
        effects = self.machine.submit(rng.uniform(-1, 1, d).astype(np.float32), version, head)
        self.who.store.commit(writes_of(effects))
        (upload,) = (send.message for send in sends_of(effects))
        assert isinstance(upload, Upload)
        return upload

    @property
    def is_idle(self) -> bool:
        """Whether the last update is over."""
        return "uploaded" not in self.machine.states().values()


def committee(holders: int, buffer_size: int, d: int) -> ProtocolParameters:
    """A committee that does without a fifth of its holders."""
    colluders = max(1, holders // 6)
    return ProtocolParameters(
        num_holders=holders,
        recovery_threshold=holders - colluders - holders // 5,
        max_colluders=colluders,
        max_dropouts=holders // 5,
        buffer_size=buffer_size,
        model_size=d,
        clip=2.0,
        mask_lifetime=1000,
        max_staleness=50,
    )


async def throughput(folder: Path, given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Parts 1 and 2."""
    d, timed = 10**5, given.buffer - SPARE
    stand = Stand(folder, committee(50, given.buffer, d), given.contributors)
    await stand.start()
    console.print(f"{given.contributors} contributors and 50 holders are enrolled")
    tasks = [asyncio.create_task(stand.hold(index)) for index in range(50)]
    phones = [Phone(who, await stand.machine_of(who)) for who in stand.contributors]
    baseline = Baseline(folder, stand)
    await baseline.start()
    rng = np.random.default_rng()
    rounds: list[tuple[float, float]] = []
    for number in range(given.rounds):
        first = number * given.buffer
        chosen = [phones[(first + i) % len(phones)] for i in range(given.buffer)]
        version, digest = await _present(stand)
        await in_parallel([partial(p.deal, version) for p in chosen], WIDTH)
        await asyncio.gather(*(p.until(stand.epoch, lambda p: p.machine.ready) for p in chosen))
        version, digest = await _present(stand)
        uploads = [p.prepare(version, digest, d, rng) for p in chosen]
        sends = list(zip(chosen, uploads, strict=True))
        theirs = await baseline.seconds([pack(upload) for upload in uploads[:timed]])
        ours = await _timed([partial(p.who.send, u) for p, u in sends[:timed]])
        await in_parallel([partial(p.who.send, u) for p, u in sends[timed:]], WIDTH)
        await asyncio.gather(*(p.until(stand.epoch, lambda p: p.is_idle) for p in chosen))
        rounds.append((timed / ours, timed / theirs))
        console.print(
            f"round {number + 1}: {timed / ours:.0f} uploads/s, the bare stack {timed / theirs:.0f}"
            f" uploads/s, ratio {theirs / ours:.2f}; version {await stand.version()}"
        )
    baseline.stop()
    before, began = await stand.version(), time.monotonic()
    memory = await _soak(stand, phones, given.minutes, console)
    errors, versions = stand.errors(), await stand.version()
    sustained = (versions - before) * given.buffer / (time.monotonic() - began)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stand.stop()
    ratios = [ours / theirs for ours, theirs in rounds]
    return {
        "contributors": given.contributors,
        "holders": 50,
        "buffer": given.buffer,
        "uploads_per_second": statistics.median(ours for ours, _ in rounds),
        "bare_uploads_per_second": statistics.median(theirs for _, theirs in rounds),
        "ratio": statistics.median(ratios),
        "versions": versions,
        "sustained_updates_per_second": sustained,
        "errors": errors[:10],
        "put_off": stand.put_off(),
        "memory_mb": memory,
    }


async def _present(stand: Stand) -> tuple[int, bytes]:
    reply = await stand.connection.call("GET", "/v1/model", query={"newer_than": 10**14})
    return int(reply.headers["basecagg-version"]), bytes.fromhex(
        reply.headers["basecagg-model-hash"]
    )


async def _timed(jobs: Sequence[Errand]) -> float:
    gc.collect()
    began = time.perf_counter()
    await in_parallel(jobs, WIDTH)
    return time.perf_counter() - began


class Baseline:
    """The bare stack in a process of its own."""

    def __init__(self, folder: Path, stand: Stand) -> None:
        """One key for all callers."""
        self._folder, self._port, self._key = folder, free_port(), Identity.create()
        caller = Caller(FEDERATION, "anybody", self._key)
        self._lines = [Line(self._port, stand.tls, caller) for _ in range(WIDTH)]

    async def start(self) -> None:
        """Start the process and wait for it."""
        arguments = [str(self._folder), str(self._port), self._key.public_key.hex()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.service_baseline", *arguments]
        )
        while True:
            try:
                await asyncio.open_connection("127.0.0.1", self._port)
                return
            except OSError:
                await asyncio.sleep(0.2)

    async def seconds(self, bodies: list[bytes]) -> float:
        """How long the bodies take."""
        free = list(self._lines)

        async def send(body: bytes) -> None:
            line = free.pop()
            reply = await line.call("POST", "/v1/messages", body)
            assert reply.status == 204, reply
            free.append(line)

        return await _timed([partial(send, body) for body in bodies])

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


async def _soak(stand: Stand, phones: list[Phone], minutes: float, console: Console) -> list[float]:
    """Everybody deals and uploads as fast as it goes; the server's memory meanwhile, twelve times a run."""
    samples: list[float] = []
    end = time.monotonic() + 60 * minutes
    rng = np.random.default_rng()

    async def live(phone: Phone) -> None:
        while time.monotonic() < end:
            version, _ = await _present(stand)
            if not phone.machine.ready:
                await phone.deal(version)
                await phone.until(stand.epoch, lambda p: p.machine.ready)
            version, digest = await _present(stand)
            await phone.who.send(phone.prepare(version, digest, stand.parameters.model_size, rng))
            await _until_or(end, phone, stand)

    crowd = [asyncio.create_task(live(phone)) for phone in phones]
    while time.monotonic() < end:
        await asyncio.sleep(max(1.0, 5 * minutes))
        samples.append(round(stand.memory() / 2**20, 1))
        console.print(f"version {await stand.version()}, server's memory {samples[-1]:.0f} MB")
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    return samples


async def _until_or(end: float, phone: Phone, stand: Stand) -> None:
    await phone.until(stand.epoch, lambda p: p.is_idle or time.monotonic() > end)


async def latency(folder: Path, console: Console) -> dict[str, float]:
    """Part 3."""
    d, holders, members = 10**6, 12, 5
    stand = Stand(folder, committee(holders, members, d), members)
    await stand.start()
    tasks = [asyncio.create_task(stand.hold(index)) for index in range(holders)]
    phones = [Phone(who, await stand.machine_of(who)) for who in stand.contributors]
    rng, runs = np.random.default_rng(), list[dict[str, float]]()
    for _ in range(6):
        version, digest = await _present(stand)
        for phone in phones:
            await phone.deal(version)
            await phone.until(stand.epoch, lambda p: p.machine.ready)
        uploads = [phone.prepare(version, digest, d, rng) for phone in phones]
        for phone, upload in list(zip(phones, uploads, strict=True))[:-1]:
            await phone.who.send(upload)
        began = time.perf_counter()
        await phones[-1].who.send(uploads[-1])
        sent = time.perf_counter()
        query = {"newer_than": version, "wait": 60}
        reply = await stand.connection.call("GET", "/v1/model", query=query, patience=60)
        assert reply.status == 200
        runs.append({"upload": sent - began, "total": time.perf_counter() - began})
        status = await stand.connection.call("GET", "/status")
        runs[-1] |= json.loads(status.content)["recoveries"][0]["seconds"]
        await asyncio.gather(*(p.until(stand.epoch, lambda p: p.is_idle) for p in phones))
    errors = stand.errors()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stand.stop()
    assert not errors, errors
    best = min(runs[1:], key=lambda run: run["total"])
    best["download and rest"] = best["total"] - sum(v for k, v in best.items() if k != "total")
    console.print({name: f"{1e3 * seconds:.0f} ms" for name, seconds in best.items()})
    return best


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contributors", type=int, default=1000)
    parser.add_argument("--buffer", type=int, default=250, help="K")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long memory is watched")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        seconds = asyncio.run(latency(Path(name), console))
    with tempfile.TemporaryDirectory() as name:
        load = asyncio.run(throughput(Path(name), given, console))
    console.print(load)
    result = {"machine": machine.describe(), "latency_seconds": seconds, "load": load}
    report.write_json(RESULTS, result)
    return 0 if load["ratio"] >= BAR and not load["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
