"""A member of a federation: its participant and its store; letters come in, messages for the server go out.

A member trains, holds shares for others, or both. Simulation, service and Flower all use this object. It has no
clock and no network: the driver says what time it is, brings letters, and sends the messages it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from basecagg.errors import Refused
from basecagg.maths.randomness import system_entropy
from basecagg.protocol.effects import (
    Declined,
    Effect,
    News,
    PartsWanted,
    Store,
    perform,
    refusal_reply,
)
from basecagg.protocol.epoch import SERVER, Epoch
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.global_model import Model
from basecagg.protocol.messages import Credential, HolderKey, Message, Parcel, Receipt
from basecagg.protocol.participant import TO_CONTRIBUTORS, Participant, Pins
from basecagg.protocol.ports import LastingRecords, Records, SealingSuite, Signer, Verifier
from basecagg.protocol.proofs import Evidence
from basecagg.protocol.stored import parse

__all__ = ["TO_CONTRIBUTORS", "Member", "Pins"]

_BATCHED = (Parcel, Receipt)
"""Handling these does not read the store, so consecutive ones are written in one transaction."""
_TOGETHER = 32
"""The maximum per transaction. The parcels in it share one receipt, and every dealer in a receipt gets all of
it, so it must stay short."""
_LARGE = 4 * 2**20
"""Bytes: if the shares of one mask take more, each mask gets a shipment of its own."""


class MemberStore(LastingRecords, Store, Protocol):
    """What a member keeps survives a restart, and says so if it is an older copy of itself."""


def _ignore(news: News) -> None:
    """For a driver that wants no news."""


def _overlook(message: Message, refusal: Refused) -> None:
    """For a driver that does not want to know what was refused."""


class Member:
    """One member of a federation. After a restart it goes on where its store says it was."""

    def __init__(
        self,
        pins: Pins,
        signer: Signer,
        suite: SealingSuite,
        verifier: Verifier,
        store: MemberStore,
        *,
        floor: LocalFloor | None = None,
        tell: Callable[[News], None] = _ignore,
        refused: Callable[[Message, Refused], None] = _overlook,
        entropy: Callable[[int], bytes] = system_entropy,
        keeps_masks: bool = False,
    ) -> None:
        """Put the participant together; `start` sets it to work.

        pins: as whom it takes part, and whose signature it believes.
        signer, suite, verifier: its signing key, how shares are sealed, how signatures are checked.
        store: what survives a restart.
        floor: what it insists on, whatever an epoch says.
        tell: hears what happens to it: epochs that it joins or leaves, what became of its updates.
        refused: hears of each letter that it refused, and why.
        entropy: where masks come from; only a simulation replaces the operating system's.
        keeps_masks: whether masks that were dealt before a start may be used after it. For members that are
            started for every message, and for simulations.
        """
        self.participant = Participant(
            pins,
            signer,
            suite,
            verifier,
            store,
            floor=floor,
            entropy=entropy,
            keeps_masks=keeps_masks,
        )
        """The machine, for reading only: the epoch, the masks that are ready, what the server has signed."""
        self._store = store
        self._tell = tell
        self._refused = refused
        self.wanted: int | None = None
        """The newest version that it wants to make again before it answers: fetch its parts."""

    # --- epochs -------------------------------------------------------------------------------

    def start(self, now: int) -> list[Message]:
        """To be called once, before anything else. It is `now`, in seconds since 1970."""
        return self._perform(self.participant.start(now))

    def tick(self, now: int) -> list[Message]:
        """It is `now` by this member's own clock: an epoch may be over."""
        return self._perform(self.participant.tick(now))

    def announce(self, *, another: bool = False) -> HolderKey:
        """The sealing key for the next epoch, signed: the same again, or `another`."""
        (message,) = self._perform(self.participant.announce(another=another))
        assert isinstance(message, HolderKey)
        return message

    def offer(self, messages: Sequence[Message]) -> Declined | None:
        """Show it the epoch that is among the messages, if there is one, with its credential.

        Returns why the epoch was declined, if it was.
        """
        epochs = [message for message in messages if isinstance(message, Epoch)]
        credentials = [message for message in messages if isinstance(message, Credential)]
        if not epochs:
            return None
        effects = self.participant.offer(epochs[0], credentials[0] if credentials else None)
        self._perform(effects)
        return next((effect for effect in effects if isinstance(effect, Declined)), None)

    @property
    def epoch(self) -> str:
        """The id of the epoch that it is in, in hexadecimal digits; empty outside."""
        agreement = self.participant.agreement
        return agreement.id.hex() if agreement else ""

    # --- letters ------------------------------------------------------------------------------

    def take(self, letters: Sequence[Message]) -> list[Message]:
        """Deal with letters from the server. What it returns must be sent before they are forgotten."""
        return [message for run in _runs_of(letters) for message in self._take_run(run)]

    def _take_run(self, run: Sequence[Message]) -> list[Message]:
        effects: list[Effect] = []
        for message in run:
            try:
                effects += self.participant.receive(message)
            except Refused as refusal:
                self._refused(message, refusal)
                reply = refusal_reply(SERVER, message, refusal)
                effects += [] if reply is None else [reply]
        return self._perform([*effects, *self.participant.acknowledge()])

    def take_wanted(self) -> int | None:
        """What to fetch the parts of now: questions about earlier versions are over by then."""
        wanted, self.wanted = self.wanted, None
        return wanted

    def is_due(self, version: int) -> bool:
        """Whether it has to make a version again before it uses it."""
        return self.participant.state == "inside" and self.participant.watch.is_due(version)

    def has_heard_of(self, version: int) -> bool:
        """Whether the server has signed something about this version or a later one."""
        return self.participant.state != "inside" or version <= self.participant.watch.newest

    # --- updates ------------------------------------------------------------------------------

    def begin(self) -> None:
        """A model is about to be asked for, to train from it."""
        self.participant.watch.begin()

    def head_of(self, version: int, model: Model) -> bytes:
        """What the chain of models had come to with this model, or `WrongModel` if it is another."""
        return self.participant.watch.head_of(version, model)

    def deal(self, ahead: int = 1) -> list[Message]:
        """Have this many masks ready for the next updates."""
        parameters = self.participant.working().agreement.parameters
        share = parameters.word_bytes * parameters.share_size
        is_large = share * parameters.num_holders > _LARGE
        counts = range(1, ahead + 1) if is_large else (ahead,)
        deal = self.participant.deal_ahead
        return [message for count in counts for message in self._perform(deal(count))]

    def submit(self, update: Model, version: int, head: bytes) -> list[Message]:
        """Mask an update and upload it: the model before training − after, from the version with this head."""
        return self._perform(self.participant.submit(update, version, head))

    def reconnect(self) -> list[Message]:
        """Send again what the server has not confirmed."""
        return self._perform(self.participant.reconnect())

    def _perform(self, effects: Sequence[Effect]) -> list[Message]:
        return [send.message for send in perform(self._store, effects, self._hear)]

    def _hear(self, news: News) -> None:
        if isinstance(news, PartsWanted):
            self.wanted = max(news.version, self.wanted or 0)
        self._tell(news)


def _runs_of(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split the messages, in order, into batches; each batch is written in one transaction."""
    for batched, alike in groupby(messages, key=lambda message: isinstance(message, _BATCHED)):
        run, size = list(alike), _TOGETHER if batched else 1
        for at in range(0, len(run), size):
            yield run[at : at + size]


def evidence_in(store: Records) -> list[Evidence]:
    """What convicts the servers that the member with this store has caught cheating, for others to judge."""
    return [parse(stored, Evidence) for _, stored in store.scan("convicted")]
