"""All protections by name, the schedules that each goes with, and well-known pairs such as FedBuff."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from basecagg.baselines.local_noise import AtUser, Noisy, Trusting
from basecagg.errors import ParameterError
from basecagg.maths.staleness import constant
from basecagg.planning.budget import noise_of, private_sums
from basecagg.privacy import Mechanism
from basecagg.simulation.timing import SCHEDULES, Timetable

Masks = Literal["none", "trusted", "pairwise", "coded"]
"""Nothing hides an update from the server; nor from one that adds noise to its sums; masks that cancel between
pairs of users; masks shared by a code."""

IN_ROUNDS: Mapping[str, Any] = MappingProxyType(
    {"staleness": constant(), "weight_levels": 1, "max_staleness": 0, "masks": "long"}
)
"""What makes `ProtocolParameters` those of LightSecAgg (So et al. 2021), which is BASecAgg in rounds: all t_i
are equal, nothing is stale, nothing weighed. s = 1, c_g = 1, τ_max = 0, and a mask is as long as the model."""

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
_NOT_WEIGHTED = (
    "its holders add up shares of one round without weights; with shares of different rounds, each"
    " weighted by its staleness, the same masks are called 'basecagg'"
)
_NOTHING_SUMMED = "nothing is summed that a trusted server could add noise to (use 'local-dp')"
_NO_COMMON_SUM = {"immediate": _ONE_BY_ONE, "tiered": _BY_TIERS}


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How updates are protected, and everything that other files need to know about it."""

    saw: str
    """What the server sees, for reports of runs without a transcript."""
    masks: Masks = "none"
    refuses: Mapping[str, str] = field(default_factory=dict)
    """The kinds of schedules that it does not go with, each with the reason."""
    fixes: Mapping[str, Any] = field(default_factory=dict)
    """The `ProtocolParameters` that it fixes."""
    sparse: bool = False
    """Of pairwise masks: each user has masks with a few others, not with all."""
    at_user: Callable[[Any], AtUser] = lambda settings: AtUser()
    """Makes, from the settings of a run, what users do with an update before anybody else sees it."""
    private: Callable[[Any, int, int], Mechanism] | None = None
    """Makes the mechanism of private sums from the settings of a run, d and T_c."""
    noisy: bool = False
    """Whether the settings of differential privacy matter."""

    @property
    def masked(self) -> bool:
        """Whether a mask covers every number, so that an upload is as long as the model, whatever is in it."""
        return self.masks in ("pairwise", "coded")


def _local_noise(kind: type[Noisy]) -> Callable[[Any], AtUser]:
    return lambda s: kind(s.clip_norm, noise_of(s), s.delta, s.max_uses)


_PAIRWISE = Protection(
    saw="masked updates and the sum of each round.",
    masks="pairwise",
    refuses=_NO_COMMON_SUM | {"buffered": _DO_NOT_CANCEL},
)
PROTECTIONS: dict[str, Protection] = {
    "none": Protection(saw="every single update, in clear."),
    "local-dp": Protection(
        saw="every single update, with each user's own noise on it.",
        at_user=_local_noise(Noisy),
        noisy=True,
    ),
    "central-dp": Protection(
        saw="every single update, in clear; it is trusted to add noise to their sums.",
        masks="trusted",
        refuses={"immediate": _NOTHING_SUMMED, "tiered": _NOTHING_SUMMED},
        at_user=_local_noise(Trusting),
        noisy=True,
    ),
    "secagg": _PAIRWISE,
    "secagg+": replace(_PAIRWISE, sparse=True),
    "lightsecagg": Protection(
        saw="masked updates and the sum of each round; this run kept no transcript.",
        masks="coded",
        refuses=_NO_COMMON_SUM | {"buffered": _NOT_WEIGHTED},
        fixes=IN_ROUNDS,
    ),
    "basecagg": Protection(
        saw="masked updates and the weighted sums that were opened; this run kept no transcript.",
        masks="coded",
        refuses=_NO_COMMON_SUM,
    ),
    "basecagg-dp": Protection(
        saw="masked updates and sums with noise that were opened; this run kept no transcript.",
        masks="coded",
        refuses=_NO_COMMON_SUM,
        private=private_sums,
        noisy=True,
    ),
}
"""Every protection there is."""


class Pair(NamedTuple):
    """A schedule and a protection."""

    schedule: str
    protection: str

    @property
    def guard(self) -> Protection:
        """The protection itself."""
        return PROTECTIONS[self.protection]

    @property
    def timetable(self) -> Timetable:
        """The schedule itself."""
        return SCHEDULES[self.schedule]


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
    "cdp": Pair("buffered", "central-dp"),
    "basecagg-dp": Pair("buffered", "basecagg-dp"),
}


def require_compatible(schedule: str, protection: str) -> Pair:
    """Return the pair, or raise the reason why the two do not go together."""
    _require_known("schedule", schedule, SCHEDULES)
    _require_known("protection", protection, PROTECTIONS)
    pair = Pair(schedule, protection)
    if reason := pair.guard.refuses.get(pair.timetable.kind):
        raise ParameterError(
            f"'{protection}' cannot protect the {schedule} schedule: {reason}",
            rule="schedule and protection fit together",
        )
    return pair


def preset(name: str) -> Pair:
    """The pair that a well-known name stands for."""
    _require_known("method", name, PRESETS)
    return PRESETS[name]


def _require_known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        names = ", ".join(known)
        raise ParameterError(
            f"{what} '{name}' is unknown; there are {names}", rule=f"{what} is one of {names}"
        )
