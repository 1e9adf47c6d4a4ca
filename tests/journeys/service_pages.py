"""Pages about a federation of hospitals: its operator, its servers, and who checks them."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
from documented import ROOT, blocks
from run_pages import FEDERATION, SHORT
from walks import Story, Walk, elsewhere, not_run, typed

from free_ports import free_port

SYSTEMD = "needs root and systemd"
HERE = (r"$", " --host 127.0.0.1 --port {port}")
"""Added to `serve`: a port of our own, which nobody else may see."""
SOON = (r"$", " --longest-wait 2")
"""Added to `join`: an agent that is waited for looks more often."""
HOSPITALS = [f"hospital-{index}" for index in range(1, 11)]
PLAN = "--max-dropouts 2 --buffer-size 5"
PASSPHRASE = "four quite ordinary words\n"


# --- what readers have, and what they see ----------------------------------------------------------------


def name_the_addresses(story: Story) -> None:
    """From here on the story has a server's address."""
    story.values |= {"second": str(free_port()), "database": story.database}
    story.federation.database = f"--database '{story.database}'"


def move_the_folder(story: Story) -> None:
    story.traveller.type("mv operator/server server")


def see_it_serve(story: Story) -> None:
    story.federation.wait_until_serving()


def stop_the_server(story: Story) -> None:
    """It served from its own file, and is to have another database."""
    see_it_serve(story)
    assert story.traveller.stop("server") == 0


def all_join(story: Story) -> None:
    """The nine others do as hospital-3 did."""
    for name in HOSPITALS:
        if name != "hospital-3":
            story.federation.join(name)
    story.federation.wait_until_enrolled(*HOSPITALS)


def see_versions(story: Story) -> None:
    """Two more than there were."""
    federation = story.federation
    federation.reach(max(federation.figures.version, 0) + 2)


def restore_an_older_copy(story: Story) -> None:
    """The copy does not know of the last invitation."""
    story.traveller.type("cp -r operator copy")
    story.federation.operator("invite hospital-11")
    story.traveller.type("rm -r operator && mv copy operator")
    story.federation.operator("invite hospital-12", status=1)


def rotate(story: Story) -> None:
    story.federation.operator(f"rotate {PLAN}")
    see_versions(story)


def take_up_the_key(story: Story) -> None:
    """Restart the server, as the page says."""
    (story.values["KEY"],) = re.findall(r"^[0-9a-f]{64}$", story.said, re.MULTILINE)
    assert story.traveller.stop("server") == 0
    story.federation.serve()


def committee_joined(story: Story) -> None:
    story.federation.wait_until_enrolled("committee-1")


def ten_hospitals(story: Story) -> None:
    """A federation as the page on ten hospitals founds it, in an epoch."""
    ten_enrolled(story)
    story.federation.start(len(HOSPITALS), PLAN)
    story.federation.reach(1)


def ten_enrolled(story: Story) -> None:
    name_the_addresses(story)
    story.federation.found()
    story.federation.invite(*HOSPITALS)
    for name in HOSPITALS:
        story.federation.join(name)
    story.federation.wait_until_enrolled(*HOSPITALS)


def one_more_invitation(story: Story) -> None:
    story.federation.invite("hospital")


def note_a_head(story: Story) -> None:
    story.values["head"] = re.findall(r"\b[0-9a-f]{64}\b", story.said)[-1]


def use_the_certificate(story: Story) -> None:
    story.traveller.type("mv renewed/tls.pem renewed/tls.key server/")
    story.traveller.wait_until(
        lambda: story.traveller.has_logged("server", "certificate renewed"), "a certificate renewed"
    )


def nobody_sends_in_clear(story: Story) -> None:
    """One update would be enough for a version."""
    before = story.federation.figures.version
    for name in HOSPITALS:
        story.traveller.wait_until(
            lambda name=name: story.traveller.has_logged(name, "epoch declined"), f"{name} declines"
        )
    assert story.federation.figures.version == before


def protection_is_none(story: Story) -> None:
    assert "protection none: the server sees every update" in story.said


def stop_hospital_3(story: Story) -> None:
    assert story.traveller.stop("hospital-3") == 0


def go_elsewhere(story: Story) -> None:
    story.traveller.type("mkdir other && cd other")


def serve_beside(story: Story) -> None:
    story.federation.serve("--anchors anchors --standby")


def invite_hospital_3(story: Story) -> None:
    story.federation.invite("hospital-3")


def hospital_3_joined(story: Story) -> None:
    story.federation.wait_until_enrolled("hospital-3")


def kill_the_first(story: Story) -> None:
    """The second stands by, and takes over when the first is gone."""
    traveller, federation = story.traveller, story.federation
    traveller.wait_until(lambda: "standing by" in traveller.said("standby"), "a standby")
    traveller.kill("server")
    traveller.forget("server")
    federation.port = int(story.values["second"])
    federation.wait_until_serving()


