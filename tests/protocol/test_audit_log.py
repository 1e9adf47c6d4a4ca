"""The audit log: whole or refused. Every protection has a control: the same log, untouched, passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.errors import DataError
from basecagg.protocol.audit_log import AuditLog, CheckedLog
from basecagg.protocol.messages import Chain
from basecagg.storage.in_memory import MemoryStore

WRITER, STRANGER = Identity.create(), Identity.create()


@dataclass
class Written:
    """A log of three entries, as a reader gets it."""

    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        for name in ("ann", "bob", "cem"):
            self.add("invited", name=name)
        self.entries, self.end = self.log.entries(), self.log.end

    @property
    def log(self) -> AuditLog:
        return AuditLog("f", "server", self.store)

    def add(self, event: str, **facts: Any) -> None:
        self.store.commit(self.log.note(WRITER, 1_700_000_000, event, **facts))

    def check(self, **changes: Any) -> CheckedLog:
        read = {"purpose": self.log.purpose, "entries": self.entries, "end": self.end}
        keys = {WRITER.public_key}
        return CheckedLog(**(read | {"keys": keys, "verifier": Ed25519Verifier()} | changes))


def test_what_was_noted_is_read_in_order() -> None:
    log = Written().check()
    assert [entry.facts["name"] for entry in log.entries] == ["ann", "bob", "cem"]
    assert log.entries[0].event == "invited"
    assert log.head.length == 3


def test_an_empty_log_is_whole() -> None:
    assert Written().check(entries=[], end=None).head == Chain.begin("audit/f/server")


@pytest.mark.parametrize(
    "change",
    [
        lambda e: [*e[:1], e[1].replace(b"bob", b"bab"), *e[2:]],
        lambda e: [*e[:1], *e[2:]],
        lambda e: [e[1], e[0], e[2]],
        lambda e: e[:2],
        lambda e: [*e, e[0]],
        lambda e: [],
    ],
    ids=["changed", "taken out", "moved", "cut", "added", "emptied"],
)
def test_entries_that_are_not_those_of_the_signed_end_are_refused(change: Any) -> None:
    written = Written()
    with pytest.raises(DataError, match="not whole"):
        written.check(entries=change(written.entries))


def test_an_end_by_somebody_else_is_refused() -> None:
    written = Written()
    assert written.end is not None
    with pytest.raises(DataError, match="not its writer's"):
        written.check(keys={STRANGER.public_key})
    forged = STRANGER.sign(written.end.chain.statement(written.log.purpose))
    with pytest.raises(DataError, match="not signed by its writer"):
        written.check(end=msgspec.structs.replace(written.end, signature=forged))
    with pytest.raises(DataError, match="not whole"):
        written.check(end=None)


def test_a_log_of_another_writer_or_federation_is_no_substitute() -> None:
    for other in ("audit/f/operator", "audit/g/server"):
        with pytest.raises(DataError, match="not whole"):
            Written().check(purpose=other)


def test_a_log_goes_on_from_what_was_seen() -> None:
    written = Written()
    seen = written.check().head
    written.add("revoked", name="bob")
    longer = written.check(entries=written.log.entries(), end=written.log.end)
    longer.require_extends(seen)
    longer.require_extends(Chain.begin(written.log.purpose))
    with pytest.raises(DataError, match="3 entries, and 4 were seen"):
        written.check().require_extends(longer.head)


def test_a_log_that_its_own_writer_wrote_anew_is_refused() -> None:
    """Whoever has the key can sign another history; not to one who remembers the first."""
    seen, again = Written().check().head, Written.__new__(Written)
    again.store = MemoryStore()
    for name in ("ann", "eve", "cem", "dea"):
        again.add("invited", name=name)
    again.entries, again.end = again.log.entries(), again.log.end
    with pytest.raises(DataError, match="first 3 entries"):
        again.check().require_extends(seen)


def test_it_goes_on_after_a_restart_and_is_read_in_pages() -> None:
    written = Written()
    written.add("revoked", name="ann")
    log = written.log
    assert log.entries(0, 2) + log.entries(2, 2) == log.entries()
    assert len(log.entries()) == 4
    assert log.entries(4, 2) == []
