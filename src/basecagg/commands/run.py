"""`basecagg run`: train a federation in simulation, by one method or several, and show what privacy cost."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from basecagg.commands._options import options
from basecagg.commands._program import load_kernels
from basecagg.errors import BASecAggError, DataError, MissingExtraError, StorageError
from basecagg.extras import require
from basecagg.maths.staleness import SHAPES
from basecagg.options import limits_in_words, settings_of
from basecagg.protocol.step_rule import OPTIMISERS
from basecagg.simulation.checkpoint import replace_file
from basecagg.simulation.config import (
    SimulationConfig,
    config_from,
    parse_override,
    read_settings,
)
from basecagg.simulation.protections import PRESETS, PROTECTIONS
from basecagg.simulation.run_folder import CONFIG, TOTALS
from basecagg.simulation.timing import CLOCKS, SCHEDULES

DEFAULT_METHODS = ("fedavg", "fedbuff", "basecagg")
Observer: TypeAlias = Callable[[Any], None]
_PLAN = "runs.json"


class _RunOptions:
    methods: Annotated[tuple[str, ...], "--method"] = ()
    """May be given several times. Without it and without a CONFIG: fedavg, fedbuff and basecagg."""
    versions: int | None = None
    until: Annotated[str | None, "MEASURE=NUMBER"] = None
    """The same for all methods."""
    seed: int | None = None
    dataset: str | None = None
    """--settings lists them all."""
    model: str | None = None
    """--settings lists them all."""
    data_dir: str | None = None
    executor: str | None = None
    """in-process, processes or ray."""
    attack: str | None = None
    """What some users send instead of their updates: scaled, sign-flip, label-flip, …; with --attackers."""
    attackers: float | None = None
    """The share of the users that attack."""
    overrides: Annotated[tuple[str, ...], "--set", "KEY=VALUE"] = ()
    """Any other setting, such as --set dataset=mnist or --set clip=2.0; see --settings."""
    settings: bool = False
    """Explain all settings, with their defaults, and stop."""
    out: Annotated[str | None, click.Path(path_type=Path)] = None
    """Folder for metrics, checkpoints and the report; runs/<time> unless given."""
    resume: Annotated[str | None, click.Path(path_type=Path), "FOLDER"] = None
    """Go on with an interrupted run, to the very result that it would have had."""
    tensorboard: bool = False
    """Write TensorBoard files as well."""


@click.command("run")
@click.argument("config_file", required=False, type=click.Path(path_type=Path), metavar="[CONFIG]")
@options(_RunOptions)
def command(
    *,
    config_file: Path | None,
    methods: tuple[str, ...],
    overrides: tuple[str, ...],
    settings: bool,
    out: Path | None,
    resume: Path | None,
    tensorboard: bool,
    **flags: Any,
) -> None:
    """Train a federation in simulation and show what privacy cost.

    With no arguments: 100 users on the digits that come with scikit-learn, trained by FedAvg, FedBuff and
    BASecAgg (the full protocol, sealed and signed), then a table and a report.

    \b
    basecagg run
    basecagg run --method basecagg --dataset mnist --model lenet5 --data-dir data --set local_epochs=1
    basecagg run my.toml --method fedbuff --method basecagg --out runs/mine
    basecagg run --method fedasync --method fedbuff --method basecagg --until updates=600
    basecagg run --method basecagg --attack sign-flip --attackers 0.1 --set cryptography=arithmetic
    basecagg run --resume runs/mine
    """
    console = Console(markup=False, emoji=False)  # a folder's name is no instruction
    if settings:
        _list_settings(console)
        return
    given = dict(parse_override(text) for text in overrides)
    given |= {name: value for name, value in flags.items() if value is not None}
    if resume:
        if config_file or methods or given or out:
            raise click.UsageError(
                "--resume takes all settings from its folder: leave out CONFIG, --method, --out and all"
                " settings"
            )
        folder, configs = resume, _read_plan(resume)
    else:
        configs = _configs(config_file, methods, given)
        folder = out or Path("runs") / datetime.now().strftime("%Y-%m-%d-%H%M%S")
        _require_free(folder, configs)
    try:
        if not resume:
            _write_plan(folder, configs)
        _run_all(console, folder, configs, resume=bool(resume), tensorboard=tensorboard)
    except BASecAggError:
        _forget_unless_begun(folder)
        raise


def _configs(
    file: Path | None, methods: tuple[str, ...], given: dict[str, Any]
) -> dict[str, SimulationConfig]:
    """One configuration for each method, under the name of the method."""
    if str(file) in PRESETS:
        raise click.UsageError(
            f"CONFIG has to be a file, but {file} is a method: use --method {file}"
        )
    if "until" in given and "versions" in given:
        raise click.UsageError("--versions and --until both say when a run ends: give one of them")
    counted = {"until": None} if "versions" in given else {}
    values = {**read_settings(file), **counted, **given}
    if not methods and (file or "method" in given or "schedule" in given):
        single = config_from(values)
        return {single.label: single}
    return {
        method: config_from({**_usual(method, values), **values, "method": method})
        for method in methods or DEFAULT_METHODS
    }


def _usual(method: str, values: dict[str, Any]) -> dict[str, Any]:
    """FedAvg waits for its whole cohort, so that is the buffer."""
    whole = values.get("buffer_size", SimulationConfig.buffer_size)
    return {"concurrency": whole} if method == "fedavg" else {}


def _run_all(
    console: Console,
    folder: Path,
    configs: dict[str, SimulationConfig],
    *,
    resume: bool,
    tensorboard: bool,
) -> None:
    require("torch", extra="learn", needed_for="basecagg run")
    if tensorboard:
        require("tensorboard", extra="tensorboard", needed_for="--tensorboard")
    from basecagg.commands.report import report_on
    from basecagg.simulation.logbook import VersionRecord
    from basecagg.simulation.simulate import simulate

    load_kernels()
    try:
        with _bars(console) as bars:
            for name, config in configs.items():
                if (folder / name / TOTALS).exists():
                    continue
                observers = [_bar(bars, name, config)]
                if tensorboard:
                    observers.append(_tensorboard(folder / name))

                def tell(record: VersionRecord, observers: list[Observer] = observers) -> None:
                    for observe in observers:
                        observe(record)

                simulate(config, folder=folder / name, resume=resume, progress=tell)
    except KeyboardInterrupt:
        console.print(f"\nStopped. Go on with: basecagg run --resume {folder}")
        raise SystemExit(130) from None
    report_on(console, [folder / name for name in configs], folder)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]:>7}"),
        TextColumn("{task.fields[speed]:>12}"),
        TimeRemainingColumn(),
        console=console,
    )


def _bar(bars: Progress, name: str, config: SimulationConfig) -> Observer:
    """A progress bar with accuracy, speed and the time left."""
    measure, amount = config.ending
    task = bars.add_task(name, total=amount, score="", speed="")

    def observe(record: Any) -> None:
        done = min(amount, record.reached(measure))
        bars.update(task, completed=done, speed=in_words(bars.tasks[task].speed))
        if record.score is not None:
            bars.update(task, score=f"{100 * record.score:.1f} %")

    return observe


def in_words(speed: float | None) -> str:
    """The speed as steps per second, or as seconds per step if it is slow. A step is what the bar counts."""
    if not speed:
        return ""
    if speed >= 1:
        return f"{speed:.1f} /s"
    return f"{1 / speed:.0f} s each" if speed <= 0.1 else f"{1 / speed:.1f} s each"


def _tensorboard(folder: Path) -> Observer:
    """Accuracy and loss as TensorBoard reads them."""
    from torch.utils.tensorboard import SummaryWriter

    writers: list[SummaryWriter] = []

    def observe(record: Any) -> None:
        if record.score is None:
            return
        if not writers:  # it makes its folder, and a run does not begin in a folder that is there
            writers.append(SummaryWriter(str(folder / "tensorboard"), purge_step=record.version))
        writers[0].add_scalar("test/accuracy", record.score, record.version)
        writers[0].add_scalar("test/loss", record.loss, record.version)
        writers[0].flush()

    return observe


def _forget_unless_begun(folder: Path) -> None:
    """Remove the plan again if none of its runs could begin."""
    with suppress(OSError):  # there was something else in the folder, or no folder could be made
        if not any(folder.glob(f"*/{CONFIG}")):
            (folder / _PLAN).unlink(missing_ok=True)
            folder.rmdir()


def _require_free(folder: Path, names: Iterable[str]) -> None:
    if any((folder / name).exists() for name in (_PLAN, *names)):
        raise DataError(f"{folder} holds runs already: choose another --out, or --resume it")


def _write_plan(folder: Path, configs: dict[str, SimulationConfig]) -> None:
    """Note which runs belong together, so that all of them can be resumed."""
    plan = {name: asdict(config) for name, config in configs.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror}") from None
    replace_file(folder / _PLAN, (json.dumps(plan, indent=2) + "\n").encode())


def _read_plan(folder: Path) -> dict[str, SimulationConfig]:
    path = folder / _PLAN
    try:
        plan = json.loads(path.read_text())
    except (OSError, ValueError):
        raise DataError(f"{folder} holds no runs that `basecagg run` began") from None
    whole = isinstance(plan, dict) and all(isinstance(values, dict) for values in plan.values())
    configs = {name: config_from(values) for name, values in plan.items()} if whole else {}
    if not configs or not all(_is_name_of(name, config) for name, config in configs.items()):
        raise DataError(
            f"{path} is not as `basecagg run` writes it: start afresh with another --out"
        )
    return configs


def _is_name_of(name: str, config: SimulationConfig) -> bool:
    """Runs are called as their methods are: any other name might lead out of the folder."""
    return name != "" and name in (config.method, config.label)


def explained_settings() -> Iterator[tuple[str, str, str]]:
    """Every setting with its default and what it means."""
    words = _names()
    for each in settings_of(SimulationConfig):
        known = ", ".join(words.get(each.name, ())) or limits_in_words(each.kind)
        said = f"{each.meaning} {each.why}".strip()
        yield each.name, json.dumps(each.default), f"{said} ({known})" if known else said


def _names() -> dict[str, Collection[str]]:
    """The settings that take a name from a table, with all names."""
    names: dict[str, Collection[str]] = {
        "method": PRESETS,
        "schedule": SCHEDULES,
        "clock": CLOCKS,
        "protection": PROTECTIONS,
        "staleness": SHAPES,
        "server_optimiser": [
            f"{name} ({each.about}; η_g {each.usual_rate:g})" for name, each in OPTIMISERS.items()
        ],
    }
    with suppress(MissingExtraError):  # without torch there is nothing to train, nor to train on
        learning = importlib.import_module("basecagg.learning")
        names |= {"dataset": learning.DATASETS, "model": learning.MODELS}
        names |= {"partition": learning.PARTITIONS}
    return names


def _list_settings(console: Console) -> None:
    table = Table("setting", "default", "meaning", box=None)
    for row in explained_settings():
        table.add_row(*row)
    console.print(table)
