"""The study over the network: `python examples/dialysis/over_network.py`.

Twelve centres as real processes over TLS answer the questions of a study protocol (dialysis.toml), each from a
file with its own patients and nobody else's. One is slow, one is killed as soon as it has answered and comes
back later, one is killed while it answers and started again. The numbers are those of `Study` in one process.
`--made-up` takes patients that need no package.
"""

# ruff: noqa: S603 - the programs it starts are its own
from __future__ import annotations

import argparse
import csv
import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import patients

from basecagg.statistics import Study
from basecagg.statistics.analyses import Outcome
from basecagg.statistics.protocol_file import StudyProtocol, parse

sys.path.append(str(Path(__file__).parent.parent / "federation"))

from run import Processes, _program, free_port, wait_until_listening

CENTRES = 12
SLOW_QUERY = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000)
SELECT * FROM patients WHERE (SELECT max(i) FROM n) > 0
""".replace("\n", " ")


def main() -> None:
    """Tell the whole story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--made-up", action="store_true", help="made-up patients: needs no package")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/study-network"), help="for the report"
    )
    parser.add_argument("--step", type=float, default=1.0, help="of ages; 0.003 makes answers long")
    given = parser.parse_args()
    found = patients.made_up(CENTRES) if given.made_up else patients.real()
    largest = sorted(found, key=lambda name: -len(found[name]["time"]))[:CENTRES]
    centres = {name: found[name] for name in sorted(largest)}
    with tempfile.TemporaryDirectory(prefix="dialysis-") as folder:
        processes = Processes(Path(folder), Path(__file__).parent)
        try:
            tell(processes, centres, given.out.resolve(), given.step)
        finally:
            processes.stop()


def tell(processes: Processes, centres: dict[str, patients.Rows], out: Path, step: float) -> None:
    """Everybody together: found, join, approve, ask, compare."""
    began, port, names = time.monotonic(), free_port(), list(centres)
    text = (Path(__file__).parent / "dialysis.toml").read_text()
    members = ", ".join(f'"{name}"' for name in names)
    text = text.replace("@members@", members).replace("@step@", f"{step:g}")
    (processes.folder / "dialysis.toml").write_text(text)
    for index, (name, rows) in enumerate(centres.items()):
        write_desk(processes.folder / f"desk-{name}", rows, slow=index == 0)
    url = f"https://127.0.0.1:{port}"
    processes.run("operator", "init", "--name", "dialysis", "--url", url)
    serve = ("serve", "--state", "operator/server", "--host", "127.0.0.1", "--port", f"{port}")
    processes.start("server", *serve, "--answer-timeout", "5")
    wait_until_listening(port, processes)
    processes.run("operator", "invite", *names)
    processes.run("operator", "invite", "--role", "analyst", "analyst")
    for name in names:
        join(processes, name)
    processes.run("study", "enrol", "analyst.invitation", "--anchors", "anchors")
    said = processes.run("operator", "study", "dialysis.toml")
    contract = said.split()[-1]
    for name in names:
        approve(processes, name, contract)
    ask = [*_program("study", "run", "dialysis.toml", "--as", "analyst"), "--out", str(out)]
    analyst = subprocess.Popen(ask, cwd=processes.folder, env=processes.environment)
    troubles = threading.Thread(target=make_trouble, args=(processes, names), daemon=True)
    troubles.start()
    if analyst.wait(600):
        sys.exit("the analyst's command failed")
    troubles.join(60)
    compare(parse(text), centres, out)
    print(f"everything together took {time.monotonic() - began:.0f} s")


