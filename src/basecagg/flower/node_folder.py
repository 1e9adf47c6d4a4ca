"""Where a node keeps what must outlive a message: one folder for each federation it takes part in.

Flower's own `context.state` is not for this: it ends with the run or the SuperNode, and travels with every
message.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from flwr.app import Context

from basecagg.errors import DataError
from basecagg.flower.node_store import NodeStore
from basecagg.parameters import Consistency, Correctness
from basecagg.protocol.floor import LocalFloor

BUDGET = "max-epsilon"
"""What a node config has that insists on a budget of privacy."""
_FEDERATION = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class NodeFolder:
    """The folder of one node in one federation."""

    path: Path
    anchors: Path | None
    """Where the counters are kept that give an older copy of the folder away; None for the user's own place."""
    temporary: bool = False
    """Whether all of it is to go when the run is over, as in a simulation."""
    floor: LocalFloor = field(default_factory=LocalFloor)
    """What this node insists on, whatever a ServerApp signs."""

    def open_store(self) -> NodeStore:
        """The node's records in this federation. All share a file: fingerprints and the ledger outlive runs."""
        return NodeStore(self.path.parent / "state.db", self.path.name, self.anchors)


def locate(context: Context, federation: str) -> NodeFolder:
    """The folder, made if need be: below `state-dir` of the node config, or a temporary one in a simulation."""
    if not _FEDERATION.fullmatch(federation):
        raise DataError(f"'{federation}' is not the name of a federation")
    folder = _own(context, federation) or _simulated(context, federation)
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _own(context: Context, federation: str) -> NodeFolder | None:
    chosen = context.node_config.get("state-dir")
    if not chosen:
        return None
    anchors = context.node_config.get("anchor-dir")
    path = Path(str(chosen)).expanduser() / federation
    return NodeFolder(path, Path(str(anchors)) if anchors else None, floor=_floor(context))


def _floor(context: Context) -> LocalFloor:
    """The node's own floor, by its config: min-…, max-epsilon, max-delta, consistency and correctness."""
    config, default = context.node_config, LocalFloor()
    words = {"consistency": get_args(Consistency), "correctness": get_args(Correctness)}
    chosen = {name: str(config.get(name, getattr(default, name))) for name in words}
    for name, word in chosen.items():
        if word not in words[name]:
            raise DataError(f"{name}='{word}' in the node config is none of {words[name]}")
    epsilon = config.get(BUDGET)
    return LocalFloor(
        int(config.get("min-buffer", default.buffer_size)),
        int(config.get("min-colluders", default.max_colluders)),
        cast(Consistency, chosen["consistency"]),
        cast(Correctness, chosen["correctness"]),
        min_per_version=int(config.get("min-per-version", 0)) or None,
        max_epsilon=None if epsilon is None else float(epsilon),
        max_delta=float(config.get("max-delta", default.max_delta)),
    )


def _simulated(context: Context, federation: str) -> NodeFolder:
    simulated = context.run_config.get("basecagg-state-dir")
    # A folder that a run names is another one in the next run, and so would the ledger be.
    named = simulated is not None and BUDGET not in context.node_config
    if not named and not in_simulation():
        raise DataError(
            "this node has no place for its keys and shares: start it with"
            " flower-supernode --node-config \"state-dir='/a/folder/of/its/own'\""
        )
    root = Path(str(simulated)) if simulated else Path(tempfile.gettempdir()) / "basecagg-flower"
    node = root / str(context.run_id) / str(context.node_id)
    return NodeFolder(node / federation, node / "anchors", temporary=True, floor=_floor(context))


def in_simulation() -> bool:
    """Whether this is a worker of Flower's simulation engine, which runs on Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
