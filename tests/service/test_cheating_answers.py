"""A cheating server's answers: they do nothing to the operator's terminal, and no command reads for ever."""

from __future__ import annotations

import io
import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from cheating_server import Answer, cheating_server, overview
from direct import NAMES, URL, Direct, direct
from service_harness import announced

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.channels.wire import pack, unpack_file
from basecagg.errors import LONGEST_QUOTE, DataError, Refused, printable
from basecagg.protocol.audit_log import AuditEnd, AuditEntry, purpose_of
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.messages import Chain, HolderKey, signed
from basecagg.protocol.operator import OPERATOR
from basecagg.protocol.proofs import Pedigree
from basecagg.service import logs
from basecagg.service.connection import Connection, Reply, Unreachable
from basecagg.service.documents import (
    Admitted,
    AuditPage,
    Enrolment,
    Overview,
    from_json,
    to_json,
)
from basecagg.service.operator import office
from basecagg.service.signing import Caller

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\x7f\u202e"
"""Escapes of both kinds, DEL, and an override that turns the rest of the line round."""
FORGED = "\nepoch 9 is open: all is well"


def first_waits(*answers: Answer) -> Callable[[str], Answer]:
    left = list(answers)
    return lambda path: left.pop(0) if left else (200, overview())


def refused(code: str, status: int = 400) -> Answer:
    return status, {"code": code, "reason": f"reason{EVIL}{FORGED}"}


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("status", lambda path: refused(f"Code{EVIL}")),
        ("log", lambda path: refused(f"Code{EVIL}")),
        ("enrol", first_waits(refused("StoreFault", 503))),
        ("log", lambda path: (200, {"entries": [], "end": None, f"field{EVIL}": 1})),
        ("status", lambda path: (200, overview(trouble=EVIL + FORGED, seen={EVIL: 1}))),
        ("status", lambda path: (200, overview(phase=EVIL))),
        ("status", lambda path: (200, overview(trouble="long" * 10**5))),
    ],
    ids=["reason", "log", "store", "field", "trouble", "phase", "long"],
)
def test_nothing_that_a_server_says_moves_the_operators_terminal(
    tmp_path: Path, command: str, answer: Callable[[str], Answer]
) -> None:
    with cheating_server(tmp_path) as cheat:
        cheat.answer = answer
        done = cheat.operate(command)
    shown = done.stdout + done.stderr
    assert shown  # something is said
    assert printable(shown, keep="\n") == shown
    assert FORGED not in shown
    assert len(shown) < 2000


def test_a_refusal_is_quoted_where_it_comes_in() -> None:
    said = {"code": f"Code{EVIL}", "reason": f"reason{EVIL}{FORGED}" + "x" * 10**6}
    problem = Reply(400, httpx.Headers(), json.dumps(said).encode()).problem()
    assert problem is not None
    for text in (problem.code, problem.reason):
        assert text == printable(text)
    assert "\\x1b]0;PWNED" in problem.reason
    assert len(problem.reason) < 2 * LONGEST_QUOTE


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("basecagg", logging.WARNING, "", 0, "event", (), None)
    made.fields = fields
    return made


def test_logs_are_lines_that_do_nothing_and_read_back_as_they_were() -> None:
    said = f"Zürich 🙂 {EVIL}{FORGED}"
    line = logs.JsonFormatter().format(record(reason=said))
    assert line == printable(line)
    assert json.loads(line)["reason"] == said
    assert "Zürich 🙂" in line
    plain = logs.PlainFormatter().format(record(reason=said))
    assert plain == printable(plain)
    assert plain.startswith("event (reason: Zürich 🙂 \\x1b")


def test_a_traceback_on_a_terminal_is_kept() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.PlainFormatter())
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        made = record()
        made.exc_info = (ValueError, error, error.__traceback__)
    handler.emit(made)
    assert stream.getvalue().startswith("event\nTraceback")
    assert printable(stream.getvalue(), keep="\n") == stream.getvalue()


# --- answers without end ------------------------------------------------------------------------


