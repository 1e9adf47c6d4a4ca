"""Chromium by its DevTools protocol, over a pair of pipes: no driver, no port and no further package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import IO, Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
# What Chromium does of its own accord is switched off: all traffic that is left is the page's.
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Browser:
    """One tab. `requests` has the address of everything that it asked for since the last `open`."""

    def __init__(self, to_it: IO[bytes], from_it: IO[bytes]) -> None:
        self.to_it = to_it
        self.from_it = from_it
        self.requests: list[str] = []
        self.loaded = False
        self.unread = b""
        self.number = 0
        self.session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        # The page remembers its colours; every page is opened as if for the first time.
        self.call("Page.addScriptToEvaluateOnNewDocument", source="localStorage.clear()")

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask for something and wait for its result; what happens meanwhile is noted."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        session = {"sessionId": self.session} if self.session else {}
        self.to_it.write(json.dumps(message | session).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == self.number:
                assert "error" not in got, got["error"]
                return got["result"]

    def _next(self) -> Any:
        while b"\0" not in self.unread:
            assert select([self.from_it], [], [], 120)[0], "the browser says nothing"
            chunk = self.from_it.read(1 << 20)
            assert chunk, "the browser is gone"
            self.unread += chunk
        message, _, self.unread = self.unread.partition(b"\0")
        got = json.loads(message)
        if got.get("method") == "Network.requestWillBeSent":
            self.requests.append(got["params"]["request"]["url"])
        self.loaded |= got.get("method") == "Page.loadEventFired"
        return got

    def open(self, page: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a page, in a window of this size and in this colour scheme, and wait until it is there."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        wish = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=wish)
        self.requests.clear()
        self.loaded = False
        self.call("Page.navigate", url=page)
        while not self.loaded:
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        how = {"awaitPromise": True, "returnByValue": True}
        got = self.call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile, and end it afterwards."""
    assert CHROMIUM is not None
    its_in, our_out = os.pipe()
    our_in, its_out = os.pipe()
    words = (CHROMIUM, *QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe")
    shell = f'exec "$@" 3<&{its_in} 4>&{its_out}'  # the protocol's numbers
    process = subprocess.Popen(
        ["bash", "-c", shell, "chromium", *words],
        pass_fds=(its_in, its_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(its_in)
    os.close(its_out)
    try:
        with (
            os.fdopen(our_out, "wb", buffering=0) as to_it,
            os.fdopen(our_in, "rb", buffering=0) as from_it,
        ):
            yield Browser(to_it, from_it)
    finally:
        process.terminate()
        process.wait(30)
