"""Which schedule goes with which protection, and why not; and the names that people know the pairs by."""

from __future__ import annotations

from typing import NamedTuple

from basecagg.errors import ParameterError

SCHEDULES = ("synchronous", "immediate", "buffered", "tiered")
PROTECTIONS = ("none", "local-dp", "basecagg")


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
    "basecagg": Pair("buffered", "basecagg"),
}

_IMPOSSIBLE = {
    Pair("immediate", "basecagg"): (
        "every update moves the model by itself, and a sum of one update is that update: secure"
        " aggregation needs K ≥ 2 (use the buffered schedule)"
    ),
    Pair("tiered", "basecagg"): (
        "each tier averages its own users, so each would need an epoch, holders and a buffer of its"
        " own (use the buffered schedule)"
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
