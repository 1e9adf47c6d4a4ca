"""The folder of a run: configuration, metrics line by line, checkpoint, totals and the final model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from basecagg.errors import DataError, StorageError
from basecagg.schedules.schedule import Vector
from basecagg.simulation import checkpoint
from basecagg.simulation.config import SimulationConfig, config_as_dict, config_from

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.msgpack"
TOTALS = "totals.json"
MODEL = "model.npy"
TRANSCRIPT = "transcript.jsonl"
"""What the server of a secure run saw, if the run was watched."""


class RunFolder:
    """Keeps a run so that it can be read, and resumed after Ctrl-C or kill -9."""

    def __init__(self, folder: Path, config: SimulationConfig, *, resume: bool) -> None:
        """Make a new folder, or take up an existing one where its checkpoint left off."""
        self._folder = folder
        self.state: dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=resume)
        except FileExistsError:
            raise DataError(f"{folder} exists: choose another, or --resume it") from None
        except OSError as error:
            raise StorageError(f"{folder} cannot be made: {error.strerror}") from None
        if resume and (folder / CHECKPOINT).exists():
            self._take_up(config)
        else:
            self._write(CONFIG, json.dumps(config_as_dict(config), indent=2) + "\n")
            self._write(METRICS, "")

    def _take_up(self, config: SimulationConfig) -> None:
        """Read the checkpoint; metrics written after it are made again."""
        if read_config(self._folder) != config:
            raise DataError(f"{self._folder} was made with another configuration")
        self.state = checkpoint.load(self._folder / CHECKPOINT)
        lines = read_metrics(self._folder)[: self.state["records"]]
        self.state["history"] = lines
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one line of metrics."""
        try:
            with (self._folder / METRICS).open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise StorageError(f"metrics cannot be written: {error.strerror}") from None

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Make it possible to resume from here."""
        checkpoint.save(self._folder / CHECKPOINT, state)

    def finish(self, totals: Mapping[str, Any], model: Vector) -> None:
        """Write what is known only at the end."""
        np.save(self._folder / MODEL, model)
        self._write(TOTALS, json.dumps(totals, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        """Replace a file as a whole."""
        partial = self._folder / f"{name}.partial"
        try:
            partial.write_text(text)
            partial.replace(self._folder / name)
        except OSError as error:
            raise StorageError(f"{name} cannot be written: {error.strerror}") from None


def read_config(folder: Path) -> SimulationConfig:
    """The configuration of a run."""
    return config_from(_read_json(folder / CONFIG))


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