def write_desk(folder: Path, rows: patients.Rows, *, slow: bool) -> None:
    """A centre's folder: its patients in its own columns, and the mapping file."""
    folder.mkdir()
    own = {name: f"OUR_{name.upper()}" for name in patients.COLUMNS}
    lines = list(zip(*(rows[name].tolist() for name in own), strict=True))
    if slow:
        with sqlite3.connect(folder / "patients.db") as database:
            database.execute(f"CREATE TABLE patients ({', '.join(own.values())})")
            marks = ", ".join("?" for _ in own)
            database.executemany(f"INSERT INTO patients VALUES ({marks})", lines)  # noqa: S608
        database.close()
        source = f'sqlite = "patients.db"\nquery = "{SLOW_QUERY.strip()}"'
    else:
        with (folder / "patients.csv").open("w", newline="") as file:
            csv.writer(file).writerows([own.values(), *lines])
        source = 'csv = "patients.csv"'
    units = {"time": "months", "begin": "months", "age": "years"}
    columns = [
        f'{name} = {{ from = "{of}", unit = "{units.get(name, "")}" }}' for name, of in own.items()
    ]
    text = "\n".join(["[source]", source, "[columns]", *columns]) + "\n"
    (folder / "mapping.toml").write_text(text)


def join(processes: Processes, name: str) -> None:
    """A centre's agent, for the first time or again."""
    processes.start(
        name,
        *("join", f"{name}.invitation", "--state", name, "--anchors", "anchors"),
        *("--desk", f"desk-{name}", "--longest-wait", "2"),
    )


def approve(processes: Processes, name: str, contract: str) -> None:
    """What somebody at the centre types, once the study has come."""
    studies = processes.folder / f"desk-{name}" / "studies"
    while not (studies / f"{contract}.terms").exists():
        processes.require_alive()
        time.sleep(0.2)
    where = ("--anchors", "anchors", f"desk-{name}", contract[:12])
    processes.run("desk", "approve", "--yes", "--by", f"the board of {name}", *where)


def make_trouble(processes: Processes, names: list[str]) -> None:
    """One centre leaves as soon as it has answered and comes back; one is killed while it answers."""
    _, gone, restarted = names[:3]
    wait_until_answered(processes, gone, 1)
    time.sleep(0.7)  # its answer is with the server, and the slow one is still at work
    processes.kill(gone)
    print(f"{gone} is gone", flush=True)
    wait_until_answered(processes, names[0], 1)
    time.sleep(4)
    join(processes, gone)
    print(f"{gone} is back", flush=True)
    wait_until_answered(processes, restarted, 3)
    processes.kill(restarted)
    join(processes, restarted)
    print(f"{restarted} was killed, and goes on", flush=True)


def wait_until_answered(processes: Processes, name: str, number: int) -> None:
    """Wait until a centre's log tells that it answers this question."""
    while (
        f'"event": "answered", "number": {number},'
        not in (processes.folder / f"{name}.log").read_text()
    ):
        time.sleep(0.05)


def compare(protocol: StudyProtocol, centres: dict[str, patients.Rows], out: Path) -> None:
    """Ask the same in one process: exact results are the same to the last digit that counts."""
    study = Study(centres, most=protocol.most)
    for desk in study.desks.values():
        for asked in protocol.analyses:
            for each in asked.sums:
                desk.approve(each)
    network = json.loads((out / "results.json").read_text())["results"]
    worst = 0.0
    for asked in protocol.analyses:
        if not asked.private:
            here = json.loads(json.dumps(asked.run(study.ask), default=float))
            worst = max(worst, apart(here, network[asked.name]))
    print(f"the largest difference to the same study in one process: {worst:.1e}")
    if not worst < 1e-9:
        sys.exit("the network gives other numbers")


def apart(here: Outcome, there: Outcome) -> float:
    """The largest difference between two results, relative to their size."""
    if isinstance(here, dict):
        return max((apart(here[name], there[name]) for name in here), default=0.0)
    if isinstance(here, list):
        return max((apart(*each) for each in zip(here, there, strict=True)), default=0.0)
    if isinstance(here, str) or here is None or not np.isfinite(here):
        return 0.0
    return abs(here - there) / max(1.0, abs(here))


if __name__ == "__main__":
    main()
