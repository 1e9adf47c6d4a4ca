"""A node's machines in one epoch: contributor, and holder if the epoch names it, with their stores.

Machines are built anew for every visit, from their records: on Flower each message may meet another process.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.sealing import SealingSecret, make_sealer
from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack
from basecagg.errors import Refused, WrongEpoch
from basecagg.flower.node_folder import NodeFolder
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, Store, sends_of, writes_of
from basecagg.protocol.epoch import Agreement, Epoch, accept
from basecagg.protocol.global_model import Model
from basecagg.protocol.letters import handle, runs_of
from basecagg.protocol.messages import Credential, Message, Refusal
from basecagg.protocol.share_keeper import ShareKeeper
from basecagg.storage.participant import ParticipantStore

_LOG = logging.getLogger("flwr")
_AHEAD = 1
"""Masks that are kept ready, so that an update need not wait for receipts."""


@lru_cache(maxsize=8)
def agree(frame: bytes, operator_key: bytes) -> Agreement:
    """The epoch in a frame, checked once in each process."""
    epoch = unpack(frame, MAX_CONTROL_BYTES)
    if not isinstance(epoch, Epoch):
        raise WrongEpoch("the server sent something else instead of an epoch")
    return accept(epoch, operator_key, Ed25519Verifier())


class Seat:
    """What a node does in one epoch. Opening one takes the node's locks; `close` gives them back."""

    def __init__(
        self,
        agreement: Agreement,
        credential: Credential,
        identity: Identity,
        sealing: SealingSecret,
        folder: NodeFolder,
    ) -> None:
        """Take up the machines where their stores say they were."""
        self.agreement = agreement
        self._folder = folder
        self._stores: list[ParticipantStore] = []
        name = credential.contributor
        try:
            self._contributor_store = self._open("contributor")
            self.contributor = Contributor(
                agreement,
                credential,
                identity,
                make_sealer(agreement.epoch.suite),
                self._contributor_store,
            )
            self.keeper = self._make_keeper(name, identity, sealing)
        except BaseException:
            self.close()
            raise

    def _make_keeper(
        self, name: str, identity: Identity, sealing: SealingSecret
    ) -> ShareKeeper | None:
        index = self.agreement.holder_index(name)
        if index is None:
            return None
        if self.agreement.epoch.holders[index].sealing_key != sealing.public_key:
            _LOG.error("the epoch names a key that this node has lost: it holds no shares")
            return None
        self._keeper_store = self._open("holder")
        return ShareKeeper(self.agreement, index, identity, sealing, self._keeper_store)

    def _open(self, role: str) -> ParticipantStore:
        store = self._folder.open_store(f"{role}:{self.agreement.id.hex()[:32]}")
        self._stores.append(store)
        return store

    # --- jobs -------------------------------------------------------------------------------------

    def start(self, *, resume: bool) -> list[Message]:
        """To be called once. A visit is no restart: only after a loss is everything sent again."""
        messages = self._perform(self._contributor_store, self.contributor.start())
        if self.keeper is not None:
            messages += self._perform(self._keeper_store, self.keeper.start())
        return messages if resume else []

    def take(self, messages: Sequence[Message]) -> list[Message]:
        """Deal with letters from the server."""
        replies: list[Message] = []
        for for_contributor, run in runs_of(messages):
            replies += self._handle(run, for_contributor)
        return replies

    def deal(self, version: int) -> list[Message]:
        """Give up masks that have expired; deal one more if none is ahead."""
        effects = self.contributor.expire(version)
        ahead = sum(state in ("dealt", "ready") for state in self.contributor.states().values())
        if ahead < _AHEAD:
            effects = [*effects, *self.contributor.deal(version)]
        return self._perform(self._contributor_store, effects)

    def submit(self, update: Model, version: int, model_hash: bytes) -> list[Message]:
        """Mask an update."""
        effects = self.contributor.submit(update, version, model_hash)
        return self._perform(self._contributor_store, effects)

    @property
    def ready(self) -> int:
        """Masks that can hide an update now."""
        return len(self.contributor.ready)

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            store.close()

    def erase(self) -> None:
        """The epoch is over: nothing of it is kept."""
        for store in self._stores:
            store.erase()

    # --- effects ----------------------------------------------------------------------------------

    def _handle(self, messages: list[Message], for_contributor: bool) -> list[Message]:
        machine = self.contributor if for_contributor else self.keeper
        if machine is None:
            return []
        store = self._contributor_store if for_contributor else self._keeper_store
        return self._perform(store, handle(machine, messages, _tell_of_refusal))

    @staticmethod
    def _perform(store: Store, effects: Sequence[Effect]) -> list[Message]:
        """First everything durable, then everything that is sent."""
        store.commit(writes_of(effects))
        return [send.message for send in sends_of(effects)]


def _tell_of_refusal(message: Message, refusal: Refused) -> None:
    _LOG.info("%s refused: %s", type(message).__name__, refusal)


def parse(frame: bytes) -> Message | None:
    """A letter, or None for one that only tells of a refusal."""
    message = unpack(frame, len(frame))  # Flower has it in memory already: no limit is left to keep
    if isinstance(message, Refusal):
        _LOG.warning("the server refused: %s (%s)", message.reason, message.code)
        return None
    return message
