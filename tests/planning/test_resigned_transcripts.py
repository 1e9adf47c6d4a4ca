"""A stranger signs a transcript with a key of its own: what the operator's key tells of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from basecagg.channels.identity import Identity
from basecagg.channels.wire import pack
from basecagg.cli import main
from basecagg.parameters import ProtocolParameters
from basecagg.planning.audit import audit
from basecagg.planning.recorder import Recorder
from basecagg.planning.transcript import AnyLine, EndLine, EpochLine, Scribe, UploadLine
from basecagg.protocol.messages import signed
from basecagg.simulation.federation import Federation

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


@pytest.mark.xfail(
    strict=True, reason="the key that signs a transcript is whatever its first line says"
)
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
