"""The server of one epoch: its machine, its protection and its store; letters and news go to the driver.

Simulation, service and Flower all use this object. It has no clock and no network: the driver says what time it
is, brings messages, and takes letters away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from basecagg.errors import LocalProtocolError, Refused
from basecagg.protocol.clear_opening import ClearOpening
from basecagg.protocol.effects import Effect, News, Send, Store, perform, refusal_reply
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.global_model import Model
from basecagg.protocol.kept_versions import KeptVersions
from basecagg.protocol.messages import Message
from basecagg.protocol.opening import Opening
from basecagg.protocol.ports import Signer
from basecagg.protocol.proofs import Pedigree
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.server import Server, ServerSettings

__all__ = ["EpochServer", "Server", "ServerSettings"]


def _ignore(news: News) -> None:
    """For a driver that wants no news."""


class EpochServer:
    """The server of one epoch. After a restart it goes on where its store says it was."""

    def __init__(
        self,
        settings: ServerSettings,
        opening: Opening,
        store: Store,
        initial_model: Model,
        *,
        post: Callable[[Sequence[Send]], None],
        tell: Callable[[News], None] = _ignore,
    ) -> None:
        """Put the machine together; `start` sets it to work. For an epoch use `of`.

        settings: what the server decides, such as K and the step.
        opening: the protection, which knows how the sum of K updates is opened.
        store: what survives a restart.
        initial_model: what the epoch begins with; ignored if the store has a later model.
        post: takes the letters to participants, after what they rely on is stored.
        tell: hears of every sum that was opened or given up.
        """
        self.machine = Server(settings, opening, store, initial_model)
        """The machine, for reading only: what is buffered, the model, the chain of models."""
        self.opening = opening
        """The protection, for reading only: what a version was made from, why no sum is opened."""
        self._store = store
        self._post = post
        self._tell = tell

    @classmethod
    def of(
        cls,
        agreement: Agreement,
        signer: Signer,
        store: Store,
        initial_model: Model,
        *,
        post: Callable[[Sequence[Send]], None],
        tell: Callable[[News], None] = _ignore,
        retries: int = 1,
        keep: int = 1,
    ) -> Self:
        """The server of an epoch, with the protection that the epoch prescribes.

        retries: how often holders are asked again before answers that disagree are given up.
        keep: for how many versions (R) to keep the parts that each was made from.
        """
        opening: Opening
        if agreement.parameters.is_masked:
            opening = Recovery(agreement, signer, store, retries, keep)
        else:
            opening = ClearOpening(agreement, signer, store, keep)
        settings = ServerSettings.of(agreement)
        return cls(settings, opening, store, initial_model, post=post, tell=tell)

    @property
    def recovery(self) -> Recovery:
        """The protection, where updates are masked."""
        if not isinstance(self.opening, Recovery):
            raise LocalProtocolError("the updates of this server are not masked")
        return self.opening

    # --- messages and time --------------------------------------------------------------------

    def start(self) -> None:
        """Call this once, before anything else: it goes on with opening a buffer that was full."""
        self._perform(self.machine.start())

    def receive(self, sender: str, message: Message) -> Refused | None:
        """Handle a participant's message.

        If it is refused, tell the sender, change nothing and return the refusal; otherwise return None.
        """
        try:
            effects = self.machine.receive(sender, message)
        except Refused as refusal:
            reply = refusal_reply(sender, message, refusal)
            self._perform([] if reply is None else [*refusal.also, reply])
            return refusal
        self._perform(effects)
        return None

    def tick(self, now: float, patience: float) -> None:
        """It is `now`: holders that have been silent for longer than `patience` seconds are asked again."""
        self._perform(self.machine.tick(now, patience))

    def begun(self, contributor: str, version: int) -> None:
        """A participant took the model of this version, and may come with an update of it."""
        if self.opening.may_come(contributor):
            self.machine.begun(contributor, version)

    def over(self, contributor: str) -> None:
        """No update of this contributor is to be expected any more."""
        self._perform(self.machine.over(contributor))

    def deadline(self) -> None:
        """Ask silent holders again now."""
        self._perform(self.machine.deadline())

    def reconnect(self, holder: str) -> None:
        """A holder is back: send it again what it may have missed."""
        self._perform(self.machine.reconnect(holder))

    def _perform(self, effects: Sequence[Effect]) -> None:
        sends = perform(self._store, effects, self._tell)
        if sends:
            self._post(sends)

    # --- what others may check ----------------------------------------------------------------

    @property
    def _of_epoch(self) -> Recovery | ClearOpening:
        if not isinstance(self.opening, Recovery | ClearOpening):
            raise LocalProtocolError("this server is in no epoch: it signs nothing")
        return self.opening

    @property
    def kept(self) -> KeptVersions:
        """What the last versions were made from."""
        return self._of_epoch.kept

    def pedigree(self, operator_key: bytes, version: int) -> Pedigree:
        """What leads from the operator's key to the model of a version that is kept."""
        release, certificate = self.kept.release(version), self.kept.certificate_of(version)
        epoch = self._of_epoch.agreement.epoch
        return Pedigree(epoch, release, certificate, operator_key)
