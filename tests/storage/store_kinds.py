"""The three stores behind one handle, so that one suite can hold all of them to the same behaviour."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from basecagg.storage.database import Database
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.participant_store import ParticipantStore
from basecagg.storage.server_store import ServerStore


@dataclass(frozen=True)
class StoreKind:
    """How to open a kind of store in a folder, and how to close it."""

    name: str
    open: Callable[..., Any]
    close: Callable[[Any], None]

    def __str__(self) -> str:
        return self.name

    def reopen(self, store: Any, folder: Path) -> Any:
        """What a restart finds."""
        self.close(store)
        return self.open(folder)


def open_participant(folder: Path, namespace: str = "epoch/holder") -> ParticipantStore:
    return ParticipantStore(folder / "store.db", namespace, anchor_folder=folder / "anchors")


def open_server(folder: Path, namespace: str = "server") -> ServerStore:
    return ServerStore(f"sqlite:///{folder / 'store.db'}", namespace)


class MemoryKind(StoreKind):
    """A store in memory survives its machine: a restart finds the same object."""

    def reopen(self, store: Any, folder: Path) -> Any:
        return store


DURABLE = [
    StoreKind("participant", open_participant, ParticipantStore.close),
    StoreKind("server", open_server, ServerStore.close),
]
KINDS = [MemoryKind("memory", lambda folder: MemoryStore(), lambda store: None), *DURABLE]


def sql(url: str, statement: str, **values: object) -> Any:
    """Run one statement in a server's database, and return the first value that it finds."""
    database = Database(url)
    with database.transaction("test"):
        cursor = database.execute(statement, values)
        found = cursor.fetchone() if cursor.description else None
    database.close()
    return found and found[0]


def copy_store(folder: Path, target: Path) -> None:
    """Copy the database with its side files, as a backup of the folder does."""
    target.mkdir(exist_ok=True)
    for path in folder.glob("store.db*"):
        shutil.copy2(path, target / path.name)


def restore_store(source: Path, folder: Path) -> None:
    """Put such a copy in the place of the store."""
    for path in folder.glob("store.db*"):
        path.unlink()
    copy_store(source, folder)
