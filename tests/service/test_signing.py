"""A signed request: what it says, word by word, for how long it counts, and that it counts once."""

from __future__ import annotations

import hashlib
import time
from base64 import urlsafe_b64decode

import msgspec
import pytest

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.protocol.messages import PROTOCOL_VERSION
from basecagg.service.problems import Problem
from basecagg.service.signing import WINDOW_MS, Caller, Claim, Guard, sign_request, steady_ms

START = 1_700_000_000_000
IDENTITY = Identity.create()
CALLER = Caller("test", "alice", IDENTITY)


class Door:
    """A guard whose clock we set, and who knows Alice alone."""

    def __init__(self) -> None:
        self.now = START
        keys = {"alice": IDENTITY.public_key}
        self.guard = Guard("test", keys.get, lambda: self.now)

    def admits(self, header: str | None, method: str = "PUT", target: str = "/a?b") -> Claim | str:
        """The claim, or the code of the refusal."""
        try:
            return self.guard.check(method, target, header)
        except Problem as problem:
            return problem.code if problem.status == 401 else f"status {problem.status}"


def signed(time_ms: int = START, caller: Caller = CALLER) -> str:
    return sign_request(caller, "PUT", "/a?b", b"body", time_ms)


def padded(text: str) -> bytes:
    return urlsafe_b64decode(text + "==="[: -len(text) % 4])


def test_the_header_is_what_the_reference_says() -> None:
    """Scheme, name, time, a nonce of 16 bytes, SHA-256 of the body, and the signature of one statement."""
    scheme, name, time_ms, *rest = signed().split(" ")
    nonce, body_hash, signature = map(padded, rest)
    assert (scheme, name, time_ms, len(nonce)) == ("Basecagg", "alice", str(START), 16)
    assert body_hash == hashlib.sha256(b"body").digest()
    said = (
        "basecagg",
        PROTOCOL_VERSION,
        "HttpRequest",
        "test",
        "alice",
        "PUT",
        "/a?b",
        START,
        nonce,
        body_hash,
    )
    whole = msgspec.msgpack.encode(said)
    assert Ed25519Verifier().verify(IDENTITY.public_key, whole, signature)


def test_a_caller_is_known_by_name_and_body() -> None:
    assert Door().admits(signed()) == Claim("alice", hashlib.sha256(b"body").digest())


def test_no_two_requests_share_a_nonce() -> None:
    assert len({signed().split(" ")[3] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer x",
        "basecagg" + signed()[8:],
        signed() + " ",
        signed() + "\n",
        " " + signed(),
        signed().replace("alice", "al/ice"),
        signed().replace("alice", "a" * 65),
        signed().replace(str(START), "1" * 16),
        signed().replace(str(START), "١٧٠٠"),
        signed().replace(str(START), ""),
        signed()[:-1],
        signed() + "A",
        signed(caller=Caller("test", "", IDENTITY)),
    ],
)
def test_a_header_of_another_form(header: str | None) -> None:
    assert Door().admits(header) == "Unsigned"


@pytest.mark.parametrize("name", ["a" * 64, "A.b_c@d-9"])
def test_every_name_that_can_be_enrolled_can_call(name: str) -> None:
    guard = Guard("test", lambda _: IDENTITY.public_key, lambda: START)
    header = signed(caller=Caller("test", name, IDENTITY))
    assert guard.check("PUT", "/a?b", header).name == name


def changed(field: int) -> str:
    """A header in which one character of one field is another."""
    fields = signed().split(" ")
    first = "B" if fields[field][0] == "A" else "A"
    fields[field] = str(START + 1) if field == 2 else first + fields[field][1:]
    return " ".join(fields)


@pytest.mark.parametrize("field", [2, 3, 4, 5], ids=["time", "nonce", "body", "signature"])
def test_a_changed_field(field: int) -> None:
    assert Door().admits(changed(field)) == "BadSignature"


def test_another_method_target_federation_key_or_name() -> None:
    door = Door()
    assert door.admits(signed(), method="GET") == "BadSignature"
    assert door.admits(signed(), target="/a") == "BadSignature"
    assert door.admits(signed(caller=Caller("other", "alice", IDENTITY))) == "BadSignature"
    assert door.admits(signed(caller=Caller("test", "alice", Identity.create()))) == "BadSignature"
    assert door.admits(signed(caller=Caller("test", "bob", IDENTITY))) == "BadSignature"


