"""The report of simulated runs: what they learned, how long it took, what it cost, and what the server saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from matplotlib.figure import Figure

from basecagg.planning.budget import noise_of
from basecagg.reports import page, plots
from basecagg.reports.runs import RunRecord, shared_score
from basecagg.simulation.purposes import largest_part
from basecagg.simulation.result import score_text


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "–" if value is None else form.format(value * unit)


_SUMMARY: dict[str, Callable[[RunRecord], str]] = {
    "run": lambda run: run.name,
    "score": lambda run: run.score_text,
    "time": lambda run: _number(run.simulated_seconds or None, "{:.1f} s"),
    "versions": lambda run: str(run.versions[-1]["version"]),
    "updates": lambda run: str(run.updates),
    "lost": lambda run: str(run.lost),
    "MB per user": lambda run: _number(run.bytes_per_user(), "{:.2f}", 1e-6),
    "CPU, all parties": lambda run: _number(run.processor_seconds(), "{:.1f} s"),
}
_PRIVACY: dict[str, Callable[[RunRecord], str]] = {
    **{name: _SUMMARY[name] for name in ("run", "score")},
    "ε spent": lambda run: run.epsilon_text,
    "δ": lambda run: f"{run.config.delta:g}",
    "clip norm C": lambda run: f"{run.config.clip_norm:g}",
    "noise z": lambda run: f"{noise_of(run.config):.4g}",
    "uploads at most": lambda run: str(run.config.max_uses),
}
_NOTE = (
    "Time is simulated. Lost: updates that were trained, and are in no sum nor waiting for one. "
    "CPU, all parties: measured seconds of the server, all holders and all contributors together, without"
    " training; a – was not measured. MB per user: sent and received, without downloads of the model."
)


Grid: TypeAlias = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The header of a table, and its rows."""


def summary(runs: Sequence[RunRecord], target: float | None = None) -> Grid:
    """One line a run, as the terminal and the page show it, with the time to a target score.

    The target is the best score that all runs have reached, unless it is given.
    """
    columns = {name: _SUMMARY[name] for name in ("run", "score")}
    if (name := shared_score(runs)) and all(run.simulated_seconds for run in runs):
        wanted = min(run.best_score for run in runs) if target is None else target
        reached = f"time to {score_text(wanted, name)}".replace(" %", "\u00a0%")
        columns[reached] = lambda run: _number(run.time_to(wanted), "{:.1f} s")
    columns |= _SUMMARY
    if any(run.priced for run in runs):
        columns["ε spent"] = lambda run: run.epsilon_text
    return _grid(columns, runs)


def _grid(columns: Mapping[str, Callable[[RunRecord], str]], runs: Sequence[RunRecord]) -> Grid:
    """The score is called by its name: above if all runs have the same, else beside each."""
    score = shared_score(runs)
    cells = dict(columns)
    if score is None:
        cells["score"] = lambda run: f"{run.score_name} {run.score_text}"
    header = tuple(score if name == "score" and score else name for name in cells)
    return header, [tuple(cell(run) for cell in cells.values()) for run in runs]


def write_report(
    runs: Sequence[RunRecord], folder: Path, audits: dict[str, str], target: float | None = None
) -> Path:
    """Write the page and its plots into a folder; `audits` says in words what each run's server learned."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        page.figure(plots.save(figure, folder / "plots", name), caption)
        for name, (figure, caption) in _figures(runs).items()
    ]
    path = folder / "report.html"
    page.write_page(
        path,
        "Simulated federation",
        f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {_all(run.task for run in runs)},"
        f" {_all(run.config.users for run in runs)} users.",
        [
            page.section(
                "Result",
                page.table(*summary(runs, target)),
                page.paragraph(" ".join((_NOTE, *_largest_parts(runs))), dim=True),
            ),
            *_privacy(runs),
            page.section("Plots", page.plots(drawn)),
            page.section("What the server saw", *_seen(runs, audits)),
            page.section("Counters", page.table(*_counters(runs))),
            page.section("Configuration", *_configurations(runs)),
        ],
    )
    return path


def _largest_parts(runs: Sequence[RunRecord]) -> Iterator[str]:
    """What most of each run's bytes were for."""
    told = [f"{run.name}: {largest_part(run.sent)}" for run in runs if run.sent]
    if told:
        yield f"The largest part of it is, in {'; '.join(told)}."


