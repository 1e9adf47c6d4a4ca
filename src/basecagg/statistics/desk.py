"""A centre's desk answers questions about its rows, and refuses those that would single the centre out.

A sum of few centres says much about each of them. Two sums of the same numbers over different centres show
their difference. So exact answers go into sums of at least `least` centres, always the same ones. Noisy answers
go into any sum, and cost budget. The desk writes down what it answers before the answer leaves.

Whether a centre answers is decided before a row is read, by what it agreed on: with whom, how many records,
which statistics. Of a question it takes names and numbers, and no function. What goes wrong later stays in its
log.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic

import numpy as np
from msgspec.structs import replace

from basecagg.errors import BASecAggWarning, DataError, ParameterError, QuestionRefused
from basecagg.maths.randomness import SEED_BYTES, WordStream, derive_seed, system_entropy
from basecagg.parameters import usual_tolerance
from basecagg.planning.budget import Budget
from basecagg.privacy import Mechanism
from basecagg.protocol.effects import Effect, Persist, Store, Write, perform
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.stored import Stored, load, recall, write
from basecagg.statistics import encoding
from basecagg.statistics.makers import make
from basecagg.statistics.recipe import written
from basecagg.statistics.statistic import Result, Rows, Statistic, Vector

LEAST_CENTRES = 5
"""Centres in a sum, unless a centre chooses another number: if two work together, three are left."""
CANNOT = "this centre cannot answer the question from its rows; its own log says why"
"""The only words that leave a centre if its rows do not have what a question asks for."""
_NOTING = threading.Lock()
"""One answer at a time is written down, whatever desk it is of: two of them may have one store."""
_LOG = logging.getLogger("basecagg.statistics")
"""The centre's own log: its lines may be about single records."""


