"""Callers who are nobody, were thrown out, repeat, overdo, lie or dawdle: each is refused, none harms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from direct import NAMES, Direct, direct
from service_harness import GIVE_UP, Federation, federation

from basecagg.channels.identity import Identity
from basecagg.channels.wire import pack
from basecagg.protocol.effects import sends_of
from basecagg.protocol.messages import Endorsement, MaskName, Receipt, Refusal, Shipment
from basecagg.service.server.limits import ByteBudget, RateLimit
from basecagg.service.signing import Caller, sign_request

PROTECTED = [
    ("GET", "/v1/epoch"),
    ("GET", "/v1/model"),
    ("PUT", "/v1/model"),
    ("PUT", "/v1/holder-key"),
    ("POST", "/v1/messages"),
    ("GET", "/v1/mailbox"),
    ("GET", "/v1/operator"),
    ("POST", "/v1/operator"),
]


def now_ms() -> int:
    return time.time_ns() // 1_000_000 + 5


async def send(scene: Direct, caller: Caller, method: str, target: str, body: bytes = b"", **more):
    header = sign_request(caller, method, target, body, now_ms())
    headers = {"authorization": header, **more.pop("headers", {})}
    return await scene.client.request(method, target, content=body, headers=headers, **more)


async def test_nothing_works_without_a_key(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        strangers = [
            Caller("test", name, Identity.create()) for name in ("nobody", NAMES[0], "operator")
        ]
        for method, path in PROTECTED:
            replies = [await scene.client.request(method, path)]
            replies += [await send(scene, stranger, method, path) for stranger in strangers]
            assert [reply.status_code for reply in replies] == [401] * 4, (method, path)
            known, unknown = replies[2].json(), replies[1].json()
            assert known == unknown, (method, path)  # names are not given away


async def test_nothing_works_for_the_revoked(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        await scene.operator.revoke(NAMES[0])
        for method, path in PROTECTED:
            reply = await send(scene, scene.caller(NAMES[0]), method, path)
            assert reply.status_code == 403, (method, path)


async def test_a_request_works_once(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        header = sign_request(scene.caller(NAMES[0]), "GET", "/v1/model", b"", now_ms())
        replies = [
            await scene.client.get("/v1/model", headers={"authorization": header}) for _ in range(2)
        ]
        assert [reply.status_code for reply in replies] == [200, 401]
        assert replies[1].json()["code"] == "Replayed"


async def test_a_signature_is_for_one_path_body_and_federation(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        caller = scene.caller(NAMES[0])
        header = {"authorization": sign_request(caller, "GET", "/v1/model", b"", now_ms())}
        assert (await scene.client.get("/v1/epoch", headers=header)).status_code == 401
        assert (await scene.client.get("/v1/model?wait=1", headers=header)).status_code == 401
        header = {"authorization": sign_request(caller, "POST", "/v1/messages", b"x", now_ms())}
        reply = await scene.client.post("/v1/messages", content=b"y", headers=header)
        assert reply.json()["code"] == "WrongBody"
        elsewhere = Caller("other", caller.name, caller.signer)
        assert (await send(scene, elsewhere, "GET", "/v1/model")).status_code == 401


async def test_members_are_not_the_operator(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        caller = scene.caller(NAMES[0])
        for method, path in (
            ("GET", "/v1/operator"),
            ("POST", "/v1/operator"),
            ("PUT", "/v1/model"),
        ):
            reply = await send(scene, caller, method, path)
            assert (reply.status_code, reply.json()["code"]) == (403, "NotOperator")


async def test_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        caller = scene.caller(NAMES[0])
        limit = scene.service.message_limit()
        header = sign_request(caller, "POST", "/v1/messages", b"", now_ms())
        headers = {"authorization": header, "content-length": str(limit + 1)}
        request = scene.client.build_request("POST", "/v1/messages", headers=headers)
        reply = await scene.client.send(request)
        assert reply.status_code == 413
        assert scene.service.activity.bytes_in < 100_000
        for path in ("/v1/epoch", "/v1/mailbox", "/v1/model"):
            assert (await send(scene, caller, "GET", path, b"x")).status_code == 413


async def test_a_body_without_its_length_is_refused(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:

        async def chunks():
            yield b"x"

        header = sign_request(scene.caller(NAMES[0]), "POST", "/v1/messages", b"x", now_ms())
        reply = await scene.client.post(
            "/v1/messages", content=chunks(), headers={"authorization": header}
        )
        assert reply.status_code == 411


async def test_a_small_message_may_not_take_the_room_of_a_large_one(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        name = MaskName("a" * 64, bytes(16))
        receipt = pack(Receipt(bytes.fromhex(scene.epoch), 0, (name,) * 12_000))
        reply = await send(scene, scene.caller(NAMES[0]), "POST", "/v1/messages", receipt)
        assert reply.status_code == 413


async def test_another_epochs_requests_are_refused(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        caller, other = scene.caller(NAMES[0]), "00" * 32
        reply = await send(scene, caller, "GET", f"/v1/mailbox?epoch={other}")
        assert (reply.status_code, reply.json()["code"]) == (409, "WrongEpoch")
        endorsement = pack(Endorsement(bytes(32), 0, 0, bytes(32), bytes(32), 0))
        reply = await send(scene, caller, "POST", "/v1/messages", endorsement)
        assert (reply.status_code, reply.json()["code"]) == (409, "WrongEpoch")


async def test_nobody_speaks_for_another(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        machine = scene.contributor(NAMES[0])
        (shipment,) = (each.message for each in sends_of(machine.deal(0)))
        assert isinstance(shipment, Shipment)
        frame = pack(shipment)
        reply = await send(scene, scene.caller(NAMES[1]), "POST", "/v1/messages", frame)
        assert (reply.status_code, reply.json()["code"]) == (409, "NotEnrolled")
        reply = await send(scene, scene.caller(NAMES[0]), "POST", "/v1/messages", frame)
        assert reply.status_code == 204


async def test_a_revoked_members_dealing_is_not_taken(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        machine = scene.contributor(NAMES[0])
        (shipment,) = (each.message for each in sends_of(machine.deal(0)))
        await scene.operator.revoke(NAMES[0])
        reply = await send(scene, scene.caller(NAMES[0]), "POST", "/v1/messages", pack(shipment))
        assert reply.status_code == 403


@pytest.mark.usefixtures("limits_without_clock")
async def test_whoever_asks_too_often_is_told_to_slow_down(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        scene.api._members = RateLimit(1.0, 10.0)
        caller = scene.caller(NAMES[0])
        replies = [await send(scene, caller, "GET", "/v1/model") for _ in range(15)]
        assert replies[0].status_code == 200
        assert replies[-1].status_code == 429
        assert int(replies[-1].headers["retry-after"]) >= 1
        other = await send(scene, scene.caller(NAMES[1]), "GET", "/v1/model")
        assert other.status_code == 200


async def test_too_many_bytes_at_one_time_are_put_off(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        budget = scene.api._budget = ByteBudget(4000)
        with budget.account(NAMES[1], 2000) as take:
            take(2000)
            reply = await send(scene, scene.caller(NAMES[0]), "POST", "/v1/messages", bytes(2000))
        assert (reply.status_code, reply.json()["code"]) == (503, "Busy")
        assert "retry-after" in reply.headers
        refusal = pack(Refusal("X", "y"))  # the budget was given back
        reply = await send(scene, scene.caller(NAMES[0]), "POST", "/v1/messages", refusal)
        assert reply.status_code == 204


async def test_a_mailbox_that_nobody_empties_stays_within_its_quota(
    tmp_path: Path, monkeypatch
) -> None:
    async with direct(tmp_path) as scene:
        monkeypatch.setattr("basecagg.service.server.mailboxes.MAX_LETTERS", 3)
        for name in NAMES[:5]:
            machine = scene.contributor(name)
            (shipment,) = (each.message for each in sends_of(machine.deal(0)))
            reply = await send(scene, scene.caller(name), "POST", "/v1/messages", pack(shipment))
            assert reply.status_code == 204
        host = scene.service.epochs.host
        assert host is not None
        holder = host.agreement.holder_names[0]
        assert len(host.mailboxes._boxes[holder].letters) == 3
        first = await scene.service.collect(holder, scene.epoch, None, 0, 10**6)
        assert len(first) == 3
        # Once it is emptied, what did not fit is there again.
        rest = await scene.service.collect(holder, scene.epoch, first[-1].number, 0, 10**6)
        assert len(rest) == 3


# --- slow ones ----------------------------------------------------------------------------------


HEADS = [b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: "] * 50
FORM = b"POST /v1/enrolment HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n"


async def dawdle(fed: Federation, head: bytes) -> bytes:
    """What is said at once, then a byte now and then until the server has had enough; what that says."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fed.port, ssl=fed.tls)
    writer.write(head)
    reply = asyncio.create_task(reader.read(4096))
    try:
        while not reply.done():
            writer.write(b"x")
            await asyncio.sleep(0.1)
        return await reply
    except OSError:
        return b""
    finally:
        reply.cancel()
        writer.transport.abort()


