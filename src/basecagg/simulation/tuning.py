"""A tuned run: a chain of epochs, each with the clip B and levels that the last one's reports gave.

Every update carries a report of its size (`maths.ranges`), summed with it and known only as that sum. When the
sums of an epoch say enough, and its parameters do not fit, the next epoch begins with parameters that do: new
keys, new masks, versions that go on. What was trained in the old epoch and has not been summed is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from basecagg.learning import derive_seed
from basecagg.maths.randomness import Seed
from basecagg.maths.randomness import derive_seed as derive_secret
from basecagg.maths.ranges import REPORT_SIZE, RangeTally, fitting, with_report, without_report
from basecagg.protocol.effects import Released
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import Beginning, ServerAggregation
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.step_log import StepLog
from basecagg.simulation.summing import Summing, Watch

_EPOCH_SEED = 0xE90C
_LOST = "updates of an earlier epoch"


@dataclass(frozen=True)
class TunedEpoch:
    """From which version on which parameters were used."""

    first_version: int
    clip: float
    """B"""
    update_levels: int
    """c_l"""


class TunedAggregation(Summing):
    """The servers of all epochs, one after the other, as one. Versions within an epoch count from 0."""

    def __init__(
        self, first: Beginning, make_server: Callable[[Beginning], ServerAggregation]
    ) -> None:
        """Begin the first epoch with the configuration's B and c_l, or go on from a saved state."""
        self._config = first.config
        self._first = first
        self._make_server = make_server
        self._secret = Seed(first.config.seed.to_bytes(32, "big"))
        self._tally = RangeTally()
        self._steps = StepLog()
        self._watch: Watch = lambda agreement, network, signer: None
        self.epochs = [TunedEpoch(0, first.config.clip, first.config.update_levels)]
        state, model = first.state, first.model
        if state:
            self.epochs = [TunedEpoch(**epoch) for epoch in state["epochs"]]
            self._steps = StepLog.restored(state["steps"])
            self._tally = RangeTally(**state["tally"])
        extended = np.concatenate([model, np.zeros(REPORT_SIZE, model.dtype)])
        self._server = self._begin(state.get("beginning", extended), state.get("server", {}))

    # --- what a clock and a schedule ask for -----------------------------------------------------

    @property
    def first_version(self) -> int:
        """Of the present epoch."""
        return self.epochs[-1].first_version

    @property
    def version(self) -> int:
        """t, as published at present."""
        return self.first_version + self._server.version

    @property
    def model(self) -> Vector:
        """x^(t), as published at present."""
        return without_report(self._server.model)

    @property
    def is_opening(self) -> bool:
        """Whether K updates have met, and the version that they make is not published yet."""
        return self._server.is_opening

    def waiting(self) -> set[int]:
        """The users whose updates wait to be summed."""
        return self._server.waiting()

    def prepare(self, user: int) -> float:
        """What the user does before it has an update; returns the simulated seconds this takes."""
        return self._server.prepare(user)

    def upload_bytes(self, model_size: int) -> int:
        """Bytes of one upload, its report included."""
        return self._server.upload_bytes(model_size + REPORT_SIZE)

    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Take the update with its report; one of an earlier epoch has no mask in this one."""
        if base_version < self.first_version:
            self._server.counts[_LOST] += 1
            return
        secret = derive_secret(self._secret, f"user-{user}")
        reported = with_report(update, self.epochs[-1].update_levels, secret)
        self._server.submit(user, reported, base_version - self.first_version)
        self._learn()

    def advance(self, now: float) -> float:
        """Publish what is due, and begin a new epoch if it pays."""
        due = self._server.advance(now)
        if not self.is_opening:
            self._retune()
        return due

    def take_step(self, version: int) -> tuple[Released | None, int]:
        """The sum that made this version, and how many were burned."""
        return self._steps.take(version)

    def watch(self, watch: Watch) -> None:
        """Show the present epoch, and the next ones when they begin."""
        self._watch = watch
        self._server.watch(watch)

    def totals(self, updates: int) -> dict[str, Any]:
        """Of all epochs together, and which there were."""
        epochs = [asdict(epoch) for epoch in self.epochs]
        return self._server.totals(updates) | {"epochs": epochs}

    # --- tuning ----------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Count the reports in the sums that were opened."""
        first, levels = self.first_version, self.epochs[-1].update_levels
        for step in self._server.steps:
            if isinstance(step, Released):
                self._tally.add(step.weighted_sum, step.weights, levels)
                # With versions as the run counts them.
                bases = tuple(base + first for base in step.base_versions)
                self._steps.append(replace(step, version=step.version + first, base_versions=bases))
            else:
                self._steps.append(step)
        self._server.steps.clear()

    def _retune(self) -> None:
        octave = self._tally.octave()
        if octave is None or self._server.version < self._config.tune_after:
            return
        present = self._epoch_config().protocol_parameters(self.model.size)
        found = fitting(present, octave)
        self._tally = RangeTally()
        if found != present:
            epoch = TunedEpoch(self.version, found.clip, found.update_levels)
            self._change_to(epoch)

    def _change_to(self, epoch: TunedEpoch) -> None:
        before = self._server
        before.counts[_LOST] += len(before.waiting())
        self.epochs.append(epoch)
        self._server = self._begin(before.model, {})
        self._server.now = before.now
        self._server.counts = before.counts
        self._server.network.meter = before.network.meter
        self._server.watch(self._watch)

    def _begin(self, model: Vector, state: Mapping[str, Any]) -> ServerAggregation:
        self._beginning = model
        beginning = replace(self._first, config=self._epoch_config(), model=model, state=state)
        return self._make_server(beginning)

    def _epoch_config(self) -> SimulationConfig:
        """The configuration with the epoch's parameters, and randomness of its own."""
        number, epoch = len(self.epochs) - 1, self.epochs[-1]
        if not number:
            return self._config
        return replace(
            self._config,
            clip=epoch.clip,
            update_levels=epoch.update_levels,
            allow_wraparound=False,
            seed=derive_seed(self._config.seed, _EPOCH_SEED, number),
        )

    # --- checkpoints -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "steps": self._steps.state(),
            "tally": asdict(self._tally),
            "beginning": self._beginning,  # the epoch's keys and stores are bound to its first model
            "server": self._server.state(),
        }
