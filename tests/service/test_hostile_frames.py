"""Whatever is sent, by strangers, members or the operator: no answer is a 500, and the service goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import numpy as np
from direct import NAMES, Direct, direct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from basecagg.channels.wire import MAGIC, pack
from basecagg.protocol.effects import sends_of
from basecagg.protocol.messages import Answer, Endorsement, MaskName, Receipt, Refusal, Witness
from basecagg.service.signing import sign_request

EXAMPLES = 150
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
PATHS = st.sampled_from(
    [
        *("/", "/healthz", "/readyz", "/status", "/metrics", "/login", "/page.js", "/nowhere"),
        *("/v1/releases/1", "/v1/parts/1", "/v1/parts/x"),
        *("/v1/enrolment", "/v1/epoch", "/v1/model", "/v1/holder-key", "/v1/messages"),
        *("/v1/mailbox", "/v1/operator"),
    ]
)
WORDS = st.text("abc0123456789-.%&=+/ é\0", max_size=20)
QUERIES = st.dictionaries(
    st.sampled_from(["wait", "known", "newer_than", "epoch", "done", "x"]),
    st.one_of(st.sampled_from(["0", "-1", "1", "9" * 30, "", "1.5", "nan"]), WORDS),
    max_size=3,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ORDERS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["Invite", "Admit", "Revoke", "StartEpoch", "CloseEpoch", "EndEpoch", "AskForKeys", "X"]
        )
    },
    optional={
        "name": st.sampled_from([*NAMES, "operator", "a b", ""]),
        "admission_hash": st.sampled_from(["AAAA", "A" * 43 + "=", 3]),
        "member": JSON,
        "credential": st.sampled_from(["", "AAAA", None]),
        "epoch": st.sampled_from(["", "QlNBRwE=", 7]),
        "credentials": JSON,
        "step": JSON | st.lists(st.floats()).map(lambda some: ["StepRule", "sgd", *some]),
        "frame": st.sampled_from(["", "QlNBRwI=", "AAAA", 7]),
        "names": st.sampled_from([[], [NAMES[0], "nobody"], [".."], "x"]),
    },
)
HOLDERS = st.integers(0, 10)
SHORT = st.binary(max_size=64)
NAMED = st.builds(MaskName, st.sampled_from(NAMES), st.binary(min_size=16, max_size=16))


def messages(epoch: bytes) -> st.SearchStrategy[bytes]:
    """Frames that are well-formed, in the right epoch, and wrong in every other way."""
    digest = st.binary(min_size=32, max_size=32)
    version = st.integers(0, 5)
    names = st.lists(NAMED, min_size=1, max_size=3).map(tuple)
    known = st.sampled_from([epoch, bytes(32)])
    return st.one_of(
        st.builds(Receipt, known, HOLDERS, names, SHORT),
        st.builds(Endorsement, known, version, version, digest, digest, HOLDERS, SHORT),
        st.builds(Witness, known, st.binary(min_size=16, max_size=16), HOLDERS, st.none(), SHORT),
        st.builds(Answer, known, version, digest, HOLDERS, st.binary(max_size=200), SHORT),
        st.builds(Refusal, st.just("Malformed"), st.text(max_size=50)),
    ).map(pack)


async def alive(scene: Direct) -> None:
    """The machine still takes an honest dealing."""
    name = NAMES[-1]
    sends = sends_of(scene.contributor(name).deal(0))
    reply = await scene.member(name).call("POST", "/v1/messages", pack(sends[0].message))
    assert reply.status == 204


def fuzz(folder: Path, strategy: st.SearchStrategy, attempt) -> None:
    """Draw the cases first: hypothesis and the event loop each want to be in charge."""
    cases = []

    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(case) -> None:
        cases.append(case)

    draw()

    async def story() -> None:
        async with direct(folder) as scene:
            for case in cases:
                reply = await attempt(scene, case)
                assert reply.status_code < 500 or reply.json()["code"] in ("Busy", "NoEpoch"), case
            await alive(scene)

    asyncio.run(story())
    assert len(cases) >= EXAMPLES // 2


async def send(scene: Direct, who: str | None, method: str, target: str, body: bytes):
    headers = {}
    if who is not None:
        identity = scene.operator.identity if who == "operator" else None
        caller = scene.caller(who, identity)
        stamp = time.time_ns() // 1_000_000 + 5
        headers["authorization"] = sign_request(caller, method, target, body, stamp)
    return await scene.client.request(method, target, content=body, headers=headers)


def test_any_request_of_anybody(tmp_path: Path) -> None:
    who = st.sampled_from([None, NAMES[0], "operator"])
    body = st.one_of(st.binary(max_size=200), st.just(b""))

    async def attempt(scene: Direct, case):
        caller, method, path, query, content = case
        request = scene.client.build_request(method, path, params=query)
        target = request.url.raw_path.decode()
        target = target.replace("wait=1", "wait=0") if "wait=1" in target else target
        return await send(scene, caller, method, target, content)

    fuzz(tmp_path, st.tuples(who, METHODS, PATHS, QUERIES, body), attempt)


def test_any_order_with_the_operators_key(tmp_path: Path) -> None:
    async def attempt(scene: Direct, order):
        if order.get("type") == "Revoke" and order.get("name") == NAMES[-1]:
            order = order | {"name": "nobody"}
        if order.get("type") == "CloseEpoch":
            order = order | {"unexpected": 1}
        body = msgspec.json.encode(order)
        return await send(scene, "operator", "POST", "/v1/operator", body)

    fuzz(tmp_path, st.one_of(ORDERS, JSON.map(lambda value: {"type": value})), attempt)


def test_any_frame_with_a_members_key(tmp_path: Path) -> None:
    noise = st.binary(max_size=300).map(lambda body: MAGIC + body)

    async def attempt(scene: Direct, case):
        seed, frame = case
        frame = mutated(scene, seed) if frame is None else frame
        return await send(scene, NAMES[seed % 3], "POST", "/v1/messages", frame)

    fuzz(tmp_path, st.tuples(st.integers(0, 10**6), st.one_of(st.none(), noise)), attempt)


def mutated(scene: Direct, seed: int) -> bytes:
    """A genuine dealing with a few bytes changed."""
    generator = np.random.default_rng(seed)
    machine = scene.contributor(NAMES[seed % 3])
    frame = np.frombuffer(pack(sends_of(machine.deal(0))[0].message), np.uint8).copy()
    places = generator.integers(0, frame.size, generator.integers(1, 4))
    frame[places] = generator.integers(0, 256, places.size, dtype=np.uint8)
    return frame.tobytes()


def test_well_formed_messages_that_are_wrong(tmp_path: Path) -> None:
    async def attempt(scene: Direct, case):
        who, frame = case
        marker = bytes(range(32))
        frame = frame.replace(marker, bytes.fromhex(scene.epoch))
        return await send(scene, who, "POST", "/v1/messages", frame)

    strategy = st.tuples(st.sampled_from(NAMES), messages(bytes(range(32))))
    fuzz(tmp_path, strategy, attempt)


def test_any_enrolment(tmp_path: Path) -> None:
    base64 = st.sampled_from(["A" * 43 + "=", "AAAA", "!", 3])
    fields = dict.fromkeys(("signing_key", "admission", "proof"), base64)
    document = st.fixed_dictionaries(
        {"name": st.sampled_from([*NAMES, "x y", "new"])}, optional=fields | {"holder_key": base64}
    )

    async def attempt(scene: Direct, case):
        return await send(scene, None, "POST", "/v1/enrolment", msgspec.json.encode(case))

    fuzz(tmp_path, document, attempt)
