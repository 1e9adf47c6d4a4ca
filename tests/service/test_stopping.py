"""`serve --evaluate` stops when it is told to, whatever the operator's function is doing. A real process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

from service_harness import SMALL, Federation, enrolment
from test_json_log import serve

from basecagg.service.documents import to_json

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


def test_a_server_stops_in_the_middle_of_a_score_that_never_ends(tmp_path: Path) -> None:
    fed = Federation(tmp_path)
    server = serve(fed.options.folder, fed.port, "--evaluate", "user_functions:endless")
    try:
        said = asyncio.run(story(fed, server))
    finally:
        server.kill()
        server.communicate()
    assert server.returncode == 0
    assert [json.loads(line)["event"] for line in said.splitlines()][-1] == "stopped"


async def story(fed: Federation, server: subprocess.Popen[str]) -> str:
    try:
        await until_it_says(server, "Uvicorn running")
        for name in NAMES:
            profile = fed.profile(name, await fed.invite(name))
            await fed.connection.enrol(to_json(enrolment(profile)))
        await fed.admit(NAMES)
        await fed.start_epoch()
        await until_it_says(server, "this takes for ever")
        server.send_signal(signal.SIGTERM)  # and a caller has a line that it does not use
        _, said = await asyncio.to_thread(server.communicate, timeout=60)
        return str(said)
    finally:
        server.kill()  # or the loop waits for ever for a thread that reads
        await fed.connection.close()
        fed.operator.close()


async def until_it_says(server: subprocess.Popen[str], words: str) -> None:
    assert server.stderr is not None
    line = "-"
    while words not in line:
        line = await asyncio.to_thread(server.stderr.readline)
        assert line
