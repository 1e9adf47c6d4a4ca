"""`basecagg operator start`, `rotate`, `close` and `export`: epochs, and the model that they make."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from click.core import ParameterSource

from basecagg.commands import _options
from basecagg.commands._options import options
from basecagg.commands._program import load_kernels
from basecagg.commands._wishes import WishOptions, plan_for
from basecagg.commands.operator.people import admit, closing_words
from basecagg.commands.operator.place import Place, at_work, connected
from basecagg.errors import DataError, MissingHolders
from basecagg.options import Count, EpochOptions, OptimiserOptions, Protection, Range, hints
from basecagg.parameters import ProtocolParameters
from basecagg.planning.planner import DEFAULT_BUFFER
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.global_model import model_hash
from basecagg.protocol.step_rule import OPTIMISERS, PAPER_STEP, StepRule
from basecagg.service.connection import Unreachable
from basecagg.service.documents import Overview, day, moment
from basecagg.service.operator.export import export as write
from basecagg.service.operator.export import export_adapter as write_adapter
from basecagg.service.operator.export import initial_model
from basecagg.service.operator.office import Office

_STEP = tuple(hints(OptimiserOptions))
"""What becomes the server's step."""
_OF_CLEAR = ("buffer_size", "max_staleness", "staleness", "weights")
"""Wishes that mean something where updates are in clear."""
_OF_HOLDERS = ("holders", "without", "key_timeout", "max_burns")
_POLL = 0.3
"""Seconds between two looks at the server."""
_LOOK = 2.0
"""The same, while nobody types anything."""
_ASK_AGAIN = 3.0
"""Seconds between two requests for the same keys."""


class _StartOptions(WishOptions, OptimiserOptions, EpochOptions):
    protection: Protection = "basecagg"
    """Agents take part in an epoch with none only if each was told to (`join --allow-clear`). Nobody holds
    shares in it, and options about masks, holders and budgets are refused."""
    server_optimiser: Annotated[str, click.Choice(list(OPTIMISERS))] = "sgd"
    global_rate: Annotated[float, Range(0, 1e6, above=True)] | None = None
    """In epochs of the service 1 for sgd, the paper's step."""
    averaged: Annotated[tuple[str, ...], _options.span, "FROM:TO"] = ()
    """Numbers of the model that are averages (BatchNorm's): momentum and adam leave them alone."""
    accept_model: Annotated[str | None, _options.digits, "HEX"] = None
    """Begin with the server's model of this hash, though nothing leads to it: after an upgrade, or when a
    restored server has lost what its last version was made from. The line that refused it shows the hash."""
    versions: Count | None = None
    """Then the epoch closes by itself. Its end is signed by the next `close` or `rotate`."""
    until: Annotated[int | None, _options.moment, "WHEN"] = None
    """A moment like 2026-12-31T18:00, by the server's clock, at which the epoch closes by itself."""
    server_key: Annotated[str | None, _options.digits, "HEX"] = None
    """The key that the server signs with from now on, as `basecagg serve --new-key` printed it."""
    holders: Annotated[int, Range(2)] | None = None
    """The command waits until this many have enrolled, and admits them. Not set: all who have enrolled."""
    without: Annotated[tuple[str, ...], "NAME"] = ()
    """Leave this holder out of the epoch. Nobody is left out unless you say so."""


@click.command("start")
@click.option(
    "--model",
    metavar="SOURCE",
    help="The first model: a .npy file, one that `export` wrote, or module:function that makes a vector or a"
    " torch module. Without it: the one that the last epoch came to, which is traced.",
)
@options(_StartOptions)
@connected
async def start(
    office: Office, *, model: str | None, accept_model: bytes | None, **chosen: Any
) -> None:
    """Sign an epoch with all holders who have enrolled, and start it with a model of yours.

    Your model's hash is kept here: an epoch with another one is not signed. If the last epoch never reached the
    server, the same wishes send the very same one again.
    """
    _require_in_time(**chosen)
    if model is not None and accept_model is not None:
        raise DataError("give either --model or --accept-model")
    overview = await office.look()
    if overview.phase in ("open", "closing"):
        raise DataError(
            "an epoch is open, and goes on with its own model: rotate, or close it first"
        )
    if model is None:
        if not overview.model_size:
            raise DataError("the server has no model yet: --model says which one to begin with")
        await _go_on(office, accept_model, **chosen)
        return
    vector, statistics = initial_model(model)
    if statistics and not chosen["averaged"] and chosen["server_optimiser"] != "sgd":
        chosen["averaged"] = statistics
        typed = " ".join(f"--averaged {start}:{stop}" for start, stop in statistics)
        click.echo(f"the model has running statistics: when you rotate, give {typed}")
    await office.set_model(vector)
    await _begin(office, len(vector), **chosen)


