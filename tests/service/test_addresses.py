"""Several addresses: whoever does not answer is passed over, and whoever answered last is called first."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from service_harness import Federation

from basecagg.channels.identity import Identity
from basecagg.errors import DataError
from basecagg.service.connection import Connection, Unreachable
from basecagg.service.handed_over import read_invitation, write_invitation
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.problems import Problem
from basecagg.service.signing import Caller, Guard, sign_request

A, B = "https://a.example.org:8443", "https://b.example.org:8443"


class Net:
    """Who is up, and who was called."""

    def __init__(self) -> None:
        self.up = {"a.example.org", "b.example.org"}
        self.called: list[str] = []

    def line(self, *urls: str) -> Connection:
        caller = Caller("test", "ann", Identity.create())
        return Connection(urls, "", caller, httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.called.append(request.url.host[0])
        if request.url.host not in self.up:
            raise httpx.ConnectError("refused")
        return httpx.Response(204)


async def test_the_other_one_is_called_and_remembered() -> None:
    net = Net()
    line = net.line(A, B)
    await line.call("GET", "/v1/epoch")
    net.up = {"b.example.org"}
    await line.call("GET", "/v1/epoch")
    await line.call("GET", "/v1/epoch")
    net.up = {"a.example.org"}
    await line.call("GET", "/v1/epoch")
    assert "".join(net.called) == "aabbba"
    net.up = set()
    with pytest.raises(Unreachable, match=r"https://b\.example\.org:8443 does not answer"):
        await line.call("GET", "/v1/epoch")
    assert "".join(net.called[-2:]) == "ab"
    await line.close()


async def test_every_attempt_has_a_signature_of_its_own() -> None:
    """Two addresses of one server: it heard the request at the first, but its reply was lost."""
    ann = Caller("test", "ann", Identity.create())
    guard = Guard("test", {"ann": ann.signer.public_key}.get, lambda: time.time_ns() // 1_000_000)
    heard: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        target = request.url.raw_path.decode()
        try:
            guard.check(request.method, target, request.headers["authorization"])
        except Problem as problem:
            said = {"code": problem.code, "reason": problem.reason}
            return httpx.Response(problem.status, json=said)
        heard.append(request.url.host)
        if request.url.host == "a.example.org":
            raise httpx.ReadTimeout("the reply is lost")
        return httpx.Response(204)

    line = Connection((A, B), "", ann, httpx.MockTransport(answer))
    await line.call("POST", "/v1/messages", b"update")
    assert heard == ["a.example.org", "b.example.org"]
    await line.close()
    # The control: the very same request is taken but once.
    header = sign_request(ann, "GET", "/", b"", line.now_ms())
    guard.check("GET", "/", header)
    with pytest.raises(Problem, match="made before"):
        guard.check("GET", "/", header)


async def test_invitations_and_certificate_name_all_addresses(tmp_path: Path) -> None:
    anchors = tmp_path / "anchors"
    server = create(tmp_path / "op", "test", A, standbys=[B], anchor_folder=anchors)
    certificate = x509.load_pem_x509_certificate((server / "tls.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example.org", "b.example.org"]
    with pytest.raises(DataError, match="not an address"):
        create(tmp_path / "other", "test", A, standbys=["b"], anchor_folder=anchors)

    office = Office(tmp_path / "op", anchors)
    office.line = Net().line(A, B)
    invitation = await office.invite("ann", "both")
    write_invitation(tmp_path / "ann.invitation", invitation)
    assert read_invitation(tmp_path / "ann.invitation").addresses == (A, B)
    office.close()


async def test_an_agent_and_the_operator_use_them(tmp_path: Path) -> None:
    """The first address is nobody's: they all come in by the second."""
    fed = Federation(tmp_path)
    await fed.start_server()
    nobody = "https://127.0.0.1:1"
    fed.operator.line = Connection(
        (nobody, fed.url),
        (tmp_path / "operator/ca.pem").read_text(),
        Caller("test", "operator", fed.operator.identity),
    )
    assert (await fed.operator.look()).phase == "waiting"
    await fed.operator.line.close()
    await fed.stop_server()
    fed.operator.close()
