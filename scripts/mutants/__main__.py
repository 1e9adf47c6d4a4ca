"""Change the code in small ways and see whether a test notices: `make mutants`.

Cosmic Ray finds the places, changes a file, runs the tests and puts the file back. What is added here: a
sample, which tests go with which file (`scope`), kinds of change that Cosmic Ray has not (`kinds`), and the
ledger of results. What is tried is the commit that is checked out, in a folder of its own. Every result is
written down at once, so a run that was stopped goes on. `--again` tries survivors once more, after tests were
written for them; those that are listed as equivalent are left.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import cosmic_ray.commands
import cosmic_ray.mutating
import cosmic_ray.plugins
import cosmic_ray.testing
import kinds
import scope
from cosmic_ray.work_db import WorkDB, use_db

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "benchmarks" / "results" / "mutants" / "mutants.jsonl"
EQUIVALENT = LEDGER.parent / "equivalent.toml"
SEED, SIZE = 20, 450
SLACK_FACTOR, SLACK_SECONDS = 3, 60
"""Tests that take so much longer than on the code as it is will never end."""
VALUES = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
LEFT_OUT = (
    "/ExceptionReplacer",
    *(f"_{value}_{same}" for value in VALUES for same in ("Is", "IsNot")),
)
"""Cosmic Ray's handler operator fails on dotted names: ours takes its place. `==` to `is` and the like are left
out, for whether equal values are one object is the interpreter's choice, not ours."""
PYTEST = (
    *("-m", "pytest", "-x", "-q", "-m", "not soak and not journey", "-p", "no:cacheprovider"),
    *("--hypothesis-seed=0", "-n"),
)


@dataclass(frozen=True)
class Mutant:
    """A change, and the lines that it changes before and after."""

    module: str
    """The file, below the source folder."""
    spec: Any
    """The change, as Cosmic Ray has it."""
    was: str
    now: str

    @property
    def key(self) -> str:
        """Its name in the ledger."""
        line, column = self.spec.start_pos
        return f"{self.module}:{line}:{column} {self.spec.operator_name}: {self.was} → {self.now}"


def main() -> None:
    """Try a sample, or what is left of it."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    with _checked_out() as root:
        sys.path[:0] = [str(root)]
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root / "src")  # before the package that is installed
        from reproduction.ledger import Ledger

        book = Ledger(options.out.absolute())
        source = root / "src" / "basecagg"
        places = _places(source, options.only or scope.modules(source))
        run = {
            "sources": _git("log", "-1", "--format=%h", "--abbrev=12", "--", "src"),
            "changes": sum(map(len, places.values())),
            "places": len(places),
            "seed": options.seed,
            "size": options.size,
        }
        _require_same(book, run)
        chosen = _sample(source, places, options.seed, options.size)
        todo = [each for each in chosen if _is_open(book, each, again=options.again)]
        print(f"{len(todo)} of {len(chosen)} mutants to try", flush=True)
        for number, mutant in enumerate(todo, 1):
            entry = _try(mutant, scope.tests_of(mutant.module, root), options.jobs)
            book.add(mutant.key, {**entry, "again": mutant.key in book})
            said = f"{entry['result']} {entry['seconds']} s {mutant.key}"
            print(f"{number}/{len(todo)} {said}", flush=True)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=LEDGER, help="the ledger of results")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--size", type=int, default=SIZE, help="places to try")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes of one trial")
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
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


# --- what is tried ------------------------------------------------------------------------------


def _places(source: Path, modules: Sequence[str]) -> dict[tuple[str, Any], list[Any]]:
    """Every place in these files that can be changed, and the ways to change it."""
    kinds.register()
    places = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        use_db(Path(folder) / "session.sqlite", WorkDB.Mode.create) as session,
    ):
        cosmic_ray.commands.init([source / module for module in modules], session, {})
        for item in session.work_items:
            (spec,) = item.mutations
            module = spec.module_path.relative_to(source).as_posix()
            if not spec.operator_name.endswith(LEFT_OUT):
                places[module, spec.start_pos].append(spec)
    for specs in places.values():
        specs.sort(key=lambda spec: (spec.operator_name, spec.occurrence))
    return places


def _sample(
    source: Path, places: dict[tuple[str, Any], list[Any]], seed: int, size: int
) -> list[Mutant]:
    """Places drawn from all, and one mutant of each: an operator with many rivals is not drawn more often."""
    dice = random.Random(seed)
    drawn = dice.sample(sorted(places), len(places))
    ways = [
        (module, dice.sample(places[module, at], len(places[module, at]))) for module, at in drawn
    ]
    firsts = (
        next(filter(None, (_mutant(source, module, spec) for spec in specs)), None)
        for module, specs in ways
    )
    return list(islice(filter(None, firsts), size))


def _mutant(source: Path, module: str, spec: Any) -> Mutant | None:
    """The mutant; None if its code does not compile, or means the same."""
    before = (source / module).read_text("utf-8")
    operator = cosmic_ray.plugins.get_operator(spec.operator_name)()
    after = cosmic_ray.mutating.mutate_code(before, operator, spec.occurrence)
    if after is None or _meaning(after) in {None, _meaning(before)}:
        return None
    changed: dict[str, list[str]] = {"-": [], "+": []}
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    for line in islice(lines, 2, None):
        if line[0] in changed:
            changed[line[0]].append(line[1:].strip())
    return Mutant(module, spec, *map(" ".join, changed.values()))


@cache
def _meaning(code: str) -> str | None:
    """The syntax tree without annotations that nobody evaluates; those in a class say what a message is."""
    try:
        compile(code, "mutant", "exec")
    except SyntaxError:
        return None
    tree = ast.parse(code)
    fields = {
        id(each) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign) and id(node) not in fields:
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def _is_open(book: Any, mutant: Mutant, *, again: bool) -> bool:
    known = book.results.get(mutant.key)
    if known is None:
        return not again
    return again and known["result"] == "survived" and not _is_listed(mutant)


def _is_listed(mutant: Mutant) -> bool:
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8"))["mutant"]
    return any(
        (each["module"], each["was"]) == (mutant.module, mutant.was.strip())
        and mutant.now.strip() in each["now"]
        for each in listed
    )


# --- a trial ------------------------------------------------------------------------------------


def _try(mutant: Mutant, tests: Sequence[str], jobs: int) -> dict[str, Any]:
    command = shlex.join([sys.executable, *PYTEST, str(jobs), *tests])
    limit = SLACK_FACTOR * _seconds_unchanged(command) + SLACK_SECONDS
    begun = time.monotonic()
    result = cosmic_ray.mutating.mutate_and_test([mutant.spec], command, limit)
    if result.test_outcome is None or result.test_outcome.value == "incompetent":
        sys.exit(f"not tried: {mutant.key}\n{result.output}")
    timed_out = result.output == "timeout"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", result.output, re.M)
    return {
        "module": mutant.module,
        "where": mutant.spec.definition_name or "",
        "line": mutant.spec.start_pos[0],
        "kind": mutant.spec.operator_name.partition("/")[2],
        "was": mutant.was,
        "now": mutant.now,
        "result": "timeout" if timed_out else result.test_outcome.value,
        "by": failed[1] if failed else "",
        "seconds": round(time.monotonic() - begun, 1),
    }


@cache
def _seconds_unchanged(command: str) -> float:
    """How long the tests take on the code as it is, where they must pass: else a failure would say nothing."""
    begun = time.monotonic()
    outcome, output = cosmic_ray.testing.run_tests(command, None)
    if outcome.value != "survived":
        sys.exit(f"these tests fail on the code as it is: {command}\n{output}")
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
