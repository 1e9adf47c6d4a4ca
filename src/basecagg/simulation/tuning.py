"""A run that finds its clip B and levels c_l itself: a chain of epochs, each with what the last one taught.

Every update carries a report of its size (`maths.ranges`), summed with it and known only as that sum. When the
sums of an epoch say enough, and its parameters do not fit, the next epoch begins with parameters that do: new
keys, new masks, versions that go on. What was trained in the old epoch and has not been summed is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from basecagg.learning import derive_seed
from basecagg.maths.randomness import Seed
from basecagg.maths.randomness import derive_seed as derive_secret
from basecagg.maths.ranges import REPORT_SIZE, RangeTally, fitting, with_report, without_report
from basecagg.protocol.effects import Abandoned, Released
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import (
    Publication,
    ServerAggregation,
    step_as_plain,
    step_from,
)
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.metering import MeteredLoopback

MakeServer: TypeAlias = Callable[[SimulationConfig, Vector, Mapping[str, Any]], ServerAggregation]
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


class TunedAggregation:
    """The servers of all epochs, one after the other, as one. Versions within an epoch count from 0."""

    def __init__(
        self,
        config: SimulationConfig,
        model: Vector,
        make_server: MakeServer,
        state: Mapping[str, Any],
    ) -> None:
        """Begin the first epoch with the configuration's B and c_l, or go on from a saved state."""
        self._config = config
        self._make_server = make_server
        self._secret = Seed(config.seed.to_bytes(32, "big"))
        self._tally = RangeTally()
        self.steps: list[Released | Abandoned] = []
        self.epochs = [TunedEpoch(0, config.clip, config.update_levels)]
        if state:
            self.epochs = [TunedEpoch(**epoch) for epoch in state["epochs"]]
            self.steps = [step_from(step) for step in state["steps"]]
            self._tally = RangeTally(**state["tally"])
        extended = np.concatenate([model, np.zeros(REPORT_SIZE, model.dtype)])
        self._server = self._begin(extended, state.get("server", {}))

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
    def pending(self) -> list[Publication]:
        """Versions that cannot be downloaded yet."""
        return list(self._server.pending)

    @property
    def network(self) -> MeteredLoopback:
        """Of the present epoch; its meter counts all."""
        return self._server.network

    @property
    def counts(self) -> Counter[str]:
        """What happened in all epochs."""
        return self._server.counts

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
            self.counts[_LOST] += 1
            return
        secret = derive_secret(self._secret, f"user-{user}")
        reported = with_report(update, self.epochs[-1].update_levels, secret)
        self._server.submit(user, reported, base_version - self.first_version)
        self._learn()

    def advance(self, now: float) -> None:
        """The simulated time is `now`: publish what is due, and begin a new epoch if it pays."""
        self._server.advance(now)
        if not self._server.pending:
            self._retune()

    # --- tuning ----------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Count the reports in the sums that were opened."""
        for step in self._server.take_steps():
            if isinstance(step, Released):
                levels = self.epochs[-1].update_levels
                self._tally.add(step.weighted_sum, step.weights, levels)
            self.steps.append(self._in_the_run(step))

    def _in_the_run(self, step: Released | Abandoned) -> Released | Abandoned:
        """The step with versions as the run counts them."""
        first = self.first_version
        if isinstance(step, Abandoned):
            return replace(step, version=step.version + first)
        bases = tuple(base + first for base in step.base_versions)
        return replace(step, version=step.version + first, base_versions=bases)

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

    def _begin(self, model: Vector, state: Mapping[str, Any]) -> ServerAggregation:
        return self._make_server(self._epoch_config(), model, state)

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
            "steps": [step_as_plain(step) for step in self.steps],
            "tally": asdict(self._tally),
            "server": self._server.state(),
        }
