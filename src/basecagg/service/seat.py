"""A participant's machines in one epoch, holder or contributor or both, with their stores.

Everything here runs in one thread: effects become records, then messages for the server.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from basecagg.channels.sealing import make_sealer
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, unpack
from basecagg.errors import BASecAggError, Refused
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, MaskEnded, news_of, sends_of, writes_of
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.letters import handle, runs_of
from basecagg.protocol.messages import Credential, Message, Parcel, Refusal
from basecagg.protocol.share_keeper import ShareKeeper
from basecagg.service.framing import Numbered
from basecagg.service.profile import Profile
from basecagg.service.training import Vector
from basecagg.storage.participant import ParticipantStore

_LOG = logging.getLogger("basecagg.agent")
_AHEAD = 2
"""Masks that are kept ready, so that an update need not wait for receipts."""


class Seat:
    """What a participant does in one epoch."""

    def __init__(
        self,
        agreement: Agreement,
        credential: Credential | None,
        profile: Profile,
        anchor_folder: Path | None = None,
    ) -> None:
        """Take up the machines where their stores say they were."""
        self.agreement = agreement
        self._profile = profile
        self._anchor_folder = anchor_folder
        self._stores: list[ParticipantStore] = []
        self.keeper = self._make_keeper()
        self.contributor = self._make_contributor(credential) if credential else None

    def _make_keeper(self) -> ShareKeeper | None:
        index = self.agreement.holder_index(self._profile.name)
        if index is None:
            return None
        secret = self._profile.sealing_secret(self.agreement.epoch.holders[index].sealing_key)
        if secret is None:
            _LOG.error("the epoch uses a sealing key that is not kept here: not a holder this time")
            return None
        store = self._keeper_store = self._open("holder")
        return ShareKeeper(self.agreement, index, self._profile.identity, secret, store)

    def _make_contributor(self, credential: Credential) -> Contributor:
        store = self._contributor_store = self._open("contributor")
        sealer = make_sealer(self.agreement.epoch.suite)
        return Contributor(self.agreement, credential, self._profile.identity, sealer, store)

    def _open(self, role: str) -> ParticipantStore:
        namespace = f"{role}:{self.agreement.id.hex()[:32]}"
        path = self._profile.folder / "state.db"
        store = ParticipantStore(path, namespace, anchor_folder=self._anchor_folder)
        self._stores.append(store)
        return store

    # --- jobs -------------------------------------------------------------------------------------

    def start(self) -> list[Message]:
        """To be called once; what it returns is to be sent."""
        messages: list[Message] = []
        if self.keeper is not None:
            messages += self._perform(self._keeper_store, self.keeper.start())
        if self.contributor is not None:
            messages += self._perform(self._contributor_store, self.contributor.start())
        return messages

    def reconnect(self) -> list[Message]:
        """Send again what the server has not confirmed."""
        if self.contributor is None:
            return []
        return self._perform(self._contributor_store, self.contributor.reconnect())

    def take(self, letters: Sequence[Numbered]) -> list[Message]:
        """Deal with letters from the server; what it returns must be sent before they are acknowledged."""
        messages = [message for letter in letters if (message := self._open_letter(letter.frame))]
        replies: list[Message] = []
        for for_contributor, run in runs_of(messages):
            replies += self._handle(run, for_contributor)
        return replies

    def deal(self, version: int) -> list[Message]:
        """Deal one mask more, if fewer than enough are ahead."""
        assert self.contributor is not None
        store, contributor = self._contributor_store, self.contributor
        effects = contributor.expire(version)
        states = list(contributor.states().values())
        ahead = sum(state in ("dealt", "ready") for state in states)
        if ahead < min(_AHEAD, self.agreement.parameters.mask_quota):
            effects = [*effects, *contributor.deal(version)]
        return self._perform(store, effects)

    def submit(self, update: Vector, version: int, model_hash: bytes) -> list[Message]:
        """Mask an update."""
        assert self.contributor is not None
        effects = self.contributor.submit(update.astype(np.float32), version, model_hash)
        return self._perform(self._contributor_store, effects)

    def may_train(self) -> bool:
        """Whether a mask is ready and no earlier update is on its way."""
        if self.contributor is None:
            return False
        return bool(self.contributor.ready) and "uploaded" not in self.contributor.states().values()

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            store.close()

    def erase(self) -> None:
        """The epoch is over: nothing of it is kept."""
        for store in self._stores:
            store.erase()

    # --- effects ----------------------------------------------------------------------------------

    def _open_letter(self, frame: bytes) -> Message | None:
        limit = max(MAX_CONTROL_BYTES, limit_for(Parcel, self.agreement.parameters))
        try:
            message = unpack(frame, limit)
        except BASecAggError as error:
            _LOG.warning("letter", extra={"fields": {"error": str(error)}})
            return None
        if isinstance(message, Refusal):
            _LOG.warning(
                "refused", extra={"fields": {"code": message.code, "reason": message.reason}}
            )
            return None
        return message

    def _handle(self, messages: list[Message], for_contributor: bool) -> list[Message]:
        machine = self.contributor if for_contributor else self.keeper
        if machine is None:
            return []
        store = self._contributor_store if for_contributor else self._keeper_store
        return self._perform(store, handle(machine, messages, _tell_of_refusal))

    def _perform(self, store: ParticipantStore, effects: Sequence[Effect]) -> list[Message]:
        """First everything durable, then everything that is sent."""
        writes = writes_of(effects)
        store.commit(writes)
        for news in news_of(effects):
            if isinstance(news, MaskEnded):
                _LOG.info(
                    "update", extra={"fields": {"outcome": news.state, "reason": news.reason}}
                )
        return [send.message for send in sends_of(effects)]


def _tell_of_refusal(message: Message, refusal: Refused) -> None:
    kind = type(message).__name__
    _LOG.info(
        "refuse", extra={"fields": {"kind": kind, "code": refusal.code, "reason": str(refusal)}}
    )
