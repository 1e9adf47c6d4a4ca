"""A server that answers an operator's commands with whatever it likes, over real TLS."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from basecagg.service.operator.folder import create
from free_ports import free_port

Answer = tuple[int, dict[str, Any]]
_HASH = b64encode(bytes(32)).decode()


def overview(**changes: Any) -> dict[str, Any]:
    """What a server says of itself."""
    said: dict[str, Any] = {"phase": "open", "version": 1, "model_size": 1, "epoch_number": 0}
    said |= {"head": _HASH, "model_hash": _HASH, "epoch_id": _HASH}
    return said | {"enrolments": [], "members": [], "holder_keys": {}} | changes


class Cheat:
    """The server, and the folder of the operator who calls it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.answer: Callable[[str], Answer] = lambda path: (200, overview())
        self.asked: list[str] = []
        url = f"https://127.0.0.1:{self.port}"
        create(folder / "operator", "test", url, anchor_folder=folder / "anchors")

    def operate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the operator's, as it is typed."""
        command = [sys.executable, "-c", "from basecagg.cli import main; main()", "operator"]
        where = ["--folder", "operator", "--anchors", "anchors"]
        return subprocess.run(
            [*command, *where, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@contextmanager
def cheating_server(folder: Path) -> Iterator[Cheat]:
    cheat = Cheat(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *said: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            cheat.asked.append(self.path)
            status, said = cheat.answer(self.path)
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", cheat.port), Handler)
    keys = folder / "operator" / "server"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "tls.pem", keys / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield cheat
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
