"""A study protocol: one TOML file that says who asks what of whom. All parties read the same text.

Nothing in it is code. What is computed is named; columns are described once, with units and limits.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from basecagg.errors import DataError, ParameterError
from basecagg.parameters import ProtocolParameters
from basecagg.planning.budget import Budget
from basecagg.statistics.analyses import Analysis, Column, analysis
from basecagg.statistics.desk import LEAST_CENTRES, Question
from basecagg.statistics.statistic import ascending
from basecagg.statistics.study import parameters_for

RATE = 1e-300
"""η_g of a study's epoch: no sum moves the model, which stays zeros. What is wanted is the sum."""
_STUDY = {"title": str, "question": str, "analyst": str, "members": list, "most": int, "least": int}
_COLUMN = {"unit": str, "low": float, "high": float, "levels": list, "meaning": str}
_BUDGET = {"epsilon": float, "delta": float, "uses": int}


@dataclass(frozen=True)
class StudyProtocol:
    """What a protocol file says."""

    text: str
    title: str
    question: str
    """What the study is to find out."""
    analyst: str
    members: tuple[str, ...]
    """The centres, in order."""
    most: int
    """Records that a centre has at most."""
    least: int
    """Centres in an exact sum."""
    columns: Mapping[str, Column]
    budget: Budget | None
    analyses: tuple[Analysis, ...]

    @property
    def answered(self) -> frozenset[tuple[str, bool]]:
        """All that it asks for: the hash of a statistic, and whether its sum has noise."""
        return frozenset((s.digest, asked.private) for asked in self.analyses for s in asked.sums)

    @property
    def size(self) -> int:
        """Elements of the longest answer."""
        return max(self._size(asked) for asked in self.analyses)

    def _size(self, asked: Analysis) -> int:
        questions = [Question(each, self.members, 1) for each in asked.sums]
        if asked.private:
            questions = [each.with_noise(self.budget) for each in questions]
        return max(each.size for each in questions)

    @property
    def parameters(self) -> ProtocolParameters:
        """Of the epoch that it becomes."""
        return parameters_for(len(self.members), self.size)


def read_file(path: Path) -> StudyProtocol:
    """The protocol in a file."""
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> StudyProtocol:
    """What a protocol's text says, or `DataError` with what is wrong in it."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"the study protocol is no TOML: {error}") from None
    try:
        return _protocol(text, said)
    except (DataError, ParameterError, TypeError, ValueError) as error:
        raise DataError(f"the study protocol: {error}") from None


def _protocol(text: str, said: dict[str, Any]) -> StudyProtocol:
    _only(said, "a protocol", {"study", "columns", "ask"}, {"budget"})
    study = _fields(said["study"], "[study]", _STUDY, {"least": LEAST_CENTRES})
    members = tuple(study["members"])
    if not all(isinstance(each, str) for each in members) or len(set(members)) != len(members):
        raise DataError("members are names, each once")
    if study["least"] < 2 or len(members) < study["least"]:
        raise DataError(f"{len(members)} members, and sums of {study['least']} centres at least")
    columns = {name: _column(name, each) for name, each in said["columns"].items()}
    budget = _budget(said["budget"]) if "budget" in said else None
    asked = tuple(analysis(each, columns, study["most"]) for each in said["ask"])
    if not asked or len({each.name for each in asked}) != len(asked):
        raise DataError("it asks nothing, or two things under one name")
    noisy = [each.name for each in asked if each.private]
    if noisy and budget is None:
        raise DataError(f"{noisy[0]} is asked for with noise, and there is no [budget]")
    others = {name: study[name] for name in ("title", "question", "analyst", "most", "least")}
    return StudyProtocol(
        text=text,
        members=tuple(sorted(members)),
        columns=columns,
        budget=budget,
        analyses=asked,
        **others,
    )


def _column(name: str, said: Any) -> Column:
    usual = {"unit": "", "low": None, "high": None, "levels": (), "meaning": ""}
    found = _fields(said, f"[columns.{name}]", _COLUMN, usual)
    found["levels"] = tuple(float(each) for each in found["levels"])
    column = Column(name, **found)
    span = column.span
    ascending(column.levels or (span.low, span.high), f"the levels or ends of {name}")
    return column


def _budget(said: Any) -> Budget:
    found = _fields(said, "[budget]", _BUDGET, {})
    uses = found.pop("uses")
    return Budget(**found, max_uses=uses)


def _fields(
    said: Any, where: str, kinds: Mapping[str, Callable[[Any], Any]], usual: Mapping[str, Any]
) -> dict[str, Any]:
    _only(said, where, kinds.keys() - usual.keys(), usual.keys())
    found = dict(usual)
    for name, value in said.items():
        kind: Any = kinds[name]
        fits = isinstance(value, (int, float) if kind is float else kind)
        if not fits or isinstance(value, bool):
            raise DataError(f"{where}: {name} = {value!r} is of another kind than it should be")
        found[name] = kind(value)
    return found


def _only(said: Any, where: str, needed: Any, allowed: Any) -> None:
    if not isinstance(said, dict):
        raise DataError(f"{where} is no table")
    if missing := sorted(set(needed) - said.keys()):
        raise DataError(f"{where} lacks {missing[0]!r}")
    if unknown := sorted(said.keys() - set(needed) - set(allowed)):
        raise DataError(f"{where}: nobody knows what {unknown[0]!r} means there")
