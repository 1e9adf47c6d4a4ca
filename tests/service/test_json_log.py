"""A log of JSON lines has nothing else in it: neither first nor last words, nor those of others."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from basecagg.service import training
from basecagg.service.agent.profile import Profile
from basecagg.service.documents import Invitation
from basecagg.service.handed_over import write_invitation
from basecagg.service.operator.folder import create
from basecagg.service.training import RoundInfo, UserFunction
from free_ports import free_port

HERE = Path(__file__).parent
CLI = ("-c", "from basecagg.cli import main; main()")
MADE_TO_SPEAK = """
import logging, threading, warnings
from basecagg.service.logs import log_everything
log_everything()
warnings.warn("beware")
logging.getLogger("httpx").warning("of elsewhere")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise KeyError("uncaught")
"""


def program(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=HERE, **options)


def words(process: subprocess.Popen[str]) -> str:
    """What it says until it ends. It is not left behind if it does not."""
    try:
        return process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()


def lines(text: str) -> list[dict[str, Any]]:
    """Every line, or an error for one that is not JSON."""
    return [json.loads(line) for line in text.splitlines()]


def test_warnings_other_logs_and_crashes_are_lines_too() -> None:
    process = program("-c", MADE_TO_SPEAK)
    said = lines(words(process))
    assert process.returncode == 1
    assert [line["level"] for line in said] == ["warning", "warning", "critical", "critical"]
    assert "beware" in said[0]["event"]
    assert "ZeroDivisionError" in said[2]["exception"]
    assert "uncaught" in said[3]["exception"]


def serve(folder: Path, port: int, *more: str) -> subprocess.Popen[str]:
    """A server in a folder that `operator init` made."""
    state = ("--state", str(folder), "--anchors", str(folder / "../../anchors"))
    where = ("--host", "127.0.0.1", "--port", str(port))
    return program(*CLI, "serve", *state, *where, *more)


def test_a_server_says_everything_in_json(tmp_path: Path) -> None:
    port = free_port()
    create(tmp_path / "op", "test", f"https://127.0.0.1:{port}", anchor_folder=tmp_path / "anchors")
    process = serve(tmp_path / "op/server", port)
    assert process.stderr is not None
    text, bound = "", threading.Timer(120, process.kill)  # then there are no more lines to wait for
    bound.start()
    try:
        while "Uvicorn running" not in text:
            line = process.stderr.readline()
            assert line, text
            text += line
    finally:
        bound.cancel()
        process.send_signal(signal.SIGTERM)
        text += words(process)
    events = [line["event"] for line in lines(text)]
    assert {"kernels", "certificate", "serving", "stopped"} <= set(events)


def test_a_server_that_cannot_start_says_so_in_json(tmp_path: Path) -> None:
    create(tmp_path / "op", "test", "https://127.0.0.1:1", anchor_folder=tmp_path / "anchors")
    (tmp_path / "op" / "server" / "tls.key").unlink()
    process = serve(tmp_path / "op/server", 0)
    last = lines(words(process))[-1]
    assert (last["event"], last["status"], process.returncode) == ("ended", 2, 2)
    assert "tls.key" in last["reason"]


def test_a_slip_of_the_pen_in_evaluate_ends_the_server_at_once(tmp_path: Path) -> None:
    create(tmp_path / "op", "test", "https://127.0.0.1:1", anchor_folder=tmp_path / "anchors")
    process = serve(tmp_path / "op/server", 0, "--evaluate", "user_functions:nothing")
    last = lines(words(process))[-1]
    assert (last["event"], process.returncode) == ("ended", 2)
    assert "user_functions:nothing" in last["reason"]


def invited(folder: Path, **changes: Any) -> Path:
    path = folder / "alice.invitation"
    plain = {"federation": "test", "name": "alice", "role": "both", "url": "https://127.0.0.1:1"}
    keys = {"operator_key": bytes(32), "token": bytes(32), "after": 0}
    write_invitation(path, Invitation(**(plain | keys | changes)))
    return path


@pytest.mark.parametrize("place", ["user_functions:chaty", "user_function:chatty"])
def test_a_slip_of_the_pen_in_train_ends_the_agent_at_once(tmp_path: Path, place: str) -> None:
    state = tmp_path / "alice"
    joining = (*CLI, "join", str(invited(tmp_path)), "--state", str(state))
    process = program(*joining, "--train", place)
    last = lines(words(process))[-1]
    assert (last["event"], process.returncode) == ("ended", 2)
    assert place in last["reason"]
    assert not state.exists()  # nobody has joined


def test_what_a_function_prints_becomes_lines_of_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(logging.getLogger("basecagg"), "propagate", True)
    monkeypatch.setattr(training, "_FAREWELL", 60.0)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # where users work it is not set
    info = RoundInfo(federation="test", name="alice", version=3, round=1, data="/data")

    async def story() -> None:
        function = UserFunction("user_functions:chatty")
        function.require()
        with caplog.at_level(logging.INFO, "basecagg"):
            await function(np.zeros(4, np.float32), info)
            function.close()

    asyncio.run(story())
    assert {"line": "epoch 1, loss 0.5"} in [
        record.fields for record in caplog.records if record.message == "output"
    ]


def test_an_expired_invitation_makes_no_identity(tmp_path: Path) -> None:
    from basecagg.errors import DataError
    from basecagg.service.handed_over import read_invitation

    late = read_invitation(invited(tmp_path, expires=1))
    with pytest.raises(DataError, match="expired on 1970-01-01"):
        Profile.open(tmp_path / "alice", late)
    assert not (tmp_path / "alice").exists()
    Profile.open(tmp_path / "alice", read_invitation(invited(tmp_path, expires=2**40)))
    assert os.path.exists(tmp_path / "alice")
