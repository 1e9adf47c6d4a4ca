"""Lines of transcripts, for tests that write them by hand."""

from __future__ import annotations

from collections.abc import Iterable

from basecagg.planning.transcript import (
    AnswerLine,
    AnyLine,
    EpochLine,
    Member,
    OutcomeLine,
    RequestLine,
    ShareLine,
    UploadLine,
)

N, U, T, K = 7, 5, 2, 3
PIECES = U - T


def epoch_line(**changes: object) -> EpochLine:
    numbers = {
        "format": 1,
        "id": "e",
        "num_users": N,
        "recovery_threshold": U,
        "max_colluders": T,
        "buffer_size": K,
        "modulus": 2**32 - 5,
        "points": tuple(range(1, N + 1)),
    }
    return EpochLine(**numbers | changes)


def upload(mask: str, update: str = "") -> UploadLine:
    return UploadLine(mask, mask.partition("/")[0], 0, update or f"update-{mask}")


def request(digest: str, weights: dict[str, int], version: int = 0) -> RequestLine:
    members = tuple(Member(mask, f"update-{mask}", weight) for mask, weight in weights.items())
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