def four_and_evidence(story: Story) -> None:
    """Ann and three others have learned something, and rest; a cheat of another federation is on file."""
    name_the_addresses(story)
    federation, names = story.federation, ("ann", "bob", "cem", "dee")
    federation.found()
    federation.invite(*names)
    for name in names:
        federation.join(name)
    federation.wait_until_enrolled(*names)
    federation.start(len(names), "--max-dropouts 1 --buffer-size 3")
    federation.reach(3)
    for name in names:
        story.traveller.stop(name)
    version = federation.figures.version
    story.values |= {"key": federation.operator_key, "versions": f"{version - 1}..{version}"}
    write_evidence(story)


def write_evidence(story: Story) -> None:
    """What a participant leaves behind that caught its server."""
    sys.path.append(str(ROOT / "tests" / "protocol"))
    from cheats import CHEATS, after, evidence, operator_key

    from basecagg.channels.wire import pack

    federation, parts = after()
    cheat = next(iter(CHEATS.values()))
    file = story.traveller.work / "evidence-3-12ab.bin"
    file.write_bytes(pack(evidence(federation, cheat(federation, parts))))
    story.traveller.own()
    story.values["its_key"] = operator_key(federation).hex()


def export(story: Story) -> None:
    story.federation.operator("export model.safetensors")


def ten_and_a_model(story: Story) -> None:
    ten_enrolled(story)
    np.save(story.traveller.work / "model.npy", np.zeros(1000, "float32"))
    story.traveller.own()


# --- a study ------------------------------------------------------------------------------------------------

STUDY = "docs/how-to/run-a-study.md"
CENTRES = [f"centre-{index}" for index in range(1, 6)]


def all_desks(story: Story) -> None:
    """Every centre has its records in its own columns; all mapping files are like the printed one."""
    draw = np.random.default_rng(1)
    _, mapping = blocks(STUDY, "toml")
    for name in CENTRES:
        lines = ["MONTHS,STATUS,AGE_IN_MONTHS,DIAB"]
        for _ in range(int(draw.integers(30, 90))):
            age, diabetes = int(draw.integers(240, 1100)), int(draw.integers(2))
            death, end = draw.exponential(40 / (1 + diabetes) * 600 / age), draw.uniform(1, 55)
            status = "dead" if death < end else "alive"
            time = int(np.ceil(min(death, end)))
            lines.append(f"{time},{status},{age},{('no', 'yes')[diabetes]}")
        (story.traveller.work / f"desk-{name}").mkdir()
        story.traveller.write(f"desk-{name}/patients.csv", "\n".join(lines) + "\n")
        story.traveller.write(f"desk-{name}/mapping.toml", mapping)
    story.traveller.own()


def the_others_join(story: Story) -> None:
    for name in CENTRES[1:]:
        line = f"basecagg join {name}.invitation --desk desk-{name} --longest-wait 2"
        story.traveller.leave_running(name, line)


def write_the_protocol(story: Story) -> None:
    story.traveller.write("protocol.toml", blocks(STUDY, "toml")[0])


def take_the_hash(story: Story) -> None:
    story.values["HASH"] = story.said.split()[-1]


def see_the_study_come(story: Story) -> None:
    for name in CENTRES:
        terms = story.traveller.work / f"desk-{name}" / "studies" / f"{story.values['HASH']}.terms"
        story.traveller.wait_until(terms.exists, f"the study is at {name}")


def the_others_approve(story: Story) -> None:
    for name in CENTRES[1:]:
        line = f"basecagg desk approve desk-{name} {story.values['HASH']}"
        story.traveller.type(line, answers="y\n")