def _all(values: Iterable[object]) -> str:
    """Every different value once."""
    *others, last = dict.fromkeys(map(str, values))
    return f"{', '.join(others)} and {last}" if others else last


def _figures(runs: Sequence[RunRecord]) -> dict[str, tuple[Figure, str]]:
    """Each plot by the name of its file, with a caption; nothing of what no run has measured."""
    finished = [run for run in runs if run.totals]
    dealt = [run for run in finished if run.totals.get("label counts")][:1]
    whose = f" of {dealt[0].name}" if dealt and len(runs) > 1 else ""
    score = (shared_score(runs) or "score").capitalize()
    sent = "What users and holders sent and received, and for what; model downloads left out."
    spent = "ε so far, of the user whose uploads have cost it most."
    wanted: list[tuple[Callable[[Sequence[RunRecord]], Figure], Sequence[RunRecord], str]] = [
        (plots.score_by_version, runs, f"{score} on the test examples as the model steps."),
        (plots.epsilon_by_version, [run for run in runs if run.priced], spent),
        (
            plots.score_by_time,
            [run for run in runs if run.simulated_seconds],
            f"{score} against the simulated time of all work and transfers.",
        ),
        (
            plots.staleness,
            [run for run in runs if run.staleness()],
            "How many versions old the summed updates were.",
        ),
        (plots.traffic, [run for run in finished if run.sent], sent),
        (plots.phases, finished, "Measured time of training and of each role in the protocol."),
        (plots.partition, dealt, f"Examples of each label at each user{whose}."),
    ]
    return {
        draw.__name__.replace("_", "-"): (draw(drawn), caption)
        for draw, drawn, caption in wanted
        if drawn
    }


def _privacy(runs: Sequence[RunRecord]) -> list[str]:
    """What users were promised and what they spent, beside the score."""
    priced = [run for run in runs if run.priced]
    return [page.section("Privacy", page.table(*_grid(_PRIVACY, priced)))] if priced else []


def _seen(runs: Sequence[RunRecord], audits: dict[str, str]) -> list[str]:
    """What each run's server saw, and what that rests on."""
    return [page.paragraph(" ".join(_sentences(run, audits.get(run.name)))) for run in runs]


def _sentences(run: RunRecord, audited: str | None) -> Iterator[str]:
    config, totals = run.config, run.totals
    cost = f" (ε = {totals['epsilon']:.3g} at δ = {config.delta:g})" if "epsilon" in totals else ""
    yield f"{run.name}: {audited or config.pair.guard.saw + cost}"
    if config.pair.guard.masks == "coded":
        if config.cryptography == "arithmetic":
            yield "Arithmetic only: nothing was sealed or signed, so this run shows cost, not privacy."
        p = config.protocol_parameters(model_size=1)
        yield (
            f"A sum opens when U + T = {p.answers_needed} answers agree: T = {p.max_colluders} liars cannot"
            " write it."
            if p.agreed
            else f"Holders are taken to be honest, as in the paper: any U = {p.answers_needed} answers open a"
            f" sum, and T = {p.max_colluders} liars could write it."
        )
    if reason := totals.get("stopped"):
        yield f"{reason[0].upper()}{reason[1:]}."


def _counters(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[object]]]:
    names = sorted({name for run in runs for name in run.totals.get("counts", {})})
    rows: list[list[object]] = [
        [name, *(run.totals.get("counts", {}).get(name, 0) for run in runs)] for name in names
    ]
    wrapped = ("allowed" if run.config.allow_wraparound else 0 for run in runs)
    rows += [
        ["buffers burned", *(run.burned() for run in runs)],
        ["updates trained", *(run.updates for run in runs)],
        ["sums that could wrap around", *wrapped],
    ]
    return ["", *(run.name for run in runs)], rows


def _configurations(runs: Sequence[RunRecord]) -> Iterator[str]:
    """The settings that are not the same in all runs, side by side; then all settings of each run."""
    configs = [asdict(run.config.as_used()) for run in runs]
    differing = [
        [key, *values]
        for key, *values in zip(configs[0], *(config.values() for config in configs), strict=True)
        if any(value != values[0] for value in values)
    ]
    if differing:
        yield page.table(["differs in", *(run.name for run in runs)], differing)
    for run, config in zip(runs, configs, strict=True):
        yield page.folded(run.name, page.table(("setting", "value"), config.items(), numbers=False))
