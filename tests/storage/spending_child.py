"""A contributor that uploads without end from a store on disk, and says what leaves it; for tests that kill it.

`hasty` sends before it has written; `unlocked` does not look who else has the store.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from basecagg.parameters import ProtocolParameters
from basecagg.privacy import Privacy
from basecagg.protocol.effects import perform, sends_of
from basecagg.protocol.messages import Upload
from basecagg.storage.participant_store import ParticipantStore
from reproduction.bench import Address, Federation

USES = 10_000
PARAMETERS = ProtocolParameters(
    num_holders=3,
    recovery_threshold=2,
    max_colluders=1,
    max_dropouts=0,
    buffer_size=3,
    model_size=4,
    consistency="honest-server",
    mask_quota=1000,
    update_levels=4,
    weight_levels=1,
    privacy=Privacy(clip_norm=1.0, noise=1000.0, epsilon=5.0, delta=1e-5, max_uses=USES),
)
ANN = Address("contributor", "ann")


def open_store(folder: Path) -> ParticipantStore:
    return ParticipantStore(folder / "ann.db", "contributor", anchor_folder=folder / "anchors")


def one_upload(federation: Federation, store: ParticipantStore, *, hasty: bool = False) -> None:
    """Deal a mask, hide an update under it, and let it leave: what left is one line."""
    ann, server = federation.contributor("ann"), federation.server
    federation.deal("ann")
    federation.network.run()
    effects = ann.submit(np.zeros(4), server.version, server.head, server.version)
    if hasty:
        print(_left(sends_of(effects)), flush=True)
        sys.stdin.readline()  # nobody ever says anything: it is killed here
    sends = perform(store, effects)
    if not hasty:
        print(_left(sends), flush=True)


def _left(sends) -> str:
    (upload,) = [send.message for send in sends if isinstance(send.message, Upload)]
    return upload.ticket.mask.key


def entropy(purpose: str) -> Callable[[int], bytes]:
    """The same epoch in every process, but nobody's masks twice."""
    return os.urandom if "ann" in purpose else random.Random(purpose).randbytes


def started(store: ParticipantStore) -> Federation:
    federation = Federation(PARAMETERS, cryptography=False, entropy=entropy)
    federation.start(ANN, store)
    return federation


def main(folder: str, mode: str) -> None:
    if mode == "unlocked":
        from basecagg.storage import disk

        disk.lock = lambda descriptor: None
        ParticipantStore._require_fence = lambda self: None
    store = open_store(Path(folder))
    federation = started(store)
    print("ready", flush=True)
    for _ in range(USES):
        if mode in {"asked", "unlocked"}:
            sys.stdin.readline()
        one_upload(federation, store, hasty=mode == "hasty")


if __name__ == "__main__":
    main(*sys.argv[1:])
