"""Which schedule goes with which protection, and why not; and the names that people know the pairs by."""

from __future__ import annotations

from typing import NamedTuple

from basecagg.errors import ParameterError

SCHEDULES = ("synchronous", "immediate", "buffered", "tiered")
PROTECTIONS = ("none", "local-dp", "secagg", "secagg+", "lightsecagg", "basecagg")
CODED = ("lightsecagg", "basecagg")
"""Coded masks: the same machines, in rounds or with a buffer."""
PAIRWISE = ("secagg", "secagg+")
"""Masks that cancel between pairs of users."""


class Pair(NamedTuple):
    """A schedule and a protection."""

    schedule: str
    protection: str


PRESETS = {
    "fedavg": Pair("synchronous", "none"),
    "fedasync": Pair("immediate", "none"),
    "fedbuff": Pair("buffered", "none"),
    "fedat": Pair("tiered", "none"),
    "ldp": Pair("buffered", "local-dp"),
    "secagg": Pair("synchronous", "secagg"),
    "secagg+": Pair("synchronous", "secagg+"),
    "lightsecagg": Pair("synchronous", "lightsecagg"),
    "basecagg": Pair("buffered", "basecagg"),
}

_ONE_BY_ONE = (
    "every update moves the model by itself, and a sum of one update is that update: secure"
    " aggregation needs K ≥ 2 (use the buffered schedule with 'basecagg')"
)
_BY_TIERS = (
    "each tier averages its own users, so each would need users, keys and a sum of its own"
    " (use the buffered schedule with 'basecagg')"
)
_DO_NOT_CANCEL = (
    "its pairwise masks cancel only between users of one round; in a buffer users i and j have"
    " trained from versions t_i ≠ t_j, their seeds a_ij of the two rounds differ, and the masks stay"
    " in the sum (the paper's section 'Incompatibility'; use 'basecagg')"
)
_IMPOSSIBLE = {
    **{Pair("immediate", protection): _ONE_BY_ONE for protection in (*PAIRWISE, *CODED)},
    **{Pair("tiered", protection): _BY_TIERS for protection in (*PAIRWISE, *CODED)},
    **{Pair("buffered", protection): _DO_NOT_CANCEL for protection in PAIRWISE},
    Pair("buffered", "lightsecagg"): (
        "its holders add up shares of one round without weights; with shares of different rounds, each"
        " weighted by its staleness, the same masks are called 'basecagg'"
    ),
}


def require_compatible(schedule: str, protection: str) -> Pair:
    """The pair, or an error with the reason why there is no such thing."""
    for name, value, known in (
        ("schedule", schedule, SCHEDULES),
        ("protection", protection, PROTECTIONS),
    ):
        if value not in known:
            raise ParameterError(
                f"{name} '{value}' is unknown; there are {', '.join(known)}",
                rule=f"{name} is one of {known}",
            )
    pair = Pair(schedule, protection)
    if pair in _IMPOSSIBLE:
        raise ParameterError(
            f"'{protection}' cannot protect the {schedule} schedule: {_IMPOSSIBLE[pair]}",
            rule="schedule and protection fit together",
        )
    return pair


def preset(name: str) -> Pair:
    """The pair that a well-known name stands for."""
    if name not in PRESETS:
        raise ParameterError(
            f"method '{name}' is unknown; there are {', '.join(PRESETS)}", rule="a known method"
        )
    return PRESETS[name]
