"""Who holds shares: chosen among the nodes that are there before the epoch is signed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from operator import attrgetter

from basecagg.errors import LocalProtocolError
from basecagg.flower.node_view import NodeView
from basecagg.flower.settings import Settings

_HOPELESS = 3
"""Failures in a row after which nobody waits for a node; when all fail so, the app must be at fault."""


def choose_holders(
    settings: Settings, present: Sequence[NodeView], chooser: random.Random
) -> list[NodeView] | None:
    """The holders, in the order of their names; None while too few have shown their keys."""
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
