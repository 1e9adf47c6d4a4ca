"""One measurement of one commit's service, in a process that imports that commit: JSON in, JSON out.

`load`: everybody deals and uploads as fast as it goes. `latency`: from the last byte of a buffer's last upload
to the new version. `service.py` starts it, with this folder and the commit's `src` on the path.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from basecagg.channels.wire import pack
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.clear_contributor import ClearContributor
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import sends_of, writes_of
from basecagg.protocol.messages import Message, PlainUpdate, Upload
from benchmarks.service_postgres import private_postgres
from benchmarks.service_stand import Participant, Stand, counts_of, errors_of, processor_seconds

_LATENCY_RUNS = 6


@dataclass
class Phone:
    """A contributor of the load."""

    who: Participant
    machine: Contributor | ClearContributor

    async def deal(self, stand: Stand) -> None:
        """Deal one mask and wait for its receipts; nothing in clear, or where each comes with its update."""
        # An older commit has only masks that are dealt ahead.
        if self.machine.ready or getattr(stand.parameters, "one_visit", False):
            return
        version, _ = await self.who.present()
        await self.who.perform(self.machine.deal_ahead(version, 1))
        await self.until(stand.epoch, lambda p: p.machine.ready)

    async def until(self, epoch: str, condition: Callable[[Phone], object]) -> None:
        """Take letters until something is so."""
        while not condition(self):
            for message in await self.who.mail(epoch, 20):
                self.who.store.commit(writes_of(self.machine.receive(message)))

    def prepare(self, version: int, head: bytes, d: int, rng: np.random.Generator) -> Message:
        """A random update, masked if the epoch's are, ready to be sent."""
        update = rng.uniform(-1, 1, d).astype(np.float32)
        effects = self.machine.submit(update, version, head, version)
        self.who.store.commit(writes_of(effects))
        (upload,) = (send.message for send in sends_of(effects))
        return upload

    @property
    def is_idle(self) -> bool:
        """Whether the last update is over."""
        return not self.machine.is_waiting

    async def live(self, stand: Stand, rng: np.random.Generator) -> None:
        """Deal, upload, wait for the outcome, again and again."""
        while True:
            await self.deal(stand)
            version, head = await self.who.present()
            d = stand.parameters.model_size
            await self.who.send(self.prepare(version, head, d, rng))
            await self.until(stand.epoch, lambda p: p.is_idle)


def terms(case: dict[str, Any]) -> ProtocolParameters:
    """What the epoch of a case is: plain FedBuff, or a committee that does without a fifth of its holders."""
    holders, buffer_size, d = case["holders"], case["buffer"], case["d"]
    if case.get("plain"):
        return ProtocolParameters.in_clear(buffer_size=buffer_size, model_size=d, max_staleness=50)
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


@dataclass
class Moment:
    """What everybody had used and done by now; two of them make a measurement."""

    at: float
    server: float
    load: float
    busy: float
    counts: Counter[str]
    errors: list[str] = field(default_factory=list)

    @classmethod
    async def now(cls, stand: Stand) -> Moment:
        """Ask everybody."""
        assert stand.server is not None
        holders, crowd = await stand.holders_report(), stand.contributors
        return cls(
            time.monotonic(),
            processor_seconds(stand.server.pid),
            time.process_time() + holders["cpu"],
            _busy_seconds(),
            counts_of(crowd) + Counter(holders["counts"]),
            errors_of(crowd) + holders["errors"],
        )


