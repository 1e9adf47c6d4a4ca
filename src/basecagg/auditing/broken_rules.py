"""Which rules were broken in a group of masks, in words: where to look when something leaked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from basecagg.auditing.knowledge import View
from basecagg.auditing.transcript import RequestLine, contributor_of


def is_whole(view: View, request: RequestLine) -> bool:
    """Whether at least K contributors are in the sum, each with one update that was uploaded and counts."""
    return len(_summed(view, request)) == len(request.members) >= view.epoch.buffer_size


def _summed(view: View, request: RequestLine) -> set[str]:
    return {
        contributor_of(member.mask)
        for member in request.members
        if member.weight and member.update in view.uploads.get(member.mask, ())
    }


def broken_rules(
    view: View,
    masks: Sequence[str],
    requests: Sequence[RequestLine],
    legitimate: Sequence[RequestLine],
) -> Iterator[str]:
    """Every broken rule that can make a group of masks leak."""
    others = [request for request in requests if request not in legitimate]
    for request in others:
        if not is_whole(view, request):
            yield (
                f"{_name(request)} has {len(_summed(view, request))} contributors with an update in"
                f" {len(request.members)} members; K = {view.epoch.buffer_size} are needed"
            )
    for request in others:
        yield from _conflicts(view, request, legitimate)
    for mask in masks:
        uploads = len(view.uploads.get(mask, ()))
        if uploads > 1:
            yield f"mask {mask} hides {uploads} updates: their difference is in the open"
    yield from _harmful_holders(view, masks)
    for request in legitimate:
        alone = [mask for mask in request.masks if not view.is_known(mask)]
        if len(alone) == 1:
            yield f"{_name(request)}: all its contributors but {contributor_of(alone[0])} are insiders"


def _conflicts(view: View, request: RequestLine, others: Iterable[RequestLine]) -> Iterator[str]:
    """The same masks in another sum, and the holders that answered both."""
    for other in others:
        if shared := request.masks & other.masks:
            answered, before = (set(view.answers[each.digest]) for each in (request, other))
            yield (
                f"{_name(request)} and {_name(other)} ask for different sums over"
                f" {_some('mask', shared)}; the first was answered by"
                f" {_some('holder', answered)}, both by {_some('holder', answered & before)}"
            )


def _harmful_holders(view: View, masks: Sequence[str]) -> Iterator[str]:
    bound = view.epoch.max_colluders
    for holder in sorted({holder for mask in masks for holder in view.shares[mask]}):
        if view.epoch.points[holder] == 0:
            yield f"holder {holder} has the evaluation point 0: its share is a piece of the mask"
    over = [mask for mask in masks if len(view.shares[mask]) > bound]
    if over:
        colluders = {holder for mask in over for holder in view.shares[mask]}
        yield f"{_some('holder', colluders)} collude; {_some('mask', over)} withstand T = {bound}"


def _name(request: RequestLine) -> str:
    return f"request {request.digest[:8]} (version {request.version})"


def _some(what: str, items: Iterable[int] | Iterable[str], most: int = 3) -> str:
    """Count things and name the first few: "12 masks (a, b, c, …)"."""
    listed = [str(item) for item in sorted(items)]
    if not listed:
        return f"no {what}"
    names = ", ".join(listed[:most]) + ", …" * (len(listed) > most)
    return f"{len(listed)} {what}{'s' * (len(listed) > 1)} ({names})"
