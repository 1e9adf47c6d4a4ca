"""What did the server learn? Exact answers from a transcript: sum by sum, and over all rounds.

When holders answer a request, its masks become linked. Linked masks form a *group* and are judged together, so
that conflicting requests are seen side by side. In a group each mask may enter one weighted sum of K
contributors. Whatever follows beyond those sums is leaked, and so is anything about a single update. The
algebra alone judges. Broken rules are named as possible causes, for people to look at.

Sums are of whole numbers. Where weights differ, remainders of a sum may tell the sum of those members that
weigh alike, which the algebra in the field does not see. Fewer than m such members are a finding of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from basecagg.auditing.broken_rules import broken_rules, is_whole
from basecagg.auditing.knowledge import Knowledge, View
from basecagg.auditing.rounds import (
    Cohorts,
    Rounds,
    UploadCosts,
    over_all_rounds,
    spending,
    suggest_cohorts,
)
from basecagg.auditing.transcript import (
    Ending,
    EpochLine,
    RequestLine,
    Transcript,
    contributor_of,
    read_transcript,
)
from basecagg.channels.identity import read_public_key
from basecagg.printing import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class SumFinding:
    """One request that holders answered."""

    version: int
    digest: str
    updates: int
    answers: int
    outcome: str
    """What the server said became of it: opened, burned or unknown."""
    legitimate: bool
    """K contributors, and no mask that another sum has."""
    learned: int
    """Dimensions of the weighted sum that are known; U − T is all of it."""


@dataclass(frozen=True)
class SmallGroup:
    """Fewer than m members of a sum that weigh alike, beside others of other weights."""

    version: int
    digest: str
    weight: int
    masks: tuple[str, ...]


@dataclass(frozen=True)
class Exposure:
    """One update that the server knows, at least in part."""

    contributor: str
    mask: str
    update: str
    learned: int
    """Dimensions; U − T determines the update."""


@dataclass(frozen=True)
class Group:
    """Masks that are tied together by requests, with all that is known about them."""

    masks: tuple[str, ...]
    sums: tuple[SumFinding, ...]
    leaked: int
    """Dimensions known beyond the legitimate sums."""
    exposed: tuple[Exposure, ...]
    causes: tuple[str, ...]
    """Broken rules, in words."""


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """Everything the audit found. It prints as `basecagg audit` does."""

    epoch: EpochLine
    """The numbers of the epoch that was recorded."""
    groups: tuple[Group, ...]
    """What was learned, by masks that belong together."""
    rounds: Rounds
    """What follows from all rounds together, if updates barely change."""
    cohorts: tuple[Cohorts, ...]
    """Fixed groups of contributors that would prevent that."""
    colluders: tuple[int, ...]
    """Holders that showed the server their shares, recorded or supposed."""
    insiders: tuple[str, ...]
    """Contributors that are supposed to have shown their updates."""
    in_clear: tuple[Exposure, ...]
    """Updates that came without a mask."""
    ending: Ending
    """Whether the transcript has its end; one that was cut may hide anything."""
    operator_checked: bool = False
    """Whether the operator's key that was given signed the epoch, and so vouches for the server's key."""
    spent: tuple[UploadCosts, ...] = ()
    """What contributors' uploads have cost them in privacy, where there is noise; the largest first."""
    small_groups: tuple[SmallGroup, ...] = ()
    """Members that weigh alike in a sum with other weights, fewer than m without insiders."""
    certified: bool = False
    """Whether the epoch promises that nobody is singled out, so that a small group is a breach of it."""

    @property
    def sums(self) -> list[SumFinding]:
        """All answered requests, by version."""
        sums = [found for group in self.groups for found in group.sums]
        return sorted(sums, key=lambda found: (found.version, found.digest))

    @property
    def only_sums(self) -> bool:
        """Whether nothing but legitimate sums was learned, as far as the transcript goes."""
        return not self.exposed and not any(group.leaked for group in self.groups)

    @property
    def over_budget(self) -> list[UploadCosts]:
        """Contributors that uploaded more than the epoch's ε covers."""
        mechanism = self.epoch.mechanism
        most = mechanism.privacy.epsilon if mechanism else None
        return [each for each in self.spent if most is not None and each.epsilon > most]

    @property
    def exposed(self) -> list[Exposure]:
        """All updates that the server knows, at least in part."""
        return [*self.in_clear, *(each for group in self.groups for each in group.exposed)]

    def __rich__(self) -> RenderableType:
        from basecagg.auditing.audit_rendering import render

        return render(self)


