"""What every driver does with letters: hand them over in runs, answer refusals, carry out what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

from basecagg.errors import Refused
from basecagg.protocol.effects import Effect, News, Send, Store, perform, refusal_reply
from basecagg.protocol.epoch import SERVER, Epoch
from basecagg.protocol.messages import Credential, Message, Parcel, Receipt
from basecagg.protocol.participant import Participant

BATCHED = (Parcel, Receipt)
"""Handling these reads no record, so a run of them is written in one transaction."""
_TOGETHER = 32
"""Most of them in one go: every dealer in a receipt gets the whole of it, so it must not become long."""


def take(
    participant: Participant,
    store: Store,
    messages: Sequence[Message],
    refused: Callable[[Message, Refused], None],
    tell: Callable[[News], None] | None = None,
) -> list[Send]:
    """Let a participant deal with letters from the server; what it returns is to be sent."""
    sends: list[Send] = []
    for run in _runs_of(messages):
        effects: list[Effect] = []
        for message in run:
            receive = partial(participant.receive, message)
            effects += answered(SERVER, message, receive, refused)
        sends += perform(store, [*effects, *participant.acknowledge()], tell)
    return sends


def offer(
    participant: Participant,
    store: Store,
    messages: Sequence[Message],
    tell: Callable[[News], None] | None = None,
) -> None:
    """Show a participant the epoch that is among the messages, if there is one, with its credential."""
    epochs = [message for message in messages if isinstance(message, Epoch)]
    credentials = [message for message in messages if isinstance(message, Credential)]
    if epochs:
        credential = credentials[0] if credentials else None
        perform(store, participant.offer(epochs[0], credential), tell)


def _runs_of(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The messages of one transaction each: in order, those that are written together in one."""
    for batched, alike in groupby(messages, key=lambda message: isinstance(message, BATCHED)):
        run, size = list(alike), _TOGETHER if batched else 1
        for at in range(0, len(run), size):
            yield run[at : at + size]


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
        return [] if reply is None else [*refusal.also, reply]
