"""The holders of the load, in a process of their own: they take letters and answer, until told to stop."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from typing import Any

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.holder import Holder
from benchmarks.service_stand import Participant, accepted, counts_of, errors_of

_TOGETHER = 32


async def hold(who: Participant, machine: Holder, epoch: str) -> None:
    """A holder's life: take letters, answer."""
    await who.perform(machine.start())
    while True:
        messages = await who.mail(epoch, 20)
        for at in range(0, len(messages), _TOGETHER):
            group = messages[at : at + _TOGETHER]
            effects = [effect for message in group for effect in machine.receive(message)]
            await who.perform([*effects, *machine.acknowledge()])


async def main(said: dict[str, Any]) -> None:
    """All of them, and a report for every line that comes in."""
    epoch = unpack(bytes.fromhex(said["epoch"]), MAX_CONTROL_BYTES)
    assert isinstance(epoch, Epoch)
    agreement, tls = accepted(epoch), ssl.create_default_context(cafile=said["ca"])
    crowd, lives = list[Participant](), list[asyncio.Task[None]]()
    for index, (name, identity, secret) in enumerate(said["holders"]):
        who = Participant(name, said["port"], tls, Identity.from_secret(bytes.fromhex(identity)))
        sealing = SealingSecret("x25519", bytes.fromhex(secret))
        machine = Holder(agreement, index, who.identity, sealing, who.store)
        crowd.append(who)
        lives.append(asyncio.create_task(hold(who, machine, epoch.id.hex())))
    while await asyncio.to_thread(sys.stdin.readline):
        dead = [str(life.exception()) for life in lives if life.done()]
        report = {
            "cpu": time.process_time(),
            "counts": counts_of(crowd),
            "errors": errors_of(crowd) + dead,
        }
        print(json.dumps(report), flush=True)
    for life in lives:
        life.cancel()
    await asyncio.gather(*lives, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
