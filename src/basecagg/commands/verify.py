"""`basecagg verify`: is the model what its parts make, and does this convict a server?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAGIC, MAX_FILE_BYTES, Filed, pack, unpack_file
from basecagg.commands import _values
from basecagg.commands._kernels import load_kernels
from basecagg.errors import BASecAggError, DataError, NotProven, printable
from basecagg.protocol.epoch import Agreement, accept
from basecagg.protocol.judging import judge, trace
from basecagg.protocol.proofs import (
    Account,
    Caught,
    Evidence,
    Miscalculation,
    Pedigree,
    evidence_of,
)
from basecagg.protocol.recomputation import recompute

if TYPE_CHECKING:
    from basecagg.service.operator.export import Exported

Verdict: TypeAlias = Literal["equal", "CHEAT", "not checked"]
_STATUS: dict[Verdict, int] = {"equal": 0, "not checked": 2, "CHEAT": 1}
"""Exit statuses, from the best to what counts most."""
_VERSIONS = re.compile(r"([0-9]{1,15})(?:\.\.([0-9]{1,15}))?")


class Finding(NamedTuple):
    """What came of one file or version."""

    what: str
    verdict: Verdict
    detail: str


def _versions(text: str) -> range:
    """Read 7 or 5..9."""
    found = _VERSIONS.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"'{text}' is no version such as 7, nor several such as 5..9")
    first = int(found[1])
    return range(first, int(found[2] or first) + 1)


@click.command("verify", short_help="Check evidence, make versions again, check an exported model.")
@click.argument(
    "files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[FILE]..."
)
@click.option(
    "--operator-key",
    type=_values.public_key,
    metavar="HEX",
    help="The operator's key, as you know it from your invitation or from a safe place. Without it the key that"
    " a file names is used and printed: compare it yourself.",
)
@click.option(
    "--as",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Ask the running server, as the member whose folder (`join --state`) this is.",
)
@click.option("--server", metavar="URL", help="Ask at this address, not at the invitation's.")
@click.option(
    "--versions",
    type=_versions,
    metavar="A..B",
    help="Which versions to make again; all that the server has kept unless given.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Keep what each version was made from there, as files that `verify` reads without a server.",
)
def command(
    *,
    files: tuple[Path, ...],
    operator_key: bytes | None,
    folder: Path | None,
    server: str | None,
    versions: range | None,
    save: Path | None,
) -> None:
    """Check a server's work, from files or from the running server. Nothing that you give it is believed.

    A FILE is one of three. Evidence (`evidence-….bin`, left behind by a participant that stopped): does it
    convict the server? The parts of a version (--save writes them): are they what the server released, to the
    bit? A `model.safetensors` of `basecagg operator export`: are these the numbers of a version that a quorum
    endorsed, in the chain of models of this operator?

    With --as FOLDER versions are made again from what the running server has kept of them. Parts that are
    missing or damaged convict nobody: do not train from that version.

    Exit status: 0 if all is as it should be, 1 if a server is proven to have cheated, 2 if something could not
    be checked or proves nothing.

    \b
    Did the server cheat? Is this its model? Make the last versions again, and keep the parts:
      basecagg verify evidence-3-12ab.bin --operator-key 5f1c…
      basecagg verify model.safetensors --operator-key 5f1c…
      basecagg verify --as ann --versions 40..42 --save parts
    """
    if bool(files) == (folder is not None):
        raise DataError("give either files or --as FOLDER")
    if folder is None and (server or versions or save):
        raise DataError("--server, --versions and --save go with --as FOLDER")
    load_kernels()
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        if folder is not None:
            findings = asyncio.run(_from_server(folder, server, versions, save))
        else:
            findings = _from_files(files, operator_key)
    except (BASecAggError, OSError) as error:  # status 1 says that a server cheated
        raise DataError(str(error)) from None
    _show(console, findings)
    worst = max((finding.verdict for finding in findings), key=list(_STATUS).index)
    click.get_current_context().exit(_STATUS[worst])


# --- files --------------------------------------------------------------------------------------


def _from_files(files: Sequence[Path], operator_key: bytes | None) -> list[Finding]:
    findings = []
    with _progress(len(files)) as advance:
        for path in files:
            findings.append(_file(path, operator_key))
            advance()
    return findings


def _file(path: Path, operator_key: bytes | None) -> Finding:
    try:
        filed, exported = _read(path)
        key = operator_key or filed.operator_key
        finding = _check_exported(path.name, filed, exported, key) if exported else None
        finding = finding or _check(path.name, filed, key)
    except (BASecAggError, OSError) as error:
        return Finding(path.name, "not checked", str(error))
    if operator_key is not None:
        return finding
    whose = f"signed by operator key {key.hex()}: compare it with yours"
    return finding._replace(detail=f"{finding.detail}; {whose}")


def _read(path: Path) -> tuple[Filed, Exported | None]:
    """Evidence or an account; or a pedigree, with the model that carries it."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise DataError(f"it has {size:,} bytes, {MAX_FILE_BYTES:,} are the most")
    data = path.read_bytes()
    if data.startswith(MAGIC):
        return unpack_file(data), None
    from basecagg.service.operator.export import read_exported

    exported = read_exported(data)
    return unpack_file(exported.pedigree), exported


