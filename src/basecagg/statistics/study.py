"""A study in one process: every centre with its own rows, and a server that learns sums only.

The machines are the protocol's own: a question is one epoch's sum of exactly its members, so K out of K is the
only sum that there can be. Centres answer in any order, and may be gone as holders once they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from basecagg.errors import DataError
from basecagg.maths.randomness import system_entropy
from basecagg.parameters import ProtocolParameters, usual_tolerance
from basecagg.planning.audit import Report, SumFinding, audit
from basecagg.planning.knowledge import contributor_of
from basecagg.planning.recorder import Recorder
from basecagg.planning.rounds import Rounds, over_all_rounds
from basecagg.planning.transcript import Transcript
from basecagg.protections.budget import Budget
from basecagg.simulation.federation import Federation
from basecagg.simulation.loopback import Letter
from basecagg.statistics.desk import LEAST_CENTRES, Desk, Question
from basecagg.statistics.fixed_point import element_bits
from basecagg.statistics.private import private_sums
from basecagg.statistics.statistic import Result, Rows, Statistic
from basecagg.storage.memory import MemoryStore


@dataclass(frozen=True)
class StudyAudit:
    """What the server of a study learned."""

    epochs: tuple[Report, ...]
    """One for each size of vector and each set of centres, from the server's own transcript."""
    rounds: Rounds
    """What all exact sums say together about a centre whose numbers were the same in all of them. Noisy ones
    are not among them: they are paid for."""

    @property
    def sums(self) -> int:
        """How many were learned."""
        return sum(found.learned > 0 for report in self.epochs for found in report.sums)

    @property
    def smallest(self) -> int:
        """Centres in the smallest sum that follows from all of them."""
        return len(self.rounds.smallest)

    @property
    def only_sums(self) -> bool:
        """Whether nothing but whole sums was learned, and none of a single centre."""
        return all(report.only_sums for report in self.epochs) and not self.rounds.determined


class _Kind(NamedTuple):
    """Questions that can be asked in one epoch."""

    exact: bool
    size: int
    members: tuple[str, ...]


class Study:
    """Centres that answer questions by secure sums."""

    def __init__(
        self,
        centres: Mapping[str, Rows],
        *,
        least: int = LEAST_CENTRES,
        budget: Budget | None = None,
        silent: int | None = None,
        entropy: Callable[[int], bytes] = system_entropy,
        observers: Iterable[Callable[[Letter], None]] = (),
    ) -> None:
        """Give each centre its rows. `budget` is for noisy questions; `observers` see every message.

        Of the centres `silent` may tell the server their noise: T, unless given.
        """
        self.desks = {
            name: Desk(name, rows, MemoryStore(), least=least, budget=budget, entropy=entropy)
            for name, rows in sorted(centres.items())
        }
        self.budget = budget
        self._silent = silent
        self._observers = list(observers)
        self._numbers = 0
        self._epochs: dict[_Kind, Federation] = {}
        self._transcripts: list[tuple[_Kind, Transcript]] = []

    def ask(
        self,
        statistic: Statistic[Result],
        *,
        members: Iterable[str] | None = None,
        order: Iterable[str] | None = None,
        gone: Iterable[str] = (),
    ) -> Result:
        """The exact result over all centres, or over `members`.

        They answer in the given `order`. Those who are `gone` vanish as holders as soon as they have answered,
        and come back for the next question.
        """
        question = self._question(statistic, members)
        result: Result = self._ask(question, order, gone)
        return result

    def ask_privately(
        self,
        statistic: Statistic[Result],
        *,
        members: Iterable[str] | None = None,
        order: Iterable[str] | None = None,
        gone: Iterable[str] = (),
    ) -> Result:
        """The result with noise that hides each record, one of the k_max in the budget."""
        plain = self._question(statistic, members)
        count = len(plain.members)
        if self.budget is None:
            raise DataError("a study without a budget has no noise to add: Study(budget=Budget(…))")
        silent = parameters_for(count, 1).colluding_contributors
        noise = private_sums(
            statistic,
            self.budget,
            count,
            silent if self._silent is None else self._silent,
            bits=element_bits(count),
        )
        question = Question(statistic, plain.members, plain.number, noise)
        result: Result = self._ask(question, order, gone)
        return result

    def _question(self, statistic: Statistic[Any], members: Iterable[str] | None) -> Question:
        self._numbers += 1
        return Question(
            statistic, tuple(sorted(self.desks if members is None else members)), self._numbers
        )

    def _ask(self, question: Question, pace: Iterable[str] | None, leave: Iterable[str]) -> Any:
        order = [*map(str, question.members if pace is None else pace)]
        gone = set(map(str, leave))
        if sorted(order) != list(question.members):
            raise DataError("every centre of the sum answers once, and nobody else")
        for name in order:  # before anybody has answered, or paid
            self.desks[name].require_hidden(question)
        federation, kind = self._epoch(question), _kind(question)
        # Until the sum is there: an answer that waits in an epoch must not meet one to another question.
        del self._epochs[kind]
        for name in order:
            federation.contribute(name, self.desks[name].answer(question))
            if name in gone:
                federation.vanish(name)
        opened = federation.run()
        if not opened:
            raise DataError(f"the sum was not opened: {len(gone)} holders are gone, too many")
        federation.come_back(*gone)
        self._epochs[kind] = federation
        return question.decode(opened[0].weighted_sum)

    def _epoch(self, question: Question) -> Federation:
        kind = _kind(question)
        if kind not in self._epochs:
            parameters = parameters_for(len(question.members), question.size)
            federation = Federation(parameters, np.zeros(question.size), holders=question.members)
            transcript = Transcript()
            self._transcripts.append((kind, transcript))
            recorder = Recorder(federation.agreement, transcript.add)
            federation.network.observers += [
                lambda letter: recorder.see(letter.sender, letter.message),
                *self._observers,
            ]
            self._epochs[kind] = federation
        return self._epochs[kind]

    def audit(self) -> StudyAudit:
        """What the server learned, from what it saw."""
        exact, reports = list[dict[str, int]](), list[Report]()
        for kind, transcript in self._transcripts:
            reports.append(audit(transcript))
            if kind.exact:
                exact += [_members(transcript, each) for each in reports[-1].sums if each.learned]
        return StudyAudit(tuple(reports), over_all_rounds(exact))


def _kind(question: Question) -> _Kind:
    return _Kind(question.noise is None, question.size, question.members)


def _members(transcript: Transcript, found: SumFinding) -> dict[str, int]:
    members = transcript.requests[found.digest].members
    return {contributor_of(member.mask): member.weight for member in members}


def parameters_for(centres: int, size: int) -> ProtocolParameters:
    """An epoch in which the only sum is that of all centres, and is exact."""
    dropouts, colluders, threshold = usual_tolerance(centres, centres, "certified")
    return ProtocolParameters(
        num_holders=centres,
        max_dropouts=dropouts,
        max_colluders=colluders,
        recovery_threshold=threshold,
        buffer_size=centres,
        model_size=size,
        clip=float(2 ** element_bits(centres)),
        update_levels=1,
        weight_levels=1,
    )
