"""`basecagg verify`: is the model what its parts make, and does this convict a server?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from basecagg.auditing.verification import (
    Finding,
    Findings,
    Verdict,
    check_account,
    check_file,
)
from basecagg.channels.wire import pack
from basecagg.commands._options import Folder, digits, options
from basecagg.commands._program import load_kernels
from basecagg.errors import BASecAggError, DataError
from basecagg.protocol.proofs import Account, Evidence, Miscalculation

_STATUS: dict[Verdict, int] = {"equal": 0, "not checked": 2, "CHEAT": 1}
_EXISTING = click.Path(path_type=Path, file_okay=False, exists=True)
_VERSIONS = re.compile(r"([0-9]{1,15})(?:\.\.([0-9]{1,15}))?")


def _versions(text: str) -> range:
    """Read 7 or 5..9."""
    found = _VERSIONS.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"'{text}' is no version such as 7, nor several such as 5..9")
    first = int(found[1])
    return range(first, int(found[2] or first) + 1)


class _VerifyOptions:
    operator_key: Annotated[str | None, digits, "HEX"] = None
    """The operator's key, as `basecagg operator key` or `join --check` prints it. Without it the key that a
    file names is used and printed: compare it yourself."""
    folder: Annotated[str | None, _EXISTING, "--as", "FOLDER"] = None
    """Ask the running server, as the member whose folder (`join --state`) this is."""
    server: Annotated[str | None, "URL"] = None
    """Ask at this address, not at the invitation's."""
    versions: Annotated[str | None, _versions, "A..B"] = None
    """Which versions to make again; all that the server has kept unless given."""
    save: Annotated[Folder | None, "FOLDER"] = None
    """Keep what each version was made from there, as files that `verify` reads without a server."""


@click.command("verify")
@click.argument(
    "files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[FILE]..."
)
@options(_VerifyOptions)
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
    try:
        if folder is not None:
            findings = asyncio.run(_from_server(folder, server, versions, save))
        else:
            findings = _from_files(files, operator_key)
    except (BASecAggError, OSError) as error:  # status 1 says that a server cheated
        raise DataError(str(error)) from None
    found = Findings(tuple(findings))
    Console(highlight=False).print(found)
    click.get_current_context().exit(_STATUS[found.verdict])


# --- files --------------------------------------------------------------------------------------


def _from_files(files: Sequence[Path], operator_key: bytes | None) -> list[Finding]:
    findings = []
    with _progress(len(files)) as advance:
        for path in files:
            findings.append(check_file(path, operator_key))
            advance()
    return findings


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
                    findings.append(check_account(f"{version}", account, archive.agreement))
                    _save(save, account, findings[-1])
                except BASecAggError as error:
                    findings.append(Finding(f"{version}", "not checked", str(error)))
                advance()
    return findings


def _save(folder: Path | None, account: Account, finding: Finding) -> None:
    """The parts, if they are wanted; evidence in any case, here if nowhere else."""
    number, version = account.epoch.number, account.parts.release.history.last
    if finding.verdict == "CHEAT":
        found = Evidence(account.epoch, Miscalculation(account.parts), account.operator_key)
        (folder or Path()).mkdir(parents=True, exist_ok=True)
        ((folder or Path()) / f"evidence-{number}-{version}.bin").write_bytes(pack(found))
    elif folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"version-{number}-{version}.parts").write_bytes(pack(account))


# --- waiting ------------------------------------------------------------------------------------


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar, where there is more than one thing to wait for."""
    columns = (TextColumn("making again"), BarColumn(), MofNCompleteColumn())
    error = Console(stderr=True)
    with Progress(*columns, console=error, transient=True, disable=total < 2) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
