"""What the planner is asked for, on the command line: the same words for `plan` and for `operator start`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import click

from basecagg.commands import _values
from basecagg.commands._options import POSITIVE, Count, Delta, Option, Part, options, stacked
from basecagg.maths.staleness import forms
from basecagg.planning.budget import Budget
from basecagg.planning.planner import DEFAULT_BUFFER, Plan, plan
from basecagg.privacy import Unit

_BUDGET = ("delta", "clip_norm", "unit", "sampling_rate", "records")


class _Sums:
    colluders: Annotated[str | None, _values.portion, "T"] = None
    """Holders that may pool all they know and must learn nothing, T: a number or a part. Without it the planner
    chooses."""
    liars: Annotated[int, click.IntRange(min=0), "E"] = 0
    """Holders that may lie without stopping a sum, even when D others are gone, E ≤ T.
    Needs U ≤ N − D − T − E."""
    correctness: Literal["agreed", "honest-holders"] | None = None
    """Open a sum when U + T answers agree, so that T liars cannot write it, or from any U (as the paper does).
    Without it agreed, if the server may cheat."""
    buffer_size: Annotated[int | None, "--buffer", "K"] = None
    """Updates in one sum, K. Without it {buffer}, or more if T asks for it."""
    min_per_version: Annotated[Count | None, "m"] = None
    """Members that each version in a sum must have, m: nobody is alone with a model that only he was shown.
    Without it 3, or 1 with honest-server."""
    clip: Annotated[float, "B"] = 4.0
    """Largest magnitude of a number in an update, B. Contributors clip to it."""
    staleness: Annotated[str, _values.staleness, "S"] = "polynomial:1"
    """Weight of an update by its age: {forms}."""
    max_staleness: Annotated[int, "τ"] = 10
    """Versions that an update may be old."""
    consistency: Literal["certified", "honest-server"] = "certified"
    """Hold against a server that cheats, or trust it to follow the protocol (as the paper does)."""


class _Privacy:
    delta: Delta = 1e-6
    """The δ that goes with ε: well below one over the number of users."""
    uses: Annotated[Count, "k"] = 1
    """Uploads of one user that ε has to cover, k_max."""
    clip_norm: Annotated[float, POSITIVE, "C"] = 1.0
    """With ε: the 2-norm to which an update is clipped, or what each record adds to it, C."""
    silent: Annotated[Count | None, "T_c"] = None
    """Contributors that may work with the server, and with ε add no noise. T unless given."""
    unit: Unit = "user"
    """Whose ε it is: of all that a user uploads, or of each record of its data (hospitals)."""
    sampling_rate: Annotated[Part, "P"] = 1.0
    """With --unit record: the probability with which a record is in an upload."""
    records: Annotated[Count, "n"] = 1
    """With --unit record: how many records one contributor has, about."""


def wishes_options(dropouts: str | None = None, epsilon: str = "--epsilon") -> Option:
    """The options; D has to be given unless there is a default for it. `epsilon` is how ε is called."""
    default = {"required": True} if dropouts is None else {"default": dropouts}
    return stacked(
        click.option(
            "--dropouts",
            type=_values.portion,
            metavar="D",
            help="Holders that may be gone when a sum is opened, D: a number (30) or a part (0.3 or 30%).",
            **default,
        ),
        options(_Sums, buffer=DEFAULT_BUFFER, forms=forms()),
        click.option(
            epsilon,
            "budget_epsilon",
            type=POSITIVE,
            metavar="ε",
            help="Differential privacy: ε of all that one user uploads, or of each of its records. The planner"
            " chooses noise and levels.",
        ),
        options(_Privacy),
    )


def plan_for(
    num_holders: int,
    *,
    dropouts: _values.Portion,
    colluders: _values.Portion | None,
    budget_epsilon: float | None,
    uses: int,
    **others: Any,
) -> Plan:
    """The plan for what was typed, and so many holders."""
    promised = {name: others.pop(name) for name in _BUDGET}
    budget = None
    if budget_epsilon is not None:
        budget = Budget(epsilon=budget_epsilon, max_uses=uses, **promised)
    return plan(
        budget=budget,
        num_holders=num_holders,
        max_dropouts=dropouts.of(num_holders),
        max_colluders=None if colluders is None else colluders.of(num_holders),
        **others,
    )