@click.command("rotate")
@options(_StartOptions)
@connected
async def rotate(office: Office, *, accept_model: bytes | None, **chosen: Any) -> None:
    """End the present epoch and start the next, with fresh keys and the present members.

    The next one begins with the model that this one came to. The server is not believed about it: the chain of
    models is followed from the epoch that you signed, and its last version is made again here.
    """
    _require_in_time(**chosen)
    await _close(office)
    await office.set_model(None)  # a `start` that failed may have left one behind
    await _go_on(office, accept_model, **chosen)


async def _go_on(office: Office, accepted: bytes | None, **chosen: Any) -> None:
    """Begin with the model that the server has, if it may be."""
    load_kernels(spare=office.folder)
    size = await office.settle_model(accepted)
    await _begin(office, size, **chosen)


def _require_in_time(*, epoch_days: float, until: int | None, **_: Any) -> None:
    """Refuse a moment that has passed, or at which no agent answers any more, before anything is ended."""
    if until is None:
        return
    said = f"--until {moment(until)}"
    if until <= time.time():
        raise DataError(f"{said} has passed")
    if until > time.time() + epoch_days * 86_400:
        raise DataError(f"{said} is later than the epoch may last: --days is {epoch_days:g}")


class _Close:
    when_due: bool = False
    """Wait until it closes by itself, as `start --versions` or `--until` told the server."""


@click.command("close")
@options(_Close)
@click.pass_obj
def close(place: Place, *, when_due: bool) -> None:
    """End the present epoch; the model stays."""
    if when_due:
        _wait_until_due(place)
    at_work(place, _close)


def _wait_until_due(place: Place) -> None:
    """Look from time to time. In between the folder is free for other commands, and the server may restart."""
    seen: list[Overview] = []

    async def look(office: Office) -> None:
        overview = await office.look()
        when = closing_words(overview.last_version, overview.closes)
        if overview.phase == "open" and not when:
            raise DataError("the epoch was not told when to close: close it without --when-due")
        if overview.phase == "open" and (not seen or seen[-1].version != overview.version):
            click.echo(f"version {overview.version}; it {when}", err=True)
        seen[:] = [overview]

    at_work(place, look)  # an address that is wrong shows now
    while seen[-1].phase == "open":
        time.sleep(_LOOK)
        with suppress(Unreachable):
            at_work(place, look)


@click.command("export")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Makes the torch module whose names and shapes the tensors get. One flat tensor without it.",
)
@click.option(
    "--adapter",
    is_flag=True,
    help="Write the adapter alone into the folder PATH, as peft loads it. Needs --model.",
)
@connected
async def export(office: Office, *, path: Path, model: str | None, adapter: bool) -> None:
    """Write the present model to PATH: as safetensors, or as a torch state_dict if PATH ends in .pt.

    Safetensors carry the chain proof, which `basecagg verify PATH` checks: that these are the numbers of a
    version that the server released, and that a quorum of the holders endorsed the sum that it names. That the
    last version follows from that sum is the server's word: `rotate` and participants make it again.
    """
    if adapter and model is None:
        raise click.UsageError("--adapter needs --model, which makes the base and its adapter")
    if path.is_dir() and not adapter:
        raise click.UsageError(f"{path} is a folder: name a file, or give --adapter")
    version, vector, pedigree = await office.fetch_model()
    office.note_export(version, path)
    proven = True
    if adapter and model:
        write_adapter(vector, path, model, pedigree)
    else:
        proven = write(vector, path, model, pedigree)
    click.echo(f"version {version} → {path}{'' if proven else ', without a chain proof'}")
    click.echo(f"the hash of this model: {model_hash(version, vector).hex()}")


