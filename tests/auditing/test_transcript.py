"""Transcripts: what is written is read again, and what makes no sense is refused with its line."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import msgspec
import pytest
from recorded import N, answers, epoch_line, opened_sum, request, shares, texts, upload

from basecagg.auditing.transcript import (
    AnyLine,
    OutcomeLine,
    RequestLine,
    Scribe,
    Transcript,
    chain_of,
    read_transcript,
)
from basecagg.channels.identity import Identity
from basecagg.errors import DataError
from basecagg.protocol.messages import Chain
from basecagg.storage import disk

LINES = [
    epoch_line(),
    *opened_sum(0, {"ann/1": 3, "bob/1": 5, "cyd/1": 8}),
    *shares([0, 2], ["ann/1"]),
]


def written(tmp_path: Path, *texts: str | bytes) -> Path:
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(b"".join(text.encode() if isinstance(text, str) else text for text in texts))
    return path


def facts(transcript: Transcript) -> dict[str, object]:
    return {name: value for name, value in vars(transcript).items() if name != "ending"}


def linked(texts_before: list[str], text: str | bytes) -> bytes:
    """A line whatever it says, tied to those before it as the server would do it."""
    raw = text.encode() if isinstance(text, str) else text
    chain = reduce(Chain.after, [*map(inner, texts_before), raw], Chain.begin("transcript"))
    return b'{"line":' + raw + b',"chain":"' + chain.head.hex().encode() + b'"}\n'


def inner(text: str) -> bytes:
    return text.encode().removeprefix(b'{"line":').rpartition(b',"chain":')[0]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    read = read_transcript(written(tmp_path, *texts(LINES)))
    assert facts(read) == facts(Transcript(LINES))
    assert read.ending == "signed"
    assert read.epoch == LINES[0]
    assert read.uploads["bob/1"].keys() == {"update-bob/1"}
    assert read.answers == {"request-0": set(range(N))}
    assert read.shares == {"ann/1": {0, 2}}
    assert set(read.outcomes.values()) == {"opened"}


def test_a_fact_may_stand_twice(tmp_path: Path) -> None:
    """A retry, or a recorder that was restarted and appends to the same file."""
    twice = read_transcript(written(tmp_path, *texts([*LINES, *LINES])))
    assert facts(twice) == facts(Transcript(LINES))


def test_a_sum_that_was_opened_stays_opened() -> None:
    masks = ("ann/1", "bob/1", "cyd/1")
    transcript = Transcript([*LINES, OutcomeLine(3, masks, "burned")])
    assert transcript.outcomes == {frozenset(masks): "opened"}


def text_of(line: AnyLine, **changes: object) -> str:
    fields = msgspec.to_builtins(line) | changes
    return json.dumps({key: value for key, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "malformed|truncated|invalid"),
        ("{", "malformed|truncated|invalid"),
        ("[1, 2]", "Expected `object`"),
        (b'{"kind": "share", "holder": 0, "mask": "\xff"}', "utf-8|UTF-8|invalid"),
        ('{"kind": "rumour"}', "rumour"),
        (text_of(upload("ann/2"), payload="00"), "unknown field `payload`"),
        (text_of(upload("ann/2"), base_version=None), "missing required field `base_version`"),
        (text_of(upload("ann/2"), base_version="3"), "Expected `int`"),
        (text_of(upload("ann/2"), contributor="bob"), "ann/2 is not one of bob's"),
        (text_of(upload("ann/2")) + " {}", "malformed"),
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
    before = texts(LINES, closed=False)
    path = written(tmp_path, *before, linked(before, text))
    with pytest.raises(DataError, match=rf"transcript.jsonl, line {len(LINES) + 1}: .*({words})"):
        read_transcript(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 4}, "format"),
        ({"format": 1}, "format"),
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
        read_transcript(written(tmp_path, linked([], text_of(epoch_line(), **changes))))


def test_the_epoch_comes_first(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: the first line must be the epoch, not 'upload'"):
        read_transcript(written(tmp_path, *texts(LINES[1:])))
    with pytest.raises(DataError, match="line 1: the file is empty"):
        read_transcript(written(tmp_path, ""))


# --- the chain and its end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(len(LINES)))
def test_a_line_that_is_taken_out_or_changed_is_noticed(tmp_path: Path, at: int) -> None:
    whole = texts(LINES)
    without = whole[:at] + whole[at + 1 :]
    with pytest.raises(DataError, match=rf"line {at + 1}: the chain is broken"):
        read_transcript(written(tmp_path, *without))
    swapped = [*whole[:at], whole[at + 1], whole[at], *whole[at + 2 :]]
    with pytest.raises(DataError, match=rf"line {at + 1}: the chain is broken"):
        read_transcript(written(tmp_path, *swapped))
    changed = [*whole]
    changed[at] = changed[at].replace('"line":{', '"line":{ ', 1)
    with pytest.raises(DataError, match=rf"line {at + 1}: the chain is broken"):
        read_transcript(written(tmp_path, *changed))


@pytest.mark.parametrize("kept", range(1, len(LINES) + 1))
def test_a_transcript_that_is_cut_at_a_line_says_so(tmp_path: Path, kept: int) -> None:
    assert read_transcript(written(tmp_path, *texts(LINES)[:kept])).ending == "cut"


def test_a_transcript_that_is_cut_within_a_line_is_refused(tmp_path: Path) -> None:
    *before, last = texts(LINES)
    with pytest.raises(DataError, match=f"line {len(LINES) + 1}: "):
        read_transcript(written(tmp_path, *before, last[: len(last) // 2]))


def test_nobody_else_can_end_it(tmp_path: Path) -> None:
    """Who cuts it and ties a new end to the rest has no key for it."""
    short: list[str] = []
    scribe = Scribe(short.append)
    for line in LINES[:5]:
        scribe.add(line)
    scribe.close(Identity.create())
    with pytest.raises(DataError, match="not signed with the server's key"):
        read_transcript(written(tmp_path, *short))
    *_, end = texts(LINES)
    rest = texts(LINES[:5], closed=False)
    with pytest.raises(DataError, match="not signed with the server's key"):
        read_transcript(written(tmp_path, *rest, linked(rest, inner(end))))


def test_nothing_comes_after_the_end(tmp_path: Path) -> None:
    whole = texts(LINES)
    with pytest.raises(DataError, match="a line after the end"):
        read_transcript(written(tmp_path, *whole, linked(whole, text_of(upload("ann/2")))))


def test_one_that_is_being_written_is_open(tmp_path: Path) -> None:
    path = written(tmp_path, *texts(LINES, closed=False))
    with path.open("ab") as file:
        disk.lock(file.fileno())
        assert read_transcript(path).ending == "open"
    assert read_transcript(path).ending == "cut"  # the writer is gone


def test_a_scribe_goes_on_where_another_stopped(tmp_path: Path) -> None:
    path = written(tmp_path, *texts(LINES[:5], closed=False))
    rest: list[str] = []
    scribe = Scribe(rest.append, chain_of(path))
    for line in LINES[5:]:
        scribe.add(line)
    assert path.read_text() + "".join(rest) == "".join(texts(LINES, closed=False))


def test_chains_of_other_purposes_or_lengths_have_nothing_in_common() -> None:
    one, other = Chain.begin("one"), Chain.begin("other")
    heads = [
        one.head,
        other.head,
        one.after(b"").head,
        one.after(b"a").after(b"b").head,
        one.after(b"ab").head,
        one.after(b"b").after(b"a").head,
        other.after(b"ab").head,
    ]
    assert len(set(heads)) == len(heads)
    assert one.after(b"a").after(b"b").length == 2
    statements = {chain.statement(purpose) for chain in (one, other) for purpose in ("x", "y")}
    assert len(statements) == 4


@pytest.mark.parametrize("field", ["mask", "contributor", "update"])
@pytest.mark.parametrize("code", ["\x1b[2J", "\x9b2J", "\n", "\u202e", "\x07"])
def test_a_name_that_a_terminal_would_obey_is_refused(
    tmp_path: Path, field: str, code: str
) -> None:
    before = texts(LINES, closed=False)
    bad = text_of(upload("ann/2"), **{field: f"ann{code}/2"})
    with pytest.raises(DataError, match=rf"line {len(LINES) + 1}: .*regex"):
        read_transcript(written(tmp_path, *before, linked(before, bad)))
