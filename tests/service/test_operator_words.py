"""What the operator's commands print is true, and can be typed as it stands."""

from __future__ import annotations

import asyncio
import json
import shlex
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from service_harness import SMALL, Nudge, federation

from basecagg.cli import main
from basecagg.commands import serve
from basecagg.service.connection import Unreachable
from basecagg.service.handed_over import read_invitation, write_invitation
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from free_ports import free_port

A, B = "https://a.example.org:9443", "https://b.example.org:8443"


@pytest.fixture(autouse=True)
def _own_anchors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def printed(output: str) -> list[list[str]]:
    """The commands in an output, which stand in lines of their own."""
    lines = (line.strip() for line in output.splitlines())
    return [shlex.split(line)[1:] for line in lines if line.startswith("basecagg ")]


def served(words: list[str]) -> dict[str, object]:
    """What `serve` makes of such a command."""
    assert words[0] == "serve"
    return serve.command.make_context("serve", words[1:]).params


def names_in(path: Path) -> set[str]:
    found = x509.load_pem_x509_certificate(path.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


# --- ports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "port"), [(A, 9443), (B, 8443), ("https://c.example.org", 443)], ids=str
)
def test_the_command_for_the_server_has_the_port_that_users_call(
    tmp_path: Path, url: str, port: int
) -> None:
    done = run("operator", "init", "--name", "x", "--url", url)
    assert done.exit_code == 0, done.output
    (words,) = printed(done.output)
    (tmp_path / "operator/server").rename(tmp_path / "server")
    assert served(words)["port"] == port


def test_each_of_two_servers_gets_its_own_command(tmp_path: Path) -> None:
    done = run("operator", "init", "--name", "x", "--url", A, "--url", B)
    (tmp_path / "operator/server").rename(tmp_path / "server")
    asked = [served(words) for words in printed(done.output)]
    assert [(each["port"], each["standby"]) for each in asked] == [(9443, True), (8443, True)]


# --- the operator's key -------------------------------------------------------------------------


def test_the_operators_key_is_printed_alike_everywhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path) as fed:
            await fed.join(NAMES, lambda name: Nudge())
            await fed.start_epoch()
            await fed.reach(1)
            write_invitation(tmp_path / "ann.invitation", await fed.invite("ann"))
            check = ("join", "ann.invitation", "--holder-only", "--check")
            checked = (await asyncio.to_thread(run, *check)).output
            fed.operator.close()
            anchored = ("operator", "--anchors", "anchors")
            told = run(*anchored, "key").output.strip()
            exported = await asyncio.to_thread(run, *anchored, "export", "model.safetensors")
            assert exported.exit_code == 0, exported.output
            verified = run("verify", "model.safetensors")
            key = fed.operator.identity.public_key.hex()
            assert told == key
            (line,) = [line for line in checked.splitlines() if line.split()[1] == "operator"]
            assert key in line.split()
            assert key in verified.output.splitlines()
            assert run("verify", "model.safetensors", "--operator-key", told).exit_code == 0
            other = "0" + told[1:] if told[0] != "0" else "1" + told[1:]  # the control
            assert run("verify", "model.safetensors", "--operator-key", other).exit_code == 2

    asyncio.run(story())


NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


# --- addresses ----------------------------------------------------------------------------------


def test_a_server_that_is_added_later_is_in_invitations_certificate_and_line(
    tmp_path: Path,
) -> None:
    """The first address is dead by then: without the second nobody would get through."""

    async def story() -> None:
        async with federation(tmp_path) as fed:
            dead = f"https://localhost:{free_port()}"
            before = await fed.invite("ann")
            assert before.addresses == (fed.url,)
            fed.operator.close()
            operator = ("operator", "--anchors", "anchors")
            move = partial(run, *operator, "address", "--url")
            lost = await asyncio.to_thread(move, dead)
            assert lost.exit_code == 0, lost.output
            office = Office(tmp_path / "operator", tmp_path / "anchors")
            with pytest.raises(Unreachable):  # the control
                await office.look()
            await office.line.close()
            office.close()
            done = await asyncio.to_thread(move, dead, "--url", fed.url, "--out", "both")
            assert done.exit_code == 0, done.output
            assert names_in(tmp_path / "both/tls.pem") == {"localhost", "127.0.0.1"}
            assert f"--url {dead} --url {fed.url}" in done.output
            for name in ("ann", "bob"):
                invited = await asyncio.to_thread(run, *operator, "invite", name)
                assert invited.exit_code == 0, invited.output
                invitation = read_invitation(tmp_path / f"{name}.invitation")
                assert invitation.addresses == (dead, fed.url)
            assert read_invitation(tmp_path / "ann.invitation").token == before.token
            noted = await asyncio.to_thread(run, *operator, "log", "--own", "--json")
            last = [json.loads(line) for line in noted.stdout.splitlines()]
            assert [each.get("urls") for each in last if each["event"] == "addresses changed"] == [
                dead,
                f"{dead} {fed.url}",
            ]

    asyncio.run(story())


def test_addresses_are_shown_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    create(tmp_path / "operator", "x", A)
    before = (tmp_path / "operator/operator.json").read_bytes()
    assert run("operator", "address").output.split() == [A]
    for bad in ("http://a.example.org", "b.example.org", "https://"):
        assert run("operator", "address", "--url", bad).exit_code == 2
    assert (tmp_path / "operator/operator.json").read_bytes() == before
    assert run("operator", "address", "--url", A, "--url", B, "--url", A).exit_code == 0
    assert run("operator", "address").output.split() == [A, B]


def test_the_same_hosts_need_no_other_certificate(tmp_path: Path) -> None:
    create(tmp_path / "operator", "x", A)
    done = run("operator", "address", "--url", "https://a.example.org:8443")
    assert "tls.pem" not in done.output
    assert not (tmp_path / "renewed").exists()
    run("operator", "address", "--url", B)
    assert names_in(tmp_path / "renewed/tls.pem") == {"b.example.org"}


# --- renewals -----------------------------------------------------------------------------------


def test_a_certificate_is_for_all_addresses_unless_names_are_given(tmp_path: Path) -> None:
    create(tmp_path / "operator", "x", A, standbys=[B])
    done = run("operator", "certificate", "--out", "new")
    assert names_in(tmp_path / "new/tls.pem") == {"a.example.org", "b.example.org"}
    assert "without a restart" in done.output
    assert "not for" not in done.output
    done = run("operator", "certificate", "--host", "b.example.org", "--out", "few")
    assert names_in(tmp_path / "few/tls.pem") == {"b.example.org"}
    assert "not for a.example.org" in done.output


def test_where_the_public_web_vouches_nothing_is_made(tmp_path: Path) -> None:
    create(tmp_path / "operator", "x", A, public_pki=True)
    done = run("operator", "certificate", "--out", "new")
    assert done.exit_code == 2
    assert "--public-pki" in done.output
    changed = run("operator", "address", "--url", B)
    assert changed.exit_code == 0, changed.output
    assert "tls.pem" in changed.output  # somebody has to get one that names b.example.org
    assert not (tmp_path / "renewed").exists()


def test_an_invitation_says_until_when_it_admits_also_if_it_stood_already(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path) as fed:
            fed.operator.close()
            invite = ("operator", "--anchors", "anchors", "invite", "ann", "--days")
            first = await asyncio.to_thread(run, *invite, "30")
            again = await asyncio.to_thread(run, *invite, "3")
            until = [line for line in first.stderr.splitlines() if "until" in line]
            assert until
            assert (
                again.stderr == first.stderr
            )  # the same invitation stands, and three days would be wrong

    asyncio.run(story())
