"""`join --check`: would this machine be able to take part? Nothing is sent that binds anybody."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from basecagg.channels.identity import Identity
from basecagg.errors import BASecAggError, DataError
from basecagg.service.agent.profile import require_in_time
from basecagg.service.connection import Connection, Greeting
from basecagg.service.documents import Invitation
from basecagg.service.signing import WINDOW_MS, Caller
from basecagg.service.training import UserFunction

_LEAST_DISK = 200 * 2**20
"""Bytes. Shares take more in a large federation: `basecagg plan` says how much."""
_SOON = 30
"""Days before its end a certificate counts as running out."""


class Look(NamedTuple):
    """What one look found."""

    what: str
    good: bool
    said: str


def look(invitation: Invitation, folder: Path, train: str | None) -> Iterator[Look]:
    """One finding after the other; a bad one ends nothing."""
    yield _look_at("invitation", lambda: _admitted_by(invitation))
    key = invitation.operator_key.hex()
    yield Look("operator", good=True, said=f"{key} signs epochs: compare with `operator key`")
    if train is not None:
        yield _look_at("function", lambda: _importable(train))
    yield _look_at("disk", lambda: _room(folder))
    try:
        greeting = asyncio.run(_greet(invitation))
    except BASecAggError as error:
        yield Look("server", good=False, said=str(error))
        return
    yield Look("server", good=True, said=f"{' or '.join(invitation.addresses)} answers")
    yield _look_at("certificate", lambda: _lasting(greeting))
    yield _look_at("clock", lambda: _in_step(greeting))


def _look_at(what: str, attempt: Callable[[], str]) -> Look:
    try:
        return Look(what, good=True, said=attempt())
    except (BASecAggError, OSError) as error:
        return Look(what, good=False, said=str(error))


def _admitted_by(invitation: Invitation) -> str:
    require_in_time(invitation)
    return f"{invitation.name} of {invitation.federation}, {invitation.role}"


def _importable(place: str) -> str:
    with closing(UserFunction(place)) as function:
        function.require()
    return f"{place} is there"


def _room(folder: Path) -> str:
    """Somewhere to write to, and to wait for the disk; what does not exist yet is not made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryFile(dir=there) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
    free = shutil.disk_usage(there).free
    if free < _LEAST_DISK:
        raise DataError(f"{free >> 20} MiB are free in {there}: too few")
    return f"{free >> 20:,} MiB are free in {there}"


async def _greet(invitation: Invitation) -> Greeting:
    stranger = Caller(invitation.federation, invitation.name, Identity.create())
    connection = Connection(invitation.addresses, invitation.ca, stranger)
    try:
        return await connection.greet()
    finally:
        await connection.close()


def _lasting(greeting: Greeting) -> str:
    if greeting.certificate_ends is None:
        raise DataError("nobody knows when it expires")
    days = int((greeting.certificate_ends - time.time()) // 86_400)
    if days < _SOON:
        raise DataError(f"it expires in {days} days: tell the operator")
    return f"believed, for {days} days"


def _in_step(greeting: Greeting) -> str:
    if abs(greeting.ahead_ms) > WINDOW_MS:
        raise DataError(
            f"the server's is {greeting.ahead_ms / 1000:+.0f} s off this machine's: let it be set (NTP), for"
            " epochs end by your own clock"
        )
    return f"within {abs(greeting.ahead_ms) / 1000:.1f} s of the server's"