async def _begin(
    office: Office,
    model_size: int,
    *,
    holders: int | None,
    without: tuple[str, ...],
    key_timeout: float,
    epoch_days: float,
    until: int | None,
    protection: Protection,
    **chosen: Any,
) -> None:
    terms = {name: chosen.pop(name) for name in ("max_burns", "server_key", "versions")}
    terms |= {"until": until, "days": epoch_days}
    step = _step(**{name: chosen.pop(name) for name in ("averaged", *_STEP)})
    step.require_fits(model_size)
    if protection == "none":
        _require_untyped(chosen)
        p = _in_clear(model_size=model_size, **chosen)
    else:
        while holders is not None and len(office.machine.holders(without)) < holders:
            await admit(office)
            await asyncio.sleep(_POLL)
        p = _plan(len(office.machine.holders(without)), model_size=model_size, **chosen)
    start = partial(office.start, p, step, without, **terms)
    before = office.epoch
    epoch = await when_keys_are_there(office, key_timeout, start)
    began_alike = before is not None and before.first.model_hash == epoch.first.model_hash
    if before is not None and began_alike and p.is_masked:
        click.echo(
            f"warning: epoch {before.number} began with the same model. Every such epoch lets the server sum"
            " each user's updates from it once more: find out why the last one made no version. Sums that are"
            " given up are counted over all epochs of a model: after max_burns of them one more can stop it",
            err=True,
        )
    click.echo(
        f"epoch {epoch.number} from version {epoch.first_version}: {_terms(p)}; it ends on"
        f" {day(epoch.ends)} at the latest"
    )
    last = None if terms["versions"] is None else epoch.first_version + terms["versions"]
    if when := closing_words(last, until or 0):
        click.echo(f"it {when}, whichever comes first" if last and until else f"it {when}")
    if p.privacy is not None:
        click.echo(
            f"every contributor adds noise z = {p.privacy.noise:g} and uploads {p.privacy.max_uses} times: ε ="
            f" {p.privacy.epsilon:g} at δ = {p.privacy.delta:g}, for each {p.privacy.unit}"
        )


def _require_untyped(chosen: dict[str, Any]) -> None:
    """Refuse what says nothing where updates are in clear: nobody shall believe that it is kept."""
    context = click.get_current_context()
    names = [*(name for name in chosen if name not in _OF_CLEAR), *_OF_HOLDERS]
    typed = [n for n in names if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    if typed:
        said = ", ".join("--" + name.replace("_", "-") for name in typed)
        raise DataError(f"--protection none has no masks, holders or budget: leave out {said}")


def _in_clear(model_size: int, buffer_size: int | None, **chosen: Any) -> ProtocolParameters:
    kept = {name: chosen[name] for name in _OF_CLEAR if name in chosen}
    k = DEFAULT_BUFFER if buffer_size is None else buffer_size
    return ProtocolParameters.in_clear(model_size=model_size, buffer_size=k, **kept)


def _terms(p: ProtocolParameters) -> str:
    """What an epoch is, for the operator."""
    if not p.is_masked:
        return f"protection none, so the server sees every update; K = {p.buffer_size}, d = {p.model_size:,}"
    return (
        f"N = {p.num_holders}, U = {p.recovery_threshold}, T = {p.max_colluders}, D = {p.max_dropouts}, K ="
        f" {p.buffer_size}, m = {p.least_per_version}, d = {p.model_size:,}, {p.consistency}, {p.correctness}"
    )


def _step(server_optimiser: str, global_rate: float | None, **others: Any) -> StepRule:
    usual = (
        PAPER_STEP.rate if server_optimiser == "sgd" else OPTIMISERS[server_optimiser].usual_rate
    )
    own = {name.removeprefix("server_"): value for name, value in others.items()}
    return StepRule(server_optimiser, rate=usual if global_rate is None else global_rate, **own)


def _plan(num_holders: int, **wishes: Any) -> ProtocolParameters:
    if num_holders < 2:
        raise DataError(f"{num_holders} holders have enrolled: at least 2 are needed")
    return plan_for(num_holders, **wishes).parameters


async def when_keys_are_there(
    office: Office, patience: float, attempt: Callable[[], Awaitable[Epoch]]
) -> Epoch:
    """Ask for sealing keys that are missing, and try until they are there or patience ends.

    A member that leaves an epoch may hand in the key that is no good once more, so it is asked again.
    """
    clock = asyncio.get_running_loop().time
    deadline, ask_at = clock() + patience, 0.0
    while True:
        try:
            return await attempt()
        except MissingHolders as missing:
            if clock() >= deadline:
                raise
            if not ask_at:
                click.echo(f"waiting for the keys of {', '.join(missing.reasons)}")
            if clock() >= ask_at:
                await office.ask_for_keys(missing.reasons)
                ask_at = clock() + _ASK_AGAIN
        await asyncio.sleep(_POLL)


async def _close(office: Office) -> None:
    if (await office.look()).phase == "waiting":
        raise DataError("no epoch has begun: `basecagg operator start` begins one")
    await office.close_epoch()
    if (await office.look()).phase == "closing":
        click.echo(
            "waiting for the sum that is being opened, until the server has it or gives it up"
        )
    while (await office.look()).phase == "closing":
        await asyncio.sleep(_POLL)
    overview = await office.end_epoch()
    click.echo(f"epoch {overview.epoch_number} is closed at version {overview.version}")