@pytest.mark.parametrize(
    ("clock", "signed_at", "told"),
    [
        (0, 0, ""),
        (0, -1, "WrongTime"),  # before this guard began: who knows whether it was used
        (0, WINDOW_MS, ""),
        (0, WINDOW_MS + 1, "WrongTime"),
        (WINDOW_MS, 0, ""),
        (WINDOW_MS + 1, 0, "WrongTime"),
        (10 * WINDOW_MS, 9 * WINDOW_MS, ""),
        (10 * WINDOW_MS, 9 * WINDOW_MS - 1, "WrongTime"),
    ],
)
def test_a_time_counts_for_a_minute(clock: int, signed_at: int, told: str) -> None:
    assert WINDOW_MS == 60_000
    door = Door()
    door.now += clock
    outcome = door.admits(signed(START + signed_at))
    assert (outcome if isinstance(outcome, str) else "") == told


@pytest.mark.parametrize("later", [0, 1, WINDOW_MS, 2 * WINDOW_MS])
def test_a_request_counts_once_as_long_as_its_time_does(later: int) -> None:
    """Signed a minute ahead of the guard's clock, it could be shown again two minutes later."""
    door = Door()
    header = signed(START + WINDOW_MS)
    assert isinstance(door.admits(header), Claim)
    door.now += later
    assert isinstance(door.admits(signed(door.now)), Claim)  # lets the guard forget what it may
    assert door.admits(header) == "Replayed"


def test_nonces_are_forgotten_once_their_time_is_over() -> None:
    """Else anybody enrolled fills the memory."""
    door = Door()
    for _ in range(3):
        door.admits(signed(door.now))
    door.now += 2 * WINDOW_MS + 1
    door.admits(signed(door.now))
    assert len(door.guard._seen) == len(door.guard._order) == 1


@pytest.mark.parametrize("days", [1, -1])
def test_setting_the_machines_clock_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Nobody is locked out and no nonce is forgotten; by a clock that can be set both would happen."""
    steady, settable = (
        Guard("test", lambda _: IDENTITY.public_key, clock)
        for clock in (steady_ms, lambda: time.time_ns() // 1_000_000)
    )
    header, real = signed(steady_ms() + 5), time.time_ns
    for guard in (steady, settable):
        assert isinstance(guard.check("PUT", "/a?b", header), Claim)
    monkeypatch.setattr("time.time_ns", lambda: real() + days * 86_400 * 10**9)
    assert isinstance(steady.check("PUT", "/a?b", signed(steady_ms() + 5)), Claim)
    for guard, code in ((steady, "Replayed"), (settable, "WrongTime")):
        with pytest.raises(Problem) as caught:
            guard.check("PUT", "/a?b", header)
        assert caught.value.code == code


def test_the_clock_begins_with_the_systems_in_milliseconds() -> None:
    assert abs(steady_ms() - time.time_ns() // 1_000_000) < 60_000


def test_an_unknown_name_costs_as_much_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the time of an answer tells who belongs to the federation."""
    verified: list[tuple[int, int, int]] = []
    verify = Ed25519Verifier.verify

    def count(self: Ed25519Verifier, key: bytes, statement: bytes, signature: bytes) -> bool:
        verified.append((len(key), len(statement), len(signature)))
        return verify(self, key, statement, signature)

    monkeypatch.setattr(Ed25519Verifier, "verify", count)
    door, thief = Door(), Identity.create()
    for name in ("alice", "nobod"):
        assert door.admits(signed(caller=Caller("test", name, thief))) == "BadSignature"
    known, unknown = verified
    assert known == unknown


def test_nobodys_key_admits_nobody() -> None:
    """A caller who had the key that unknown names are checked with is refused all the same."""
    door = Door()
    door.guard._nobodys_key = IDENTITY.public_key
    assert door.admits(signed(caller=Caller("test", "nobody", IDENTITY))) == "BadSignature"
