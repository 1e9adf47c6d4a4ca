"""A stranger signs a transcript with a key of its own: what the operator's key tells of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from basecagg.auditing.leakage import audit
from basecagg.auditing.recorder import Recorder
from basecagg.auditing.transcript import AnyLine, EndLine, EpochLine, Scribe, UploadLine
from basecagg.channels.identity import Identity
from basecagg.channels.wire import pack
from basecagg.cli import main
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.messages import EpochEnd, signed
from reproduction.bench import Federation

STRANGER = Identity.create()
PARAMETERS = ProtocolParameters(
    num_holders=7,
    recovery_threshold=5,
    max_colluders=2,
    max_dropouts=0,
    buffer_size=4,
    model_size=20,
)
FINE, REFUSED, LEAK, CUT = 0, 2, 3, 4
EMPTY = EpochEnd(bytes(32), 0, bytes(32))
"""A message that is signed, and no epoch."""


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation(PARAMETERS, np.zeros(20))


@pytest.fixture(scope="module")
def honest(federation: Federation) -> list[AnyLine]:
    """What was seen while one sum was opened."""
    lines: list[AnyLine] = []
    recorder = Recorder(federation.agreement, lines.append)
    federation.network.observers.append(lambda letter: recorder.see(letter.sender, letter.message))
    for number in range(4):
        federation.contribute(f"user-{number}", np.random.default_rng(number).normal(size=20))
    federation.run()
    return lines


@pytest.fixture(scope="module")
def leaking(honest: list[AnyLine]) -> list[AnyLine]:
    """The same, and a mask in it hides a second update."""
    mask = next(line.mask for line in honest if isinstance(line, UploadLine))
    return [*honest, UploadLine(mask, mask.partition("/")[0], 0, "beef")]


def write(path: Path, lines: Iterable[AnyLine], signer: Identity | None) -> Path:
    with path.open("w") as file:
        scribe = Scribe(file.write)
        for line in lines:
            scribe.add(line)
        if signer is None:
            scribe.add(EndLine())
        else:
            scribe.close(signer)
    return path


def judged(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["audit", str(path), *options], env={"COLUMNS": "200"})


def by_operator(federation: Federation) -> tuple[str, str]:
    return "--operator-key", federation.identity("operator").public_key.hex()


def with_first(lines: list[AnyLine], **changes: object) -> list[AnyLine]:
    first = lines[0]
    assert isinstance(first, EpochLine)
    return [replace(first, **changes), *lines[1:]]


def test_a_strangers_signature_is_refused(
    federation: Federation, honest: list[AnyLine], leaking: list[AnyLine], tmp_path: Path
) -> None:
    key, server = by_operator(federation), federation.identity("server")
    assert judged(write(tmp_path / "true.jsonl", leaking, server), *key).exit_code == LEAK
    own = {"server_key": STRANGER.public_key.hex()}
    forged = write(tmp_path / "forged.jsonl", with_first(honest, **own), STRANGER)
    for options in (key, ()):
        said = judged(forged, *options)
        assert said.exit_code == REFUSED
        assert "not those of the epoch that it carries" in said.output
    # The control: the very same lines, signed by the server.
    assert judged(write(tmp_path / "good.jsonl", honest, server), *key).exit_code == FINE


def test_without_the_operators_key_it_says_that_nothing_was_checked(
    federation: Federation, honest: list[AnyLine], tmp_path: Path
) -> None:
    """A stranger can take the signed epoch out: then only somebody who knows the operator can tell."""
    own = {"server_key": STRANGER.public_key.hex(), "operator_key": "", "signed": b"", "format": 2}
    forged = write(tmp_path / "forged.jsonl", with_first(honest, **own), STRANGER)
    said = judged(forged)
    assert said.exit_code == FINE
    assert "NOT checked" in said.output
    assert STRANGER.public_key.hex() in map(str.strip, said.output.splitlines())
    assert not json.loads(judged(forged, "--json").output)["operator_checked"]
    refused = judged(forged, *by_operator(federation))
    assert refused.exit_code == REFUSED
    assert "carries no epoch that an operator signed" in refused.output


def test_an_epoch_of_a_strangers_own_is_refused(
    federation: Federation, honest: list[AnyLine], tmp_path: Path
) -> None:
    own = replace(federation.agreement.epoch, server_key=STRANGER.public_key, signature=b"")
    first = EpochLine.of(signed(own, STRANGER), STRANGER.public_key)
    forged = write(tmp_path / "forged.jsonl", [first, *honest[1:]], STRANGER)
    assert judged(forged).exit_code == FINE  # its own operator's it is
    refused = judged(forged, *by_operator(federation))
    assert refused.exit_code == REFUSED
    assert "not signed by the operator's key" in refused.output
    # Nor does the operator's name help: it signed another epoch.
    named = replace(first, operator_key=by_operator(federation)[1])
    again = write(tmp_path / "again.jsonl", [named, *honest[1:]], STRANGER)
    assert judged(again, *by_operator(federation)).exit_code == REFUSED


def test_an_end_that_the_server_did_not_sign_is_none(
    federation: Federation, honest: list[AnyLine], tmp_path: Path
) -> None:
    closed = write(tmp_path / "closed.jsonl", honest, None)
    assert judged(closed).exit_code == FINE  # and says that it is not signed
    assert judged(closed, *by_operator(federation)).exit_code == CUT


def test_what_the_server_signed_says_so(
    federation: Federation, honest: list[AnyLine], tmp_path: Path
) -> None:
    """The control of all of them, from Python too."""
    path = write(tmp_path / "good.jsonl", honest, federation.identity("server"))
    said = judged(path, *by_operator(federation))
    assert said.exit_code == FINE
    assert "NOT checked" not in said.output
    assert federation.identity("server").public_key.hex() in said.output
    report = audit(path, operator_key=by_operator(federation)[1])
    assert report.operator_checked
    named = judged(path)
    assert by_operator(federation)[1] in map(str.strip, named.output.splitlines())


@pytest.mark.parametrize(
    "carried",
    [b"", b"x", pack(signed(EMPTY, STRANGER))],
    ids=["nothing", "a letter", "another message"],
)
def test_what_is_no_epoch_is_refused(carried: bytes, honest: list[AnyLine], tmp_path: Path) -> None:
    path = write(tmp_path / "odd.jsonl", with_first(honest, signed=carried), STRANGER)
    assert judged(path).exit_code == REFUSED