@dataclass(frozen=True, eq=False)
class Question(Generic[Result]):
    """One sum that is asked for."""

    statistic: Statistic[Result]
    members: tuple[str, ...]
    """Every centre that is to be in the sum, in order."""
    number: int
    """Each question has its own. It travels in the vector: in the sum it shows that all answered this one."""
    noise: Mechanism | None = None
    recipe: str = field(init=False)
    """What of the statistic reaches a centre: its name, its parameters and a hash, in JSON."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", written(self.statistic.recipe))
        if list(self.members) != sorted(set(self.members)):
            raise ParameterError(
                "the members of a sum stand in order, each once", rule="members ascend"
            )
        if not 0 < self.number < 2**self.bits:
            raise ParameterError(
                f"number {self.number} of a question does not fit into {self.bits} bits",
                rule="0 < number < 2ᵇ",
            )

    @property
    def bits(self) -> int:
        """Bits of one element of an answer."""
        return encoding.element_bits(len(self.members))

    def with_noise(self, budget: Budget | None, silent: int | None = None) -> Question[Result]:
        """The same, with the least noise that keeps the budget; T centres are silent unless given."""
        if budget is None:
            raise DataError("a study without a budget has no noise to add: Study(budget=Budget(…))")
        members = len(self.members)
        silent = silent or usual_tolerance(members, members, "certified")[1]
        noise = encoding.private_sums(self.statistic, budget, members, silent, bits=self.bits)
        return dataclasses.replace(self, noise=noise)

    @property
    def size(self) -> int:
        """Elements of an answer."""
        return 1 + self.statistic.bounds.size * (encoding.ELEMENTS if self.noise is None else 1)

    def encode(self, vector: Vector, seed: bytes) -> Vector:
        """An answer as whole numbers for the field."""
        bounds = self.statistic.bounds
        if self.noise is None:
            coins = WordStream(derive_seed(seed, "carries")).draw(2 * vector.size)
            return np.concatenate([[self.number], encoding.split(vector, bounds, self.bits, coins)])
        return np.concatenate([[self.number], encoding.blurred(vector, bounds, self.noise, seed)])

    def decode(self, total: Vector) -> Result:
        """What everybody makes of the sum of all answers."""
        if total[0] != self.number * len(self.members):
            raise DataError(f"a centre answered another question than number {self.number}")
        if self.noise is not None:
            return self.statistic.of_sum(total[1:] / self.noise.levels)
        return self.statistic.of_sum(encoding.join(total[1:], self.statistic.bounds, self.bits))


class Given(Stored):
    """An answer, as the desk remembers it. Its numbers are forgotten with the next one."""

    question: bytes
    name: str
    private: bool
    numbers: bytes = b""


@dataclass(eq=False, repr=False)
class Desk:
    """One centre, as questions reach it. Its rows stay here, and it goes on with what its store remembers."""

    name: str
    rows: Rows
    store: Store
    _: KW_ONLY
    centres: Iterable[str]
    """Everybody that may be in a sum, as agreed on beforehand."""
    most: int
    """How many records each centre has at most, as agreed on beforehand."""
    least: int = LEAST_CENTRES
    """Centres in an exact sum."""
    budget: Budget | None = None
    """What this centre grants: noisy questions are answered with the noise that it takes, no less."""
    silent: int | None = None
    """Centres that may tell the server their noise: T, unless given."""
    only: frozenset[tuple[str, bool]] | None = None
    """The only statistics that it answers: hashes, each with noise or without. None: all that are built in."""
    vouched_by: bytes = b""
    """Whose key says that the names are these centres: under another key they are others."""
    entropy: Callable[[int], bytes] = system_entropy
    """Only an experiment replaces it."""

    def __post_init__(self) -> None:
        self.centres = frozenset(self.centres)  # an iterator would be empty at the second question
        self._approved: dict[str, Statistic[Any]] = {}
        """By hash; after a restart the centre approves again what it runs."""

    @property
    def ledger(self) -> PrivacyLedger:
        """What noisy answers have cost, as the store says now: another desk may write to it too."""
        return PrivacyLedger(self.store)

    def approve(self, statistic: Statistic[Any]) -> None:
        """Answer questions for this statistic. The centre calls this itself, with code that it has read.

        What is run is this object, whatever an asker has under the same name and hash (`Statistic.digest`). Its
        bounds and its `per_record` are approved with it. Sums over records that are built in need no approval;
        a Cox model does, for all coefficients.
        """
        recipe = statistic.recipe
        if "together" in recipe:
            raise ParameterError(
                "approve the parts of a statistic, one by one", rule="parts are approved"
            )
        first = self._approved.setdefault(statistic.digest, statistic)
        if "own" in recipe and first is not statistic:
            raise ParameterError(
                f"{self.name} has approved another {statistic.name} of the same text: give it another name",
                rule="a name and a hash are one statistic",
            )

    def answer(self, question: Question[Any], key: str = "", also: Sequence[Write] = ()) -> Vector:
        """The centre's part of a sum, or `QuestionRefused`, or `BudgetSpent`.

        What is answered under a key is kept until something else is: the same question again gets the very same
        numbers and costs nothing more, and another question gets none. So a program that is killed anywhere
        between here and the line answers once. `also` is written with it, all or nothing.
        """
        own = self.require_hidden(question)
        if (kept := self._kept(own, key)) is not None:
            return kept
        answer = own.encode(self._vector(own), self.entropy(SEED_BYTES))
        # What has to be known before the answer leaves: what it costs, or who else is in the sum.
        with _NOTING:
            self.require_hidden(question)  # another question may have been answered meanwhile
            exact = Persist("members", "", self._circle(own), irreversible=True)
            noted = [exact] if own.noise is None else self.ledger.charge(own.noise, 0)
            perform(self.store, [*noted, *self._keep(own, key, answer), *also])
        return answer

    def require_answerable(self, question: Question[Any]) -> None:
        """Refuse what `answer` would refuse: by what was agreed on, the columns and the budget, not by rows."""
        own = self.require_hidden(question)
        if own.noise is not None:
            self.ledger.charge(own.noise, 0)  # of a copy: nothing is written
        elif not self._suits(own, _columns(self.rows)):
            raise QuestionRefused(CANNOT)

    def _kept(self, own: Question[Any], key: str) -> Vector | None:
        """What was answered under this key before."""
        given = recall(self.store, "answer", Given, key) if key else None
        if given is None:
            return None
        if given.question != _digest(own) or not given.numbers:
            raise QuestionRefused(f"{self.name} has answered under the number of this question")
        return np.frombuffer(given.numbers, "<f8").astype(np.float64)

    def _keep(self, own: Question[Any], key: str, answer: Vector) -> list[Effect]:
        """The answer, and of earlier ones only which questions they were to."""
        if not key:
            return []
        earlier = load(self.store, "answer", Given).items()
        gone = [
            write("answer", each, replace(given, numbers=b""))
            for each, given in earlier
            if given.numbers
        ]
        given = Given(
            question=_digest(own),
            name=own.statistic.name,
            private=own.noise is not None,
            numbers=answer.astype("<f8").tobytes(),
        )
        return [*gone, write("answer", key, given, irreversible=True)]

    def require_hidden(self, question: Question[Any]) -> Question[Any]:
        """The question as this centre understands it, unless it would single a centre out. No row is read."""
        members = question.members
        if self.store.rolled_back:
            raise QuestionRefused("this store is an older copy: what was answered is not known")
        if self.name not in members:
            raise QuestionRefused(f"{self.name} is not among the centres that are asked")
        if strangers := sorted({*members}.difference(self.centres)):
            raise QuestionRefused(f"{self.name} does not know {', '.join(strangers)}")
        if len(members) < self.least:
            raise QuestionRefused(
                f"a sum of {len(members)} centres: {self.name} answers in sums of {self.least} or more"
            )
        own = self._own(question)
        if own.noise is not None and own.noise != self._noise(own, own.noise):
            raise QuestionRefused(
                f"this is not the noise that the budget of {self.name} takes: {self.budget}"
            )
        before = self.store.read("members", "")
        if own.noise is None and before not in (None, self._circle(own)):
            raise QuestionRefused(
                f"{self.name} has answered exactly together with other centres: the difference of the two sums"
                " would single somebody out; ask the same centres, or with noise"
            )
        return own

    def _own(self, question: Question[Any]) -> Question[Any]:
        """The question with this centre's own statistic: the asker's functions are not called."""
        try:
            statistic = make(json.loads(question.recipe), self._approved, self.most)
            own = Question(statistic, question.members, question.number, question.noise)
        except QuestionRefused:
            raise
        except Exception as fault:  # whatever else an asker wrote
            raise QuestionRefused(f"this is no question: {type(fault).__name__}: {fault}") from None
        if own.recipe != question.recipe:
            raise QuestionRefused("this is no question: it says more than its statistic has")
        asked = own.statistic.digest, own.noise is not None
        if self.only is not None and asked not in self.only:
            how = "with noise" if asked[1] else "without noise"
            raise QuestionRefused(
                f"{own.statistic.name} {how}: this is not in the study protocol that {self.name} approved"
            )
        return own

    def question(
        self, recipe: str, members: tuple[str, ...], number: int, *, private: bool
    ) -> Question[Any]:
        """A question that came over a line, or `QuestionRefused`; with the noise that the own budget takes."""
        try:
            statistic = make(json.loads(recipe), self._approved, self.most)
            asked = Question(statistic, members, number)
            if private:
                asked = asked.with_noise(self.budget, self.silent)
        except QuestionRefused:
            raise
        except Exception as fault:  # whatever else an asker wrote
            raise QuestionRefused(f"this is no question: {type(fault).__name__}: {fault}") from None
        return asked

    def _noise(self, question: Question[Any], asked: Mechanism) -> Mechanism | None:
        """The noise by the centre's own budget: an asker could ask for less, or for another ε."""
        members = len(question.members)
        silent = self.silent or usual_tolerance(members, members, "certified")[1]
        if self.budget is None or asked.silent < silent:
            return None
        return encoding.private_sums(
            question.statistic, self.budget, members, asked.silent, bits=question.bits
        )

    def _vector(self, question: Question[Any]) -> Vector:
        """This centre's numbers. Whether it answers an exact question depends on its columns alone."""
        statistic, notes = question.statistic, list[str]()
        vector: Vector = np.zeros(statistic.bounds.size)
        answerable = question.noise is not None  # zeros with noise look like any other answer
        try:
            columns = _columns(self.rows)
            _numbers(statistic, _none_of(columns))
            answerable = True
            vector, notes = self._computed(question, columns)
        except Exception as fault:
            known = isinstance(fault, DataError)
            said = "%s: %s cannot be computed from these rows: %s"
            _LOG.warning(said, self.name, statistic.name, fault, exc_info=not known)
        if not answerable:
            # Raised outside the `except` block, so that the original exception is not chained to it.
            raise QuestionRefused(CANNOT)
        for note in notes:
            self._tell(f"{self.name}: {note}")
        return vector

    def _suits(self, question: Question[Any], columns: Rows) -> bool:
        """Whether the columns do, tried on none of the records."""
        try:
            _numbers(question.statistic, _none_of(columns))
        except Exception as fault:
            _LOG.warning("%s: no answer to %s: %s", self.name, question.statistic.name, fault)
            return False
        return True

    def _circle(self, question: Question[Any]) -> bytes:
        """Who is in the sum, and by whose word."""
        return hashlib.sha256(
            json.dumps(question.members).encode()
            + bytes(1) * bool(self.vouched_by)
            + self.vouched_by
        ).digest()

    @staticmethod
    def _tell(note: str) -> None:
        try:
            warnings.warn(note, BASecAggWarning, 4)
        except BASecAggWarning:
            # A warnings filter made it an exception, which would be raised instead of returning the answer.
            _LOG.warning(note)

    def _computed(self, question: Question[Any], rows: Rows) -> tuple[Vector, list[str]]:
        """The vector of the suitable rows. If some are unsuitable, only the centre itself is told."""
        statistic, notes = question.statistic, list[str]()
        try:
            vector = _numbers(statistic, rows)
        except Exception as unsuited:
            rows, left_out = _suited(statistic, rows)
            why = unsuited if isinstance(unsuited, DataError) else type(unsuited).__name__
            notes.append(f"leaves {left_out} records out of {statistic.name}: {why}")
            vector = _numbers(statistic, rows)
        if question.noise is None and statistic.by_record:
            vector = _summed(statistic, rows, encoding.units(statistic.bounds, question.bits))
        if (np.abs(vector) > statistic.bounds).any():
            notes.append(
                f"has more records than the {self.most} agreed on: {statistic.name} is clipped"
            )
        return vector, [*notes, *statistic.notes(rows)]


