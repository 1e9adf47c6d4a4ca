"""The server: admits updates, fills the buffer, takes the global step. Its opening decides the protection.

Admission, staleness, normaliser and step are here, once, for every protection and every driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from basecagg.errors import AlreadyBuffered, QuotaExceeded, Refused, WrongModel
from basecagg.protocol.buffer import Buffer
from basecagg.protocol.effects import Abandoned, Effect, Forget, Persist, Released, Send
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.global_model import Model, model_bytes, model_hash
from basecagg.protocol.messages import (
    MAX_REASON,
    Contribution,
    History,
    Link,
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
    Move,
    Opened,
    Opening,
    Outcome,
    Stage,
    Update,
)
from basecagg.protocol.ports import Records
from basecagg.protocol.step_rule import (
    PAPER_STEP,
    OptimiserState,
    StepRule,
    state_bytes,
    state_from,
    state_hash,
)
from basecagg.protocol.stored import (
    BufferedUpdate,
    ModelState,
    load,
    recall,
    require,
    version_key,
    write,
)
from basecagg.protocol.weighing import Weighing

_FROM_NOTHING = History(0, bytes(32))
_WAITING: Stage = (b"", False)
"""No sum is being opened, though K updates wait."""
_TRAININGS, _ANSWERS = 3, 20
"""A training is waited for as long as this many of the longest so far, or as this many answers of holders. An
update is parked for as long as these answers."""
Verdicts: TypeAlias = Literal["parked", "admitted", "returned"] | LastVerdict


class AtWork(NamedTuple):
    """What a contributor is doing, as far as the server can see."""

    version: int
    since: float
    """By the driver's clock."""


@dataclass(frozen=True)
class ServerSettings:
    """What the server decides by itself, besides the epoch's parameters."""

    buffer_size: int
    """K"""
    weighing: Weighing
    min_per_version: int = 1
    step: StepRule = PAPER_STEP
    epoch: bytes = bytes(32)
    """The epoch id that verdicts carry; without protection there is none."""
    beginning: History = _FROM_NOTHING
    """The chain of models before the first step."""
    together: int = 1
    """b, where a version is made of several sums: members of one version come in multiples of it."""

    @classmethod
    def of(cls, agreement: Agreement) -> ServerSettings:
        """The settings that an epoch prescribes."""
        p, epoch = agreement.parameters, agreement.epoch
        return cls(
            p.buffer_size,
            Weighing.of(p),
            p.least_per_version,
            epoch.step,
            agreement.id,
            agreement.beginning,
        )


