"""An audit's report as text for people (rich) and as a dictionary for JSON. Nothing is decided here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from basecagg.auditing.leakage import Group, Report
from basecagg.printing import plain_table, sections

_MOST = 20
"""Rows that are shown; JSON has all of them."""
_MOST_NAMES = 10
_ENDINGS = {
    "signed": "",
    "closed": " (the transcript is closed, but not signed by the server)",
    "open": " so far (the transcript is open: not closed yet)",
    "cut": " as far as the transcript goes, but it was CUT: its end is missing",
}
_NOT_CHECKED = (
    "Whose key that is was NOT checked: anybody can sign with his own. --operator-key checks it"
)
_REMAINDERS = (
    "Sums are of whole numbers. Where updates are small and weights differ, remainders of a sum tell the"
    " sum of those members that weigh alike. Here they are fewer than min_per_version. Own weights are"
    " alike in the field."
)
_REMEDY = (
    "Fixed groups that enter a buffer whole. If all members of a group weigh the same (trained from"
    " one version; weight_rounding 'nearest', or s constant), no number of rounds reveals anything"
    " smaller than the sum of a group. --json names the groups."
)


def render(report: Report) -> RenderableType:
    """Lay the report out for a terminal of 80 columns or more; the answer comes first."""
    bodies: dict[str, RenderableType] = {
        "What was learned": _answer(report),
        "Sum by sum": _sums(report),
        "What leaked, and which rules were broken": _leaks(report),
        **({"Told by remainders": _told_by_remainders(report)} if report.small_groups else {}),
        **({"What uploads cost in privacy": _spending(report)} if report.spent else {}),
        "If updates barely change from round to round": Text(_rounds(report)),
        "The remedy: cohorts": _cohorts(report),
    }
    return sections(bodies)


def as_dict(report: Report) -> dict[str, Any]:
    """Give the same for JSON."""
    epoch = msgspec.to_builtins(report.epoch)
    del epoch["signed"]  # as long as all holders' keys, and it was looked at
    told = {"only_sums": report.only_sums, "over_budget": len(report.over_budget)}
    return asdict(report) | {"epoch": epoch, **told}


def in_words(report: Report) -> str:
    """Answer in a few sentences what was learned."""
    pieces = report.epoch.pieces
    known = [found.learned for found in report.sums if found.legitimate and found.learned]
    whole = known.count(pieces)
    exposed = [each.learned for each in report.exposed]
    determined = exposed.count(pieces)
    helpers = [(report.colluders, "colluding holder"), (report.insiders, "insider")]
    named = " and ".join(_count(len(them), thing) for them, thing in helpers if them)
    return (
        f"{_verdict(report)} The server{f', with {named},' if named else ''} knows"
        f" {_count(whole, 'weighted sum')} of updates completely,"
        f" {_count(len(known) - whole, 'sum')} in part, and"
        f" {_count(sum(group.leaked for group in report.groups), 'dimension')} beyond them. Single"
        f" updates: {determined or 'none'} determined, {len(exposed) - determined or 'none'} known in"
        f" part.{_remainders(report)}{_privacy(report)}"
    )


def _remainders(report: Report) -> str:
    """How many groups are so small that their sum would be too much to tell."""
    if not report.small_groups:
        return ""
    groups = _count(len(report.small_groups), "group")
    return f" Remainders may tell the sum of {groups} of fewer than min_per_version members."


def _privacy(report: Report) -> str:
    """The largest account, and whether all keep what was promised."""
    if not report.spent or report.epoch.mechanism is None:
        return ""
    most, promised = report.spent[0], report.epoch.mechanism.privacy
    over = len(report.over_budget)
    kept = f"{_count(over, 'contributor')} over the budget" if over else "within the budget"
    return (
        f" The sums have noise: the most that a contributor's uploads cost is ε = {most.epsilon:.3g} at δ ="
        f" {promised.delta:g} ({_count(most.uploads, 'upload')}), {kept} of ε = {promised.epsilon:g}."
    )


def _verdict(report: Report) -> str:
    learned = "Only sums were learned" if report.only_sums else "More than sums was learned"
    return f"{learned}{_ENDINGS[report.ending]}."


def _answer(report: Report) -> RenderableType:
    pieces = report.epoch.pieces
    answer = Text(in_words(report))
    good = report.only_sums and report.ending != "cut"
    answer.stylize("green" if good else "red", 0, len(_verdict(report)))
    measure = f"One sum has U − T = {pieces} dimensions; one of them is 1/{pieces} of an update."
    return Lines(answer, *map(Text, _signed_by(report)), Text(measure, style="dim"))


def _signed_by(report: Report) -> list[str]:
    """Whose word the transcript is; each key in a line of its own, to be compared."""
    epoch = report.epoch
    if report.ending != "signed":
        return []
    if report.operator_checked:
        return ["Its end is signed by the server of that operator's epoch:", epoch.server_key]
    signed = ["Its end is signed with the key", epoch.server_key]
    if not epoch.operator_key:
        return [*signed, f"{_NOT_CHECKED}."]
    return [*signed, f"{_NOT_CHECKED}; the file names this operator:", epoch.operator_key]


def _sums(report: Report) -> RenderableType:
    rows = [
        (
            *(found.version, found.updates, found.answers, found.outcome),
            f"{found.learned} of {report.epoch.pieces}",
            "" if found.legitimate else "should not be known",
        )
        for found in report.sums
    ]
    return _shortened("version >", "updates >", "answers >", "outcome", "learned >", "", rows=rows)


def _spending(report: Report) -> RenderableType:
    over = report.over_budget
    rows = [
        (
            *(each.contributor, each.uploads, f"{each.spent:.4g}", f"{each.epsilon:.4g}"),
            "OVER" if each in over else "",
        )
        for each in report.spent
    ]
    return _shortened("contributor", "uploads >", "spent >", "ε >", "", rows=rows)


def _leaks(report: Report) -> RenderableType:
    clear = [each.mask for each in report.in_clear]
    lines = [f"{_count(len(clear), 'update')} came in clear: {_names(clear)}"] if clear else []
    for group in report.groups:
        if group.leaked or group.exposed or group.causes:
            lines += _leak(group, report.epoch.pieces)
    return Lines(*map(Text, lines[:_MOST] or ["nothing, none"]), *_more(len(lines)))


def _leak(group: Group, pieces: int) -> list[str]:
    versions = _names([f"{found.version}" for found in group.sums])
    asked = f" (requested at version {versions})" if versions else ""
    masks_by_part = defaultdict[int, list[str]](list)
    for each in group.exposed:
        masks_by_part[each.learned].append(each.mask)
    return [
        f"{_count(len(group.masks), 'mask')}{asked}: {_count(group.leaked, 'dimension')} beyond sums",
        *(f"· {cause}" for cause in group.causes),
        *(
            f"· {_count(len(masks), 'single update')} known to {part} of {pieces} dimensions, under"
            f" {_names(masks)}"
            for part, masks in masks_by_part.items()
        ),
    ]


def _told_by_remainders(report: Report) -> RenderableType:
    """Members that weigh alike in sums with other weights, fewer than m."""
    lines = [
        f"version {each.version}: {_count(len(each.masks), 'update')} of weight {each.weight}, under"
        f" {_names(each.masks)}"
        for each in report.small_groups
    ]
    return Lines(Text(_REMAINDERS), *map(Text, lines[:_MOST]), *_more(len(lines)))


def _rounds(report: Report) -> str:
    rounds = report.rounds
    text = (
        f"Take each contributor as one unknown. {_count(rounds.equations, 'equation')} in"
        f" {_count(rounds.contributors, 'unknown')}: rank {rounds.rank}."
    )
    if names := rounds.determined:
        return f"{text} {_count(len(names), 'contributor')} determined: {_names(names)}."
    if names := rounds.smallest:
        text += " Nobody is determined. The smallest combination found has"
        text += f" {_count(len(names), 'contributor')}: {_names(names)}."
    return text


def _cohorts(report: Report) -> RenderableType:
    if len(report.rounds.smallest) >= report.epoch.buffer_size or not report.rounds.smallest:
        return Text("Not needed so far: nothing smaller than a whole buffer follows.")
    if not report.cohorts:
        return Text("Too few contributors to divide.")
    rows = [
        ("→" * c.suggested, c.size, len(c.groups), len(c.left_over), c.most_rank)
        for c in report.cohorts
    ]
    headers = "", "size >", "groups >", "left over >", "rank at most >"
    return Lines(plain_table(*headers, rows=rows), Text(_REMEDY))


def _count(number: int, thing: str) -> str:
    return f"{number or 'no'} {thing}{'s' * (number != 1)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + ", …" * (len(names) > _MOST_NAMES)


def _shortened(*headers: str, rows: Sequence[Sequence[object]]) -> RenderableType:
    return Lines(plain_table(*headers, rows=rows[:_MOST]), *_more(len(rows)))


def _more(count: int) -> list[Text]:
    hidden = count - _MOST
    return [Text(f"… and {hidden} more; --json has them all.")] if hidden > 0 else []
