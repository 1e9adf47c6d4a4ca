"""Results as they come, one JSON line each: an experiment that is stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from basecagg.errors import DataError, StorageError
from reproduction import machine


class Ledger:
    """Results by key, and the machine they were measured on. A last line cut off by a crash is dropped."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        self.results: dict[str, Any] = {}
        self.machine: dict[str, Any] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text().splitlines() if path.exists() else []
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            self._take(line, number, last=number == len(lines))
        if lines:
            self._rewrite()

    def _take(self, line: str, number: int, *, last: bool) -> None:
        try:
            entry = json.loads(line)
            if "machine" in entry:
                self.machine = entry["machine"]
            else:
                self.results[entry["key"]] = entry["result"]
        except (json.JSONDecodeError, KeyError, TypeError):
            if not last:
                raise DataError(f"{self._path}, line {number} is not a result") from None

    def _rewrite(self) -> None:
        text = "".join(_line(key, result) for key, result in self.results.items())
        self._path.write_text(json.dumps({"machine": self.machine}) + "\n" + text)

    def __contains__(self, key: str) -> bool:
        """Whether there is a result."""
        return key in self.results

    def add(self, key: str, result: Any) -> None:
        """Write a result down at once."""
        self.results[key] = result
        if not self.machine:
            self.machine = machine.describe()
            self._rewrite()
            return
        try:
            with self._path.open("a") as file:
                file.write(_line(key, result))
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from None


def _line(key: str, result: Any) -> str:
    return json.dumps({"key": key, "result": result}) + "\n"
