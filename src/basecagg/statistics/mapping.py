"""A centre's mapping file: where its records are, and how its own columns become those of a study.

It is read-only: a CSV or Parquet file, or the rows of one SELECT on a database that is opened for reading.
Words become numbers here, and units are converted. Records stay in this process.
"""

from __future__ import annotations

import csv
import sqlite3
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from basecagg.errors import DataError
from basecagg.extras import require
from basecagg.statistics.analyses import Column
from basecagg.statistics.statistic import Vector

MAPPING = "mapping.toml"
_EMPTY = ("", "NA", "NaN", "nan", "NULL", "null", "None")
"""What stands in a file for a value that is missing."""


@dataclass(frozen=True)
class Source:
    """One column of a study, from a centre's own."""

    of: str
    unit: str = ""
    times: float = 1.0
    """What a number is multiplied by."""
    values: Mapping[str, float] | None = None
    """What each word becomes; other words count as missing."""

    def convert(self, found: Sequence[Any]) -> Vector:
        """The column as numbers; what is missing, or none, is NaN."""
        numbers: Vector = np.array([self._number(each) for each in found], np.float64)
        return numbers * self.times

    def _number(self, value: Any) -> float:
        if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
            return np.nan
        if self.values is not None:
            word = value.strip() if isinstance(value, str) else f"{value:g}"
            return self.values.get(word, np.nan)
        try:
            return float(value)
        except (TypeError, ValueError):
            return np.nan


@dataclass(frozen=True)
class DataMapping:
    """A mapping file."""

    folder: Path
    kind: str
    place: str
    query: str
    columns: Mapping[str, Source]

    def read(self, names: Sequence[str]) -> dict[str, Any]:
        """These columns of all records, as numbers."""
        if missing := [name for name in names if name not in self.columns]:
            raise DataError(f"{MAPPING} says nothing about column {missing[0]!r}")
        wanted = {name: self.columns[name] for name in names}
        found = _READERS[self.kind](self, sorted({each.of for each in wanted.values()}))
        return {name: each.convert(found[each.of]) for name, each in wanted.items()}


def read_mapping(folder: Path) -> DataMapping:
    """The mapping file in a desk's folder, or `DataError` with what is wrong in it."""
    path = folder / MAPPING
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
        source = dict(said["source"])
        query = str(source.pop("query", ""))
        ((kind, place),) = source.items()
        columns = {name: _source(name, each) for name, each in said["columns"].items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: it has a [source] with one of {', '.join(_READERS)}, a `query` for a database, and"
            f" [columns] ({error})"
        ) from None
    if kind not in _READERS or bool(query) != (kind in ("sqlite", "postgres")):
        raise DataError(f"{path}: a source is one of {', '.join(_READERS)}; databases have a query")
    return DataMapping(folder, kind, str(place), query, columns)


def _source(name: str, said: Any) -> Source:
    if isinstance(said, str):
        return Source(said)
    found = dict(said)
    values = found.pop("values", None)
    known = {str(word): float(number) for word, number in values.items()} if values else None
    source = Source(
        found.pop("from", name), found.pop("unit", ""), float(found.pop("times", 1)), known
    )
    if found:
        raise ValueError(f"nobody knows what {min(found)!r} of column {name!r} means")
    return source


# --- where records are --------------------------------------------------------------------------


def _csv(mapping: DataMapping, names: Sequence[str]) -> dict[str, list[Any]]:
    with (mapping.folder / mapping.place).open(newline="", encoding="utf-8-sig") as file:
        sample = file.read(4096)
        file.seek(0)
        separator = max(",;\t", key=sample.partition("\n")[0].count)
        reader = csv.DictReader(file, delimiter=separator)
        _require(names, reader.fieldnames or (), mapping.place)
        rows = list(reader)
    return {name: [row[name] for row in rows] for name in names}


def _parquet(mapping: DataMapping, names: Sequence[str]) -> dict[str, list[Any]]:
    parquet = require("pyarrow.parquet", extra="parquet", needed_for="Parquet files")
    file = parquet.ParquetFile(mapping.folder / mapping.place)
    _require(names, file.schema_arrow.names, mapping.place)
    table = file.read(columns=list(names))
    return {name: table.column(name).to_pylist() for name in names}


def _sqlite(mapping: DataMapping, names: Sequence[str]) -> dict[str, list[Any]]:
    path = (mapping.folder / mapping.place).resolve()
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        cursor = database.execute(mapping.query)
        return _of_rows(cursor.description, cursor.fetchall(), names)


def _postgres(mapping: DataMapping, names: Sequence[str]) -> dict[str, list[Any]]:
    psycopg = require("psycopg", extra="postgres", needed_for="PostgreSQL")
    with psycopg.connect(mapping.place) as database:
        database.read_only = True
        cursor = database.execute(mapping.query)
        return _of_rows(cursor.description, cursor.fetchall(), names)


def _of_rows(described: Any, rows: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    there = [each[0] for each in described]
    _require(names, there, "the query")
    return {name: [row[there.index(name)] for row in rows] for name in names}


def _require(names: Sequence[str], there: Sequence[str], place: str) -> None:
    if missing := sorted(set(names).difference(there)):
        raise DataError(f"{place} has no column {missing[0]!r}")


_READERS: dict[str, Callable[[DataMapping, Sequence[str]], dict[str, list[Any]]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "sqlite": _sqlite,
    "postgres": _postgres,
}


# --- does it fit? -------------------------------------------------------------------------------


def findings(mapping: DataMapping, columns: Mapping[str, Column], most: int) -> list[str]:
    """What a centre's people should know before they approve. For their eyes only."""
    found = list[str]()
    rows = mapping.read(list(columns))
    size = len(next(iter(rows.values())))
    if size > most:
        found.append(f"{size} records are more than the {most} agreed on: vectors will be clipped")
    for name, column in columns.items():
        values, own = rows[name], mapping.columns[name]
        if own.unit != column.unit:
            said = f"is in {own.unit or 'no unit'} here, the protocol says {column.unit or 'none'}"
            found.append(f"UNIT: {name} {said}")
        known = values[np.isfinite(values)]
        if column.levels:
            outside = ~np.isin(known, column.levels)
            what = "are none of its levels: their records are left out"
        else:
            span = column.span
            outside = (known < span.low) | (known > span.high)
            what = f"lie outside {span.low:g}…{span.high:g}: clipped, or left out by a regression"
        for count, said in ((values.size - known.size, "are missing"), (int(outside.sum()), what)):
            if count:
                found.append(f"{name}: {count} of {values.size} values {said}")
    return found
