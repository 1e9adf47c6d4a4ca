"""Where a node keeps what must outlive a message: one folder for each federation it takes part in.

Flower's own `context.state` is not for this: it ends with the run or the SuperNode, and travels with every
message.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import Context

from basecagg import options
from basecagg.errors import DataError
from basecagg.protocol.effects import Write, writes_of
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.storage.participant_store import ParticipantStore

BUDGET = "max-epsilon"
"""The entry of a node config that insists on a budget of privacy."""
_FLOOR = {
    "min-buffer": "buffer_size",
    "min-colluders": "max_colluders",
    "min-per-version": "min_per_version",
    "field-weights": "field_weights",
    "long-masks": "long_masks",
    "max-burns": "max_burns",
    BUDGET: "max_epsilon",
    "max-delta": "max_delta",
    "consistency": "consistency",
    "correctness": "correctness",
}
"""Entries of a node config, and the fields of its floor."""
_LEDGER, _NAMESPACE = "ledger", "privacy"
_FEDERATION = re.compile(r"[0-9a-f]{32}")


class NodeStore(ParticipantStore):
    """A node's records in one federation, with the ledger of its privacy, which all its federations share.

    On Flower every run is a federation of its own. A budget for each would be none: so the ledger lies in a
    namespace beside theirs, with an anchor of its own, and is written before anything that it pays for.
    """

    def __init__(self, path: Path, federation: str, anchors: Path | None) -> None:
        """Open the federation's records; the ledger is opened when it is first asked for."""
        super().__init__(path, federation, anchor_folder=anchors)
        self._anchors = anchors

    @cached_property
    def _ledger(self) -> ParticipantStore:
        """The ledger's records. An older copy does not know what was uploaded since: all counts as spent."""
        store = ParticipantStore(self.path, _NAMESPACE, anchor_folder=self._anchors)
        if store.rolled_back:
            store.commit(writes_of([PrivacyLedger(store).exhaust()]))
        return store

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""
        return self._ledger.read(kind, key) if kind == _LEDGER else super().read(kind, key)

    def keys(self, kind: str) -> list[str]:
        """Return all keys of a kind, in order."""
        return self._ledger.keys(kind) if kind == _LEDGER else super().keys(kind)

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        return self._ledger.scan(kind) if kind == _LEDGER else super().scan(kind)

    def commit(self, writes: Sequence[Write]) -> None:
        """The ledger first: a crash in between counts an upload that was never made, and not the reverse."""
        payments = [write for write in writes if write.kind == _LEDGER]
        if payments:
            self._ledger.commit(payments)
        super().commit([write for write in writes if write.kind != _LEDGER])

    def close(self) -> None:
        """Close both."""
        super().close()
        if "_ledger" in vars(self):
            self._ledger.close()


@dataclass(frozen=True)
class NodeFolder:
    """The folder of one node in one federation."""

    path: Path
    anchors: Path | None
    """Where the counters are kept that give an older copy of the folder away; None for the user's own place."""
    temporary: bool = False
    """Whether all of it is to go when the run is over, as in a simulation."""
    floor: LocalFloor = field(default_factory=LocalFloor)
    """What this node insists on; it declines epochs that promise less."""

    def open_store(self) -> NodeStore:
        """The node's records in this federation. All share a file: fingerprints and the ledger outlive runs."""
        return NodeStore(self.path.parent / "state.db", self.path.name, self.anchors)


def locate(context: Context, federation: str) -> NodeFolder:
    """The folder, made if need be: below `state-dir` of the node config, or a temporary one in a simulation."""
    if not _FEDERATION.fullmatch(federation):
        raise DataError(f"'{federation}' is not the name of a federation")
    state, anchors = (context.node_config.get(name) for name in ("state-dir", "anchor-dir"))
    floor = _floor(context)
    if state:
        path = Path(str(state)).expanduser() / federation
        folder = NodeFolder(path, Path(str(anchors)) if anchors else None, floor=floor)
    else:
        node = _simulated(context)
        folder = NodeFolder(node / federation, node / "anchors", temporary=True, floor=floor)
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def permission(context: Context, name: str) -> object:
    """What the node config allows under this name, or the run config where the node config is silent.

    A node that insists on a budget tells nothing that the budget does not cover: only its config can allow it.
    """
    by_run = None if BUDGET in context.node_config else context.run_config.get(name)
    return context.node_config.get(name, by_run)


def _floor(context: Context) -> LocalFloor:
    """The node's own floor, by its config."""
    config: Any = context.node_config
    floor = LocalFloor(**{_FLOOR[name]: config[name] for name in _FLOOR if name in config})
    options.check(floor, " in the node config")
    return floor


def _simulated(context: Context) -> Path:
    """The folder of a node whose config names none."""
    simulated = context.run_config.get("basecagg-state-dir")
    # A folder that a run names is another one in the next run, and so would the ledger be.
    named = simulated is not None and BUDGET not in context.node_config
    if not named and not in_simulation():
        raise DataError(
            "this node has no place for its keys and shares: start it with"
            " flower-supernode --node-config \"state-dir='/a/folder/of/its/own'\""
        )
    root = Path(str(simulated)) if simulated else Path(tempfile.gettempdir()) / "basecagg-flower"
    return root / str(context.run_id) / str(context.node_id)


def in_simulation() -> bool:
    """Whether this is a worker of Flower's simulation engine, which runs on Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
