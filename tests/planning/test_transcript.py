"""Transcripts: what is written is read again, and what makes no sense is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import N, answers, epoch_line, opened_sum, request, shares, upload

from basecagg.errors import DataError
from basecagg.planning.transcript import (
    AnyLine,
    OutcomeLine,
    RequestLine,
    Transcript,
    as_text,
    read_transcript,
)

LINES = [
    epoch_line(),
    *opened_sum(0, {"ann/1": 3, "bob/1": 5, "cyd/1": 8}),
    *shares([0, 2], ["ann/1"]),
]


def written(tmp_path: Path, *texts: str | bytes) -> Path:
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(b"".join(text.encode() if isinstance(text, str) else text for text in texts))
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    read = read_transcript(written(tmp_path, *map(as_text, LINES)))
    assert vars(read) == vars(Transcript(LINES))
    assert read.epoch == LINES[0]
    assert read.uploads["bob/1"].keys() == {"update-bob/1"}
    assert read.answers == {"request-0": set(range(N))}
    assert read.shares == {"ann/1": {0, 2}}
    assert set(read.outcomes.values()) == {"opened"}


def test_a_fact_may_stand_twice(tmp_path: Path) -> None:
    """A retry, or a recorder that was restarted and appends to the same file."""
    twice = read_transcript(written(tmp_path, *map(as_text, [*LINES, *LINES])))
    assert vars(twice) == vars(Transcript(LINES))


def test_a_sum_that_was_opened_stays_opened() -> None:
    masks = ("ann/1", "bob/1", "cyd/1")
    transcript = Transcript([*LINES, OutcomeLine(3, masks, "burned")])
    assert transcript.outcomes == {frozenset(masks): "opened"}


def text_of(line: AnyLine, **changes: object) -> str:
    fields = json.loads(as_text(line)) | changes
    return json.dumps({key: value for key, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("[1, 2]", "Expected `object`"),
        (b'{"kind": "share", "holder": 0, "mask": "\xff"}', "utf-8|UTF-8|invalid"),
        ('{"kind": "rumour"}', "rumour"),
        (text_of(upload("ann/2"), payload="00"), "unknown field `payload`"),
        (text_of(upload("ann/2"), base_version=None), "missing required field `base_version`"),
        (text_of(upload("ann/2"), base_version="3"), "Expected `int`"),
        (text_of(upload("ann/2"), contributor="bob"), "mask ann/2 is not one of bob's"),
        (text_of(upload("ann/2")) + " {}", "trailing"),
        (text_of(request("r", {"ann/1": -1})), ">= 0"),
        (text_of(request("r", {"ann/1": 2**32 - 5})), "weight of ann/1 is not below q"),
        (text_of(RequestLine("r", 0, LINES[4].members[:1] * 2)), "has a mask twice"),
        (text_of(request("request-0", {"ann/1": 1})), "stands here before, with other contents"),
        (text_of(answers("request-0", [N])[0]), "there is no holder 7; N = 7"),
        (text_of(answers("never asked", [0])[0]), "record from the epoch's start"),
        (text_of(shares([N], ["ann/1"])[0]), "there is no holder 7"),
        (text_of(LINES[-3], outcome="lost"), "lost"),
        (text_of(epoch_line(max_colluders=1)), "a second, different epoch"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    path = written(tmp_path, *map(as_text, LINES), text, b"\n")
    with pytest.raises(DataError, match=rf"transcript.jsonl, line {len(LINES) + 1}: .*({words})"):
        read_transcript(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format"),
        ({"format": None}, "missing required field `format`"),
        ({"modulus": 2**32 - 4}, "not prime"),
        ({"points": [1, 2, 3]}, "not N = 7 evaluation points"),
        ({"modulus": 7}, "below q"),
        ({"max_colluders": 5}, "T = 5 < U = 5 ≤ N = 7 does not hold"),
        ({"recovery_threshold": 8}, "does not hold"),
    ],
)
def test_a_bad_epoch_is_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=rf"line 1: .*{words}"):
        read_transcript(written(tmp_path, text_of(epoch_line(), **changes)))


def test_the_epoch_comes_first(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: the first line must be the epoch, not 'upload'"):
        read_transcript(written(tmp_path, *map(as_text, LINES[1:])))
    with pytest.raises(DataError, match="line 1: the file is empty"):
        read_transcript(written(tmp_path, ""))
