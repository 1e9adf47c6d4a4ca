"""A study in one process: every centre with its own rows, and a server that learns sums only.

The machines are the protocol's own: a question is one epoch's sum of exactly its members, so K out of K is the
only sum that there can be. Centres answer in any order, and may be gone as holders once they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from basecagg.auditing.leakage import Report, SumFinding, audit
from basecagg.auditing.recorder import Recorder
from basecagg.auditing.rounds import Rounds, over_all_rounds
from basecagg.auditing.transcript import Transcript, contributor_of
from basecagg.errors import DataError
from basecagg.maths.randomness import system_entropy
from basecagg.parameters import ProtocolParameters, usual_tolerance
from basecagg.planning.budget import Budget
from basecagg.protocol.effects import Store
from basecagg.simulation.federation import Federation
from basecagg.simulation.loopback import Letter
from basecagg.statistics.desk import LEAST_CENTRES, Desk, Question
from basecagg.statistics.encoding import element_bits
from basecagg.statistics.statistic import Result, Rows, Statistic
from basecagg.storage.in_memory import MemoryStore


@dataclass(frozen=True)
class StudyAudit:
    """What the server of a study learned."""

    epochs: tuple[Report, ...]
    """One for each size of vector and each set of centres, from the server's own transcript."""
    rounds: Rounds
    """What all exact sums together say about a centre, if its numbers were the same in all of them. Noisy sums
    do not count here: they cost budget."""

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


class Study:
    """Centres that answer questions by secure sums."""

    def __init__(
        self,
        centres: Mapping[str, Rows],
        *,
        most: int,
        least: int = LEAST_CENTRES,
        budget: Budget | None = None,
        silent: int | None = None,
        stores: Mapping[str, Store] | None = None,
        entropy: Callable[[int], bytes] = system_entropy,
        observers: Iterable[Callable[[Letter], None]] = (),
    ) -> None:
        """Give each centre its rows, `most` at most: all questions have this bound.

        `budget` is for noisy questions; `observers` see every message. Of the centres `silent` may tell the
        server their noise: T, unless given. The centres' `stores` know what they answered: without
        them a study knows nothing of one before it, and two of different centres give away their difference.
        """
        self.desks = {
            name: Desk(
                name,
                rows,
                stores[name] if stores else MemoryStore(),
                centres=centres,
                most=most,
                least=least,
                budget=budget,
                silent=silent,
                entropy=entropy,
            )
            for name, rows in sorted(centres.items())
        }
        self.budget = budget
        self._silent = silent
        self._observers = list(observers)
        self._numbers = 0
        self._epochs: dict[tuple[bool, int, tuple[str, ...]], Federation] = {}
        """By what all questions of an epoch have in common: exact or not, their size, and who answers."""
        self._transcripts: list[tuple[bool, Transcript]] = []
        """Of every epoch, and whether its sums are exact."""

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
        return self._ask(self._question(statistic, members), order, gone)

    def ask_privately(
        self,
        statistic: Statistic[Result],
        *,
        members: Iterable[str] | None = None,
        order: Iterable[str] | None = None,
        gone: Iterable[str] = (),
    ) -> Result:
        """The result with noise that hides each record, one of the k_max in the budget."""
        asked = self._question(statistic, members).with_noise(self.budget, self._silent)
        return self._ask(asked, order, gone)

    def _question(
        self, statistic: Statistic[Result], members: Iterable[str] | None
    ) -> Question[Result]:
        self._numbers += 1
        named = self.desks if members is None else members
        return Question(statistic, tuple(sorted(named)), self._numbers)

    def _ask(
        self, question: Question[Result], pace: Iterable[str] | None, leave: Iterable[str]
    ) -> Result:
        order = [*map(str, question.members if pace is None else pace)]
        gone = set(map(str, leave))
        if sorted(order) != list(question.members):
            raise DataError("every centre of the sum answers once, and nobody else")
        for name in order:  # before anybody has answered, or paid
            self.desks[name].require_hidden(question)
        kind = question.noise is None, question.size, question.members
        # Put back when the sum is there: an answer that waits in it must not meet one to another question.
        federation = self._epochs.pop(kind, None) or self._begin(question)
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

    def _begin(self, question: Question[Any]) -> Federation:
        """An epoch, with a transcript of what its server sees."""
        parameters = parameters_for(len(question.members), question.size)
        federation = Federation(parameters, np.zeros(question.size), holders=question.members)
        transcript = Transcript()
        self._transcripts.append((question.noise is None, transcript))
        recorder = Recorder(federation.agreement, transcript.add)
        federation.network.observers += [
            lambda letter: recorder.see(letter.sender, letter.message),
            *self._observers,
        ]
        return federation

    def audit(self) -> StudyAudit:
        """What the server learned, from what it saw."""
        exact, reports = list[dict[str, int]](), list[Report]()
        for is_exact, transcript in self._transcripts:
            reports.append(audit(transcript))
            if is_exact:
                exact += [_members(transcript, each) for each in reports[-1].sums if each.learned]
        return StudyAudit(tuple(reports), over_all_rounds(exact))


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
        masks="long",
    )