class Liar:
    """Answers the operator of a scene in the server's place, and counts."""

    def __init__(self, scene: Direct, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        self.calls = 0

        def count(request: httpx.Request) -> httpx.Response:
            self.calls += 1
            return answer(request)

        caller = Caller("test", OPERATOR, scene.operator.identity)
        scene.operator.line = Connection(URL, "", caller, httpx.MockTransport(count))


async def test_a_model_is_as_large_as_the_epoch_that_the_operator_signed(tmp_path: Path) -> None:
    sent = 0

    async def flood() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 10**8:
            sent += 2**16
            yield bytes(2**16)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/operator":
            return httpx.Response(200, json=overview(model_size=10**15))
        if request.url.path == "/v1/pedigree":
            return httpx.Response(200, content=frame)
        return httpx.Response(200, headers={"basecagg-version": "1"}, content=flood())

    async with direct(tmp_path) as scene:
        frame = (await scene.boss.call("GET", "/v1/pedigree")).content
        Liar(scene, answer)
        with pytest.raises(Unreachable, match="200 bytes at most"):
            await scene.operator.fetch_model()
        assert sent <= 2**17
        scene.operator.line = scene.boss
        version, vector, _ = await scene.operator.fetch_model()  # the control
        assert (version, len(vector)) == (0, 50)


async def test_an_epoch_that_another_signed_bounds_no_model(tmp_path: Path) -> None:
    """A server that signs an epoch by itself could have any size in it."""
    async with direct(tmp_path) as scene:
        frame = (await scene.boss.call("GET", "/v1/pedigree")).content
        pedigree = unpack_file(frame)
        assert isinstance(pedigree, Pedigree)
        thief = signed(msgspec.structs.replace(pedigree.epoch, signature=b""), Identity.create())
        false = pack(msgspec.structs.replace(pedigree, epoch=thief))
        liar = Liar(scene, lambda request: httpx.Response(200, content=false))
        with pytest.raises(Refused):
            await scene.operator.fetch_model()
        assert liar.calls == 1


@pytest.mark.parametrize("size", [0, 3, 199])
async def test_a_torn_model_is_not_read(tmp_path: Path, size: int) -> None:
    async with direct(tmp_path) as scene:
        frame = (await scene.boss.call("GET", "/v1/pedigree")).content

        def answer(request: httpx.Request) -> httpx.Response:
            said = frame if request.url.path == "/v1/pedigree" else bytes(size)
            return httpx.Response(200, headers={"basecagg-version": "0"}, content=said)

        Liar(scene, answer)
        with pytest.raises(DataError, match=f"has {size} bytes, not 200"):
            await scene.operator.fetch_model()


def entries_of(count: int) -> list[bytes]:
    return [msgspec.json.encode(AuditEntry(number, "event", {})) for number in range(count)]


def signed_end(scene: Direct, chain: Chain, signer: Identity | None = None) -> AuditEnd:
    server = signer or Identity.from_secret(scene.service.folder.server)
    statement = chain.statement(purpose_of("test", SERVER))
    return AuditEnd(chain, server.public_key, server.sign(statement))


def chain_of(entries: list[bytes]) -> Chain:
    chain = Chain.begin(purpose_of("test", SERVER))
    for entry in entries:
        chain = chain.after(entry)
    return chain


def audit(pages: Callable[[int], AuditPage]) -> Callable[[httpx.Request], httpx.Response]:
    """Whoever asks from a number on gets this page."""
    return lambda request: httpx.Response(
        200, content=to_json(pages(int(request.url.params["start"])))
    )


async def test_a_log_without_a_signed_end_is_not_read_on(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        for end in (None, signed_end(scene, Chain(bytes(32), 10**9), Identity.create())):
            page = AuditPage(entries=entries_of(20), end=end)
            liar = Liar(scene, audit(lambda start, page=page: page))
            with pytest.raises(DataError, match="audit log"):
                await scene.operator.server_log()
            assert liar.calls == 1


async def test_a_log_ends_where_the_server_signed_that_it_ends(tmp_path: Path) -> None:
    """It answers for ever with more of them. One that grows while it is read is read as it was at first."""
    async with direct(tmp_path) as scene:
        entries = entries_of(100)
        end = signed_end(scene, chain_of(entries[:50]))
        liar = Liar(
            scene,
            audit(lambda start: AuditPage(entries=entries[start % 50 : start % 50 + 20], end=end)),
        )
        log = await scene.operator.server_log()
        assert [entry.time for entry in log.entries] == list(range(50))
        assert liar.calls == 3


async def test_a_log_that_stops_before_its_end_is_not_whole(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        entries = entries_of(10)
        end = signed_end(scene, Chain(chain_of(entries).head, 10**9))
        liar = Liar(scene, audit(lambda start: AuditPage(entries=entries[start:], end=end)))
        with pytest.raises(DataError, match="not whole"):
            await scene.operator.server_log()
        assert liar.calls == 2


async def test_a_log_with_an_absurd_signed_length_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office, "MAX_LOG_BYTES", 10_000)
    async with direct(tmp_path) as scene:
        end = signed_end(scene, Chain(bytes(32), 10**15))
        liar = Liar(scene, audit(lambda start: AuditPage(entries=entries_of(20), end=end)))
        with pytest.raises(DataError, match="nobody reads on"):
            await scene.operator.server_log()
        assert liar.calls < 20


@pytest.mark.parametrize("length", [-1, 2**62, 10**30])
def test_a_length_that_no_chain_has_is_no_document(length: int) -> None:
    end = {"chain": {"head": "", "length": length}, "key": b64encode(bytes(32)).decode()}
    end["signature"] = b64encode(bytes(64)).decode()
    with pytest.raises(DataError, match="not a valid document"):
        from_json(json.dumps({"entries": [], "end": end}).encode(), AuditPage)


async def test_a_moment_that_is_no_date_is_not_printed(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        entries = [b'{"time":99999999999999999,"event":"event","facts":{}}']
        page = AuditPage(entries=entries, end=signed_end(scene, chain_of(entries)))
        Liar(scene, audit(lambda start: page))
        with pytest.raises(DataError, match="cannot be read"):
            await scene.operator.server_log()


# --- many members -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_overview_grows_with_the_people_whom_the_operator_invited(
    tmp_path: Path, is_known: bool
) -> None:
    """The control: a server may not name people whom this operator does not know."""
    async with direct(tmp_path) as scene:
        registry, people = scene.service.epochs.registry, scene.operator.machine.people
        member, person = registry.members[NAMES[0]], people[NAMES[0]]
        key = announced(scene.profiles[NAMES[0]])
        for number in range(50_000):
            name = f"hospital-{number:055d}"
            registry.members[name] = msgspec.structs.replace(member, name=name)
            registry.holder_keys[name] = key
            if is_known:
                people[name] = person
        said = to_json(await scene.service.overview())
        Liar(scene, lambda request: httpx.Response(200, content=said))
        assert len(said) > 16 * 2**20
        if is_known:
            scene.operator._hear = lambda overview: None  # type: ignore[method-assign]
            assert len((await scene.operator.look()).members) == 50_000 + len(NAMES)
        else:
            with pytest.raises(Unreachable, match="bytes at most"):
                await scene.operator.look()


def test_there_is_room_for_every_person_at_its_longest() -> None:
    """A name of 64 characters and a key of the largest suite, as member and with another enrolment."""
    name, suite = "n" * 64, "mlkem768-x25519"
    identity, sealing = Identity.create(), SealingSecret.create(suite).public_key
    key = pack(signed(HolderKey(name, name, suite, sealing, 2**62 - 1), identity))
    public, secret = identity.public_key, bytes(32)
    member = Admitted(name=name, role="contributor", signing_key=public, revoked=True)
    enrolment = Enrolment(
        name=name, signing_key=public, holder_key=key, admission=secret, proof=secret
    )
    counts = {name: 10**15}
    empty: Overview = from_json(json.dumps(overview()).encode(), Overview)
    full = msgspec.structs.replace(
        empty,
        enrolments=(enrolment,),
        members=(member,),
        holder_keys={name: key},
        inconsistent=counts,
        unapplied=counts,
        seen=counts,
        retired=(name,),
    )
    assert len(to_json(full)) - len(to_json(empty)) < office.PERSON_BYTES
