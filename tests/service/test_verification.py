"""Making versions again from a running server, and exporting a model with its chain proof."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from participants import quick  # noqa: F401 - a fixture
from service_harness import SMALL, Federation, federation

from basecagg import cli
from basecagg.channels.wire import pack
from basecagg.errors import Refused
from basecagg.protocol.messages import Parts
from basecagg.protocol.proofs import Pedigree
from basecagg.service.operator.export import export
from basecagg.service.server.host import EpochHost

pytestmark = pytest.mark.usefixtures("quick")
NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


async def trained(fed: Federation) -> None:
    await fed.begin(NAMES)
    await fed.reach(3)
    await fed.close_epoch()  # or one more version comes while they are looked at
    for name in NAMES:
        await fed.stop(name)


async def verify(*arguments: object) -> tuple[int, str]:
    """In a thread of its own: the server goes on."""
    typed = ["verify", *map(str, arguments)]
    call = lambda: CliRunner().invoke(cli.main, typed, env={"COLUMNS": "200"})  # noqa: E731
    done = await asyncio.to_thread(call)
    return done.exit_code, done.output


async def test_versions_are_made_again_from_a_running_server(tmp_path: Path) -> None:
    async with federation(tmp_path, keep_versions=2) as fed:
        await trained(fed)
        folder, saved = fed.profile(NAMES[0]).folder, tmp_path / "saved"
        status, said = await verify("--as", folder, "--save", saved)
        assert status == 0, said
        checked = re.search(r"(\d) of \1 checked and equal", said)
        assert checked is not None, said
        key = fed.profile(NAMES[0]).invitation.operator_key.hex()
        files = sorted(saved.glob("*.parts"))
        assert len(files) == int(checked[1]) >= 2  # those that are to be kept, and one that may go
        assert (await verify(*files, "--operator-key", key))[0] == 0
        assert (await verify("--as", folder, "--versions", "0..1"))[0] == 2


async def test_a_server_that_changes_its_parts_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = EpochHost.parts

    def damaged(host: EpochHost, version: int) -> bytes | None:
        frame = honest(host, version)
        parts = msgspec.msgpack.decode((frame or b"")[5:], type=Parts)
        return pack(msgspec.structs.replace(parts, model=bytes(len(parts.model))))

    async with federation(tmp_path, keep_versions=2) as fed:
        await trained(fed)
        monkeypatch.setattr(EpochHost, "parts", damaged)
        status, said = await verify("--as", fed.profile(NAMES[0]).folder)
        assert status == 2
        assert "not checked" in said


async def test_the_operator_exports_a_model_that_can_be_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = EpochHost.pedigree

    def unproven(host: EpochHost, key: bytes) -> Pedigree:
        return msgspec.structs.replace(honest(host, key), certificate=None)

    async with federation(tmp_path) as fed:
        await trained(fed)
        version, vector, pedigree = await fed.operator.fetch_model()
        assert version == await fed.version()
        path = tmp_path / "model.safetensors"
        assert export(vector, path, pedigree=pedigree)
        key = fed.profile(NAMES[0]).invitation.operator_key.hex()
        status, said = await verify(path, "--operator-key", key)
        assert status == 0, said
        monkeypatch.setattr(EpochHost, "pedigree", unproven)
        with pytest.raises(Refused, match="certificate"):
            await fed.operator.fetch_model()
