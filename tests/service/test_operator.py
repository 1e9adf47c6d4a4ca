"""The operator's folder, invitations, enrolment through a server that is not trusted, and the final model."""

from __future__ import annotations

import json
import re
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from service_harness import SMALL, Federation, Nudge, enrolment, federation, swapped
from test_commands import Desk

from basecagg.errors import DataError, StorageError
from basecagg.protocol.operator import admission_hash
from basecagg.service.agent.profile import Profile
from basecagg.service.documents import Invitation, Invite, Overview, to_json
from basecagg.service.handed_over import read_invitation, write_invitation
from basecagg.service.operator import export
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.problems import Problem


def test_the_servers_folder_cannot_sign_epochs_or_enrol(tmp_path: Path) -> None:
    server = create(tmp_path / "op", "test", "https://example.org:8443", anchor_folder=tmp_path)
    given = json.loads((server / "server.json").read_bytes())
    kept = json.loads((tmp_path / "op" / "operator.json").read_bytes())
    for secret in (kept["operator"], kept["enrolment"]):
        assert all(secret not in path.read_text() for path in server.iterdir())
    assert set(given) == {"federation", "operator_key", "server", "page_token", "former"}


def test_secret_files_are_for_their_owner_only(tmp_path: Path) -> None:
    create(tmp_path / "op", "test", "https://example.org:8443", anchor_folder=tmp_path)
    files = [path for path in (tmp_path / "op").rglob("*") if path.is_file()]
    assert len(files) >= 7
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_an_operator_is_not_overwritten(tmp_path: Path) -> None:
    create(tmp_path / "op", "test", "https://example.org:8443", anchor_folder=tmp_path)
    with pytest.raises(DataError, match="has an operator already"):
        create(tmp_path / "op", "test", "https://example.org:8443", anchor_folder=tmp_path)


@pytest.mark.parametrize("url", ["http://example.org", "example.org", "https://"])
def test_an_address_without_tls_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="is not an address"):
        create(tmp_path / "op", "test", url)


def invitation() -> Invitation:
    return Invitation(
        federation="test",
        name="alice",
        role="both",
        url="https://example.org:8443",
        operator_key=bytes(32),
        token=bytes(range(32)),
        after=0,
    )


def test_an_invitation_survives_its_file_and_does_not_print_its_token(tmp_path: Path) -> None:
    write_invitation(tmp_path / "alice.invitation", invitation())
    assert read_invitation(tmp_path / "alice.invitation") == invitation()
    assert repr(invitation()) == "Invitation(test, alice)"


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"basecagg-invitation:!!!", b"basecagg-invitation:e30="]
)
def test_other_files_are_no_invitations(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError):
        read_invitation(tmp_path / "x")


@pytest.mark.parametrize(
    "change", [{"name": "../x"}, {"federation": "a b"}, {"url": "http://x"}, {"url": "https://a b"}]
)
def test_an_invitation_with_a_bad_name_or_address_is_not_read(
    tmp_path: Path, change: dict[str, str]
) -> None:
    write_invitation(tmp_path / "x", msgspec.structs.replace(invitation(), **change))
    with pytest.raises(DataError, match="not a valid document"):
        read_invitation(tmp_path / "x")


def test_a_profile_belongs_to_one_invitation(tmp_path: Path) -> None:
    first = Profile.open(tmp_path / "alice", invitation())
    again = Profile.open(tmp_path / "alice", invitation())
    assert again.identity.public_key == first.identity.public_key
    other = msgspec.structs.replace(invitation(), name="bob")
    with pytest.raises(DataError, match="another invitation"):
        Profile.open(tmp_path / "alice", other)


async def test_a_server_cannot_swap_a_key_in_an_enrolment(tmp_path: Path) -> None:
    """The server sees the admission, but the proof ties the key to a token that it never sees."""
    async with federation(tmp_path) as fed:
        profile = fed.profile("alice", await fed.invite("alice"))
        await fed.operator.line.enrol(to_json(swapped(profile)))  # the server cannot tell
        assert await fed.operator.admit_all() == []  # the operator can