@asynccontextmanager
async def slow_callers(fed: Federation, *heads: bytes) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """Some who do not come to the end of what they began with."""
    slow = [asyncio.create_task(dawdle(fed, head)) for head in heads]
    try:
        yield slow
    finally:
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_slow_callers_hold_nobody_up(tmp_path: Path) -> None:
    """Others are answered while every one of them is on its line, where it may stay for minutes."""
    async with (
        federation(tmp_path, header_seconds=600.0, body_grace=600.0) as fed,
        slow_callers(fed, *HEADS, FORM) as slow,
        httpx.AsyncClient(base_url=fed.url, verify=fed.tls, timeout=GIVE_UP) as client,
    ):

        async def all_are_on_a_line() -> bool:
            assert fed.uvicorn is not None
            return len(fed.uvicorn.server_state.connections) >= len(slow)

        await fed.until(all_are_on_a_line)
        for _ in range(5):
            assert (await client.get("/healthz")).status_code == 200
        assert not any(task.done() for task in slow)


@pytest.mark.parametrize(
    ("header_seconds", "body_grace", "heads", "told"),
    [(1.5, 600.0, HEADS, b""), (600.0, 1.5, [FORM], b" 408 ")],
    ids=["head", "body"],
)
async def test_slow_callers_are_hung_up_on(
    tmp_path: Path, header_seconds: float, body_grace: float, heads: list[bytes], told: bytes
) -> None:
    """They do not end by themselves."""
    async with (
        federation(tmp_path, header_seconds=header_seconds, body_grace=body_grace) as fed,
        slow_callers(fed, *heads) as slow,
        asyncio.timeout(GIVE_UP),
    ):
        assert all(told in reply for reply in await asyncio.gather(*slow))


async def test_logs_and_answers_hold_no_secrets(tmp_path: Path, caplog) -> None:
    async with direct(tmp_path) as scene:
        caplog.set_level("DEBUG", "basecagg.service")
        header = sign_request(scene.caller(NAMES[0]), "GET", "/v1/model", b"", now_ms())
        await scene.client.get("/v1/model", headers={"authorization": header})
        signature = header.rpartition(" ")[2]
        assert all(signature not in str(vars(record)) for record in caplog.records)
        profile = scene.profiles[NAMES[0]]
        for document in (profile.invitation, profile):
            assert "token" not in repr(document)