def _busy_seconds() -> float:
    """Seconds that all cores together were not idle."""
    fields = [int(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / 100


def between(before: Moment, after: Moment) -> dict[str, Any]:
    """The figures of the time between two moments, per update."""
    counts, seconds = after.counts - before.counts, after.at - before.at
    updates = uploads_in(counts)
    return {
        "updates": updates,
        "updates_per_second": updates / seconds,
        "server_ms_per_update": 1e3 * (after.server - before.server) / updates,
        "server_cores": (after.server - before.server) / seconds,
        "load_ms_per_update": 1e3 * (after.load - before.load) / updates,
        "load_cores": (after.load - before.load) / seconds,
        "busy_cores": (after.busy - before.busy) / seconds,
        "put_off": counts["put off"],
        "mb_up_per_update": _megabytes(counts, " up") / updates,
        "mb_down_per_update": _megabytes(counts, " down") / updates,
        "traffic_per_update": {name: count / updates for name, count in counts.items()},
        "errors": after.errors[:10],
    }


def uploads_in(counts: Counter[str]) -> int:
    """Updates that were sent, masked or in clear."""
    # An older commit has no contributions.
    return counts[Upload.__name__] + counts[PlainUpdate.__name__] + counts["Contribution"]


def _megabytes(counts: Counter[str], way: str) -> float:
    return sum(count for kind, count in counts.items() if kind.endswith(way)) / 1e6


async def load(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Everybody at once for a while."""
    stand = Stand(folder, terms(case), case["contributors"], case.get("database"))
    try:
        await stand.start()
        return await _load(stand, case)
    finally:
        await stand.stop()


async def _load(stand: Stand, case: dict[str, Any]) -> dict[str, Any]:
    if case.get("gives_way"):
        load = [os.getpid(), *([stand.holders.pid] if stand.holders else [])]
        for pid in load:
            os.setpriority(os.PRIO_PROCESS, pid, 19)
    phones = [Phone(who, await stand.machine_of(who)) for who in stand.contributors]
    rng, memory = np.random.default_rng(), list[float]()
    lives = [asyncio.create_task(phone.live(stand, rng)) for phone in phones]
    try:
        await _until(stand, case["warm"], lives)
        before, end = await Moment.now(stand), time.monotonic() + case.get("seconds", 0.0)
        database = _family_seconds(case.get("database_pid"))
        while time.monotonic() < end:
            await asyncio.sleep(10.0)
            memory.append(round(stand.memory() / 2**20, 1))
        await _until(stand, uploads_in(before.counts) + case["updates"], lives)
        after = await Moment.now(stand)
        dead = [repr(life.exception()) for life in lives if life.done()]
    finally:
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
    spent = _family_seconds(case.get("database_pid")) - database
    verified = await _fetch_parts(stand, phones[0].who) if case.get("verify") else {}
    figures = between(before, after) | {"memory_mb": memory} | verified
    figures["database_ms_per_update"] = 1e3 * spent / figures["updates"]
    return figures | {"errors": [*figures["errors"], *dead]}


def _family_seconds(pid: int | None) -> float:
    """What a process and its children have used; nothing if there is none."""
    if pid is None:
        return 0.0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return processor_seconds(pid) + sum(processor_seconds(int(child)) for child in children)


async def _until(stand: Stand, uploads: int, lives: list[asyncio.Task[None]]) -> None:
    """Wait until so many updates have come, however long that takes on a busy machine."""
    while uploads_in(counts_of(stand.contributors)) < uploads and not any(
        life.done() for life in lives
    ):
        stand.require_running()
        await asyncio.sleep(0.1)


async def _fetch_parts(stand: Stand, who: Participant, times: int = 5) -> dict[str, Any]:
    """What it costs the server when members fetch what a version was made from, one after the other."""
    assert stand.server is not None
    who.line.close()  # its last call was cut off, and the answer to that may still come
    version, _ = await who.present()
    before, began, size = processor_seconds(stand.server.pid), time.perf_counter(), 0
    for _ in range(times):
        reply = await who.call("parts", "GET", f"/v1/parts/{version}")
        assert reply.status == 200, reply.body[:200]
        size = len(reply.body)
    spent = processor_seconds(stand.server.pid) - before
    return {
        "parts_mb": size / 1e6,
        "parts_server_ms": 1e3 * spent / times,
        "parts_seconds": (time.perf_counter() - began) / times,
        "memory_after_parts_mb": round(stand.memory() / 2**20, 1),
    }


async def latency(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """The best of some runs, with its parts, in milliseconds."""
    d, members = case["d"], case["buffer"]
    stand = Stand(folder, terms(case), members, case.get("database"))
    rng, runs = np.random.default_rng(), list[dict[str, float]]()
    try:
        await stand.start()
        phones = [Phone(who, await stand.machine_of(who)) for who in stand.contributors]
        for _ in range(_LATENCY_RUNS):
            runs.append(await _one_sum(stand, phones, d, rng))
            await asyncio.gather(*(p.until(stand.epoch, lambda p: p.is_idle) for p in phones))
        errors = errors_of(stand.contributors) + (await stand.holders_report())["errors"]
    finally:
        await stand.stop()
    return min(runs[1:], key=lambda run: run["total"]) | {"errors": errors}


async def _one_sum(
    stand: Stand, phones: list[Phone], d: int, rng: np.random.Generator
) -> dict[str, float]:
    version, head = await phones[0].who.present()
    for phone in phones:
        await phone.deal(stand)
    uploads = [phone.prepare(version, head, d, rng) for phone in phones]
    for phone, upload in list(zip(phones, uploads, strict=True))[:-1]:
        await phone.who.send(upload)
    # Somebody who has the present model waits for the next: its answer begins when that is published.
    watch = asyncio.create_task(_published(phones[0].who, version))
    await asyncio.sleep(0.2)
    last, frame = phones[-1].who.line, pack(uploads[-1])
    sent, answered = await asyncio.to_thread(last.post_and_wait, "/v1/messages", frame)
    published = await watch
    status = await stand.operator.line.call("GET", "/status")
    stages = json.loads(status.content)["recoveries"][0]["seconds"]
    parts = {"total": published - sent, "upload answered": answered - sent, **stages}
    return {name: 1e3 * seconds for name, seconds in parts.items()}


async def _published(who: Participant, version: int) -> float:
    """When the answer begins that brings the version after this one."""
    reply = await who.line.call("GET", f"/v1/model?newer_than={version}&wait=60")
    assert reply.status == 200
    return who.line.answered_at


def main() -> None:
    """Measure what the one argument asks for."""
    case = json.loads(sys.argv[1])
    measure = {"load": load, "latency": latency}[case["what"]]
    with ExitStack() as opened:
        name = opened.enter_context(tempfile.TemporaryDirectory())
        if case.get("postgres"):
            case["database"], case["database_pid"] = opened.enter_context(private_postgres())
        print(json.dumps(asyncio.run(measure(Path(name), case))), flush=True)


if __name__ == "__main__":
    main()
