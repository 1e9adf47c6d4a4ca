"""`basecagg plan`: choose parameters for a federation and show what they cost."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from basecagg.commands import _values
from basecagg.commands._kernels import load_kernels
from basecagg.commands._wishes import plan_for, wishes_options
from basecagg.costs import Network
from basecagg.planning import planner
from basecagg.planning.rendering import as_dict

_LINE = planner.DEFAULT_NETWORK


@click.command("plan", short_help="Choose parameters for a federation and show what they cost.")
@click.option(
    "--holders", "num_holders", type=int, required=True, metavar="N", help="Holders of shares, N."
)
@wishes_options()
@click.option(
    "--model-size",
    type=_values.size,
    required=True,
    metavar="d",
    help="Numbers in one update, d; 1e6 is fine.",
)
@click.option(
    "--contributors",
    type=click.IntRange(min=1),
    help="Users who send updates; their masks fill a holder's store. N unless given.",
)
@click.option(
    "--up",
    type=click.FloatRange(min=0, min_open=True),
    default=_LINE.up,
    metavar="Mb/s",
    help="Speed at which a user sends, in megabits per second.",
)
@click.option(
    "--down",
    type=click.FloatRange(min=0, min_open=True),
    default=_LINE.down,
    metavar="Mb/s",
    help="Speed at which a user receives, in megabits per second.",
)
@click.option(
    "--cpu/--no-cpu",
    default=True,
    help="Time small pieces of the work on this machine to predict processor time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    *, num_holders: int, up: float, down: float, cpu: bool, as_json: bool, **wishes: Any
) -> None:
    """Choose parameters for a federation and show what they cost.

    Say what the federation is and what it must withstand. The planner chooses the recovery threshold U,
    the colluders T and the buffer size K where you did not, and the quantisation levels c_l and c_g. It
    proves with numbers that no sum can wrap around the field, counts bytes and storage, predicts
    processor time, and shows how all that changes with U. A wish that cannot be met is answered with the
    reason and the nearest ones that can.

    \b
    Example: 100 phones, of which 30 may vanish, and a model of a million numbers:
      basecagg plan --holders 100 --dropouts 0.3 --model-size 1e6
    The same, but 20 holders may collude and 5 may answer wrongly:
      basecagg plan --holders 100 --dropouts 0.3 --colluders 20 --liars 5 --model-size 1e6
    Thirty holders, 6000 users, each of whom uploads three times with ε = 4 in all:
      basecagg plan --holders 30 --dropouts 0.3 --model-size 7850 --contributors 6000 --buffer 600
      --epsilon 4 --delta 1e-5 --uses 3 --clip-norm 0.3
    """
    plan = plan_for(num_holders, network=Network(up=up, down=down), **wishes)
    if cpu:
        load_kernels()
        plan = plan.measured()
    if as_json:
        click.echo(json.dumps(as_dict(plan), indent=2, ensure_ascii=False))
    else:
        Console().print(plan)
