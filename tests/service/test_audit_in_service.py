"""The audit logs of a federation at work: who did what, whole after crashes, never rewritten unnoticed."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from direct import Direct, direct
from service_harness import Federation, enrolment, federation, swapped
from test_commands import Desk

from basecagg.channels.wire import pack
from basecagg.commands.operator import people
from basecagg.errors import PassingFault
from basecagg.protocol.messages import Refusal
from basecagg.protocol.stored import Person
from basecagg.service.connection import Connection
from basecagg.service.documents import Overview, to_json
from basecagg.service.problems import Problem
from basecagg.service.server.epoch_sequence import Epochs
from basecagg.service.signing import Caller

NAMES = [f"user-{index}" for index in range(7)]


async def told(fed: Federation) -> list[tuple[str, str, object]]:
    """By whom, what, about whom."""
    logs = {
        "operator": fed.operator.own_log(),
        "server": await fed.operator.server_log(),
    }
    return [(who, e.event, e.facts.get("name")) for who, log in logs.items() for e in log.entries]


async def test_both_logs_tell_who_came_and_went_and_what_was_opened(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        await fed.reach(2)
        await fed.stop("user-6")
        await fed.operator.revoke("user-6")
        entries = await told(fed)
        for who in ("operator", "server"):
            for event in ("invited", "admitted"):
                named = [n for w, e, n in entries if (w, e) == (who, event)]
                assert sorted(named) == NAMES  # they come at the same time
            assert (who, "revoked", "user-6") in entries
        assert sorted(n for _, e, n in entries if e == "enrolled") == NAMES
        assert entries[0] == ("operator", "founded", None)
        assert ("operator", "epoch signed", None) in entries
        assert ("server", "epoch begun", None) in entries
        log = await fed.operator.server_log()
        opened = [entry.facts for entry in log.entries if entry.event == "opened"]
        assert [facts["version"] for facts in opened] == list(range(len(opened)))
        assert len(opened) >= 2


async def test_a_refusal_is_told_even_if_it_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(writes: object) -> None:
        raise PassingFault("cannot write", "the disk is full")

    async def answer(scene: Direct, stranger: bytes) -> tuple[int, str]:
        with pytest.raises(Problem) as caught:
            await scene.boss.enrol(stranger)
        return caught.value.status, caught.value.code

    async with direct(tmp_path) as scene:
        known = enrolment(scene.profiles["user-0"])
        stranger = to_json(msgspec.structs.replace(known, admission=bytes(32)))
        with monkeypatch.context() as broken:
            broken.setattr(scene.service.epochs._durable, "commit", fail)
            assert await answer(scene, stranger) == (403, "NotInvited")
            assert await answer(scene, stranger) == (503, "StoreFault")  # it is known by now
        async with asyncio.timeout(20):
            while await answer(scene, stranger) != (403, "NotInvited"):
                await asyncio.sleep(0.05)
        log = await scene.operator.server_log()
        refused = [entry.facts for entry in log.entries if entry.event == "refused"]
        assert refused == [{"name": "?", "code": "NotInvited", "times": 1}]


def test_every_event_of_an_epochs_life_has_a_line_on_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("basecagg.service"),
        "handle",
        lambda record: (
            heard.append(record.getMessage()) if record.levelno == logging.INFO else None
        ),
    )

    async def story() -> None:
        async with federation(tmp_path) as fed:
            await fed.begin(NAMES)
            await fed.reach(1)
            await fed.close_epoch()
            await fed.operator.end_epoch()
            await fed.stop("user-0")
            await fed.operator.revoke("user-0")

    asyncio.run(story())
    life = ["serving", "invited", "enrolled", "admitted", "model given", "epoch begun", "sum asked"]
    life += ["sum certified", "opened", "epoch closing", "epoch closed", "epoch ended", "revoked"]
    first = [heard.index(event) for event in life if event in heard]
    assert [event for event in life if event not in heard] == []
    assert first[4:] == sorted(first[4:])  # and in this order


async def test_refusals_are_told_and_cannot_fill_the_log(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        profile = fed.profile("ann", await fed.invite("ann"))
        await fed.operator.line.enrol(to_json(swapped(profile)))
        for _ in range(3):  # as `enrol --watch` does
            assert await fed.operator.admit_all() == []
        stranger = msgspec.structs.replace(enrolment(profile), admission=bytes(32))
        for _ in range(9):
            with pytest.raises(Problem):
                await fed.operator.line.enrol(to_json(stranger))
        entries = await told(fed)
        assert entries.count(("operator", "refused", "ann")) == 1
        log = await fed.operator.server_log()
        times = [entry.facts["times"] for entry in log.entries if entry.event == "refused"]
        assert times == [1, 2, 4, 8]


async def test_a_sum_that_opened_just_before_a_crash_has_its_entry_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        with monkeypatch.context() as crash:
            crash.setattr(Epochs, "note_sums", lambda self, entries: None)
            await fed.reach(2)
            for name in NAMES:
                await fed.stop(name)
            await fed.stop_server()
        for _ in range(2):  # and only once
            await fed.start_server()
            log = await fed.operator.server_log()
            opened = [e.facts["version"] for e in log.entries if e.event == "opened"]
            assert opened == list(range(await fed.version()))
            await fed.stop_server()
        assert len(opened) >= 2


def rewrite(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        assert connection.execute(statement).rowcount


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "UPDATE basecagg_records SET value = CAST(replace(CAST(value AS TEXT), 'ann', 'eve') AS BLOB)"
            " WHERE kind = 'audit'",
            "not whole",
        ),
        ("DELETE FROM basecagg_records WHERE kind IN ('audit', 'audit-end')", "were seen before"),
    ],
    ids=["changed", "emptied"],
)
async def test_a_log_that_was_tampered_with_is_shown_and_ends_with_4(
    tmp_path: Path, statement: str, words: str
) -> None:
    async with federation(tmp_path) as fed:
        desk = Desk(fed)
        await desk("invite", "ann", "bob", "--out", str(tmp_path))
        before = await desk("log")
        assert before.exit_code == 0, before.output
        assert "invited" in before.output
        head = before.output.split()[-1]
        assert (await desk("log", "--contains", head)).exit_code == 0
        assert (await desk("log", "--contains", "00" * 32)).exit_code == 4
        lines = (await desk("log", "--json", "--own")).output.splitlines()
        assert json.loads(lines[1])["name"] == "ann"
        await fed.stop_server()
        rewrite(fed.options.folder / "server.db", statement)
        await fed.start_server()
        after = await desk("log")
        assert after.exit_code == 4
        assert words in after.output
        assert (await desk("log", "--own")).exit_code == 0


async def test_only_the_operator_reads_the_servers_log(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        profile = fed.profile("ann", await fed.invite("ann"))
        await fed.operator.line.enrol(to_json(enrolment(profile)))
        await fed.admit(["ann"])
        ca = (tmp_path / "operator" / "ca.pem").read_text()
        line = Connection(fed.url, ca, Caller("test", "ann", profile.identity))
        with pytest.raises(Problem, match="only the operator"):
            await line.call("GET", "/v1/audit")
        await line.close()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (5, "5 seconds"),
        (119, "119 seconds"),
        (121, "2 minutes"),
        (7300, "2 hours"),
        (10**6, "11 days"),
    ],
)
def test_the_last_time_somebody_was_seen_is_told_in_words(seconds: int, words: str) -> None:
    seen = Overview(
        phase="open",
        version=0,
        head=bytes(32),
        model_size=0,
        model_hash=bytes(32),
        epoch_number=1,
        epoch_id=bytes(32),
        enrolments=(),
        members=(),
        holder_keys={},
        seen={"ann": seconds},
    )
    ann = Person(role="both", state="admitted", after=0)
    assert people._presence("ann", ann, seen) == (
        f"; last seen {words} ago" if seconds > 90 else "; online"
    )
    late = Person(role="both", state="invited", after=0, expires=1)
    assert people._presence("ann", late, seen) == "; expired: invite again"


async def test_status_tells_who_is_there_and_who_has_retired(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        await fed.reach(1)
        profile = fed.profile("user-1")
        line = Connection(fed.url, fed.operator._ca(), Caller("test", "user-1", profile.identity))
        await line.call("POST", "/v1/messages", pack(Refusal("Retired", "an old copy")))
        await line.close()
        desk = Desk(fed)
        lines = {text.split()[0]: text for text in (await desk("status")).output.splitlines()}
        assert "both, admitted; online" in lines["user-0"]
        assert "retired until the next epoch" not in lines["user-0"]
        assert "online; retired until the next epoch" in lines["user-1"]
        for name in NAMES:
            await fed.stop(name)
        await fed.stop_server()
        await fed.start_server()
        status = (await desk("status")).output
        assert status.count("not seen since the server started") == len(NAMES)