def _check(name: str, filed: Filed, key: bytes) -> Finding:
    match filed:
        case Evidence():
            return _check_evidence(name, filed, key)
        case Account():
            return _check_account(name, filed, accept(filed.epoch, key, Ed25519Verifier()))
        case Pedigree():
            raise DataError("it is a chain proof without its model")


def _check_evidence(name: str, evidence: Evidence, key: bytes) -> Finding:
    try:
        return Finding(name, "CHEAT", judge(evidence, key, Ed25519Verifier()))
    except NotProven as reason:
        return Finding(name, "not checked", str(reason))


def _check_account(name: str, account: Account, agreement: Agreement) -> Finding:
    version = account.parts.release.history.last
    try:
        recompute(agreement, account.parts)
    except Caught as caught:
        return Finding(name, "CHEAT", f"version {version}: {caught}")
    return Finding(name, "equal", f"version {version} is what its parts make, to the bit")


def _check_exported(name: str, filed: Filed, exported: Exported, key: bytes) -> Finding:
    if not isinstance(filed, Pedigree):
        raise DataError("what it carries is no chain proof")
    link = trace(filed, exported.vector, key, Ed25519Verifier())
    others = ", ".join(exported.others)
    return Finding(
        name,
        "equal",
        f"version {link.version} of epoch {filed.epoch.number} of {filed.epoch.federation}"
        + (f"; not in the chain: {others}" if others else ""),
    )


# --- the running server -------------------------------------------------------------------------


async def _from_server(
    folder: Path, url: str | None, versions: range | None, save: Path | None
) -> list[Finding]:
    from basecagg.service.agent.archive import opened
    from basecagg.service.agent.profile import Profile

    findings = []
    async with opened(Profile.open(folder, None), url) as archive:
        wanted = list(versions or await archive.kept())
        if not wanted:
            raise DataError("the server has kept no version of this epoch that was made from a sum")
        with _progress(len(wanted)) as advance:
            for version in wanted:
                try:
                    account = await archive.account(version)
                    findings.append(_check_account(f"{version}", account, archive.agreement))
                    _save(save, account, findings[-1])
                except BASecAggError as error:
                    findings.append(Finding(f"{version}", "not checked", str(error)))
                advance()
    return findings


def _save(folder: Path | None, account: Account, finding: Finding) -> None:
    """The parts, if they are wanted; evidence in any case, here if nowhere else."""
    number, version = account.epoch.number, account.parts.release.history.last
    if finding.verdict == "CHEAT":
        found = evidence_of(account.epoch, Miscalculation(account.parts), account.operator_key)
        (folder or Path()).mkdir(parents=True, exist_ok=True)
        ((folder or Path()) / f"evidence-{number}-{version}.bin").write_bytes(pack(found))
    elif folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"version-{number}-{version}.parts").write_bytes(pack(account))


# --- showing ------------------------------------------------------------------------------------


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar, where there is more than one thing to wait for."""
    columns = (TextColumn("making again"), BarColumn(), MofNCompleteColumn())
    error = Console(stderr=True)
    with Progress(*columns, console=error, transient=True, disable=total < 2) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _show(console: Console, findings: list[Finding]) -> None:
    table = Table(
        Column("what", overflow="fold"),
        Column("verdict", no_wrap=True),
        Column("why", overflow="fold"),
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )
    for finding in findings:
        table.add_row(*(printable(text) for text in finding))
    console.print(table)
    equal = sum(finding.verdict == "equal" for finding in findings)
    console.print(f"{equal} of {len(findings)} checked and equal")
