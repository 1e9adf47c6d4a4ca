"""Fetch a file once: checked against its SHA-256, and in place only when whole."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.request import urlopen

from rich.console import Console
from rich.progress import Progress

from basecagg.errors import DataError

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class RemoteFile:
    """A file, where it may be fetched, and the hash that tells it is the right one."""

    name: str
    sha256: str
    urls: tuple[str, ...]


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Download into `folder` from the first address that gives the right bytes."""
    reasons = []
    for url in remote.urls:
        try:
            return _fetch_from(url, remote, folder)
        except (OSError, HTTPException, DataError) as error:
            reasons.append(f"{url}: {error}")
    raise DataError(
        f"{remote.name} could not be downloaded ({'; '.join(reasons)}):"
        f" fetch it by other means and put it into {folder}"
    )


def _fetch_from(url: str, remote: RemoteFile, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target, partial = folder / remote.name, folder / f"{remote.name}.{os.getpid()}.part"
    try:
        with partial.open("wb") as file:
            digest = _stream(url, remote.name, file)
        if digest != remote.sha256:
            raise DataError(f"its SHA-256 is {digest}, not {remote.sha256}")
        return partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _stream(url: str, name: str, file: BinaryIO) -> str:
    """Copy the answer to `file` under a progress bar on stderr; return its SHA-256."""
    digest = hashlib.sha256()
    with (
        urlopen(url, timeout=_TIMEOUT_SECONDS) as answer,  # noqa: S310 (addresses are constants of ours)
        Progress(console=Console(stderr=True)) as progress,
    ):
        length = answer.headers.get("Content-Length")
        bar = progress.add_task(name, total=int(length) if length else None)
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            progress.advance(bar, len(chunk))
    return digest.hexdigest()
