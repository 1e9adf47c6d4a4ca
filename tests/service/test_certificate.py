"""A renewed certificate is shown to new callers at once; files that are of no use change nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from service_harness import Federation, federation

from basecagg.service.operator import certificates
from basecagg.service.operator.folder import certify_server
from basecagg.service.server import serving


async def shown(fed: Federation) -> bytes:
    """The certificate that a new caller sees, and believes."""
    _, writer = await asyncio.open_connection("127.0.0.1", fed.port, ssl=fed.tls)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    assert isinstance(certificate, bytes)
    return certificate


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the server says about certificates; it looks ten times a second."""
    monkeypatch.setattr(serving, "_LOOK_TICKS", 1)
    lines: list[tuple[str, str]] = []

    def note(record: logging.LogRecord) -> None:
        if record.getMessage().startswith("certificate"):
            lines.append((record.levelname, record.getMessage()))

    monkeypatch.setattr(logging.getLogger("basecagg.service"), "handle", note)
    return lines


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.05)


def test_new_callers_see_a_renewed_certificate(
    tmp_path: Path, heard: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with federation(tmp_path) as fed:
            first = await shown(fed)
            await fed.operator.look()  # whoever is here stays
            expires = serving_certificate(fed).expires
            assert await shown(fed) == first  # the control
            monkeypatch.setattr(certificates, "_SERVER_DAYS", 900)
            certify_server(tmp_path / "operator", fed.options.folder, ["127.0.0.1"])
            await until(lambda: len(heard) > 1)
            assert await shown(fed) != first
            assert serving_certificate(fed).expires > expires
            await fed.operator.look()

    asyncio.run(story())
    assert heard == [("INFO", "certificate"), ("INFO", "certificate renewed")]


def serving_certificate(fed: Federation) -> serving.ServerCertificate:
    assert fed.uvicorn is not None
    found = fed.uvicorn._service.activity.certificate  # type: ignore[attr-defined]
    assert isinstance(found, serving.ServerCertificate)
    return found


async def test_files_of_no_use_are_named_once_and_change_nothing(
    tmp_path: Path, heard: list[tuple[str, str]]
) -> None:
    refused = ("WARNING", "certificate not renewed")

    async with federation(tmp_path) as fed:
        first, key = await shown(fed), fed.options.folder / "tls.key"
        certificate = fed.options.folder / "tls.pem"
        good = certificate.read_bytes(), key.read_bytes()
        certify_server(tmp_path / "operator", tmp_path / "renewed", ["127.0.0.1"])
        certificate.write_bytes((tmp_path / "renewed/tls.pem").read_bytes())  # without its key
        await until(lambda: len(heard) > 1)
        certificate.write_bytes(b"no certificate")
        await until(lambda: len(heard) > 2)
        key.unlink()
        await until(lambda: len(heard) > 3)
        await asyncio.sleep(0.5)  # time to say it again
        assert heard[1:] == [refused] * 3
        assert await shown(fed) == first
        certificate.write_bytes(good[0])
        key.write_bytes(good[1])
        await until(lambda: len(heard) > 4)
        assert heard[4] == ("INFO", "certificate renewed")
        assert await shown(fed) == first
