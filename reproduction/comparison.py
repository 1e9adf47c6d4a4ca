"""A fresh run beside the committed one: `basecagg reproduce --check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from basecagg.errors import DataError
from reproduction.experiment import Experiment, ledger_path
from reproduction.report import Publication

COMMITTED = Path(__file__).parent.parent / "benchmarks" / "results" / "reproduce"


def compare(fresh: Publication, committed: Publication) -> list[dict[str, Any]]:
    """Every verdict and every figure that another machine should find too, with what it may differ by."""
    return [*_verdicts(fresh, committed), *_figures(fresh, committed)]


def load_committed(experiment: Experiment) -> Publication:
    """What this checkout holds of it; an error if a fresh run could not be checked by it."""
    name = experiment.name
    if not ledger_path(COMMITTED, name).exists():
        raise DataError(f"no result of {name} is committed: nothing to check it by")
    committed = experiment.load(COMMITTED)
    if not committed.claims and not committed.repeatable:
        raise DataError(f"{name} measures times, which no other machine repeats: nothing to check")
    return committed


def _verdicts(fresh: Publication, committed: Publication) -> Iterator[dict[str, Any]]:
    known = {claim.sentence: claim.verdict for claim in committed.claims}
    for claim in fresh.claims:
        before = known.get(claim.sentence, "–")
        yield _line(claim.sentence, claim.verdict, before, "", agrees=claim.verdict == before)


def _figures(fresh: Publication, committed: Publication) -> Iterator[dict[str, Any]]:
    keys = fresh.identified_by
    known = {tuple(line[key] for key in keys): line for line in committed.lines}
    for line in fresh.lines if fresh.repeatable else ():
        name = tuple(line[key] for key in keys)
        for column, tolerance in fresh.repeatable.items():
            what = f"{column} ({', '.join(map(str, name))})"
            if name not in known:
                yield _line(what, line[column], "–", "", agrees=False)
                continue
            now, before = line[column], known[name][column]
            near = abs(float(now) - float(before)) <= tolerance
            yield _line(what, now, before, f"± {tolerance:g}", agrees=near)


def _line(
    what: str, now: object, before: object, may_differ: str, *, agrees: bool
) -> dict[str, Any]:
    return {
        "what": what,
        "here": now,
        "committed": before,
        "may differ": may_differ,
        "agrees": agrees,
    }
