"""The folder of a run: configuration, task, metrics line by line, checkpoint, totals and the final model."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from basecagg.errors import DataError, StorageError
from basecagg.schedules.schedule import Vector
from basecagg.simulation import checkpoint
from basecagg.simulation.config import SimulationConfig, config_from

CONFIG = "config.json"
TASK = "task.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.msgpack"
TOTALS = "totals.json"
USUAL_SCORE = "accuracy"
"""Unless the task has a score of another name: a fraction of the test examples, the larger the better."""
MODEL = "model.npy"
TRANSCRIPT = "transcript.jsonl"
"""What the server of a secure run saw in its first epoch, if the run was watched."""


class RunFolder:
    """Keeps a run so that it can be read, and resumed after Ctrl-C or kill -9."""

    def __init__(
        self,
        folder: Path,
        config: SimulationConfig,
        task: str,
        score: str = USUAL_SCORE,
        *,
        resume: bool,
    ) -> None:
        """Read the checkpoint of a run to resume, or see that there is no run yet. Nothing is written."""
        self._folder = folder
        self._config, self._task, self._score = config, task, score
        self.state: dict[str, Any] = {}
        """Where to go on from; empty if the run begins."""
        if not resume and folder.exists():
            raise DataError(
                f"{folder} exists: choose another folder, or go on with it by resume=True"
            )
        before = read_config(folder) if resume and (folder / CONFIG).exists() else config
        if before.as_used() != config.as_used():
            raise DataError(f"{folder} was made with another configuration")
        if resume and (folder / TASK).exists() and read_task(folder) != task:
            raise DataError(f"{folder} was made with the task {read_task(folder)!r}, not {task!r}")
        if resume and (folder / CHECKPOINT).exists():
            self.state = checkpoint.load(folder / CHECKPOINT)
            records = self.state["records"]
            self.state["history"] = read_metrics(folder)[:records]
            if len(self.state["history"]) < records:
                raise DataError(f"{folder / METRICS} ends before its checkpoint")

    def begin(self) -> None:
        """Make the folder. What a run before wrote after its checkpoint is made again, so it goes."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in transcripts(self._folder):
                os.truncate(path, self.state.get("transcripts", {}).get(path.name, 0))
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be written: {error.strerror}") from None
        self._write(TASK, json.dumps({"name": self._task, "score": self._score}) + "\n")
        self._write(CONFIG, json.dumps(asdict(self._config), indent=2) + "\n")
        lines = (json.dumps(line) + "\n" for line in self.state.get("history", ()))
        self._write(METRICS, "".join(lines))

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one line of metrics."""
        try:
            with (self._folder / METRICS).open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise StorageError(f"metrics cannot be written: {error.strerror}") from None

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Make it possible to resume from this state."""
        seen = {path.name: path.stat().st_size for path in transcripts(self._folder)}
        checkpoint.save(self._folder / CHECKPOINT, {**state, "transcripts": seen})

    def finish(self, totals: Mapping[str, Any], model: Vector) -> None:
        """Write what is known only at the end."""
        content = io.BytesIO()
        np.save(content, model)
        checkpoint.replace_file(self._folder / MODEL, content.getvalue())
        self._write(TOTALS, json.dumps(totals, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        checkpoint.replace_file(self._folder / name, text.encode())


def transcripts(folder: Path) -> list[Path]:
    """What the server saw, epoch by epoch."""
    paths = (transcript_path(folder, number) for number in count(1))
    return list(takewhile(Path.exists, paths))


def transcript_path(folder: Path, number: int) -> Path:
    """Where the transcript of the n-th epoch is: transcript.jsonl, transcript-2.jsonl, …"""
    first = folder / TRANSCRIPT
    return first if number == 1 else first.with_stem(f"{first.stem}-{number}")


def read_config(folder: Path) -> SimulationConfig:
    """The configuration of a run."""
    return config_from(_read_json(folder / CONFIG))


def read_task(folder: Path) -> str:
    """The name of what was learned: a model and a dataset, or a task of the user's own."""
    if not (folder / TASK).exists():  # as runs were written before they kept it
        config = read_config(folder)
        return f"{config.model} on {config.dataset}"
    return str(_read_json(folder / TASK).get("name"))


def read_score(folder: Path) -> str:
    """The name of its score."""
    path = folder / TASK
    return str(_read_json(path).get("score", USUAL_SCORE)) if path.exists() else USUAL_SCORE


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, a dictionary a version. A last line cut off by a crash is left out."""
    try:
        lines = (folder / METRICS).read_text().splitlines()
    except OSError as error:
        raise DataError(f"{folder} is not a run: {error.strerror}") from None
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def read_totals(folder: Path) -> dict[str, Any]:
    """The totals of a finished run, or nothing while it is not finished."""
    path = folder / TOTALS
    return _read_json(path) if path.exists() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} does not hold what a run writes")
    return content
