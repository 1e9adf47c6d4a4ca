"""A server stops when it is told to, whatever the operator's function does; one in a test forgets no caller."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import subprocess
import warnings
from pathlib import Path

import pytest
from service_harness import SMALL, Federation, all_hung_up, enrolment, stop_accepting, uncollected
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
            await fed.operator.line.enrol(to_json(enrolment(profile)))
        await fed.admit(NAMES)
        await fed.start_epoch()
        await until_it_says(server, "this takes for ever")
        server.send_signal(signal.SIGTERM)  # and a caller has a line that it does not use
        _, said = await asyncio.to_thread(server.communicate, timeout=60)
        return str(said)
    finally:
        server.kill()  # or the loop waits for ever for a thread that reads
        await fed.operator.line.close()
        fed.operator.close()


async def until_it_says(server: subprocess.Popen[str], words: str) -> None:
    assert server.stderr is not None
    line = "-"
    while words not in line:
        line = await asyncio.to_thread(server.stderr.readline)
        assert line


@pytest.mark.parametrize("carefully", [True, False])
def test_tests_hang_up_on_whoever_was_taken_in_as_their_server_closed(carefully: bool) -> None:
    """With the control, so that we see when asyncio needs no such care any more."""

    async def story() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
            with socket.create_connection(server.sockets[0].getsockname()):
                for _ in range(2):
                    await asyncio.sleep(0)  # now the caller is accepted, and has no transport
                if carefully:
                    await stop_accepting(server)
                server.close()
                await all_hung_up()

    with uncollected(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(story())
        gc.collect()
    assert any("unclosed transport" in str(each.message) for each in caught) != carefully
