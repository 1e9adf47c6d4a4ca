"""`basecagg plan`: choose parameters for a federation and show what they cost."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from basecagg.commands import _values
from basecagg.commands._kernels import load_kernels
from basecagg.planning import planner, rendering
from basecagg.planning.budget import Budget
from basecagg.planning.costs import Network

_LINE = planner.DEFAULT_NETWORK


@click.command("plan", short_help="Choose parameters for a federation and show what they cost.")
@click.option(
    "--users", "num_users", type=int, required=True, metavar="N", help="Holders of shares, N."
)
@click.option(
    "--dropouts",
    type=_values.portion,
    required=True,
    metavar="D",
    help="Holders that may be gone when a sum is opened, D: a number (30) or a part (0.3 or 30%).",
)
@click.option(
    "--colluders",
    type=_values.portion,
    metavar="T",
    help="Holders that may pool all they know and must learn nothing, T: a number or a part."
    " Without it the planner chooses.",
)
@click.option(
    "--liars",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="E",
    help="Holders that may lie without stopping a sum, even when D others are gone, E ≤ T."
    " Needs U ≤ N − D − T − E.",
)
@click.option(
    "--correctness",
    type=click.Choice(["agreed", "honest-holders"]),
    help="Open a sum when U + T answers agree, so that T liars cannot write it, or from any U (as the paper"
    " does). Without it agreed, if the server may cheat.",
)
@click.option(
    "--model-size",
    type=_values.size,
    required=True,
    metavar="d",
    help="Numbers in one update, d; 1e6 is fine.",
)
@click.option(
    "--clip",
    type=float,
    default=4.0,
    show_default=True,
    metavar="B",
    help="Largest magnitude of a number in an update, B. Contributors clip to it.",
)
@click.option(
    "--buffer",
    "buffer_size",
    type=int,
    metavar="K",
    help=f"Updates in one sum, K. Without it {planner.DEFAULT_BUFFER}, or more if T asks for it.",
)
@click.option(
    "--min-per-version",
    type=click.IntRange(min=1),
    metavar="m",
    help="Members that each version in a sum must have, m: nobody is alone with a model that only he was shown."
    " Without it 3, or 1 with honest-server.",
)
@click.option(
    "--contributors",
    type=click.IntRange(min=1),
    help="Users who send updates; their masks fill a holder's store. N unless given.",
)
@click.option(
    "--staleness",
    type=_values.staleness,
    default="polynomial:1",
    show_default=True,
    metavar="S",
    help="Weight of an update by its age: constant, polynomial:α or hinge:a:b.",
)
@click.option(
    "--max-staleness",
    type=int,
    default=10,
    show_default=True,
    metavar="τ",
    help="Versions that an update may be old.",
)
@click.option(
    "--epsilon",
    type=click.FloatRange(min=0, min_open=True),
    metavar="ε",
    help="Differential privacy: ε of all that one user uploads. The planner chooses noise z and levels c_l.",
)
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-6,
    show_default=True,
    metavar="δ",
    help="The δ that goes with --epsilon: well below one over the number of users.",
)
@click.option(
    "--uses",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="k",
    help="Uploads of one user that --epsilon has to cover, k_max.",
)
@click.option(
    "--clip-norm",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="C",
    help="With --epsilon: the 2-norm to which an update is clipped, C.",
)
@click.option(
    "--silent",
    type=click.IntRange(min=1),
    metavar="T_c",
    help="Contributors that may work with the server, and add no noise with --epsilon. T unless given.",
)
@click.option(
    "--consistency",
    type=click.Choice(["certified", "honest-server"]),
    default="certified",
    show_default=True,
    help="Hold against a server that cheats, or trust it to follow the protocol (as the paper does).",
)
@click.option(
    "--up",
    type=click.FloatRange(min=0, min_open=True),
    default=_LINE.up,
    show_default=True,
    metavar="Mb/s",
    help="Speed at which a user sends, in megabits per second.",
)
@click.option(
    "--down",
    type=click.FloatRange(min=0, min_open=True),
    default=_LINE.down,
    show_default=True,
    metavar="Mb/s",
    help="Speed at which a user receives, in megabits per second.",
)
@click.option(
    "--cpu/--no-cpu",
    default=True,
    show_default=True,
    help="Time small pieces of the work on this machine to predict processor time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    *,
    dropouts: _values.Portion,
    colluders: _values.Portion | None,
    epsilon: float | None,
    delta: float,
    uses: int,
    clip_norm: float,
    up: float,
    down: float,
    cpu: bool,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Choose parameters for a federation and show what they cost.

    Say what the federation is and what it must withstand. The planner chooses the recovery threshold U,
    the colluders T and the buffer size K where you did not, and the quantisation levels c_l and c_g. It
    proves with numbers that no sum can wrap around the field, counts bytes and storage, predicts
    processor time, and shows how all that changes with U. A wish that cannot be met is answered with the
    reason and the nearest ones that can.

    \b
    Example: 100 phones, of which 30 may vanish, and a model of a million numbers:
      basecagg plan --users 100 --dropouts 0.3 --model-size 1e6
    The same, but 20 holders may collude and 5 may answer wrongly:
      basecagg plan --users 100 --dropouts 0.3 --colluders 20 --liars 5 --model-size 1e6
    Thirty holders, 6000 users, each of whom uploads three times with ε = 4 in all:
      basecagg plan --users 30 --dropouts 0.3 --model-size 7850 --contributors 6000 --buffer 600
      --epsilon 4 --delta 1e-5 --uses 3 --clip-norm 0.3
    """
    users = wishes["num_users"]
    budget = epsilon and Budget(epsilon=epsilon, delta=delta, max_uses=uses, clip_norm=clip_norm)
    plan = planner.plan(
        planner.Wishes(
            max_dropouts=dropouts.of(users),
            max_colluders=None if colluders is None else colluders.of(users),
            network=Network(up=up, down=down),
            budget=budget or None,
            **wishes,
        )
    )
    _show(plan, measure=cpu, as_json=as_json)


def _show(plan: planner.Plan, *, measure: bool, as_json: bool) -> None:
    cpu = _predict(plan) if measure else {}
    if as_json:
        click.echo(json.dumps(rendering.as_dict(plan, cpu), indent=2, ensure_ascii=False))
    else:
        Console().print(rendering.render(plan, cpu))


def _predict(plan: planner.Plan) -> rendering.Cpu:
    # Imported here: an impossible wish is answered before numpy and numba are loaded.
    from basecagg.planning.calibration import predict

    load_kernels()
    options = (option.parameters for option in plan.options)
    cpu = {p.recovery_threshold: predict(p, rendering.VARYING) for p in options}
    return cpu | {plan.parameters.recovery_threshold: predict(plan.parameters)}
