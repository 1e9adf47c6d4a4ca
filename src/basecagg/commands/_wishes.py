"""What the planner is asked for, on the command line: the same words for `plan` and for `operator start`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from basecagg.commands import _values
from basecagg.maths.staleness import forms
from basecagg.planning.planner import DEFAULT_BUFFER, Plan, plan
from basecagg.privacy import Unit
from basecagg.protections.budget import Budget

_COLLUDERS = click.option(
    "--colluders",
    type=_values.portion,
    metavar="T",
    help="Holders that may pool all they know and must learn nothing, T: a number or a part."
    " Without it the planner chooses.",
)
_LIARS = click.option(
    "--liars",
    type=click.IntRange(min=0),
    default=0,
    metavar="E",
    help="Holders that may lie without stopping a sum, even when D others are gone, E ≤ T."
    " Needs U ≤ N − D − T − E.",
)
_CORRECTNESS = click.option(
    "--correctness",
    type=click.Choice(["agreed", "honest-holders"]),
    help="Open a sum when U + T answers agree, so that T liars cannot write it, or from any U (as the paper"
    " does). Without it agreed, if the server may cheat.",
)
_BUFFER = click.option(
    "--buffer",
    "buffer_size",
    type=int,
    metavar="K",
    help=f"Updates in one sum, K. Without it {DEFAULT_BUFFER}, or more if T asks for it.",
)
_MIN_PER_VERSION = click.option(
    "--min-per-version",
    type=click.IntRange(min=1),
    metavar="m",
    help="Members that each version in a sum must have, m: nobody is alone with a model that only he was shown."
    " Without it 3, or 1 with honest-server.",
)
_CLIP = click.option(
    "--clip",
    type=float,
    default=4.0,
    metavar="B",
    help="Largest magnitude of a number in an update, B. Contributors clip to it.",
)
_STALENESS = click.option(
    "--staleness",
    type=_values.staleness,
    default="polynomial:1",
    metavar="S",
    help=f"Weight of an update by its age: {forms()}.",
)
_MAX_STALENESS = click.option(
    "--max-staleness",
    type=int,
    default=10,
    metavar="τ",
    help="Versions that an update may be old.",
)
_CONSISTENCY = click.option(
    "--consistency",
    type=click.Choice(["certified", "honest-server"]),
    default="certified",
    help="Hold against a server that cheats, or trust it to follow the protocol (as the paper does).",
)


_DELTA = click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-6,
    metavar="δ",
    help="The δ that goes with ε: well below one over the number of users.",
)
_USES = click.option(
    "--uses",
    type=click.IntRange(min=1),
    default=1,
    metavar="k",
    help="Uploads of one user that ε has to cover, k_max.",
)
_CLIP_NORM = click.option(
    "--clip-norm",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    metavar="C",
    help="With ε: the 2-norm to which an update is clipped, or what each record adds to it, C.",
)
_SILENT = click.option(
    "--silent",
    type=click.IntRange(min=1),
    metavar="T_c",
    help="Contributors that may work with the server, and with ε add no noise. T unless given.",
)


_UNIT = click.option(
    "--unit",
    type=click.Choice(["user", "record"]),
    default="user",
    help="Whose ε it is: of all that a user uploads, or of each record of its data (hospitals).",
)
_RATE = click.option(
    "--sampling-rate",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="P",
    help="With --unit record: the probability with which a record is in an upload.",
)
_RECORDS = click.option(
    "--records",
    type=click.IntRange(min=1),
    default=1,
    metavar="n",
    help="With --unit record: how many records one contributor has, about.",
)


def wishes_options(dropouts: str | None = None, epsilon: str = "--epsilon") -> _values.Option:
    """The options; D has to be given unless there is a default for it. `epsilon` is how ε is called."""
    default = {"required": True} if dropouts is None else {"default": dropouts}
    options = (
        click.option(
            "--dropouts",
            type=_values.portion,
            metavar="D",
            help="Holders that may be gone when a sum is opened, D: a number (30) or a part (0.3 or 30%).",
            **default,
        ),
        *(_COLLUDERS, _LIARS, _CORRECTNESS, _BUFFER, _MIN_PER_VERSION),
        *(_CLIP, _STALENESS, _MAX_STALENESS, _CONSISTENCY),
        click.option(
            epsilon,
            "budget_epsilon",
            type=click.FloatRange(min=0, min_open=True),
            metavar="ε",
            help="Differential privacy: ε of all that one user uploads, or of each of its records. The planner"
            " chooses noise and levels.",
        ),
        *(_DELTA, _USES, _CLIP_NORM, _SILENT, _UNIT, _RATE, _RECORDS),
    )
    return stacked(options)


def stacked(options: tuple[_values.Option, ...]) -> _values.Option:
    """All these options as one decorator, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def plan_for(
    num_holders: int,
    *,
    dropouts: _values.Portion,
    colluders: _values.Portion | None,
    budget_epsilon: float | None,
    delta: float,
    uses: int,
    clip_norm: float,
    unit: Unit = "user",
    sampling_rate: float = 1.0,
    records: int = 1,
    **others: Any,
) -> Plan:
    """The plan for what was typed, and so many holders."""
    budget = None
    if budget_epsilon is not None:
        budget = Budget(
            epsilon=budget_epsilon,
            delta=delta,
            max_uses=uses,
            clip_norm=clip_norm,
            unit=unit,
            sampling_rate=sampling_rate,
            records=records,
        )
    return plan(
        budget=budget,
        num_holders=num_holders,
        max_dropouts=dropouts.of(num_holders),
        max_colluders=None if colluders is None else colluders.of(num_holders),
        **others,
    )