def audit(
    transcript: Transcript | Path | str,
    *,
    colluders: Iterable[int] = (),
    insiders: Iterable[str] = (),
    operator_key: bytes | str | None = None,
) -> Report:
    """Say what a server learned, from a transcript of its view: a file, or one that was read.

    `print` shows all of it. `colluders` are holders, by index, and `insiders` contributors, by name, of which
    you suppose that they showed the server all they know. With `operator_key` (32 bytes, or as hexadecimal
    text) a transcript is refused unless it is of an epoch that this operator signed. Without it nobody has
    checked whose key signed the end: anybody can cut a transcript and sign it with a key of his own.
    """
    if not isinstance(transcript, Transcript):
        transcript = read_transcript(Path(transcript))
    if operator_key is not None:
        transcript.require_signed_by(read_public_key(operator_key))
    view = View(transcript, colluders, insiders)
    groups = [_judge(view, *tied) for tied in _tied_together(view)]
    noteworthy = [group for group in groups if group.sums or group.leaked or group.causes]
    noteworthy.sort(key=lambda group: [found.version for found in group.sums])
    in_clear = tuple(
        Exposure(line.contributor, line.mask, line.mask, view.epoch.pieces)
        for line in transcript.plain.values()
        if line.contributor not in view.insiders
    )
    learned = [known for group in noteworthy for known in _combinations(view, group)]
    learned += [{each.contributor: 1} for each in in_clear]
    activity = Counter(contributor_of(mask) for mask in view.uploads)
    return Report(
        epoch=view.epoch,
        groups=tuple(noteworthy),
        rounds=over_all_rounds(learned),
        cohorts=suggest_cohorts(
            [name for name, _ in activity.most_common()],
            view.epoch,
            sums=sum(found.learned > 0 for group in noteworthy for found in group.sums),
        ),
        colluders=tuple(sorted({holder for held in view.shares.values() for holder in held})),
        insiders=tuple(sorted(view.insiders)),
        in_clear=in_clear,
        ending=transcript.ending,
        operator_checked=operator_key is not None,
        spent=spending(transcript),
        small_groups=tuple(_small_groups(view, noteworthy)),
        certified=(p := view.epoch.parameters) is not None and p.consistency == "certified",
    )


def _tied_together(view: View) -> Iterator[tuple[list[str], list[RequestLine]]]:
    """Connected components of masks, linked by the requests that were answered, with those requests."""
    group_of = {mask: {mask} for mask in view.shares}
    asked = (view.requests[digest] for digest in view.answers)
    answered = sorted(asked, key=lambda request: (request.version, request.digest))
    for request in answered:
        joined = set[str]().union(*(group_of[mask] for mask in request.masks))
        group_of |= dict.fromkeys(joined, joined)
    requests_of = defaultdict[int, list[RequestLine]](list)
    for request in answered:
        requests_of[id(group_of[request.members[0].mask])].append(request)
    for masks in {id(group): group for group in group_of.values()}.values():
        yield sorted(masks), requests_of[id(masks)]


def _judge(view: View, masks: Sequence[str], requests: Sequence[RequestLine]) -> Group:
    """Solve the equations of a group and compare with what may be known."""
    known = Knowledge(view, masks, requests)
    legitimate = _legitimate(view, requests)
    sums = tuple(
        SumFinding(
            version=each.version,
            digest=each.digest,
            updates=len(each.members),
            answers=len(view.answers[each.digest]),
            outcome=view.outcome(each),
            legitimate=each in legitimate,
            learned=known.dimensions_of_sum(each),
        )
        for each in requests
    )
    parts = {names: known.dimensions_of_update(*names) for names in known.updates}
    # One piece of a key is enough: the rest is then found as from a shorter key, so the update counts as known.
    keys = view.epoch.parameters is not None and view.epoch.parameters.masks == "keys"
    exposed = tuple(
        Exposure(contributor_of(mask), mask, update, view.epoch.pieces if keys else learned)
        for (mask, update), learned in parts.items()
        if learned
    )
    causes = tuple(broken_rules(view, masks, requests, legitimate))
    return Group(tuple(masks), sums, known.dimensions_beyond(legitimate), exposed, causes)


def _legitimate(view: View, requests: Sequence[RequestLine]) -> list[RequestLine]:
    """The sums that may be known: of K contributors, and no mask in two of them.

    Of requests that share a mask the opened one counts, else the best answered one, else the first.
    """

    def standing(request: RequestLine) -> tuple[bool, int, int]:
        unopened = view.outcome(request) != "opened"
        return unopened, -len(view.answers[request.digest]), request.version

    chosen, taken = list[RequestLine](), set[str]()
    for request in sorted(requests, key=standing):
        if is_whole(view, request) and not request.masks & taken:
            chosen.append(request)
            taken |= request.masks
    return chosen


def _combinations(view: View, group: Group) -> Iterator[dict[str, int]]:
    """What is known, by contributor: weighted sums that are known at least in part, and exposed updates."""
    for found in group.sums:
        if found.learned:
            weights = Counter[str]()
            for member in view.requests[found.digest].members:
                if not view.is_known(member.mask):
                    weights[contributor_of(member.mask)] += member.weight
            yield dict(weights)
    for exposure in group.exposed:
        yield {exposure.contributor: 1}


def _small_groups(view: View, groups: Iterable[Group]) -> Iterator[SmallGroup]:
    """Groups of fewer than m members that weigh alike, in sums that have other weights too."""
    parameters = view.epoch.parameters
    least = parameters.least_per_version if parameters else 1
    for found in (found for group in groups for found in group.sums if found.learned):
        masks_of = defaultdict[int, list[str]](list)
        for member in view.requests[found.digest].members:
            masks_of[member.weight].append(member.mask)
        if len(masks_of) == 1:
            continue
        for weight, masks in sorted(masks_of.items()):
            hidden = tuple(mask for mask in masks if not view.is_known(mask))
            if 0 < len(hidden) < least:
                yield SmallGroup(found.version, found.digest, weight, hidden)