class Server:
    """The global model and its buffer. Rebuilt from its records after a restart, it goes on where it was."""

    def __init__(
        self, settings: ServerSettings, opening: Opening, records: Records, initial_model: Model
    ) -> None:
        """Go on with the stored model, or start with the initial one."""
        self.settings = settings
        self.opening = opening
        self._records = records
        self.model: Model = initial_model
        self.optimiser_state: OptimiserState = ()
        self._load_model()
        stored = load(records, "buffered", BufferedUpdate)
        self._admitted = {update.name: (key, update) for key, update in stored.items()}
        outstanding = set(opening.outstanding())
        members = [update for update in stored.values() if update.name in outstanding]
        self._members = sorted(members, key=lambda member: member.name)
        self.last_version: int | None = None
        """From this version on no sum is opened, even if K updates wait. None: no version is the last."""
        self._stage: Stage | None = None
        self._asked_at = 0.0
        self._at_work: dict[str, AtWork] = {}
        """Who was seen to begin a training. Not stored: it only decides how long lonely updates wait."""
        self._now, self._longest, self._earliest = 0.0, 0.0, 0.0
        """The driver's clock, the longest training so far, and since when one is too long."""
        self._parked_since: dict[MaskName, float] = {}
        """When the driver's clock was first seen with each parked update. After a restart it begins anew."""
        there = [update for update in stored.values() if update.name not in outstanding]
        waiting = [update for update in there if not opening.is_parked(update.name)]
        self.buffer = Buffer(
            settings.buffer_size,
            settings.weighing,
            settings.min_per_version,
            waiting,
            settings.together,
        )
        self.buffer.parked = [update for update in there if opening.is_parked(update.name)]

    @property
    def version(self) -> int:
        """t: how many steps the global model has taken."""
        return self.history.last

    @property
    def history(self) -> History:
        """The chain of models, as far back as updates may come from."""
        return self._state.history

    @property
    def head(self) -> bytes:
        """What the chain of models has come to, for tickets."""
        return self.history.head

    @property
    def is_opening(self) -> bool:
        """Whether a sum is being opened: the driver's deadline runs while it is."""
        return bool(self._members)

    @property
    def waits_for_time(self) -> bool:
        """Whether something ends by the driver's clock if nobody else ends it: the clock has to run."""
        return self.is_opening or self.waits_for_others or bool(self.buffer.parked)

    @property
    def waits_for_others(self) -> bool:
        """Whether K updates wait for others, because some of theirs are left out of the next sum."""
        is_full = len(self.buffer.waiting) >= self.settings.buffer_size
        return is_full and not self._members and self.may_open and self.opening.leaves_out

    @property
    def may_open(self) -> bool:
        """Whether another version is wanted."""
        return self.last_version is None or self.version < self.last_version

    def head_of(self, version: int) -> bytes | None:
        """What the chain of models had come to at a recent version."""
        return self.history.heads.get(version)

    def start(self) -> list[Effect]:
        """Carry this out once after construction: store the model, and go on opening a full buffer."""
        return [*self._store_model(), *self.opening.start(), *self._open_next()]

    def begun(self, contributor: str, version: int) -> None:
        """The driver saw this contributor begin to train from a version: its update may come."""
        if any(update.name.contributor == contributor for update in self.buffer.stored):
            return  # it looks at the model while it waits
        self._at_work[contributor] = AtWork(version, self._now)

    def over(self, contributor: str) -> list[Effect]:
        """No update of this contributor is to be expected any more: others need not wait for it."""
        return self._open_next() if self._at_work.pop(contributor, None) else []

    def receive(self, sender: str, message: Message) -> list[Effect]:
        """Handle a message, or refuse it with a typed error and no change."""
        try:
            if isinstance(message, Upload | Contribution | PlainUpdate):
                if training := self._at_work.pop(sender, None):
                    self._longest = max(self._longest, self._now - training.since)
                return self._take(sender, message)
            return self._conclude(self.opening.receive(sender, message, self.version))
        except Refused as refusal:
            refusal.peer = refusal.peer or sender
            raise

    def tick(self, now: float, patience: float) -> list[Effect]:
        """Ask again those who were silent for longer than `patience`: the driver's clock reads `now`.

        The time begins anew with each stage of an opening: endorsing, then answering. It also runs while K
        updates wait that cannot be summed because contributors are left out, and for each parked update.
        """
        self._now = now
        given_up = [*self._return_parked(patience), *self._wait_for_company(patience)]
        stage = self.opening.stage() or (_WAITING if self.waits_for_others else None)
        if stage != self._stage:
            self._stage, self._asked_at = stage, now
        if stage is None or now - self._asked_at <= patience:
            return given_up
        self._asked_at = now
        return [*given_up, *self.deadline()]

    def _wait_for_company(self, patience: float) -> list[Effect]:
        """Expect nothing of trainings that last much longer than any before: phones vanish."""
        before, most = self._expected(), max(_TRAININGS * self._longest, _ANSWERS * patience)
        self._earliest = self._now - most
        return [] if self._expected() == before else self._open_next()

    def _expected(self) -> set[int]:
        """The versions of which another update may come: those of trainings, and the newest."""
        trainings = self._at_work.values()
        versions = {each.version for each in trainings if each.since >= self._earliest}
        versions |= {update.base_version for update in self.buffer.parked}
        return versions | {self.version} if versions else versions

    def _return_parked(self, patience: float) -> list[Effect]:
        """Return what was parked for too long, to make room for others; the same bytes may come again."""
        parked, since = self.buffer.parked, self._parked_since
        self._parked_since = {each.name: since.get(each.name, self._now) for each in parked}
        latest = self._now - _ANSWERS * patience
        late = [each for each in parked if self._parked_since[each.name] < latest]
        if not late:
            return []
        self.buffer.parked = [each for each in parked if each not in late]
        reason = "too few holders confirmed their shares of its mask in time"
        returned = [effect for each in late for effect in self._give_back(each.name, reason)]
        return [*returned, *self._open_next()]

    def _give_back(self, name: MaskName, reason: str) -> list[Effect]:
        key, _ = self._admitted.pop(name)
        given_back = self.opening.give_back(name)
        return [*given_back, Forget("buffered", key), self._verdict(name, "returned", reason)]

    def deadline(self) -> list[Effect]:
        """Waited long enough: ask again or give up, or let those who were left out into the next sum."""
        if self.waits_for_others:
            return [*self.opening.pardon(), *self._open_next()]
        return self._conclude(self.opening.deadline())

    def reconnect(self, holder: str) -> list[Effect]:
        """Send a holder that is back everything that it has not answered."""
        return [Send(holder, message) for message in self.opening.unanswered(holder, self.version)]

    # --- admission ----------------------------------------------------------------------------

    def _take(self, sender: str, message: Update) -> list[Effect]:
        update = self.opening.authenticate(sender, message)
        if update.name in self._admitted:
            return self._take_again(message, update)
        last = self.opening.last_verdict(update.name)
        if last is not None:
            again = self._verdict(update.name, last, "it came again after it was over")
            return [*self.opening.repeat_end(self.version, update.name), again]
        try:
            self._require_admissible(update)
        except (AlreadyBuffered, QuotaExceeded) as refusal:
            turned_away = self._turn_away(message, update.name, str(refusal))
            return [*turned_away, *self._give_way(refusal, sender)]
        except Refused as refusal:
            return self._turn_away(message, update.name, str(refusal))
        return [*self._let_in(message, update), *self._open_next()]

    def _take_again(self, message: Update, update: BufferedUpdate) -> list[Effect]:
        """Repeat the verdict for the same upload, for it may have been lost; refuse any other upload."""
        if self._admitted[update.name][1] != update:
            raise AlreadyBuffered(f"mask {update.name.key} has hidden another update")
        if self.opening.is_parked(update.name):
            return [*self.opening.repeat(message), self._verdict(update.name, "parked")]
        return [self._verdict(update.name, "admitted")]

    def _require_admissible(self, update: BufferedUpdate) -> None:
        opens_at = self.buffer.require_admissible(update, self.version, opening=bool(self._members))
        if self.head_of(update.base_version) != update.head:
            raise WrongModel(f"version {update.base_version} was another model: download again")
        self.opening.require_openable(update, opens_at, self.history)

    def _turn_away(self, message: Update, name: MaskName, reason: str) -> list[Effect]:
        """Refuse an update and end its mask: the contributor will not send it again."""
        ended = self.opening.turn_away(self.version, message, name)
        return [*ended, self._verdict(name, "refused", reason)]

    def _give_way(self, refusal: Refused, sender: str) -> list[Effect]:
        """K or more wait, no K of them can be summed, and nobody can join: one makes room.

        If there is no room at all, the oldest; else the sender's own, so that nobody throws out others.
        While some are only left out of the next sum, all that wait may be summed soon, and nobody gives way.
        """
        if self._members or self.opening.leaves_out:
            return []
        own = sender if isinstance(refusal, AlreadyBuffered) else None
        stuck = self.buffer.evict_oldest(own)
        return self._release(stuck, "burn", "it could not be summed with the others that waited")

    def _let_in(self, message: Update, update: BufferedUpdate) -> list[Effect]:
        """Store an update. It is parked until enough holders keep a share of its mask."""
        kept = self.opening.keep(message, self.version)
        key = f"{self._state.admitted:016d}"
        self._state.admitted += 1
        self._admitted[update.name] = key, update
        stored = [*kept, write("buffered", key, update), write("model-state", "", self._state)]
        if self.opening.may_admit(update.name):
            return [*stored, *self._admit(update)]
        self.buffer.parked.append(update)
        return [*stored, self._verdict(update.name, "parked")]

    def _admit(self, update: BufferedUpdate) -> list[Effect]:
        self.buffer.waiting.append(update)
        # In the order in which they came, as after a restart; a parked one may be confirmed after later ones.
        self.buffer.waiting.sort(key=lambda each: self._admitted[each.name][0])
        return [*self.opening.admit(update.name), self._verdict(update.name, "admitted")]

    def _admit_confirmed(self) -> list[Effect]:
        """Admit parked updates that enough holders confirm by now, unless they became too old meanwhile."""
        confirmed = [each for each in self.buffer.parked if self.opening.may_admit(each.name)]
        return [effect for each in confirmed for effect in self._admit_late(each)]

    def _admit_late(self, update: BufferedUpdate) -> list[Effect]:
        self.buffer.parked.remove(update)
        try:
            self._require_admissible(update)
        except Refused as refusal:
            return self._release([update], "burn", str(refusal))
        return self._admit(update)

    # --- opening and stepping -----------------------------------------------------------------

    def _open_next(self) -> list[Effect]:
        """While no sum is being opened and K updates wait, open the next."""
        effects: list[Effect] = []
        while not self._members and self.may_open and self.opening.may_begin(self.version):
            members = self.buffer.take(partial(self.opening.openable_together, at=self.version))
            if members is None:
                break
            self._members = sorted(members, key=lambda member: member.name)
            effects += self._finish(*self.opening.begin(self.history, self._members))
        lonely = [] if self._members else self.buffer.evict_lonely(self._expected())
        return [*effects, *self._release(lonely, "burn", "too few others trained from its version")]

    def _conclude(self, move: Move) -> list[Effect]:
        """Finish a move, and open what can be opened now: a receipt alone may have made it possible."""
        return [*self._finish(*move), *self._admit_confirmed(), *self._open_next()]

    def _finish(self, effects: list[Effect], outcome: Outcome | None) -> list[Effect]:
        match outcome:
            case Opened():
                return [*effects, *self._step(outcome)]
            case Burned(reason):  # the updates are lost, the model stays, training goes on
                names = tuple(member.name for member in self._members)
                burned = self._release(self._members, "burn", reason)
                return [*effects, *burned, Abandoned(self.version, names, reason)]
        return effects

    def _step(self, opened: Opened) -> list[Effect]:
        """From Σ s·Δ and Σ s to version t + 1."""
        version, members = self.version, self._members
        self.model, self.optimiser_state = stepped(
            self.settings.step, self.model, self.optimiser_state, opened
        )
        link = link_to(version + 1, self.model, self.optimiser_state, opened.digest)
        # Links that are too old to train from are left out.
        self._state.history = self.history.after(link, self.settings.weighing.max_staleness)
        oldest = self.version - self.settings.weighing.max_staleness
        self._at_work = {n: each for n, each in self._at_work.items() if each.version >= oldest}
        stale = self.buffer.evict_stale(self.version)
        return [
            *self.opening.publish(self.history, opened),
            *self._release(members, "open"),
            *self._store_model(),
            *self.opening.expire(self.version),
            *self._release(stale, "burn", "too old before it could be summed"),
            Released(
                version,
                tuple(member.name for member in members),
                tuple(member.base_version for member in members),
                opened.weights,
                opened.weighted_sum,
                opened.inconsistent_holders,
                opened.applied,
                opened.buckets,
                tuple(member.staleness for member in members),
            ),
        ]

    def _release(
        self, updates: list[BufferedUpdate], how: Ending, reason: str = ""
    ) -> list[Effect]:
        """End updates: forget them and tell their contributors."""
        if not updates:
            return []
        names = [update.name for update in updates]
        self._members = [member for member in self._members if member.name not in names]
        keys = [self._admitted.pop(name)[0] for name in names]
        return [
            *self.opening.end(self.version, names, how),
            *(Forget("buffered", key) for key in keys),
            *(self._verdict(name, LAST_VERDICT[how], reason) for name in names),
        ]

    def _verdict(self, name: MaskName, outcome: Verdicts, reason: str = "") -> Send:
        verdict = Verdict(self.settings.epoch, name, outcome, reason[:MAX_REASON])
        return Send(name.contributor, verdict)

    # --- the model ----------------------------------------------------------------------------

    def _load_model(self) -> None:
        stored, step = recall(self._records, "model-state", ModelState), self.settings.step
        if stored is None:
            self.optimiser_state = step.fresh_state(self.model)
            dtype = self.model.dtype.newbyteorder("<").str
            self._state = ModelState(history=self.settings.beginning, dtype=dtype)
            return
        self._state, key = stored, version_key(stored.history.last)
        self.model = np.frombuffer(require(self._records, "model", key), stored.dtype)
        state = self._records.read("optimiser", key) or b""
        self.optimiser_state = state_from(state, step, stored.dtype, self.model.size)

    def _store_model(self) -> list[Effect]:
        key, state = version_key(self.version), state_bytes(self.optimiser_state)
        return [
            Persist("model", key, model_bytes(self.model)),
            *([Persist("optimiser", key, state)] if state else []),
            write("model-state", "", self._state),
        ]


def stepped(
    rule: StepRule, model: Model, state: OptimiserState, opened: Opened
) -> tuple[Model, OptimiserState]:
    """The next model and state: the same ones again if the sum is not to be applied."""
    if not opened.applied:
        return model, state
    return rule.step(model, state, opened.weighted_sum, opened.total_weight)


def link_to(version: int, model: Model, state: OptimiserState, digest: bytes) -> Link:
    """The link of a version that was made from the sum of this request."""
    return Link(version, model_hash(version, model), state_hash(version, state), digest)
