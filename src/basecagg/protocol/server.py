"""The server: admits updates, fills the buffer, takes the global step. Its opening makes it FedBuff or not.

Admission, staleness, normaliser and step live here, once, for every protection and every driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from basecagg.errors import AlreadyBuffered, QuotaExceeded, Refused, WrongModel
from basecagg.protocol.buffer import Buffer
from basecagg.protocol.effects import Abandoned, Effect, Forget, Persist, Released, Send
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.global_model import Model, global_step, model_bytes, model_hash
from basecagg.protocol.messages import (
    MAX_REASON,
    MaskName,
    Message,
    PlainUpdate,
    Upload,
    Verdict,
)
from basecagg.protocol.opening import (
    LAST_VERDICT,
    Burned,
    Ending,
    LastVerdict,
    Opened,
    Opening,
    Outcome,
    Stage,
    Update,
)
from basecagg.protocol.ports import Records
from basecagg.protocol.records import BufferedUpdate, ModelState, load, parse, require, write
from basecagg.protocol.weighing import Weighing

Verdicts: TypeAlias = Literal["admitted"] | LastVerdict


@dataclass(frozen=True)
class ServerSettings:
    """What the server decides by itself, besides the epoch's parameters."""

    buffer_size: int
    """K"""
    weighing: Weighing
    min_per_version: int = 1
    learning_rate: float = 1.0
    """η_g"""
    epoch: bytes = bytes(32)
    """The epoch id that verdicts carry; without protection there is none."""

    @classmethod
    def of(cls, agreement: Agreement, learning_rate: float = 1.0) -> ServerSettings:
        """The settings that an epoch prescribes."""
        p = agreement.parameters
        weighing = Weighing.of(p)
        return cls(p.buffer_size, weighing, p.least_per_version, learning_rate, agreement.id)


