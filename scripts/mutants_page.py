"""The page about mutants, from the ledger that `make mutants` writes and the list of the equivalent ones."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from reproduction.machine import in_words

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / "results" / "mutants"
LEAST_KILLED, MOST_EQUIVALENT = 0.95, 0.10
Entry = dict[str, Any]


def load() -> tuple[Entry, Entry, list[Entry]]:
    """The machine, the run, and its mutants with their fate: killed, equivalent (and why) or survived."""
    lines = [json.loads(line) for line in (FOLDER / "mutants.jsonl").read_text().splitlines()]
    results = {line["key"]: line["result"] for line in lines if "key" in line}
    machine = next(line["machine"] for line in lines if "machine" in line)
    run, reasons = results.pop("run"), _reasons()
    mutants = list(results.values())
    for mutant in mutants:
        mutant["why"] = reasons.get(
            (mutant["module"], mutant["was"].strip(), mutant["now"].strip()), ""
        )
        mutant["fate"] = _fate(mutant)
    return machine, run, mutants


def equivalents() -> list[Entry]:
    """What is written down as equivalent: module, line before, lines after, reason.

    `moved_from` is the module of the sample, if the line has moved; `reads_now` the line, if it has changed.
    """
    found: list[Entry] = tomllib.loads((FOLDER / "equivalent.toml").read_text("utf-8"))["mutant"]
    return found


def _reasons() -> dict[tuple[str, str, str], str]:
    return {
        (each.get("moved_from") or each["module"], each["was"], now): each["why"]
        for each in equivalents()
        for now in each["now"]
    }


def _fate(mutant: Entry) -> str:
    if mutant["result"] != "survived":
        return "killed"
    return "equivalent" if mutant["why"] else "survived"


def share_killed(mutants: Sequence[Entry]) -> float:
    """Of those that are not equivalent."""
    return _count(mutants, "killed") / (len(mutants) - _count(mutants, "equivalent"))


def share_equivalent(mutants: Sequence[Entry]) -> float:
    """Of all."""
    return _count(mutants, "equivalent") / len(mutants)


def _count(mutants: Iterable[Entry], fate: str) -> int:
    return sum(mutant["fate"] == fate for mutant in mutants)


def page(header: str) -> str:
    """All of it."""
    machine, run, mutants = load()
    killed, equivalent = share_killed(mutants), share_equivalent(mutants)
    again = sum(mutant["again"] for mutant in mutants)
    at_first = killed - again / (len(mutants) - _count(mutants, "equivalent"))
    return (
        f"{header}# Mutants\n\n"
        "The code that guards updates, changed in small ways, one at a time: does a test notice?\n\n"
        f"> At least 95 % of the mutants that mean something else are killed: {killed:.1%}."
        f" **{_verdict(killed >= LEAST_KILLED)}**\n\n"
        f"> At most 10 % are called equivalent: {equivalent:.1%}."
        f" **{_verdict(equivalent <= MOST_EQUIVALENT)}**\n\n"
        f"## By file\n\n{_table(mutants, _file, 'file')}\n\n"
        f"## By kind of change\n\n{_table(mutants, _kind, 'kind')}\n\n"
        f"## Survivors\n\n{_listed(mutants, 'survived')}\n\n"
        f"## Equivalent\n\n{_listed(mutants, 'equivalent')}\n\n"
        "## How to read this\n\n"
        f"- {run['changes']:,} changes in {run['places']:,} places. A sample of {len(mutants)} places with one"
        f" mutant each, drawn with seed {run['seed']}, on the sources of commit {run['sources']}."
        f" At first {at_first:.1%} of those that mean something else were killed; {again} survivors were tried"
        " again with the tests that were written for them. A file that is gone since has been renamed or"
        " divided; its figures are those of that commit.\n"
        f"{NOTES}\n"
        f"Tried on: {in_words(machine)}. `make mutants` tries it on yours."
        " [Why this tool, and how](../decisions/0020-mutation-tests.md).\n"
    )


NOTES = """\
- A mutant is killed if a test fails, or if the tests do not end, or end in a crash; more than three times the
  usual time counts as no end.
- It is equivalent if no caller could tell it from the code as it is, except by the time it takes or by the
  words of an error. Each is listed with its reason.
- Left alone: docstrings, sentences that are raised, annotations that nobody evaluates, and `==` made `is`.
"""


def _verdict(held: bool) -> str:
    return "Held." if held else "Not held."


def _file(mutant: Entry) -> str:
    """Its file, and whether that is still there: the mutants are of one commit, the page is read later."""
    there = (ROOT / "src" / "basecagg" / mutant["module"]).exists()
    return f"`{mutant['module']}`" + ("" if there else " (gone since)")


def _kind(mutant: Entry) -> str:
    """Cosmic Ray's name without the operators it exchanges."""
    return f"`{str(mutant['kind']).partition('_')[0]}`"


def _table(mutants: Sequence[Entry], group: Callable[[Entry], str], title: str) -> str:
    lines = [f"| {title} | tried | killed | equivalent | survived |", "|---|---|---|---|---|"]
    for name in sorted({group(mutant) for mutant in mutants}):
        lines.append(_row(name, [each for each in mutants if group(each) == name]))
    return "\n".join([*lines, _row("all", mutants)])


def _row(name: str, mutants: Sequence[Entry]) -> str:
    counts = (_count(mutants, fate) for fate in ("killed", "equivalent", "survived"))
    return f"| {name} | {len(mutants)} | {' | '.join(map(str, counts))} |"


def _listed(mutants: Sequence[Entry], fate: str) -> str:
    some = [each for each in mutants if each["fate"] == fate]
    if not some:
        return "None."
    head = "| file | was | now | why |\n|---|---|---|---|\n"
    return head + "\n".join(
        f"| {_file(each)} | {_code(each['was'])} | {_code(each['now'])} | {each['why']} |"
        for each in some
    )


def _code(text: str) -> str:
    """A line of code in a cell of a table."""
    return f"`` {text.replace('|', chr(92) + '|')} ``" if text else "(gone)"