def _none_of(columns: Rows) -> Rows:
    return {name: values[:0] for name, values in columns.items()}


def _columns(rows: Rows) -> dict[str, Any]:
    """The rows as columns of the same length, whatever kind of table they are."""
    columns = {name: _column(rows[name]) for name in rows}
    if len({values.shape[:1] for values in columns.values()}) > 1:
        raise DataError("columns have different lengths")
    return columns


def _column(values: Any) -> Any:
    """As a numpy array; if numpy would turn mixed values into strings, keep them as objects."""
    found = np.asarray(values)
    return np.asarray(values, object) if found.dtype.kind in "US" else found


def _numbers(statistic: Statistic[Any], rows: Rows) -> Vector:
    """The vector of some rows. Raises if a value is missing, so that one NaN cannot spoil the whole sum."""
    vector = np.asarray(statistic.of_rows(rows), np.float64)
    if vector.shape != statistic.bounds.shape:
        raise DataError(
            f"{statistic.name} gave {vector.shape}, its bounds are {statistic.bounds.shape}"
        )
    if not np.isfinite(vector).all():
        raise DataError("some values are missing or no numbers")
    return vector


def _suited(statistic: Statistic[Any], columns: Rows) -> tuple[Rows, str]:
    """The suitable records. Each is judged alone, so adding an unsuitable record changes nothing."""
    kept = np.array([_suits(statistic, each) for each in _records(columns)], bool)
    suited = {name: values[kept] for name, values in columns.items()}
    return suited, f"{(~kept).sum()} of {kept.size}"


def _summed(statistic: Statistic[Any], columns: Rows, unit: Vector) -> Vector:
    """The sum over records, each computed and rounded alone, so the sum over centres equals the sum over all
    records."""
    total = np.zeros(unit.size)
    for record in _records(columns):
        total += np.rint(_numbers(statistic, record) / unit)
    return total * unit


def _records(columns: Rows) -> Iterator[Rows]:
    count = min((values.shape[0] for values in columns.values()), default=0)
    return ({name: values[[at]] for name, values in columns.items()} for at in range(count))


def _suits(statistic: Statistic[Any], record: Rows) -> bool:
    try:
        _numbers(statistic, record)
    except Exception:
        return False
    return True


def _digest(question: Question[Any]) -> bytes:
    """Everything that a question asks for."""
    noise = None if question.noise is None else (question.noise.variance, question.noise.levels)
    said = [question.recipe, question.members, question.number, noise]
    return hashlib.sha256(written(said).encode()).digest()
