"""One simulated run, from configuration to result: repeatable from its seed, resumable to the same result."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from basecagg.errors import BudgetSpent
from basecagg.learning import Task, built_in_task
from basecagg.simulation.build import RunParts, build
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.logbook import VersionRecord
from basecagg.simulation.progress import Line
from basecagg.simulation.result import SimulationResult
from basecagg.simulation.run_folder import RunFolder
from basecagg.simulation.sums import Watch
from basecagg.simulation.trainers import threads_as_before
from basecagg.simulation.transcribing import transcribed

Progress: TypeAlias = Callable[[VersionRecord], None]


def simulate(
    config: SimulationConfig,
    *,
    task: Task | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    progress: Progress | bool = False,
    watch: Watch = lambda agreement, network, signer: None,
) -> SimulationResult:
    """Simulate a federation. A `folder` keeps metrics and checkpoints, from which `resume` goes on.

    Of a secure run it also keeps the transcript of what the server saw, which `audit` reads.
    `progress` is told of every version; True writes a line that says how far it is. `watch` gets the epoch, the
    network and the server's signer of a secure run at its start, and again with every epoch that auto-tuning
    begins.
    The run ends with its last version, or when users have no budget of privacy left: updates that then wait in
    the buffer, or are still being trained, are discarded. A run that cannot begin leaves no folder.
    """
    task = task or built_in_task(
        config.model, config.dataset, data_dir=Path(config.data_dir), download=config.download
    )
    place = Path(folder) if folder else None
    kept = RunFolder(place, config, task.name, task.score_name, resume=resume) if place else None
    state = kept.state if kept else {}
    with threads_as_before():
        parts = build(config, task, state)
        started, stopped = time.perf_counter(), {}
        with closing(parts.workshop), transcribed(place, resumed=bool(state)) as transcribe:
            if kept:
                kept.begin()
            # Both see every epoch: auto-tuning begins several.
            parts.aggregator.watch(lambda *epoch: [see(*epoch) for see in (transcribe, watch)])
            try:
                play(parts, kept, _teller(progress, config))
            except BudgetSpent as reason:
                at = parts.schedule.version
                stopped["stopped"] = f"the run ended after version {at}: {reason}"
    totals = {"wall seconds": time.perf_counter() - started, **stopped, **parts.totals()}
    if kept:
        kept.finish(totals, parts.model)
    records = tuple(parts.logbook.records)
    return SimulationResult(config, records, totals, parts.model, task.score_name)


def _teller(progress: Progress | bool, config: SimulationConfig) -> Progress:
    if callable(progress):
        return progress
    return Line(config) if progress else lambda record: None


def play(
    parts: RunParts, kept: RunFolder | None = None, progress: Progress = lambda record: None
) -> tuple[VersionRecord, ...]:
    """Tick until the last version; record, evaluate and checkpoint on the way."""
    logbook, schedule = parts.logbook, parts.schedule
    if not logbook.records:
        _record(parts, kept, progress)
    while not logbook.is_over:
        before = schedule.version
        parts.clock.tick()
        if schedule.version != before:
            _record(parts, kept, progress)
            if kept and schedule.version % parts.config.checkpoint_every == 0:
                kept.checkpoint(parts.state())
    return tuple(logbook.records)


def _record(parts: RunParts, kept: RunFolder | None, progress: Progress) -> None:
    now = VersionRecord(
        parts.schedule.version,
        parts.clock.now,
        parts.workshop.updates,
        epsilon=parts.epsilon(),
        lost=parts.lost(),
    )
    record = parts.logbook.add(now, parts.model, *parts.aggregator.take_step())
    if kept:
        kept.write(asdict(record))
    progress(record)
