"""Federations whose sums are private: K = 3, one of them silent, three uploads each."""

from __future__ import annotations

from parties import make_federation

from basecagg.maths.staleness import constant
from basecagg.privacy import Privacy

NOISE = {"noise": 2.0, "epsilon": 5.0, "delta": 1e-5, "max_uses": 3}


def private(levels=2**10, staleness=constant(), **changes) -> dict:  # noqa: B008 - frozen
    """Changes to the usual parameters of a test."""
    privacy = Privacy(**({"clip_norm": 1.0} | (NOISE | changes)))
    return {
        "privacy": privacy,
        "update_levels": levels,
        "weights": "own",
        "weight_levels": None,
        "staleness": staleness,
    }


def bounded(**changes) -> dict:
    """The same without noise: only lengths are bounded."""
    return private(**({"noise": 0.0, "epsilon": None} | changes))


def make(options: dict | None = None, **changes):
    """Contributors may upload again and again from one version: what counts here is what it costs them."""
    chosen = private() if options is None else options
    return make_federation(**({"repeated_versions": True} | chosen | changes))
