"""Many trials, a few at a time: each mutant goes through the stages of its tests until one of them fails."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import scope
from population import Mutant
from scope import Tests
from trial import IMPORTING, Change, Order, Outcome, Trial

# Where a trial takes so much longer than the same tests on the code as it is, it will never end.
SLACK_FACTOR = 3
SLACK_SECONDS = 10
NO_LIMIT = 3600


@dataclass(frozen=True)
class _Running:
    mutant: Mutant
    stages: Sequence[Tests]
    trial: Trial
    spent: float


class Runner:
    """Tries mutants on `jobs` cores."""

    def __init__(self, root: Path, jobs: int, stages: int | None = None) -> None:
        """For the tree at `root`, on all stages of its tests or on the first few."""
        self._root = root
        self._jobs = jobs
        self._stages = stages
        self._unchanged: dict[Tests, Outcome] = {}
        self._kills: dict[str, Counter[str]] = defaultdict(Counter)
        self._trusted: set[str] = set()
        self._left_out: set[str] = set()

    def run(self, mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, Outcome]]:
        """The outcome of each, as it comes."""
        for module in sorted({mutant.module for mutant in mutants}):
            self._try_unchanged(self._tests_of(module))
        waiting = list(reversed(mutants))
        running: dict[int, _Running] = {}
        while waiting or running:
            while waiting and len(running) < self._jobs:
                mutant = waiting.pop()
                self._start(running, mutant, self._tests_of(mutant.module), 0.0)
            yield from self._end_one(running)

    def _tests_of(self, module: str) -> Sequence[Tests]:
        return scope.tests_of(module, self._root)[: self._stages]

    def _start(
        self, running: dict[int, _Running], mutant: Mutant, stages: Sequence[Tests], spent: float
    ) -> None:
        tests, name = stages[0], mutant.module.removesuffix(".py").replace("/", ".")
        change = Change(
            self._root / "src" / "basecagg" / mutant.module, f"basecagg.{name}", mutant.code
        )
        unchanged = self._unchanged[tests]
        order = Order(tests, unchanged.times, self._kills[mutant.module], self._left_out)
        started = Trial(change, order, int(SLACK_FACTOR * unchanged.seconds) + SLACK_SECONDS)
        running[started.pid] = _Running(mutant, stages, started, spent)

    def _end_one(self, running: dict[int, _Running]) -> Iterator[tuple[Mutant, Outcome]]:
        pid, status, usage = os.wait3(0)
        ended = running.pop(pid)
        outcome = ended.trial.outcome(status, usage)
        spent = ended.spent + outcome.seconds
        if outcome.result == "not tried":
            print(f"not tried, see the file that MUTANTS_LOG names: {ended.mutant.key}", flush=True)
        elif not all(map(self._passes_alone, outcome.by)):
            self._start(running, ended.mutant, ended.stages, spent)
        elif outcome.result == "survived" and len(ended.stages) > 1:
            self._start(running, ended.mutant, ended.stages[1:], spent)
        else:
            self._kills[ended.mutant.module].update(outcome.by)
            yield ended.mutant, replace(outcome, seconds=round(spent, 1))

    def _passes_alone(self, test: str) -> bool:
        """Whether a test that failed passes by itself on the code as it is: else its order was the reason."""
        if test.startswith(IMPORTING) or test in self._trusted:
            return True
        if Trial(None, Order((test,)), NO_LIMIT).wait().result != "survived":
            self._leave_out(test)
            return False
        self._trusted.add(test)
        return True

    def _leave_out(self, test: str) -> None:
        self._left_out.add(test)
        print(f"left out, for it fails on the code as it is: {test}", flush=True)

    def _try_unchanged(self, stages: Sequence[Tests]) -> None:
        """Try the tests on the code as it is, to know how long they take and that they pass."""
        for tests in stages:
            if tests in self._unchanged:
                continue
            outcome = Trial(None, Order(tests), NO_LIMIT).wait()
            if outcome.result not in {"survived", "killed"}:
                raise SystemExit(f"unchanged code is {outcome.result}: {' '.join(tests)}")
            for test in outcome.by:
                self._leave_out(test)
            self._unchanged[tests] = outcome
            print(f"{outcome.seconds:6.1f} s: {' '.join(tests)}", flush=True)
