"""Change the code in small ways and see whether a test notices: `make mutants`.

What is tried is the commit that is checked out, in a folder of its own. Every result is written down at once,
so a run that was stopped goes on. `--again` tries survivors once more, after tests were written for them; those
that are listed as equivalent are left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import kinds
import population
import scope
import trial
from population import Mutant
from runner import Runner
from trial import Outcome

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "benchmarks" / "results" / "mutants" / "mutants.jsonl"
EQUIVALENT = LEDGER.parent / "equivalent.toml"
SEED, SIZE = 20, 450


def main() -> None:
    """Try a sample, or what is left of it."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    with _checked_out() as root:
        sys.path[:0] = [str(root / "src"), str(root)]
        os.chdir(root)
        from reproduction.ledger import Ledger

        trial.warm_up()
        book = Ledger(options.out.absolute())
        chosen, run = _choose(options, root / "src" / "basecagg")
        _require_same(book, run)
        todo = [each for each in chosen if _is_open(book, each, again=options.again)]
        print(f"{len(todo)} of {len(chosen)} mutants to try", flush=True)
        runner = Runner(root, options.jobs, options.stages)
        in_maths = [each for each in todo if each.module.startswith("maths/")]
        _try_all(runner, in_maths, book)
        trial.warm_up_maths()
        _try_all(runner, [each for each in todo if each not in in_maths], book)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=LEDGER, help="the ledger of results")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--size", type=int, default=SIZE, help="places to try")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
    parser.add_argument(
        "--stages", type=int, help="leave out the longer tests after so many groups"
    )
    parser.add_argument("--only", nargs="*", default=[], help="files, such as protocol/life.py")
    return parser.parse_args()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True)
    return done.stdout.decode().strip()


@contextmanager
def _checked_out() -> Iterator[Path]:
    """The last commit in a folder of its own: what is edited meanwhile changes nothing."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(root))
        try:
            yield root
        finally:
            _git("worktree", "remove", "--force", str(root))


def _choose(options: Any, source: Path) -> tuple[list[Mutant], dict[str, Any]]:
    kinds.register()
    places = population.places_of(source, options.only or scope.modules(source))
    changes = sum(map(len, places.values()))
    run = {
        "sources": _git("log", "-1", "--format=%h", "--abbrev=12", "--", "src"),
        "changes": changes,
        "places": len(places),
        "seed": options.seed,
        "size": options.size,
    }
    return population.sample(source, places, options.seed, options.size), run


def _require_same(book: Any, run: dict[str, Any]) -> None:
    """A ledger is of one state of the sources; tests may have been added since."""
    begun = book.results.get("run", run)
    changed = _git("diff", "--name-only", begun["sources"], "HEAD", "--", "src")
    if changed or {**run, "sources": begun["sources"]} != begun:
        sys.exit(
            "the ledger is of other sources or another sample: remove it, or name another with --out"
        )
    if "run" not in book:
        book.add("run", begun)


def _is_open(book: Any, mutant: Mutant, *, again: bool) -> bool:
    known = book.results.get(mutant.key)
    if known is None:
        return not again
    return again and known["result"] == "survived" and not _is_listed(mutant)


@cache
def _equivalent() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(EQUIVALENT.read_text("utf-8"))["mutant"]
    return found


def _is_listed(mutant: Mutant) -> bool:
    return any(
        (each["module"], each["was"]) == (mutant.module, mutant.was.strip())
        and mutant.now.strip() in each["now"]
        for each in _equivalent()
    )


def _try_all(runner: Runner, mutants: Sequence[Mutant], book: Any) -> None:
    for number, (mutant, outcome) in enumerate(runner.run(mutants), 1):
        book.add(mutant.key, {**_entry(mutant, outcome), "again": mutant.key in book})
        print(
            f"{number}/{len(mutants)} {outcome.result} {outcome.seconds} s {mutant.key}", flush=True
        )


def _entry(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    return {
        "module": mutant.module,
        "where": mutant.change.where,
        "line": mutant.change.place[0],
        "kind": mutant.change.kind.partition("/")[2],
        "was": mutant.was,
        "now": mutant.now,
        "result": outcome.result,
        "by": " ".join(outcome.by),
        "seconds": outcome.seconds,
    }


if __name__ == "__main__":
    main()
