"""The operator's page: who may look, what is on it, and how it is drawn by a real browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from service_harness import SMALL, Federation, Nudge, federation

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]
PAGES = ("/", "/status", "/metrics")


def client(fed: Federation) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=fed.url, verify=fed.tls)


def token(fed: Federation) -> str:
    given = json.loads((fed.options.folder / "server.json").read_bytes())
    return given["page_token"]


async def test_at_the_machine_itself_a_login_is_needed_too(tmp_path: Path) -> None:
    """Others work on the machine as well, and a proxy on it speaks for anybody."""
    async with federation(tmp_path) as fed, client(fed) as browser:
        replies = [(await browser.get(page)).status_code for page in PAGES]
        assert replies == [303, 401, 401]


async def test_at_the_machine_itself_no_login_is_needed_if_the_operator_says_so(
    tmp_path: Path,
) -> None:
    async with federation(tmp_path, open_here=True) as fed, client(fed) as browser:
        for page in PAGES:
            assert (await browser.get(page)).status_code == 200


async def test_behind_a_proxy_a_login_is_needed_even_then(tmp_path: Path) -> None:
    async with federation(tmp_path, open_here=True) as fed, client(fed) as browser:
        for header in ("x-forwarded-for", "forwarded", "x-real-ip"):
            headers = {header: "127.0.0.1"}
            replies = [(await browser.get(page, headers=headers)).status_code for page in PAGES]
            assert replies == [303, 401, 401]


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        ("localhost", True),
        ("LocalHost:8443", True),
        ("127.0.0.1", True),
        ("[::1]:8443", True),
        ("evil.example", False),
        ("evil.example:8443", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost:8443@evil.example", False),
        ("::1", False),
        ("", False),
    ],
)
async def test_a_page_from_elsewhere_cannot_lead_a_browser_here(
    tmp_path: Path, host: str, is_open: bool
) -> None:
    """Its own name leads to this machine, once the browser has loaded it: the browser still says the name."""
    async with federation(tmp_path, open_here=True) as fed, client(fed) as browser:
        replies = [(await browser.get(page, headers={"host": host})).status_code for page in PAGES]
        assert replies == ([200, 200, 200] if is_open else [303, 401, 401])


async def test_two_names_are_none(tmp_path: Path) -> None:
    async with federation(tmp_path, open_here=True) as fed:
        for names, status in ((["localhost"], b" 200 "), (["localhost", "evil.example"], b" 401 ")):
            reader, writer = await asyncio.open_connection("127.0.0.1", fed.port, ssl=fed.tls)
            hosts = "".join(f"host: {name}\r\n" for name in names)
            writer.write(f"GET /status HTTP/1.1\r\n{hosts}\r\n".encode())
            assert status in await reader.readline()
            writer.transport.abort()


@pytest.mark.usefixtures("limits_without_clock")
@pytest.mark.parametrize("path", ["/readyz", "/v1/enrolment", "/v1/model"])
async def test_strangers_who_ask_too_often_are_told_to_slow_down(tmp_path: Path, path: str) -> None:
    async with federation(tmp_path, stranger_rate=1.0) as fed, client(fed) as browser:
        method = "POST" if path == "/v1/enrolment" else "GET"
        replies = [(await browser.request(method, path)).status_code for _ in range(15)]
        assert replies[0] != 429
        assert replies[-1] == 429
        assert (await browser.get("/healthz")).status_code == 200  # it costs nothing


async def test_the_token_opens_the_page_and_nothing_else_does(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed, client(fed) as browser:
        assert (await browser.get("/")).headers["location"] == "/login"
        assert (await browser.get("/login")).status_code == 200
        wrong = await browser.post("/login", data={"token": "x" * 32})
        assert wrong.status_code == 403
        assert "set-cookie" not in wrong.headers
        right = await browser.post("/login", data={"token": token(fed)})
        assert right.status_code == 303
        cookie = right.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "secure", "samesite=strict"))
        assert token(fed) not in cookie
        assert (await browser.get("/status")).status_code == 200
        browser.cookies.clear()
        assert (await browser.get("/status")).status_code == 401
        bearer = {"authorization": f"Bearer {token(fed)}"}
        assert (await browser.get("/metrics", headers=bearer)).status_code == 200


@pytest.mark.usefixtures("limits_without_clock")
async def test_tokens_cannot_be_guessed_at_leisure(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed, client(fed) as browser:
        replies = [
            (await browser.post("/login", data={"token": f"{guess}"})).status_code
            for guess in range(15)
        ]
        assert replies[0] == 403
        assert replies[-1] == 429


@pytest.mark.usefixtures("limits_without_clock")
@pytest.mark.parametrize("path", ["/status", "/metrics", "/"])
async def test_bearers_cannot_be_guessed_at_leisure(tmp_path: Path, path: str) -> None:
    """Then even the right one is not heard, or a guess would be known by its answer."""
    async with federation(tmp_path) as fed, client(fed) as browser:
        good = {"authorization": f"Bearer {token(fed)}"}
        for _ in range(15):  # whoever knows it may ask as often as it likes
            assert (await browser.get(path, headers=good)).status_code == 200
        for guess in range(15):
            wrong = {"authorization": f"Bearer {guess}"}
            reply = await browser.get(path, headers=wrong)
            assert reply.status_code in (303, 401, 429)
        assert reply.status_code == 429
        assert (await browser.get(path, headers=good)).status_code == 429


@pytest.mark.usefixtures("limits_without_clock")
async def test_guesses_of_others_do_not_end_a_session(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed, client(fed) as browser:
        await browser.post("/login", data={"token": token(fed)})
        for guess in range(15):
            await browser.post("/login", data={"token": f"{guess}"})
        assert (await browser.get("/status")).status_code == 200
        browser.cookies.clear()
        assert (await browser.get("/status")).status_code == 401  # shows nothing: no guess


async def test_the_page_holds_no_secrets_and_no_names(tmp_path: Path) -> None:
    async with federation(tmp_path, open_here=True) as fed, client(fed) as browser:
        await fed.begin(NAMES)
        await fed.reach(2)
        status: dict[str, Any] = {}

        async def all_are_online() -> bool:
            status.update(json.loads((await browser.get("/status")).text))
            return len(status["online"]) == len(NAMES)

        await fed.until(all_are_online)
        shown = (await browser.get("/status")).text + (await browser.get("/metrics")).text
        assert status["epoch"]["version"] >= 2
        assert status["opened"] >= 2
        assert len(status["recoveries"][0]["staleness"]) == SMALL.buffer_size
        assert not any(name in shown for name in NAMES)
        assert not re.search(r"[0-9a-fA-F]{16}", shown)  # no key, no hash, no mask


async def test_metrics_are_in_the_format_of_prometheus(tmp_path: Path) -> None:
    async with federation(tmp_path, open_here=True) as fed, client(fed) as browser:
        await browser.get("/healthz")
        lines = (await browser.get("/metrics")).text.splitlines()
        sample = re.compile(r'basecagg_[a-z_]+(\{[a-z]+="[^"\\]*"\})? -?\d+(\.\d+)?')
        assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)
        assert 'basecagg_requests_total{status="200"} 1' in lines


async def test_metrics_tell_when_the_certificate_expires(tmp_path: Path) -> None:
    async with federation(tmp_path, open_here=True) as fed, client(fed) as browser:
        text = (await browser.get("/metrics")).text
        told = re.search(r"^basecagg_certificate_expires_timestamp_seconds (\d+)$", text, re.M)
        assert told is not None
        shown = x509.load_pem_x509_certificate((fed.options.folder / "tls.pem").read_bytes())
        assert int(told[1]) == shown.not_valid_after_utc.timestamp()


async def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    async with federation(tmp_path, open_here=True) as fed, client(fed) as browser:
        for page in ("/", "/login", "/page.js", "/page.css"):
            reply = await browser.get(page)
            assert "default-src 'none'" in reply.headers["content-security-policy"]
            assert not re.search(r"https?://|url\(|@import|innerHTML", reply.text)


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
async def test_a_browser_draws_the_live_page(tmp_path: Path, width: int, height: int) -> None:
    """Set PAGE_SHOTS to a folder to keep the pictures."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")

    async with federation(tmp_path, open_here=True) as fed:
        await fed.join(NAMES, lambda name: Nudge(seconds=0.1))
        await fed.start_epoch()
        await fed.reach(3)
        shot = Path(os.environ.get("PAGE_SHOTS", tmp_path)) / f"page-{width}.png"
        dom = await draw(browser, fed.url, shot, (width, height), tmp_path)
        assert shot.stat().st_size > 10_000
        version = re.search(r'id="version">(\d+)<', dom)
        assert version is not None
        assert int(version[1]) >= 3
        assert "live" in dom
        assert dom.count('class="opened"') >= 3
        assert dom.count("<code>") == len(NAMES)


async def draw(browser: str, url: str, shot: Path, size: tuple[int, int], folder: Path) -> str:
    """Take a picture, then give the page's DOM."""
    common = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors"),
        *("--hide-scrollbars", f"--user-data-dir={folder / 'profile'}"),
        *(f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=3000"),
    ]
    await run(browser, *common, f"--screenshot={shot}", f"{url}/")
    return await run(browser, *common, "--dump-dom", f"{url}/")


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return output.decode()