def read_the_report(story: Story) -> None:
    results = json.loads((story.traveller.work / "results" / "results.json").read_text())
    assert results["study"]["hash"] == story.values["HASH"]
    assert results["study"]["smallest sum"] == len(CENTRES)
    assert results["study"]["noisy questions left"] == 0
    assert not any("failed" in outcome for outcome in results["results"].values())
    page = (story.traveller.work / "results" / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


# --- the pages ----------------------------------------------------------------------------------------------

KEY, ITS_KEY = ("5f1c…", "{key}"), ("5f1c…", "{its_key}")
SERVICE: dict[str, Walk] = {
    STUDY: Walk(
        steps=[
            typed("basecagg operator init", first=name_the_addresses),
            typed("mv operator/server server"),
            typed("basecagg serve --state server", HERE, runs_as="server", then=see_it_serve),
            typed("basecagg operator invite centre-1"),
            typed("basecagg operator invite --role analyst"),
            typed(
                "basecagg join centre-1.invitation",
                SOON,
                first=all_desks,
                runs_as="centre-1",
                then=the_others_join,
            ),
            typed("basecagg study enrol"),
            typed("basecagg operator study", first=write_the_protocol, then=take_the_hash),
            typed("basecagg desk show", first=see_the_study_come),
            typed(
                "basecagg desk approve", ("HASH", "{HASH}"), answers="y\n", then=the_others_approve
            ),
            typed("basecagg study run", then=read_the_report),
        ]
    ),
    "docs/how-to/from-laptop-to-ten-hospitals.md": Walk(
        steps=[
            typed("pip install "),
            elsewhere("make federation", FEDERATION),
            typed("basecagg operator init", first=name_the_addresses, then=move_the_folder),
            typed("basecagg serve --state server", HERE, runs_as="server", then=stop_the_server),
            typed(
                "basecagg serve --state server --database",
                HERE,
                runs_as="server",
                then=see_it_serve,
            ),
            typed("basecagg operator invite hospital-1"),
            typed("basecagg operator invite hospital-6"),
            typed("basecagg join hospital-3.invitation", SOON, runs_as="hospital-3", then=all_join),
            typed("basecagg operator start --model my_package:build_model", then=see_versions),
            typed(
                "basecagg operator recover --above 12",
                first=restore_an_older_copy,
                answers="y\n" * len(HOSPITALS),
                then=rotate,
            ),
            typed("basecagg serve --state server --new-key", then=take_up_the_key),
            typed("basecagg operator rotate --server-key", ("KEY", "{KEY}"), then=see_versions),
            typed("basecagg operator invite --role holder committee-1"),
            typed("basecagg operator invite --role contributor phone-1"),
            typed(
                "basecagg join committee-1.invitation",
                SOON,
                runs_as="committee-1",
                then=committee_joined,
            ),
        ]
    ),
    "docs/how-to/operate.md": Walk(
        steps=[
            not_run("sudo useradd", SYSTEMD),
            not_run("sudo python3 -m venv /opt/basecagg", SYSTEMD),
            not_run("sudo /opt/basecagg/bin/pip install", SYSTEMD),
            typed("basecagg join hospital.invitation --check", first=one_more_invitation),
            typed("basecagg operator log"),
            typed("basecagg operator log --json", then=note_a_head),
            typed("basecagg operator log --contains", ("[0-9a-f]{64}", "{head}")),
            typed("basecagg operator certificate", then=use_the_certificate),
            typed("basecagg operator close"),
            typed("basecagg operator export before.safetensors"),
            not_run("sudo systemctl stop basecagg-server", SYSTEMD),
            not_run("sudo /opt/basecagg/bin/pip install --upgrade", SYSTEMD),
            not_run("sudo systemctl start basecagg-server", SYSTEMD),
            typed("basecagg operator start --model before.safetensors", then=see_versions),
            typed(
                "basecagg operator rotate --protection none",
                ("--buffer-size 5", "--buffer-size 1"),
                then=nobody_sends_in_clear,
            ),
            typed("basecagg operator status", then=protection_is_none),
            typed(
                "basecagg join hospital-3.invitation",
                SOON,
                first=stop_hospital_3,
                runs_as="hospital-3",
                then=see_versions,
            ),
            typed("basecagg operator rotate --max-dropouts 2", then=see_versions),
            typed("basecagg operator init", first=go_elsewhere, answers=PASSPHRASE * 2),
            typed("basecagg operator passphrase", answers=2 * f"another {PASSPHRASE}" + PASSPHRASE),
        ],
        first=ten_hospitals,
    ),
    "docs/how-to/two-servers.md": Walk(
        substitutions=[
            (r"a\.example\.org:8443", "127.0.0.1:{port}"),
            (r"b\.example\.org:8443", "127.0.0.1:{second}"),
        ],
        steps=[
            typed("basecagg operator init", first=name_the_addresses, then=move_the_folder),
            typed("basecagg operator address", first=serve_beside, then=invite_hospital_3),
            typed(
                "basecagg join hospital-3.invitation",
                SOON,
                runs_as="hospital-3",
                then=hospital_3_joined,
            ),
            typed(
                "basecagg serve --state server --anchors anchors --standby",
                ("--anchors anchors", "--anchors anchors-of-b"),
                (r"$", " --host 127.0.0.1 --port {second}"),
                runs_as="standby",
                then=kill_the_first,
            ),
        ],
    ),
    "docs/how-to/verify.md": Walk(
        first=four_and_evidence,
        steps=[
            typed("basecagg verify evidence-3-12ab.bin", ITS_KEY, status=1),
            typed("basecagg verify --as ann"),
            typed("basecagg verify --as ann --versions", (r"40\.\.42", "{versions}")),
            typed("basecagg verify parts/*.parts", KEY),
            typed("basecagg verify model.safetensors", KEY, first=export),
        ],
    ),
    "docs/how-to/server-optimisers.md": Walk(
        steps=[
            typed("basecagg run --set server_optimiser=adam", SHORT),
            typed("basecagg run --set server_optimiser=momentum", SHORT),
            typed(
                "basecagg operator start --model model.npy",
                first=ten_and_a_model,
                then=see_versions,
            ),
        ]
    ),
}
