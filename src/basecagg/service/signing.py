"""Who is calling: every request is signed with the caller's enrolled Ed25519 key.

The signature covers the federation, method, path, time, a nonce and the hash of the body, all in one header.
So a caller is known before a byte of its body is read, and the body is tied to it afterwards. A captured
request cannot be used again: its nonce is remembered while its time is acceptable, and a server that has
just started accepts nothing signed before.
"""

import hashlib
import os
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.protocol.messages import Digest, Message, Name, Signature, signed, statement
from basecagg.protocol.ports import Signer
from basecagg.service.framing import Body, portions
from basecagg.service.problems import Problem

WINDOW_MS = 60_000
"""How far a request's time may be from the server's clock. Callers set theirs by the server's replies."""
TIME_HEADER = "basecagg-time"
_STARTED_NS = time.time_ns() - time.monotonic_ns()
_NONCE_BYTES = 16
_HEADER = re.compile(
    r"Basecagg ([A-Za-z0-9._@-]{1,64}) (\d{1,15}) ([\w-]{22}) ([\w-]{43}) ([\w-]{86})", re.ASCII
)


class HttpRequest(Message, frozen=True, tag="HttpRequest"):
    """A request, as its caller signs it."""

    federation: Name
    name: Name
    method: str
    target: str
    """Path and query."""
    time_ms: int
    nonce: bytes
    body_hash: Digest
    signature: Signature = b""


class Claim(NamedTuple):
    """A caller who has proved its name, and the hash that the body it sends must have."""

    name: str
    body_hash: bytes


class Caller(NamedTuple):
    """Who signs requests, where."""

    federation: str
    name: str
    signer: Signer


def sign_request(caller: Caller, method: str, target: str, body: Body, time_ms: int) -> str:
    """The `Authorization` header of a request; `target` is path and query."""
    nonce, digest = os.urandom(_NONCE_BYTES), hashlib.sha256()
    for portion in portions(body):
        digest.update(portion)
    body_hash = digest.digest()
    request = HttpRequest(caller.federation, caller.name, method, target, time_ms, nonce, body_hash)
    signature = signed(request, caller.signer).signature
    fields = (caller.name, str(time_ms), *map(_text, (nonce, body_hash, signature)))
    return " ".join(("Basecagg", *fields))


def steady_ms() -> int:
    """The time when this process began, and what has passed since: setting the machine's clock changes nothing.

    A clock that is set back would lock out whoever signs by it, and one set ahead would forget nonces early.
    """
    return (_STARTED_NS + time.monotonic_ns()) // 1_000_000


class Guard:
    """Checks signatures, times and nonces. `key_of` gives a caller's public key, or None."""

    def __init__(
        self,
        federation: str,
        key_of: Callable[[str], bytes | None],
        clock_ms: Callable[[], int] = steady_ms,
    ) -> None:
        """Start with no nonce seen: everything signed before this moment is refused."""
        self._federation = federation
        self._key_of = key_of
        self._clock_ms = clock_ms
        self._started = clock_ms()
        self._seen: set[bytes] = set()
        self._order: deque[tuple[int, bytes]] = deque()
        self._verifier = Ed25519Verifier()
        self._nobodys_key = Identity.create().public_key

    def check(self, method: str, target: str, header: str | None) -> Claim:
        """The caller, or 401. Nothing of the body is needed yet."""
        match = _HEADER.fullmatch(header or "")
        if match is None:
            raise Problem(401, "Unsigned", "sign the request with your enrolled key")
        name, time_ms = match[1], int(match[2])
        nonce, body_hash, signature = (_bytes(match[group]) for group in (3, 4, 5))
        said = HttpRequest(self._federation, name, method, target, time_ms, nonce, body_hash)
        key = self._key_of(name)
        # The same work and the same answer for an unknown name and a wrong signature: names are not given away.
        is_good = self._verifier.verify(key or self._nobodys_key, statement(said), signature)
        if key is None or not is_good:
            raise Problem(401, "BadSignature", "no enrolled key made this signature")
        self._require_once(time_ms, nonce)
        return Claim(name, body_hash)

    def _require_once(self, time_ms: int, nonce: bytes) -> None:
        now = self._clock_ms()
        if abs(time_ms - now) > WINDOW_MS or time_ms < self._started:
            raise Problem(401, "WrongTime", "signed at another time: set your clock by my reply")
        while self._order and self._order[0][0] < now - 2 * WINDOW_MS:
            self._seen.discard(self._order.popleft()[1])
        if nonce in self._seen:
            raise Problem(401, "Replayed", "this request was made before")
        self._seen.add(nonce)
        self._order.append((now, nonce))


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
