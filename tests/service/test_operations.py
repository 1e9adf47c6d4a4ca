"""What the operations guide ships works: units that systemd takes, alerts on metrics that are there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import httpx
import pytest
from service_harness import SMALL, Nudge, federation

from basecagg.cli import main

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))
ALERTS = (EXAMPLES / "monitoring" / "basecagg-alerts.yml").read_text("utf-8")
PROGRAM = "/opt/basecagg/bin/basecagg"


def verified(folder: Path, unit: Path, text: str) -> subprocess.CompletedProcess[str]:
    copy = folder / unit.name
    copy.write_text(text.replace(PROGRAM, "/bin/true"))
    command = ["systemd-analyze", "verify", str(copy)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(tmp_path: Path, unit: Path) -> None:
    text = unit.read_text("utf-8")
    good = verified(tmp_path, unit, text)
    assert (good.returncode, good.stderr) == (0, "")
    wrong = verified(tmp_path, unit, text.replace("Restart=always", "Restrat=always"))
    assert "Restrat" in wrong.stderr  # the control: a slip of the pen is seen


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_commands_of_the_units_exist_with_their_options(unit: Path) -> None:
    line = re.search(r"^ExecStart=(.*)$", unit.read_text("utf-8"), re.M)
    assert line is not None
    program, name, *words = shlex.split(line[1])
    assert program == PROGRAM
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_parser(click.Context(command)).parse_args(words)


async def test_every_metric_that_an_alert_names_is_there(tmp_path: Path) -> None:
    rules = re.findall(r"^\s+expr: (.*)$", ALERTS, re.M)
    named = {name for rule in rules for name in re.findall(r"basecagg_\w+", rule)}
    assert len(rules) >= 10

    async with federation(tmp_path, open_here=True) as fed:
        names = [f"user-{index}" for index in range(SMALL.num_holders)]
        await fed.join(names, lambda name: Nudge(seconds=60))
        await fed.start_epoch()
        async with httpx.AsyncClient(base_url=fed.url, verify=fed.tls) as browser:
            text = (await browser.get("/metrics")).text
        told = set(re.findall(r"^# TYPE (basecagg_\w+) ", text, re.M))
        assert named <= told, named - told
        assert "basecagg_online" in named  # and a name that is not there would show:
        assert "basecagg_onlin" not in told
        assert "basecagg_epoch_open 1" in text
        assert f"basecagg_members {SMALL.num_holders}" in text
