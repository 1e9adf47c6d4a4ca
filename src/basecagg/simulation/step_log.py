"""The sums that were opened or burned, until they are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from basecagg.protocol.effects import Abandoned, Released
from basecagg.protocol.messages import MaskName

AnyStep: TypeAlias = Released | Abandoned


class StepLog(list[AnyStep]):
    """Steps in their order."""

    @classmethod
    def restored(cls, saved: Iterable[Mapping[str, Any]]) -> StepLog:
        """As `state` gave it."""
        return cls(_step_from(each) for each in saved)

    def take(self, version: int) -> tuple[Released | None, int]:
        """The sum that made this version, and how many were burned. What is not published yet stays."""
        opened = [step for step in self if isinstance(step, Released)]
        burned = len(self) - len(opened)
        self[:] = [step for step in opened if step.version >= version]
        return next((s for s in reversed(opened) if s.version < version), None), burned

    def state(self) -> list[dict[str, Any]]:
        """For a checkpoint."""
        return [_as_plain(step) for step in self]


def _as_plain(step: AnyStep) -> dict[str, Any]:
    names = (
        step.__struct_fields__ if isinstance(step, Abandoned) else [f.name for f in fields(step)]
    )
    plain = {name: getattr(step, name) for name in names}
    return plain | {"members": [[name.contributor, name.serial] for name in step.members]}


def _step_from(plain: Mapping[str, Any]) -> AnyStep:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
    values["members"] = tuple(MaskName(*name) for name in plain["members"])
    return Abandoned(**values) if "reason" in values else Released(**values)
