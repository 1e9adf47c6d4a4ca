"""Who is who: one name and one key for every node of a run, bound at its first hello; and who holds shares.

The operator signs a credential for whatever is on the roll. Were a node believed under several names, it alone
could fill a buffer but for one place.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from operator import attrgetter

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack
from basecagg.errors import ChannelError, LocalProtocolError, Malformed, NotEnrolled
from basecagg.flower.node_view import NodeView
from basecagg.flower.settings import Settings
from basecagg.flower.visits import NodeReport
from basecagg.protocol.effects import Persist, Store
from basecagg.protocol.messages import HolderKey, statement

_KIND = "roll"
_HOPELESS = 3
"""Failures in a row after which nobody waits for a node; when all fail so, the app must be at fault."""


class Roll:
    """The names of a run, each with its node and its signing key. The keys outlive a server that restarts."""

    def __init__(self, store: Store) -> None:
        """Go on with the names that the store has."""
        self._store = store
        self._keys = dict(store.scan(_KIND))
        self._nodes: dict[str, int] = {}

    def require(self, node_id: int, name: str) -> None:
        """Refuse a node that speaks under a name which is not its own."""
        if self._nodes.get(name) != node_id:
            raise NotEnrolled(f"it calls itself {name!r:.80}, which is not its name in this run")

    def bind(self, node_id: int, report: NodeReport, present: Container[int]) -> HolderKey:
        """Write a node down under the name and key that it shows, or refuse; give what to seal to.

        A node is called by its id. One that came back under another id may keep the name it had, if the name is
        bound to its key and nobody who is there has it.
        """
        name, key = report.name, report.signing_key
        announced = _read(report)
        is_known, is_own = self._keys.get(name) == key, name == str(node_id)
        if not (is_own or is_known):
            raise NotEnrolled(f"it calls itself {name!r:.80}: neither its id nor bound to its key")
        taken = self._nodes.get(name, node_id)
        if taken != node_id and taken in present and not (is_own and is_known):
            raise NotEnrolled(f"the name {name} is bound to node {taken}")
        if any(bound == node_id and each != name for each, bound in self._nodes.items()):
            raise NotEnrolled(f"it has another name in this run than {name}")
        if any(bound == key and each != name for each, bound in self._keys.items()):
            raise NotEnrolled("it shows the key of somebody else")
        self._nodes[name] = node_id
        if not is_known:
            self._keys[name] = key
            self._store.commit([Persist(_KIND, name, key)])
        return announced


def choose_holders(
    settings: Settings, present: Sequence[NodeView], chooser: random.Random
) -> list[NodeView] | None:
    """The holders of an epoch, in the order of their names; None while too few nodes have shown their keys."""
    wanted, least = settings.holders, settings.min_available_nodes
    name = attrgetter("name")
    met = sorted((view for view in present if view.signing_key), key=name)
    if wanted is None:
        awaited = any(view.failures < _HOPELESS for view in present if not view.signing_key)
        return met if len(met) >= max(2, least) and not awaited else None
    if isinstance(wanted, int):
        enough = len(met) >= max(wanted, least)
        return sorted(chooser.sample(met, wanted), key=name) if enough else None
    named = [view for view in met if view.node_id in set(wanted)]
    return named if len(named) == len(wanted) else None


def require_hope(present: Sequence[NodeView]) -> None:
    """End a run in which no node can show its keys."""
    if present and all(not v.signing_key and v.failures >= _HOPELESS for v in present):
        raise LocalProtocolError(
            "no node can take part. Has every node ClientApp(mods=[basecagg_mod]), for training and for"
            " evaluation, before any mod that looks at arrays or configs? One says:"
            f" {present[0].problem}"
        )


def _read(report: NodeReport) -> HolderKey:
    """The sealing key that a node announces, if it is one and the node signed it."""
    try:
        said = unpack(report.holder_key, MAX_CONTROL_BYTES)
    except ChannelError as error:
        raise Malformed(f"it shows no sealing key: {error}") from None
    verifier = Ed25519Verifier()
    if not (
        isinstance(said, HolderKey)
        and said.name == report.name
        and verifier.verify(report.signing_key, statement(said), said.signature)
        and verifier.fits(said.suite, said.sealing_key)
    ):
        raise Malformed("it shows keys that are not its own, or that nobody could use")
    return said
