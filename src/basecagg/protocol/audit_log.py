"""The audit log: what the operator or the server did, and when, as a hash chain whose end is signed.

Entries are only ever added, each in the transaction of what it tells of. Its writer could leave something out;
it cannot change afterwards what somebody has seen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from basecagg.errors import DataError
from basecagg.protocol.effects import Persist
from basecagg.protocol.messages import Chain, PublicKey, Signature
from basecagg.protocol.ports import Records, Signer, Verifier
from basecagg.protocol.stored import recall, version_key, write

Fact: TypeAlias = str | int
_ENTRY, _END = "audit", "audit-end"
_YEAR_9999 = 253_370_764_800
"""In seconds since 1970: later moments cannot be written as dates."""
_ENCODER = msgspec.json.Encoder()


class AuditEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that was done, at which second of its writer's clock."""

    time: Annotated[int, Meta(ge=0, lt=_YEAR_9999)]
    event: str
    facts: dict[str, Fact]


class AuditEnd(Struct, frozen=True, forbid_unknown_fields=True):
    """How far a log has come, signed by its writer."""

    chain: Chain
    key: PublicKey
    signature: Signature

    def require_signed(self, purpose: str, keys: Collection[bytes], verifier: Verifier) -> None:
        """One of these keys has signed it, or `DataError`."""
        if self.key not in keys:
            raise DataError(
                f"the audit log is signed with a key that is not its writer's: {self.key.hex()}"
            )
        if not verifier.verify(self.key, self.chain.statement(purpose), self.signature):
            raise DataError("the end of the audit log is not signed by its writer")


def purpose_of(federation: str, writer: str) -> str:
    """What tells one writer's chain from another's."""
    return f"audit/{federation}/{writer}"


class AuditLog:
    """The log of one writer, which goes on where its records say."""

    def __init__(self, federation: str, writer: str, records: Records) -> None:
        """`writer` is the operator or the server of the federation."""
        self.purpose = purpose_of(federation, writer)
        self._records = records
        end = self.end
        self._chain = end.chain if end else Chain.begin(self.purpose)

    def note(self, signer: Signer, now: int, event: str, **facts: Fact) -> list[Persist]:
        """One more entry, to be written together with what it tells of."""
        entry = _ENCODER.encode(AuditEntry(now, event, facts))
        number, self._chain = self._chain.length, self._chain.after(entry)
        signature = signer.sign(self._chain.statement(self.purpose))
        end = AuditEnd(self._chain, signer.public_key, signature)
        # An older copy of the store would have a shorter log: that has to be noticed.
        last = write(_END, "", end, irreversible=True)
        return [Persist(_ENTRY, version_key(number), entry), last]

    @property
    def end(self) -> AuditEnd | None:
        """Its signed end; None while nothing stands in it."""
        return recall(self._records, _END, AuditEnd)

    def entries(self, start: int = 0, most: int | None = None) -> list[bytes]:
        """Entries as they stand in the chain, from a number on."""
        end = self._chain.length if most is None else min(self._chain.length, start + most)
        found = (self._records.read(_ENTRY, version_key(each)) for each in range(start, end))
        return [entry for entry in found if entry is not None]


class CheckedLog:
    """A log whose chain and signature were found good."""

    def __init__(
        self,
        purpose: str,
        entries: Sequence[bytes],
        end: AuditEnd | None,
        keys: Collection[bytes],
        verifier: Verifier,
    ) -> None:
        """Check it from scratch, or `DataError`; one of `keys` must have signed its end."""
        self.heads = [*accumulate(entries, Chain.after, initial=Chain.begin(purpose))]
        """What the chain had come to after each number of entries, none at first."""
        if entries or end is not None:
            if end is None or end.chain != self.head:
                raise DataError(
                    "the audit log is not whole: an entry was changed, moved or taken out"
                )
            end.require_signed(purpose, keys, verifier)
        try:
            self.entries = [msgspec.json.decode(entry, type=AuditEntry) for entry in entries]
        except msgspec.MsgspecError as error:
            raise DataError(f"an entry of the audit log cannot be read: {error}") from None

    @property
    def head(self) -> Chain:
        """What it has come to."""
        return self.heads[-1]

    def require_extends(self, seen: Chain) -> None:
        """Refuse a log that is not what was seen before, with more at its end."""
        if seen.length >= len(self.heads):
            raise DataError(
                f"the audit log has {self.head.length} entries, and {seen.length} were seen before: it was cut,"
                " or its store restored"
            )
        if self.heads[seen.length] != seen:
            raise DataError(
                f"the first {seen.length} entries of the audit log are not what they were"
            )
