"""The operator's keys at rest: with a passphrase nothing in the folder gives them away."""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from basecagg.commands import operator
from basecagg.errors import DataError
from basecagg.service.operator import custody
from basecagg.service.operator.custody import seal, unseal
from basecagg.service.operator.folder import (
    certify_server,
    change_passphrase,
    create,
)
from basecagg.service.operator.office import Office
from basecagg.storage import disk

WORDS, OTHER = "four words of a passphrase", "another set of four words"
WORK = custody._WORK


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words").write_text(WORDS + "\n")
    (tmp_path / "other").write_text(OTHER + "\n")
    (tmp_path / "short").write_text("short\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(custody, "_WORK", 16)  # the machine has better things to do


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


def stored_keys(folder: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((folder / "op" / "operator.json").read_bytes())
    return kept


def test_encrypted_keys_are_nowhere_to_be_seen_and_work_with_the_passphrase(tmp_path: Path) -> None:
    assert init(tmp_path, "words", "--encrypt").exit_code == 0
    office = Office(tmp_path / "op", None, lambda: WORDS)
    secrets = [office.identity.secret_bytes(), office._enrolment.secret_bytes()]
    office.close()
    assert not any(shows(tmp_path, secret) for secret in secrets)
    assert b"PRIVATE KEY" not in b64decode(stored_keys(tmp_path)["authority"])
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


def test_a_guess_takes_scrypt_with_as_much_memory_as_owasp_advises() -> None:
    """Opened here by another implementation, from what the file says."""
    secret = bytes(range(32))
    sealed = [seal(secret, WORDS) for _ in "ab"]
    _, _, work, salt, text = sealed[0].decode().split()
    assert salt != sealed[1].decode().split()[3]
    key = Scrypt(bytes.fromhex(salt), 32, n=int(work), r=8, p=1).derive(WORDS.encode())
    assert AESGCM(key).decrypt(bytes(12), bytes.fromhex(text), None) == secret
    assert int(work) == custody._WORK
    assert WORK >= 2**17


def test_with_the_work_that_is_shipped_a_key_opens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custody, "_WORK", WORK)
    sealed = seal(bytes(32), WORDS)
    custody._stretched.cache_clear()
    assert unseal(sealed, lambda: WORDS) == bytes(32)


@pytest.mark.parametrize("work", ["99999999999", "-1", "x", ""])
def test_a_damaged_file_is_one_line(work: str) -> None:
    damaged = seal(bytes(32), WORDS).replace(b" 16 ", f" {work} ".encode())
    with pytest.raises(DataError, match=r"not the passphrase .*, or they are damaged"):
        unseal(damaged, lambda: WORDS)


def opens(folder: Path, passphrase: str) -> bool:
    """Whether it opens everything, as somebody would who knows only that one."""
    try:
        office = Office(folder, folder.parent / "anchors", lambda: passphrase)
        office.close()
        certify_server(folder, folder.parent / "tls", ["h"], lambda: passphrase)
    except DataError:
        return False
    return True


class Crash(BaseException):
    """The power is gone."""


class Power:
    """Fails when so many steps of the disk are done."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def before(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if not self.left:
                raise Crash
            self.left -= 1
            return step(*arguments, **options)

        return guarded


@pytest.mark.parametrize(("old", "new"), [(WORDS, OTHER), ("", WORDS), (WORDS, "")])
def test_after_a_crash_at_any_step_one_passphrase_opens_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    whole = tmp_path / "whole"
    create(whole, "x", "https://h:1", anchor_folder=tmp_path / "a", passphrase=old)
    steps, is_done = 0, False
    while not is_done:
        folder = tmp_path / str(steps) / "op"
        shutil.copytree(whole, folder)
        with monkeypatch.context() as patch, suppress(Crash):
            power = Power(steps)
            for owner, name in ((os, "open"), (disk, "sync"), (disk, "sync_folder")):
                patch.setattr(owner, name, power.before(getattr(owner, name)))
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, power.before(getattr(Path, name)))
            change_passphrase(folder, lambda: old, new)
            is_done = True
        assert opens(folder, old) or opens(folder, new), f"after {steps} steps"
        steps += 1
    assert steps > 5
    assert opens(folder, new)
    assert opens(folder, old) == (not new)  # what is not encrypted any more asks for nothing


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
