"""What the planner is asked for, on the command line: the same options for `plan` and for `operator start`."""

from __future__ import annotations

from typing import Annotated, Any

from basecagg.commands import _options
from basecagg.commands._options import Portion
from basecagg.options import (
    Count,
    MaskOptions,
    PromiseOptions,
    SumOptions,
    TrustOptions,
    WeightOptions,
)
from basecagg.planning.budget import Budget
from basecagg.planning.planner import Plan, plan

_BUDGET = ("delta", "clip_norm", "max_uses", "unit", "sampling_rate", "records")


class WishOptions(SumOptions, WeightOptions, MaskOptions, TrustOptions, PromiseOptions):
    """What a federation withstands and promises."""

    max_dropouts: Annotated[Any, _options.portion] = "30%"
    """A number (30) or a part (0.3 or 30%)."""
    max_colluders: Annotated[Any, _options.portion] = None
    """A number or a part."""
    update_levels: Count | None = None
    """Not set: the largest power of two with which no sum can wrap around. With keys words have three bytes
    where that leaves 2¹⁵, else four."""
    staleness: Annotated[str, _options.staleness, "S"] = WeightOptions.staleness


def plan_for(
    num_holders: int,
    *,
    max_dropouts: Portion,
    max_colluders: Portion | None,
    epsilon: float | None,
    **others: Any,
) -> Plan:
    """The plan for what was typed, with this many holders."""
    promised = {name: others.pop(name) for name in _BUDGET}
    return plan(
        budget=None if epsilon is None else Budget(epsilon=epsilon, **promised),
        num_holders=num_holders,
        max_dropouts=max_dropouts.of(num_holders),
        max_colluders=None if max_colluders is None else max_colluders.of(num_holders),
        **others,
    )
