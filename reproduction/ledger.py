"""Results as they come, one JSON line each: an experiment that is stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from basecagg.errors import DataError, StorageError
from reproduction import machine


class Ledger:
    """Results by key, and the machines they were measured on.

    A last line cut off by a crash is dropped when the next result comes. Reading writes nothing: a report may
    be drawn while the experiment goes on.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        self._is_open = False
        self.results: dict[str, Any] = {}
        self.machines: list[dict[str, Any]] = []
        try:
            text = path.read_text() if path.exists() else ""
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from None
        *lines, self._rest = text.split("\n")
        for number, line in enumerate(lines, 1):
            self._take(line, number)

    def _take(self, line: str, number: int) -> None:
        try:
            entry = json.loads(line)
            if "machine" in entry:
                self.machines.append(entry["machine"])
            else:
                self.results[entry["key"]] = entry["result"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise DataError(f"{self._path}, line {number} is not a result") from None

    def __contains__(self, key: str) -> bool:
        """Whether there is a result."""
        return key in self.results

    def add(self, key: str, result: Any) -> None:
        """Write a result down at once; before the first also what it was measured on, if that is new."""
        try:
            if not self._is_open:
                self._begin()
            self._append({"key": key, "result": result})
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from None
        self.results[key] = result

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._rest:
            os.truncate(self._path, self._path.stat().st_size - len(self._rest.encode()))
        here = machine.describe()
        if not self.machines or not _same(self.machines[-1], here):
            self.machines.append(here)
            self._append({"machine": here})
        self._is_open = True

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether all that both say agrees, but for the date."""
    return all(one[name] == other[name] for name in one.keys() & other.keys() - {"date"})
