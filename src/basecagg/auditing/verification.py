"""Check a server's work from files: evidence, the parts of a version, an exported model.

Only signatures that lead to the operator's key are believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from basecagg.channels.identity import Ed25519Verifier, read_public_key
from basecagg.channels.safetensors import Exported, read_exported
from basecagg.channels.wire import MAGIC, MAX_FILE_BYTES, Filed, unpack_file
from basecagg.errors import BASecAggError, DataError, NotProven, printable
from basecagg.printing import Shown
from basecagg.protocol.epoch import Agreement, Epoch, accept
from basecagg.protocol.proofs import Account, Caught, Evidence, Pedigree
from basecagg.protocol.recomputation import judge, recompute, trace

if TYPE_CHECKING:
    from rich.console import RenderableType

Verdict: TypeAlias = Literal["equal", "not checked", "CHEAT"]
VERDICTS: tuple[Verdict, ...] = ("equal", "not checked", "CHEAT")
"""From good to bad. The worst one of several counts."""


class Finding(NamedTuple):
    """The result of checking one file or version."""

    what: str
    """The name of the file, or the number of the version."""
    verdict: Verdict
    """equal: as it should be. CHEAT: proven. not checked: it cannot be read, or proves nothing."""
    detail: str
    """Why, in words."""
    named_key: str = ""
    """The operator's key that the file names, in hexadecimal digits, where nobody gave one: compare it."""
    cheated_in: str = ""
    """The epoch and federation in which a server is proven to have cheated."""
    server_key: str = ""
    """That server's key, in hexadecimal digits: it says which server was convicted."""


@dataclass(frozen=True, repr=False)
class Findings(Shown):
    """The results of all checks. It prints as `basecagg verify` does."""

    findings: tuple[Finding, ...]
    """One for each file or version, in the order in which they were given."""

    @property
    def verdict(self) -> Verdict:
        """The worst of all: CHEAT before not checked before equal."""
        return max((finding.verdict for finding in self.findings), key=VERDICTS.index)

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Column, Table
        from rich.text import Text

        columns = Column("what", overflow="fold"), Column("verdict", no_wrap=True)
        why = Column("why", overflow="fold")
        table = Table(*columns, why, box=box.SIMPLE_HEAD, show_edge=False)
        for finding in self.findings:
            table.add_row(*(Text(printable(text)) for text in finding[:3]))
        equal = sum(finding.verdict == "equal" for finding in self.findings)
        lines = [f"{equal} of {len(self.findings)} checked and equal"]
        # A line of its own for each key: in the table it would be cut into pieces that nobody can copy.
        convicted = {(f.cheated_in, f.server_key) for f in self.findings if f.server_key}
        for where, key in sorted(convicted):
            lines += [f"convicted in {where}, the server's key:", key]
        if named := sorted({finding.named_key for finding in self.findings} - {""}):
            lines += ["signed by; compare with `operator key` or `join --check`:", *named]
        return Group(table, *map(Text, lines))


def verify(*files: Path | str, operator_key: bytes | str | None = None) -> Findings:
    """Check a server's work from files; `print` shows the results as a table.

    A file is one of three. Evidence, left behind by a participant that stopped: does it convict the server? The
    parts of a version: are they what the server released, to the bit? A `model.safetensors` of an operator: are
    these the numbers of a version in this operator's chain of models? Without `operator_key` (32 bytes, or as
    hexadecimal text) the key that a file names is used, and named in the finding: compare it with what
    `operator key` or `join --check` prints.
    """
    if not files:
        raise DataError("there is nothing to verify: give at least one file")
    key = None if operator_key is None else read_public_key(operator_key)
    return Findings(tuple(check_file(Path(file), key) for file in files))


def check_file(path: Path, operator_key: bytes | None) -> Finding:
    """Check one file. If it cannot be read, or proves nothing, the verdict is "not checked"."""
    try:
        filed, exported = _read(path)
        key = operator_key or filed.operator_key
        finding = _check(path.name, filed, exported, key)
    except (BASecAggError, OSError) as error:
        return Finding(path.name, "not checked", str(error))
    return finding if operator_key is not None else finding._replace(named_key=key.hex())


def check_account(name: str, account: Account, agreement: Agreement) -> Finding:
    """Make a version again from its parts."""
    version = account.parts.release.history.last
    try:
        recompute(agreement, account.parts)
    except Caught as caught:
        return _conviction(name, f"version {version}: {caught}", agreement.epoch)
    return Finding(name, "equal", f"version {version} is what its parts make, to the bit")


def _read(path: Path) -> tuple[Filed, Exported | None]:
    """Read evidence, an account, or a pedigree with the model that carries it."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise DataError(f"it has {size:,} bytes, {MAX_FILE_BYTES:,} are the most")
    data = path.read_bytes()
    if data.startswith(MAGIC):
        return unpack_file(data), None
    exported = read_exported(data)
    return unpack_file(exported.pedigree), exported


def _check(name: str, filed: Filed, exported: Exported | None, key: bytes) -> Finding:
    verifier = Ed25519Verifier()
    match filed, exported:
        case Evidence() as evidence, None:
            try:
                return _conviction(name, judge(evidence, key, verifier), evidence.epoch)
            except NotProven as reason:
                return Finding(name, "not checked", str(reason))
        case Account() as account, None:
            return check_account(name, account, accept(account.epoch, key, verifier))
        case Pedigree(), None:
            raise DataError("it is a chain proof without its model")
        case Pedigree() as pedigree, Exported() as model:
            version = trace(pedigree, model.vector, key, verifier).version
            epoch = pedigree.epoch
            found = f"version {version} of epoch {epoch.number} of {epoch.federation}"
            others = f"; not in the chain: {', '.join(model.others)}" if model.others else ""
            return Finding(name, "equal", found + others)
    raise DataError("what it carries is no chain proof")


def _conviction(name: str, what: str, epoch: Epoch) -> Finding:
    where = f"epoch {epoch.number} of {epoch.federation}"
    return Finding(name, "CHEAT", what, cheated_in=where, server_key=epoch.server_key.hex())