async def test_an_honest_enrolment_is_admitted_once(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        invited = await fed.invite("alice")
        profile = fed.profile("alice", invited)
        for _ in range(2):  # a retry is no second enrolment
            await fed.operator.line.enrol(to_json(enrolment(profile)))
        assert await fed.operator.admit_all() == ["alice"]
        await fed.operator.line.enrol(to_json(enrolment(profile)))
        assert await fed.operator.admit_all() == []
        twin = fed.profile("twin", invited)
        with pytest.raises(Problem, match="another key"):
            await fed.operator.line.enrol(to_json(enrolment(twin)))


async def test_an_uninvited_enrolment_is_refused(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        stranger = Profile.open(tmp_path / "alice", invitation())
        with pytest.raises(Problem, match="no invitation") as caught:
            await fed.operator.line.enrol(to_json(enrolment(stranger)))
        assert caught.value.status == 403


async def test_an_invitation_that_has_expired_admits_nobody(tmp_path: Path) -> None:
    """By the server's clock at its door, and by the operator's whatever the server let in."""
    async with federation(tmp_path) as fed:
        lasting = await fed.operator.invite("ann", "both", days=1)
        profile = fed.profile("ann", lasting)
        over = msgspec.structs.replace(lasting, expires=1)
        order = Invite(name="ann", admission_hash=admission_hash(over.token), expires=1)
        await fed.operator._order(order)
        with pytest.raises(Problem, match="has expired"):
            await fed.operator.line.enrol(to_json(enrolment(profile)))
        await fed.operator.invite("ann", "both", days=1)  # the same one
        await fed.operator.line.enrol(to_json(enrolment(profile)))
        fed.operator.machine.people["ann"].expires = 1
        assert await fed.operator.admit_all() == []
        fed.operator.machine.people["ann"].expires = lasting.expires
        assert await fed.operator.admit_all() == ["ann"]


async def test_a_name_is_given_once(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        invited = await fed.invite("alice")
        assert await fed.invite("alice") == invited  # it may have been lost on its way
        await fed.operator.line.enrol(to_json(enrolment(fed.profile("alice", invited))))
        await fed.admit(["alice"])
        for taken in ("alice", "server", "operator"):
            with pytest.raises(DataError, match="is taken"):
                await fed.invite(taken)


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "op", "test", "https://example.org:8443", anchor_folder=tmp_path)
    path = tmp_path / "op" / "operator.json"
    stored = json.loads(path.read_bytes())
    path.write_text(json.dumps(stored | {"format": 1}))
    with pytest.raises(DataError, match=r"not a valid document: .*format"):
        Office(tmp_path / "op", tmp_path)
    path.write_text(json.dumps(stored))
    Office(tmp_path / "op", tmp_path).close()  # the control


def test_a_folder_is_open_once(tmp_path: Path) -> None:
    create(tmp_path / "op", "test", "https://example.org:8443", anchor_folder=tmp_path)
    first = Office(tmp_path / "op", tmp_path)
    with pytest.raises(StorageError, match="in use by another process"):
        Office(tmp_path / "op", tmp_path)
    first.close()
    Office(tmp_path / "op", tmp_path).close()


async def test_after_a_failed_write_nothing_is_sent(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.invite("alice")
        before = await look_without_clock(fed)
        fed.operator._store._connection.close()  # the disk is gone
        with pytest.raises(StorageError):
            await fed.invite("bob")
        with pytest.raises(StorageError):
            await fed.operator.revoke("alice")
        assert await look_without_clock(fed) == before


async def look_without_clock(fed: Federation) -> Overview:
    """What the server knows, whatever the time is."""
    return msgspec.structs.replace(await fed.operator.look(), uptime=0)


@pytest.mark.parametrize("keep_anchors", [True, False], ids=["restored", "on another machine"])
async def test_a_restored_operator_signs_nothing_until_it_is_recovered(
    tmp_path: Path, keep_anchors: bool
) -> None:
    async with federation(tmp_path) as fed:
        await fed.invite("alice")
        await fed.invite("carol")
        fed.operator.close()
        shutil.copytree(tmp_path / "operator", tmp_path / "backup")
        fed.operator = Office(tmp_path / "operator", tmp_path / "anchors")
        await fed.invite("bob")
        fed.operator.close()
        shutil.rmtree(tmp_path / "operator")
        shutil.copytree(tmp_path / "backup", tmp_path / "operator")
        anchors = tmp_path / ("anchors" if keep_anchors else "elsewhere")
        for _ in range(2):
            fed.operator = Office(tmp_path / "operator", anchors)
            with pytest.raises(StorageError, match="recover --above"):
                await fed.invite("dave")
            fed.operator.close()
        fed.operator = Office(tmp_path / "operator", anchors)
        await fed.operator.recover(4, ["alice"])
        assert fed.operator.machine.people["carol"].state == "revoked"
        assert fed.operator.machine.number == 4
        assert (await fed.invite("dave")).after == 4


def test_safetensors_are_laid_out_as_the_format_says() -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([7], np.int64)}
    data = export.safetensors(tensors)
    (length,) = struct.unpack_from("<Q", data)
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header["a"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert header["b"] == {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]}
    body = data[8 + length :]
    assert np.array_equal(np.frombuffer(body[:24], "<f4").reshape(2, 3), tensors["a"])
    assert np.frombuffer(body[24:], "<i8") == 7


def test_a_model_is_exported_with_the_builders_names(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    vector = np.arange(8, dtype=np.float32)
    export.export(vector, tmp_path / "m.pt", "torch_builders:linear")
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    assert state["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert state["bias"].tolist() == [6.0, 7.0]
    assert export.initial_model("torch_builders:linear").vector.shape == (8,)


def test_a_flat_model_needs_no_builder(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.arange(4.0))
    vector = export.initial_model(str(tmp_path / "m.npy")).vector
    export.export(vector, tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes().endswith(np.arange(4, dtype="<f4").tobytes())
    with pytest.raises(DataError, match="ends neither"):
        export.export(vector, tmp_path / "m.bin")


def test_what_was_exported_begins_an_epoch_again(tmp_path: Path) -> None:
    """To the bit, and whatever version of the protocol its proof is of; without a proof it is not read."""
    vector, path = np.array([0.1, -2.5, 1e-7], "<f4"), tmp_path / "m.safetensors"
    assert export.export(vector, path, pedigree=b"of another version")
    assert export.initial_model(str(path)).vector.tobytes() == vector.tobytes()
    export.export(vector, path)
    with pytest.raises(DataError, match="carries no chain proof"):
        export.initial_model(str(path))
    with pytest.raises(DataError, match="the model cannot be read"):
        export.initial_model(str(tmp_path / "nowhere.safetensors"))


def test_a_model_that_is_not_there_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_vectors.py").write_text(
        "import numpy\n\ndef zeros():\n    return numpy.zeros(3)\n"
    )
    monkeypatch.chdir(tmp_path)  # the user's module lies where the command is typed
    assert export.initial_model("own_vectors:zeros").vector.shape == (3,)
    (tmp_path / "m.npy").write_bytes(b"no array")
    for source in ("own_vectors:nothing", "no_such_module:f", str(tmp_path / "m.npy")):
        with pytest.raises(DataError, match=re.escape(source)):
            export.initial_model(source)
    with pytest.raises(DataError, match="leave --model out"):
        export.export(np.zeros(3, np.float32), tmp_path / "m.pt", "own_vectors:zeros")


async def test_a_recovered_operator_leads_members_out_of_an_epoch_that_it_forgot(
    tmp_path: Path,
) -> None:
    """Its copy is of the day before the epoch: the members are told that it is over, and train on."""
    names = ["ann", "bob", "cem", "dee"]
    four = replace(SMALL, num_holders=4, recovery_threshold=2, max_colluders=1, max_dropouts=1)
    async with federation(tmp_path) as fed:
        await fed.join(names, lambda name: Nudge())
        fed.operator.close()
        shutil.copy(tmp_path / "operator" / "operator.db", tmp_path / "backup.db")
        fed.operator = Office(tmp_path / "operator", tmp_path / "anchors")
        await fed.start_epoch(four)
        await fed.reach(1)
        fed.operator.close()
        shutil.copy(tmp_path / "backup.db", tmp_path / "operator" / "operator.db")
        fed.operator = Office(tmp_path / "operator", tmp_path / "anchors")
        # It hears of the members' next keys, and forgets in which epoch these may stand: others are needed.
        await fed.operator.look()
        await fed.operator.recover(1, names)
        desk = Desk(fed)
        plan = ("--max-dropouts", "1", "--max-colluders", "1", "--buffer-size", "4", "--wait", "20")
        rotated = await desk("rotate", *plan)
        assert "epoch 1 is closed at version" in rotated.output, rotated.exception
        assert "epoch 2 from version" in rotated.output
        begun = re.search(r"from version (\d+)", rotated.output)
        assert begun is not None
        await desk.reach(int(begun[1]) + 2)
        assert "epoch found again" in (await desk("log")).output


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_an_export_follows_no_link(tmp_path: Path, kind: str) -> None:
    """Somebody else who may write to the folder has laid links where the export goes."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep")
    path = tmp_path / f"model.{kind}"
    for link in (path, tmp_path / f"model.{kind}.new"):
        link.symlink_to(precious)
    export.export(np.ones(3, np.float32), path)
    assert precious.read_bytes() == b"keep"
    assert not path.is_symlink()
    assert path.stat().st_size > 12
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, "precious"]
