"""`basecagg plan`: choose parameters for a federation and show what they cost."""

from __future__ import annotations

import json
from typing import Annotated, Any

import click
from rich.console import Console

from basecagg.commands import _options
from basecagg.commands._options import options
from basecagg.commands._program import load_kernels
from basecagg.commands._wishes import WishOptions, plan_for
from basecagg.costs import Network
from basecagg.options import Count, Odds, Positive
from basecagg.planning import planner
from basecagg.planning.rendering import as_dict

_LINE = planner.DEFAULT_NETWORK


class _PlanOptions(WishOptions):
    holders: int
    model_size: Annotated[int, _options.size]
    """d: numbers in one update; 1e6 is fine."""
    contributors: Count | None = None
    """Users who send updates; their masks fill a holder's store. Not set: N."""
    liars_among_contributors: Odds | None = None
    """The share of contributors that may send bad updates, such as 0.05: what several sums for a version
    would take. So far only simulations have them."""
    up: Annotated[Positive, "Mb/s"] = _LINE.up
    """Speed at which a user sends, in megabits per second."""
    down: Annotated[Positive, "Mb/s"] = _LINE.down
    """Speed at which a user receives, in megabits per second."""
    cpu: Annotated[bool, "--cpu/--no-cpu"] = True
    """Time small pieces of the work on this machine to predict processor time."""
    as_json: Annotated[bool, "--json"] = False
    """Print the plan as JSON."""


@click.command("plan")
@options(_PlanOptions)
def command(
    *, holders: int, up: float, down: float, cpu: bool, as_json: bool, **wishes: Any
) -> None:
    """Choose parameters for a federation and show what they cost.

    Say what the federation is and what it must withstand. The planner chooses the recovery threshold U,
    the colluders T and the buffer size K where you did not, and the quantisation levels c_l and c_g. It
    proves with numbers that no sum can wrap around the field, counts bytes and storage, predicts
    processor time, and shows how all that changes with U. A wish that cannot be met is answered with the
    reason and the nearest ones that can.

    \b
    Example: 100 phones, of which 30 may vanish, and a model of a million numbers:
      basecagg plan --holders 100 --max-dropouts 0.3 --model-size 1e6
    The same, but 20 holders may collude and 5 may answer wrongly:
      basecagg plan --holders 100 --max-dropouts 0.3 --max-colluders 20 --liars 5 --model-size 1e6
    Thirty holders, 6000 users, each of whom uploads three times with ε = 4 in all:
      basecagg plan --holders 30 --model-size 7850 --contributors 6000 --buffer-size 600
      --epsilon 4 --delta 1e-5 --max-uses 3 --clip-norm 0.3
    """
    plan = plan_for(holders, network=Network(up=up, down=down), **wishes)
    if cpu:
        load_kernels()
        plan = plan.measured()
    if as_json:
        click.echo(json.dumps(as_dict(plan), indent=2, ensure_ascii=False))
    else:
        Console().print(plan)
