"""A centre's desk: it answers questions about its rows, and refuses what would single it out.

A sum of few centres says much about each. The same numbers in two sums of different centres are told apart by
subtracting. So an exact answer goes into sums of at least so many centres, always the same ones; noisy answers
go into any, and are paid for. What was answered is written down before the answer leaves.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from basecagg.errors import BASecAggWarning, DataError, ParameterError, QuestionRefused
from basecagg.maths.randomness import SEED_BYTES, system_entropy
from basecagg.privacy import Mechanism
from basecagg.protections.budget import Budget
from basecagg.protocol.effects import Persist, Store, perform
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.statistics.fixed_point import element_bits, join, split
from basecagg.statistics.private import blurred, private_sums
from basecagg.statistics.statistic import Result, Rows, Statistic, Vector

LEAST_CENTRES = 5
"""Centres in a sum for whoever has not chosen: with two who work together there are three left."""


@dataclass(frozen=True, eq=False)
class Question(Generic[Result]):
    """One sum that is asked for."""

    statistic: Statistic[Result]
    members: tuple[str, ...]
    """Every centre that is to be in the sum, in order."""
    number: int
    """Each question has its own. It travels in the vector: in the sum it shows that all answered this one."""
    noise: Mechanism | None = None

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)):
            raise ParameterError(
                "the members of a sum stand in order, each once", rule="members ascend"
            )

    @property
    def bits(self) -> int:
        """Of one element."""
        return element_bits(len(self.members))

    @property
    def size(self) -> int:
        """Elements of an answer."""
        return 1 + self.statistic.bounds.size * (2 if self.noise is None else 1)

    def encode(self, vector: Vector, seed: bytes) -> Vector:
        """An answer as whole numbers for the field."""
        bounds = self.statistic.bounds
        if vector.shape != bounds.shape:
            raise DataError(
                f"{self.statistic.name} gave {vector.shape}, its bounds are {bounds.shape}"
            )
        if self.noise is None:
            return np.concatenate([[self.number], split(vector, bounds, self.bits)])
        return np.concatenate([[self.number], blurred(vector, bounds, self.noise, seed)])

    def decode(self, total: Vector) -> Result:
        """What everybody makes of the sum of all answers."""
        if total[0] != self.number * len(self.members):
            raise DataError(f"a centre answered another question than number {self.number}")
        if self.noise is not None:
            return self.statistic.of_sum(total[1:] / self.noise.levels)
        return self.statistic.of_sum(join(total[1:], self.statistic.bounds, self.bits))


class Desk:
    """One centre, as questions reach it. Its rows stay here."""

    def __init__(
        self,
        name: str,
        rows: Rows,
        store: Store,
        *,
        least: int = LEAST_CENTRES,
        budget: Budget | None = None,
        entropy: Callable[[int], bytes] = system_entropy,
    ) -> None:
        """Go on with what the store remembers. Only an experiment replaces the entropy.

        `budget` is what this centre grants: noisy questions are answered with the noise that it takes, no less.
        """
        self.name = name
        self._rows = rows
        self._store = store
        self._least = least
        self._budget = budget
        self._entropy = entropy
        self.ledger = PrivacyLedger(store)
        """What noisy answers have cost."""

    def answer(self, question: Question[Any]) -> Vector:
        """The centre's part of a sum, or `QuestionRefused`, or `BudgetSpent`."""
        self.require_hidden(question)
        answer = question.encode(self._vector(question), self._entropy(SEED_BYTES))
        # What has to be known before the answer leaves: what it costs, or who else is in the sum.
        exact = Persist("members", "", _digest(question), irreversible=True)
        noted = [exact] if question.noise is None else self.ledger.charge(question.noise, 0)
        perform(self._store, noted)
        return answer

    def require_hidden(self, question: Question[Any]) -> None:
        """Refuse what would single a centre out."""
        members = question.members
        if self._store.rolled_back:
            raise QuestionRefused("this store is an older copy: what was answered is not known")
        if self.name not in members:
            raise QuestionRefused(f"{self.name} is not among the centres that are asked")
        if len(members) < self._least:
            raise QuestionRefused(
                f"a sum of {len(members)} centres: {self.name} answers in sums of {self._least} or more"
            )
        if question.noise is not None and question.noise != self._noise(question, question.noise):
            raise QuestionRefused(
                f"this is not the noise that the budget of {self.name} takes: {self._budget}"
            )
        before = self._store.read("members", "")
        if question.noise is None and before not in (None, _digest(question)):
            raise QuestionRefused(
                f"{self.name} has answered exactly together with other centres: the difference of the two sums"
                " would single somebody out; ask the same centres, or with noise"
            )

    def _noise(self, question: Question[Any], asked: Mechanism) -> Mechanism | None:
        """The noise by the centre's own budget: whoever asks could ask for less, or for another ε."""
        if self._budget is None:
            return None
        members = len(question.members)
        return private_sums(
            question.statistic, self._budget, members, asked.silent, bits=question.bits
        )

    def _vector(self, question: Question[Any]) -> Vector:
        """From the rows that suit the question. That some do not, the centre is told, and nobody else."""
        statistic, rows, notes = question.statistic, self._rows, list[str]()
        try:
            vector = _numbers(statistic, rows)
        except DataError as unsuited:
            rows, left_out = _suited(statistic, rows)
            notes.append(f"leaves {left_out} records out of {statistic.name}: {unsuited}")
            try:
                vector = _numbers(statistic, rows)
            except DataError:  # whatever the records: a column is missing, which noise has to hide
                if question.noise is None:
                    raise
                self._tell(notes)
                return np.zeros(statistic.bounds.size)
        self._tell([*notes, *statistic.notes(rows)])
        return vector

    def _tell(self, notes: list[str]) -> None:
        for note in notes:
            warnings.warn(f"{self.name}: {note}", BASecAggWarning, 2)


def _numbers(statistic: Statistic[Any], rows: Rows) -> Vector:
    """The vector of some rows; one value that is none must not take all others with it."""
    vector = statistic.of_rows(rows)
    if not np.isfinite(vector).all():
        raise DataError("some values are missing or no numbers")
    return vector


def _suited(statistic: Statistic[Any], rows: Rows) -> tuple[Rows, str]:
    """The records that suit, each judged by itself: so one more that does not changes nothing."""
    columns = {name: np.asarray(rows[name]) for name in rows}
    count = min((values.shape[0] for values in columns.values()), default=0)
    kept = [
        at for at in range(count) if _suits(statistic, {n: v[[at]] for n, v in columns.items()})
    ]
    return {
        name: values[kept] for name, values in columns.items()
    }, f"{count - len(kept)} of {count}"


def _suits(statistic: Statistic[Any], record: Rows) -> bool:
    try:
        _numbers(statistic, record)
    except DataError:
        return False
    return True


def _digest(question: Question[Any]) -> bytes:
    return hashlib.sha256(json.dumps(question.members).encode()).digest()
