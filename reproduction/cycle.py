"""One full cycle of a federation in memory: masks are dealt, updates uploaded, and their sum opens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from basecagg.errors import DecodingError
from basecagg.simulation.federation import Federation
from reproduction import bench

Vector = npt.NDArray[np.float32]


def run_cycle(
    federation: Federation | bench.Federation, updates: Sequence[Vector] | Vector
) -> None:
    """Holders deal, train (here: have an update), mask and upload. No update may be masked twice."""
    server, network = federation.server, federation.network
    names = federation.agreement.holder_names[: len(updates)]
    version, digest = server.version, server.head
    for name in names:
        federation.deal(name)
    network.run()
    for name, update in zip(names, updates, strict=True):
        federation.submit(name, update, version, digest)
        network.run()
    if server.version != version + 1:
        raise DecodingError(f"the sum did not open: {network.refusals[:3]}")
