"""The server of a run: takes updates, and publishes a model when the sum behind it is open.

Opening takes simulated time; users can download the new version only when it is over. A run is one epoch, or a
chain of them if it is tuned. Versions go on from one epoch to the next, whose own count begins with 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple, TypeAlias

import msgspec

from basecagg.auditing.suspects import Suspects
from basecagg.parties.epoch_server import Server
from basecagg.protocol.effects import Abandoned, MaskEnded, Released, Uploaded
from basecagg.schedules.schedule import Vector
from basecagg.simulation.beginning import Beginning, user_name, user_number
from basecagg.simulation.sums import Sums, Watch
from basecagg.simulation.tuning import Tuner

_LOST = "updates of an earlier epoch"
MakeSums: TypeAlias = Callable[[Beginning], Sums]
Told: TypeAlias = Callable[[int, int, int], int]
"""The version that a user says it trained from: who, the true one, the newest."""


class Publication(NamedTuple):
    """A version of the model, and the simulated time from which users can download it."""

    at: float
    version: int
    model: Vector
    step: Released | None
    """The sum behind it."""


class Aggregator:
    """Takes updates, and keeps a queue of the versions that are made of them and not published yet.

    `sums` says how updates are protected and opened. FedAsync and FedAT keep their model themselves; then
    nothing is submitted here, and the model stays the first one.
    """

    def __init__(
        self,
        beginning: Beginning,
        make_sums: MakeSums,
        told: Told = lambda user, base_version, version: base_version,
    ) -> None:
        """Publish the first model at once, or go on from a saved state."""
        state = beginning.state
        self._beginning, self._make_sums, self._told = beginning, make_sums, told
        self._watch: Watch = lambda agreement, network, signer: None
        self._uploaded: dict[int, int] = {}
        """The last version that each user uploaded from, where nobody may upload from one twice."""
        self._burned = 0
        self.summed = 0
        """Updates that are in sums that were opened."""
        self._step: Released | None = None
        self.now = 0.0
        self.counts, self.meter = beginning.counts, beginning.meter
        self.suspects = Suspects()
        self.tuner = Tuner(beginning.config, state) if beginning.config.auto_tune else None
        self.pending: deque[Publication] = deque()
        first = self.tuner.extended(beginning.model) if self.tuner else beginning.model
        self._begin_epoch(state.get("epoch model", first), state.get("sums", {}))
        self.version, self.model = self._newest()
        """t and x^(t), as published at present."""
        if state:
            self._restore(state)

    def _begin_epoch(self, model: Vector, state: Mapping[str, Any]) -> None:
        """Begin an epoch with this model, or go on with its saved state.

        In a new epoch the optimiser's state is reset, because an epoch is bound to a model and nothing else.
        """
        config = self.tuner.config if self.tuner else self._beginning.config
        self._epoch = replace(self._beginning, config=config, model=model, state=state)
        self.sums = self._make_sums(self._epoch)
        self.sums.watch(self._watch)

    # --- what a clock, a schedule and users ask for ----------------------------------------------

    @property
    def server(self) -> Server:
        """The machine of the present epoch."""
        return self.sums.server

    @property
    def first_version(self) -> int:
        """The first version of the present epoch; updates of older versions are discarded."""
        return self.tuner.epochs[-1].first_version if self.tuner else 0

    @property
    def is_opening(self) -> bool:
        """Whether K updates have met, and the version that they make is not published yet."""
        return bool(self.pending)

    def waiting(self) -> set[int]:
        """The users whose updates wait to be summed, or who may not train from the present version again."""
        buffered = {user_number(update.name.contributor) for update in self.server.buffer.stored}
        published = self.version - self.first_version
        used_up = (user for user, base in self._uploaded.items() if base >= self.version)
        return buffered.union(user for user in used_up if self.sums.rests(user, published))

    def begun(self, user: int, base_version: int) -> None:
        """A user begins to train from version t_i: its server sees it come for the model."""
        if base_version >= self.first_version:
            self.server.begun(user_name(user), base_version - self.first_version)

    def over(self, user: int) -> None:
        """A user vanished while it trained."""
        self.sums.network.server.over(user_name(user))
        self.collect_news()

    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Take the update of a user that trained from version t_i."""
        base_version = self._told(user, base_version, self.version)
        if base_version < self.first_version:
            self.counts[_LOST] += 1
            return
        if self.tuner:
            update = self.tuner.reported(user, update)
        if self.sums.send(user, update, base_version - self.first_version) and self.sums.once:
            self._uploaded[user] = base_version
        self.collect_news()

    def advance(self, now: float) -> float:
        """It is `now`: publish what is due. Returns when the next version is due, or inf."""
        self.now = now
        while self.pending and self.pending[0].at <= now:
            _, self.version, self.model, self._step = self.pending.popleft()
        due = self.pending[0].at if self.pending else inf
        if self.tuner and not self.pending:
            lost = len(self.waiting())  # their masks end with the epoch
            if self.tuner.retune(self.version, self.model.size):
                self.counts[_LOST] += lost
                self._begin_epoch(self.server.model, {})
        return due

    # --- what was opened --------------------------------------------------------------------------

    def collect_news(self) -> None:
        """Count what the machines report, and put a new version into the queue."""
        opened: Released | None = None
        news, self.sums.network.news = self.sums.network.news, []
        for each in news:
            if isinstance(each, Released):
                self.suspects.learn(each.buckets)
                opened = self._in_run(each)
                self.summed += len(each.members)
            elif isinstance(each, Abandoned):
                self._burned += 1
            elif isinstance(each, Uploaded):
                self.counts["clipped elements"] += each.clipped
            elif isinstance(each, MaskEnded):
                self.counts[f"updates {each.state}"] += 1
        if opened is not None:
            # It can be downloaded when the time to open it has passed. One sum is opened at a time.
            begun = max(self.now, self.pending[-1].at if self.pending else 0.0)
            at = begun + self.sums.opening_seconds()
            self.pending.append(Publication(at, *self._newest(), opened))

    def _in_run(self, step: Released) -> Released:
        """The step, with its versions renumbered as the run counts them."""
        if not step.applied:
            self.counts["sums not applied"] += 1
        if self.tuner is None:
            return step
        self.tuner.learn(step)
        first = self.first_version
        bases = tuple(base + first for base in step.base_versions)
        return msgspec.structs.replace(step, version=step.version + first, base_versions=bases)

    def _newest(self) -> tuple[int, Vector]:
        model = self.server.model
        model = self.tuner.without_report(model) if self.tuner else model
        return self.first_version + self.server.version, model

    def take_step(self) -> tuple[Released | None, int]:
        """The sum that made the published version, and how many were burned, since this was asked last."""
        taken = self._step, self._burned
        self._step, self._burned = None, 0
        return taken

    def watch(self, watch: Watch) -> None:
        """Show every epoch with keys to `watch`: the present one now, others when they begin."""
        self._watch = watch
        self.sums.watch(watch)

    def totals(self) -> dict[str, Any]:
        """What it cost, and what happened."""
        self.collect_news()
        meter, epochs = self.meter, self.tuner.totals() if self.tuner else {}
        return {
            "crypto seconds": dict(meter.seconds),
            "bytes": dict(meter.bytes_sent),
            "counts": dict(self.counts),
            **({"suspects": self.suspects.probabilities()} if self.suspects.has_seen_any else {}),
            **self.sums.totals(),
            **epochs,
        }

    # --- checkpoints -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        sums = self.sums.state()  # comes first: it may have to deliver
        self.collect_news()
        return {
            "sums": sums,
            "epoch model": self._epoch.model,  # the epoch's keys and stores are bound to it
            "published": [self.version, self.model],
            "waiting": list(self.pending),
            "burned": self._burned,
            "summed": self.summed,
            "counts": dict(self.counts),
            "uploaded": self._uploaded,
            "meter": self.meter.state(),
            "suspects": self.suspects.state(),
            **(self.tuner.state() if self.tuner else {}),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the stores were there from the beginning."""
        self.version, self.model = state["published"]
        waiting = state["waiting"]
        self.pending.extend(
            msgspec.convert(waiting, list[Publication], dec_hook=lambda kind, array: array)
        )
        self._burned, self.summed = state["burned"], state["summed"]
        self.counts.update(state["counts"])
        self._uploaded |= state["uploaded"]
        self.meter.restore(state["meter"])
        self.suspects.restore(state["suspects"])
