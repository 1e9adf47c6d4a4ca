"""Lines of transcripts, for tests that write them by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable

from basecagg.auditing.transcript import (
    AnswerLine,
    AnyLine,
    EpochLine,
    OutcomeLine,
    RequestLine,
    RequestMember,
    Scribe,
    ShareLine,
    UploadLine,
)
from basecagg.channels.identity import Identity

N, U, T, K = 7, 5, 2, 3
PIECES = U - T


def epoch_line(**changes: object) -> EpochLine:
    numbers = {
        "format": 2,
        "id": "e",
        "num_holders": N,
        "recovery_threshold": U,
        "max_colluders": T,
        "buffer_size": K,
        "modulus": 2**32 - 5,
        "points": tuple(range(1, N + 1)),
        "server_key": SERVER.public_key.hex(),
    }
    return EpochLine(**numbers | changes)


SERVER = Identity.from_secret(bytes(range(32)))


def texts(lines: Iterable[AnyLine], *, closed: bool = True) -> list[str]:
    """A transcript's lines as they stand in the file, with the end that the server signs."""
    written: list[str] = []
    scribe = Scribe(written.append)
    for line in lines:
        scribe.add(line)
    if closed:
        scribe.close(SERVER)
    return written


def fact(text: str) -> str:
    """What a line says, without its chain."""
    return json.dumps(json.loads(text)["line"])


def upload(mask: str, update: str = "") -> UploadLine:
    return UploadLine(mask, mask.partition("/")[0], 0, update or f"update-{mask}")


def request(digest: str, weights: dict[str, int], version: int = 0) -> RequestLine:
    members = tuple(
        RequestMember(mask, f"update-{mask}", weight) for mask, weight in weights.items()
    )
    return RequestLine(digest, version, members)


def answers(digest: str, holders: Iterable[int]) -> list[AnyLine]:
    return [AnswerLine(holder, digest) for holder in holders]


def shares(holders: Iterable[int], masks: Iterable[str]) -> list[AnyLine]:
    return [ShareLine(holder, mask) for holder in holders for mask in masks]


def opened_sum(
    version: int, weights: dict[str, int], holders: Iterable[int] = range(N)
) -> list[AnyLine]:
    """Upload, ask, answer, open: one honest round."""
    digest = f"request-{version}"
    return [
        *(upload(mask) for mask in weights),
        request(digest, weights, version),
        *answers(digest, holders),
        OutcomeLine(version + 1, tuple(weights), "opened"),
    ]
