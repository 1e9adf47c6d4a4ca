"""What every driver does with a participant's letters: hand them over in runs, and answer refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

from basecagg.errors import Refused
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, refusal_reply
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.messages import Message, Parcel, Receipt, Verdict
from basecagg.protocol.share_keeper import ShareKeeper

TO_CONTRIBUTORS = (Receipt, Verdict)
"""All others that a participant gets are for its holder."""
BATCHED = (Parcel, Receipt)
"""Handling these reads no record, so a run of them is written in one transaction."""
_TOGETHER = 16
"""Most of them in one go: every dealer in a receipt gets the whole of it, so it must not become long."""


def runs_of(messages: Sequence[Message]) -> Iterator[tuple[bool, list[Message]]]:
    """Whether for the contributor, and the messages of one transaction: in order, alike ones together."""
    for (for_contributor, batched), alike in groupby(messages, key=_handling):
        run, size = list(alike), _TOGETHER if batched else 1
        for at in range(0, len(run), size):
            yield for_contributor, run[at : at + size]


def _handling(message: Message) -> tuple[bool, bool]:
    return isinstance(message, TO_CONTRIBUTORS), isinstance(message, BATCHED)


def handle(
    machine: Contributor | ShareKeeper,
    messages: Sequence[Message],
    refused: Callable[[Message, Refused], None],
) -> list[Effect]:
    """What the machine wants done about one run; a refusal is told to `refused` and answered."""
    effects: list[Effect] = []
    for message in messages:
        effects += answered(SERVER, message, partial(machine.receive, message), refused)
    if isinstance(machine, ShareKeeper):
        effects += machine.acknowledge()
    return effects


def answered(
    sender: str,
    message: Message,
    receive: Callable[[], list[Effect]],
    refused: Callable[[Message, Refused], None],
) -> list[Effect]:
    """What is to be done about one message: what the machine wants, or the reply to a refused one."""
    try:
        return receive()
    except Refused as refusal:
        refused(message, refusal)
        reply = refusal_reply(sender, message, refusal)
        return [] if reply is None else [reply]
