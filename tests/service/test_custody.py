"""The operator's keys at rest: with a passphrase nothing in the folder gives them away."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from basecagg.commands import operator
from basecagg.errors import DataError
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office

WORDS, OTHER = "four words of a passphrase", "another set of four words"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words").write_text(WORDS + "\n")
    (tmp_path / "other").write_text(OTHER + "\n")
    (tmp_path / "short").write_text("short\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(folder: Path, words: str, *arguments: str) -> Result:
    given = ("--passphrase-file", str(folder / words)) if words else ()
    return CliRunner().invoke(
        operator.command, ["--folder", str(folder / "op"), *given, *arguments]
    )


def init(folder: Path, words: str, *more: str) -> Result:
    return run(folder, words, "init", "--name", "x", "--url", "https://127.0.0.1:1", *more)


def own_log(folder: Path, words: str) -> Result:
    return run(folder, words, "log", "--own")


def shows(folder: Path, secret: bytes) -> bool:
    """Whether a secret stands in any file of the folder, as it is or as text."""
    forms = (secret, b64encode(secret), secret.hex().encode())
    files = [path.read_bytes() for path in (folder / "op").iterdir() if path.is_file()]
    unpacked = [b64decode(json.loads(data)["operator"]) for data in files if data[:1] == b"{"]
    return any(form in data for data in [*files, *unpacked] for form in forms)


def test_encrypted_keys_are_nowhere_to_be_seen_and_work_with_the_passphrase(tmp_path: Path) -> None:
    assert init(tmp_path, "words", "--encrypt").exit_code == 0
    office = Office(tmp_path / "op", None, lambda: WORDS)
    secrets = [office.identity.secret_bytes(), office._enrolment.secret_bytes()]
    office.close()
    assert not any(shows(tmp_path, secret) for secret in secrets)
    assert b"ENCRYPTED" in (tmp_path / "op" / "ca.key").read_bytes()
    assert own_log(tmp_path, "words").exit_code == 0
    made = ("certificate", "--host", "h", "--out", str(tmp_path / "tls"))
    assert run(tmp_path, "words", *made).exit_code == 0
    load_pem_private_key((tmp_path / "tls" / "tls.key").read_bytes(), None)  # the server's is not
    for words in ("other", ""):
        refused = own_log(tmp_path, words)
        assert refused.exit_code != 0
        assert "entries" not in refused.output
    assert isinstance(own_log(tmp_path, "other").exception, DataError)
    assert isinstance(run(tmp_path, "other", *made).exception, DataError)


def test_without_a_passphrase_the_same_search_finds_them(tmp_path: Path) -> None:
    """The control."""
    create(tmp_path / "op", "x", "https://127.0.0.1:1", anchor_folder=tmp_path / "anchors")
    office = Office(tmp_path / "op", tmp_path / "anchors")
    assert shows(tmp_path, office.identity.secret_bytes())
    office.close()


def test_a_passphrase_is_set_changed_and_removed(tmp_path: Path) -> None:
    assert init(tmp_path, "").exit_code == 0
    key = Office(tmp_path / "op")
    secret = key.identity.secret_bytes()
    key.close()
    assert shows(tmp_path, secret)
    assert run(tmp_path, "", "passphrase", "--new-file", str(tmp_path / "words")).exit_code == 0
    assert not shows(tmp_path, secret)
    wrong = run(tmp_path, "other", "passphrase", "--new-file", str(tmp_path / "other"))
    assert isinstance(wrong.exception, DataError)
    assert own_log(tmp_path, "words").exit_code == 0
    assert (
        run(tmp_path, "words", "passphrase", "--new-file", str(tmp_path / "other")).exit_code == 0
    )
    assert isinstance(own_log(tmp_path, "words").exception, DataError)
    assert own_log(tmp_path, "other").exit_code == 0
    assert run(tmp_path, "other", "passphrase", "--remove").exit_code == 0
    assert own_log(tmp_path, "").exit_code == 0
    assert shows(tmp_path, secret)


def test_a_short_passphrase_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused = init(tmp_path, "short", "--encrypt")
    assert isinstance(refused.exception, DataError)
    assert not (tmp_path / "op").exists()


def test_a_passphrase_is_asked_for_once_and_not_shown(tmp_path: Path) -> None:
    typed = CliRunner().invoke(
        operator.command,
        [
            "--folder",
            str(tmp_path / "op"),
            "init",
            "--name",
            "x",
            "--url",
            "https://h:1",
            "--encrypt",
        ],
        input=f"{WORDS}\n{WORDS}\n",
    )
    assert typed.exit_code == 0, typed.output
    assert WORDS not in typed.output
    assert own_log(tmp_path, "words").exit_code == 0