class Server:
    """The global model and its buffer. Rebuilt from its records after a restart, it goes on where it was."""

    def __init__(
        self,
        settings: ServerSettings,
        opening: Opening,
        records: Records,
        initial_model: Model,
        first_version: int = 0,
    ) -> None:
        """Go on with the stored model, or start with the initial one."""
        self.settings = settings
        self.opening = opening
        self._records = records
        self.model: Model = initial_model
        self._load_model(first_version)
        self._admitted = load(records, "buffered", BufferedUpdate)
        outstanding = set(opening.outstanding())
        updates = list(self._admitted.values())
        members = [update for update in updates if update.name in outstanding]
        self._members = sorted(members, key=lambda member: member.name)
        self._stage: Stage | None = None
        self._asked_at = 0.0
        self._keys = {update.name: key for key, update in self._admitted.items()}
        waiting = [update for update in updates if update.name not in outstanding]
        self.buffer = Buffer(
            settings.buffer_size, settings.weighing, settings.min_per_version, waiting
        )

    @property
    def version(self) -> int:
        """t: how many steps the global model has taken."""
        return self._state.version

    @property
    def model_hash(self) -> bytes:
        """The hash of the present model, for tickets."""
        return self._state.hashes[self.version]

    @property
    def is_opening(self) -> bool:
        """Whether a sum is being opened: the driver's deadline runs while it is."""
        return bool(self._members)

    def hash_of(self, version: int) -> bytes | None:
        """The hash of a recent version of the model."""
        return self._state.hashes.get(version)

    def start(self) -> list[Effect]:
        """To be carried out once after construction: the model is stored, a full buffer goes on opening."""
        return [*self._store_model(), *self._open_next()]

    def receive(self, sender: str, message: Message) -> list[Effect]:
        """Handle a message, or refuse it with a typed error and no change."""
        if isinstance(message, Upload | PlainUpdate):
            return self._take(sender, message)
        effects, outcome = self.opening.receive(sender, message, self.version)
        return [*effects, *self._conclude(outcome)]

    def tick(self, now: float, patience: float) -> list[Effect]:
        """The driver's clock reads `now`: whoever was silent for longer than `patience` is asked again.

        Each stage of an opening has its own time: endorsing first, then answering.
        """
        stage = self.opening.stage()
        if stage != self._stage:
            self._stage, self._asked_at = stage, now
        if stage is None or now - self._asked_at <= patience:
            return []
        self._asked_at = now
        return self.deadline()

    def deadline(self) -> list[Effect]:
        """Answers have been waited for long enough."""
        effects, outcome = self.opening.deadline()
        return [*effects, *self._conclude(outcome)]

    def reconnect(self, holder: str) -> list[Effect]:
        """A holder is back: send it again whatever it has not answered."""
        return [Send(holder, message) for message in self.opening.unanswered(holder, self.version)]

    # --- admission ----------------------------------------------------------------------------

    def _take(self, sender: str, message: Update) -> list[Effect]:
        update = self.opening.authenticate(sender, message)
        if update.name in self._keys:
            return self._take_again(update)
        last = self.opening.last_verdict(update.name)
        if last is not None:
            return [self._verdict(update.name, last, "it came again after it was over")]
        try:
            self._require_admissible(update)
        except (AlreadyBuffered, QuotaExceeded) as refusal:
            return [*self._turn_away(update, str(refusal)), *self._give_way()]
        except Refused as refusal:
            return self._turn_away(update, str(refusal))
        return [*self._admit(message, update), *self._open_next()]

    def _take_again(self, update: BufferedUpdate) -> list[Effect]:
        """Its verdict may have been lost: repeat it for the same upload, refuse any other."""
        if self._admitted[self._keys[update.name]] != update:
            raise AlreadyBuffered(
                f"mask {update.name.key} has hidden another update", peer=update.name.contributor
            )
        return [self._verdict(update.name, "admitted")]

    def _require_admissible(self, update: BufferedUpdate) -> None:
        opens_at = self.buffer.require_admissible(update, self.version, opening=bool(self._members))
        if self._state.hashes.get(update.base_version) != update.model_hash:
            raise WrongModel(f"version {update.base_version} was another model: download again")
        self.opening.require_openable(update, opens_at)

    def _turn_away(self, update: BufferedUpdate, reason: str) -> list[Effect]:
        """The contributor will not send this update again, so its mask is over."""
        ended = self.opening.end(self.version, [update.name], "refuse")
        return [*ended, self._verdict(update.name, "refused", reason)]

    def _give_way(self) -> list[Effect]:
        """K or more wait, no K of them can be summed, and nobody can join: the oldest makes room."""
        stuck = [] if self._members else self.buffer.evict_oldest()
        return self._release(stuck, "burn", "it could not be summed with the others that waited")

    def _admit(self, message: Update, update: BufferedUpdate) -> list[Effect]:
        key = f"{self._state.admitted:016d}"
        self._state.admitted += 1
        self._admitted[key] = update
        self._keys[update.name] = key
        self.buffer.add(update)
        return [
            *self.opening.admit(message),
            write("buffered", key, update),
            write("model-state", "", self._state),
            self._verdict(update.name, "admitted"),
        ]

    # --- opening and stepping -----------------------------------------------------------------

    def _open_next(self) -> list[Effect]:
        """While no sum is being opened and K updates wait, open the next."""
        effects: list[Effect] = []
        while not self._members and (members := self.buffer.take(self._openable_together)):
            self._members = sorted(members, key=lambda member: member.name)
            asked, outcome = self.opening.begin(self.version, self._members)
            effects += [*asked, *self._finish(outcome)]
        lonely = [] if self._members else self.buffer.evict_lonely()
        return [*effects, *self._release(lonely, "burn", "too few others trained from its version")]

    def _openable_together(self, updates: Sequence[BufferedUpdate]) -> list[BufferedUpdate]:
        return self.opening.openable_together(updates, self.version)

    def _conclude(self, outcome: Outcome | None) -> list[Effect]:
        """Also without an outcome: with one more receipt the updates that wait may be openable."""
        return [*self._finish(outcome), *self._open_next()]

    def _finish(self, outcome: Outcome | None) -> list[Effect]:
        if isinstance(outcome, Opened):
            return self._step(outcome)
        return self._burn(outcome) if isinstance(outcome, Burned) else []

    def _step(self, opened: Opened) -> list[Effect]:
        """x ← x − η_g·Σ s·Δ / Σ s, and on to version t + 1."""
        version, members = self.version, self._members
        self.model = global_step(
            self.model, opened.weighted_sum, sum(opened.weights), self.settings.learning_rate
        )
        self._remember(version + 1)
        return [
            *self._release(members, "open"),
            *self._store_model(),
            *self.opening.expire(self.version),
            *self._evict_stale(),
            Released(
                version,
                tuple(member.name for member in members),
                tuple(member.base_version for member in members),
                opened.weights,
                opened.weighted_sum,
                opened.inconsistent_holders,
            ),
        ]

    def _burn(self, burned: Burned) -> list[Effect]:
        """The updates are lost, the contributors are told, the model stays, training goes on."""
        members = self._members
        names = tuple(member.name for member in members)
        return [
            *self._release(members, "burn", burned.reason),
            Abandoned(self.version, names, burned.reason),
        ]

    def _evict_stale(self) -> list[Effect]:
        stale = self.buffer.evict_stale(self.version)
        return self._release(stale, "burn", "too old before it could be summed")

    def _release(
        self, updates: list[BufferedUpdate], how: Ending, reason: str = ""
    ) -> list[Effect]:
        """These updates are over: forget them and tell their contributors."""
        if not updates:
            return []
        names = [update.name for update in updates]
        self._members = [member for member in self._members if member.name not in names]
        keys = [self._keys.pop(name) for name in names]
        for key in keys:
            del self._admitted[key]
        return [
            *self.opening.end(self.version, names, how),
            *(Forget("buffered", key) for key in keys),
            *(self._verdict(name, LAST_VERDICT[how], reason) for name in names),
        ]

    def _verdict(self, name: MaskName, outcome: Verdicts, reason: str = "") -> Send:
        verdict = Verdict(self.settings.epoch, name, outcome, reason[:MAX_REASON])
        return Send(name.contributor, verdict)

    # --- the model ----------------------------------------------------------------------------

    def _load_model(self, first_version: int) -> None:
        stored = self._records.read("model-state", "")
        if stored is None:
            dtype = self.model.dtype.newbyteorder("<").str
            self._state = ModelState(version=first_version, hashes={}, dtype=dtype)
            self._remember(first_version)
            return
        self._state = parse(stored, ModelState)
        self.model = np.frombuffer(require(self._records, "model", ""), self._state.dtype)

    def _remember(self, version: int) -> None:
        """Note the hash of the present model; forget those too old to train from."""
        oldest = version - self.settings.weighing.max_staleness
        self._state.version = version
        hashes = self._state.hashes | {version: model_hash(version, self.model)}
        self._state.hashes = {v: digest for v, digest in hashes.items() if v >= oldest}

    def _store_model(self) -> list[Effect]:
        return [
            Persist("model", "", model_bytes(self.model)),
            write("model-state", "", self._state),
        ]
