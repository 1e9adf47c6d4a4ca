"""`basecagg audit`: what did the server learn?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import click
from rich.console import Console

from basecagg.auditing.audit_rendering import as_dict
from basecagg.auditing.leakage import audit
from basecagg.commands._options import digits, options

MORE_WAS_LEARNED = 3
"""The exit status when the server learned more than sums, more from one contributor than its ε covers, or in a
certified epoch possibly the sum of fewer than m."""
WAS_CUT = 4
"""The exit status when the transcript has no end and nobody is writing it, or none that the server signed."""


def _indices(text: str) -> tuple[int, ...]:
    """Read 0,4,7 as holders."""
    if not all(part.isascii() and part.isdigit() for part in text.split(",")):
        raise click.BadParameter(f"'{text}' is not a list of holders such as 0,4,7")
    return tuple(int(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    """Read alice,bob as contributors."""
    return tuple(text.split(","))


class _AuditOptions:
    colluders: Annotated[str | None, _indices, "J,J,…"] = None
    """Suppose that these holders (by index) show the server their shares of all masks, besides those whose
    shares are in the transcript."""
    insiders: Annotated[str | None, _names, "NAME,…"] = None
    """Suppose that these contributors show the server their updates and masks."""
    operator_key: Annotated[str | None, digits, "HEX"] = None
    """The operator's key, as `basecagg operator key` or `join --check` prints it: refuse a transcript unless
    the server that this operator's epoch names has signed it. Without it nobody checks whose key signed."""
    as_json: Annotated[bool, "--json"] = False
    """Print the report as JSON."""


@click.command("audit")
@click.argument(
    "transcript",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The recorded view: JSON lines without payloads, as `Recorder` writes them.",
)
@options(_AuditOptions)
def command(
    *,
    transcript: Path,
    colluders: tuple[int, ...] | None,
    insiders: tuple[str, ...] | None,
    operator_key: bytes | None,
    as_json: bool,
) -> None:
    """Say what a server learned, from a transcript of its view.

    The transcript says who uploaded under which mask, which sums were asked for with which weights, who
    answered, and which holders worked with the server. From that follows by exact linear algebra what the
    server knows about the updates: the weighted sums that it opened, and hopefully nothing else. Everything
    beyond them is counted in dimensions, with the masks and holders to look at: conflicting requests, reused
    masks, too many colluders, sums of too few.

    A second view takes all rounds together, as if each contributor sent the same update every time: which
    contributors could be solved for, and how fixed cohorts would prevent that. It does not change the exit
    status, since it rests on an assumption.

    Where weights in the field differ, remainders of a sum may tell the sum of those members that weigh alike.
    Groups of fewer than min_per_version members are listed, without insiders.

    Where sums have noise, every contributor's ε is counted again: all uploads, whatever became of them.

    The transcript's lines are chained and its end is signed by the server. One that is still being written is
    called open; one without an end that nobody writes was cut, or its run was stopped. Anybody can cut a
    transcript and sign it with a key of his own: --operator-key tells, by the signed epoch in the first line.

    Exit status: 0 if only sums of K updates were learned, every ε is kept, and a certified epoch has no groups
    of fewer than min_per_version, 3 if not, 4 if the transcript was
    cut (with --operator-key: if its server has not signed its end), 2 if it was changed, is of another operator
    or cannot be read.

    \b
    Example: what was learned, and what had three holders added to it?
      basecagg audit transcript.jsonl --operator-key 5f1c…
      basecagg audit transcript.jsonl --colluders 0,4,7
    """
    report = audit(
        transcript,
        colluders=colluders or (),
        insiders=insiders or (),
        operator_key=operator_key,
    )
    if as_json:
        click.echo(json.dumps(as_dict(report), indent=2, ensure_ascii=False))
    else:
        Console(highlight=False).print(report)
    told_by_remainders = report.certified and report.small_groups
    if not report.only_sums or report.over_budget or told_by_remainders:
        click.get_current_context().exit(MORE_WAS_LEARNED)
    if report.ending == "cut" or (report.operator_checked and report.ending != "signed"):
        click.get_current_context().exit(WAS_CUT)
