"""The lease of a store: which process may write to it, and how long that one may be silent. A row with a fence.

A new owner raises the fence. The owner before it can then write nothing any more, however it comes back: as a
process that was stopped and woken, or as a copy on another machine. A lock would not do, because a stopped
process keeps it. Time only decides when a store may be taken over, by the database's own clock: a clock that
jumps makes an owner lose its store early, and never makes two owners.

A process that freezes while it writes has the row locked. Nobody waits for that lock: when its lease is over,
its session is ended, if the database has waited just as long for its next statement. A process that is only
slow is let finish.

`execute` is `Database.execute`, in a transaction that the caller has begun. Each call begins with a write, so
that SQLite locks at once.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from basecagg.errors import LeaseLost, StoreInUse

EXPIRES = 8.0
"""Seconds without a sign of life after which a store may be taken over."""
RENEWS = 2.0
"""Seconds after which an owner that has nothing to write gives one."""
_PAUSE = 0.2
NAME = "basecagg_lease"
TABLE = (
    f"CREATE TABLE IF NOT EXISTS {NAME} (namespace TEXT NOT NULL PRIMARY KEY,"
    " fence BIGINT NOT NULL, owner TEXT NOT NULL, heartbeat DOUBLE PRECISION NOT NULL)"
)
_BEGIN = (  # only if there is no row: PostgreSQL would wait for the session that has it locked
    "INSERT INTO basecagg_lease SELECT :namespace, 0, '', 0 WHERE NOT EXISTS"
    " (SELECT 1 FROM basecagg_lease WHERE namespace = :namespace)"
    " ON CONFLICT (namespace) DO NOTHING"
)
_END_FROZEN = (
    "SELECT FROZEN_ENDED FROM basecagg_lease"
    " WHERE namespace = :namespace AND NOW - heartbeat > :expires"
)
_LOOK = "SELECT fence, owner, NOW - heartbeat FROM basecagg_lease WHERE namespace = :namespace LOCK"
_PEEK = _LOOK.removesuffix(" LOCK")
_TAKE = (
    "UPDATE basecagg_lease SET fence = :fence, owner = :owner, heartbeat = NOW"
    " WHERE namespace = :namespace"
)
_RENEW = (
    "UPDATE basecagg_lease SET heartbeat = NOW"
    " WHERE namespace = :namespace AND fence = :fence AND owner = :owner"
)
_RELEASE = (
    "UPDATE basecagg_lease SET owner = ''"
    " WHERE namespace = :namespace AND fence = :fence AND owner = :owner"
)
Result = TypeVar("Result")
Execute: TypeAlias = Callable[[str, Mapping[str, Any]], Any]


class Lease:
    """The right to write to one namespace, held from `acquire` to `release`."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._owner = _describe_self()
        self.fence = 0
        """How often the namespace has changed hands, counted up to our own turn."""

    def acquire(self, execute: Execute) -> None:
        """Take the namespace if nobody has it, or if its owner is gone; else `StoreInUse`."""
        name = {"namespace": self._namespace}
        execute(_BEGIN, name)
        execute(_END_FROZEN, name | {"expires": EXPIRES})
        unlocked = execute(_LOOK, name).fetchone()
        fence, owner, silent = unlocked or execute(_PEEK, name).fetchone()
        if not unlocked or _is_held(owner, silent):
            raise StoreInUse(
                f"'{self._namespace}' is in use by {_name_of(owner)}, heard of {max(silent, 0):.1f} s ago:"
                " stop that one first; one that has crashed elsewhere is out of it after"
                f" {EXPIRES:g} s"
            )
        execute(_TAKE, name | {"fence": fence + 1, "owner": self._owner})
        self.fence = fence + 1

    def owner(self, execute: Execute) -> str:
        """Who has the namespace, in words; an empty text if it can be taken. Nothing is locked or written."""
        found = execute(_PEEK, {"namespace": self._namespace}).fetchone()
        return _name_of(found[1]) if found and _is_held(found[1], found[2]) else ""

    def check(self, execute: Execute) -> None:
        """Renew the lease, or `LeaseLost` if it is not ours. Every transaction that writes begins with this."""
        if execute(_RENEW, self._values).rowcount != 1:
            raise LeaseLost(
                f"'{self._namespace}' belongs to another process since this one was last heard of:"
                " nothing was written; end this one"
            )

    def release(self, execute: Execute) -> None:
        """Let the next owner in at once. If it is in already, nothing happens."""
        execute(_RELEASE, self._values)

    @property
    def _values(self) -> dict[str, Any]:
        return {"namespace": self._namespace, "fence": self.fence, "owner": self._owner}


def acquire_within(seconds: float, attempt: Callable[[], Result]) -> Result:
    """Try until nobody else has the store, or the time is over; each attempt begins anew."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except StoreInUse:
            if time.monotonic() >= end:
                raise
        time.sleep(_PAUSE)


# --- owners: host, process id, when the process began, where its id is unique, and a random word --------------


def _describe_self() -> str:
    pid = os.getpid()
    return "|".join(
        [platform.node(), str(pid), _birth(pid), _world(), os.urandom(8).hex()]
    ).replace("\0", "")


def _is_held(owner: str, silent: float) -> bool:
    return bool(owner) and silent <= EXPIRES and not _is_dead(owner)


def _name_of(owner: str) -> str:
    if not owner:
        return "somebody who is just taking it"
    host, pid = owner.split("|")[:2]
    return f"process {pid} on {host}"


def _is_dead(owner: str) -> bool:
    """Whether the owner was a process on this machine that has ended, so that nobody need wait for it."""
    _, pid, birth, world, _ = owner.split("|")
    return bool(world) and world == _world() and _birth(int(pid)) != birth


def _world() -> str:
    """The boot and the process namespace in which our process ids are unique; an empty text if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _birth(pid: int) -> str:
    """When the process began, in ticks since the boot; an empty text if it has ended or is a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
