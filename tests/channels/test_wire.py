"""One encoding for every message, and every other byte string is refused."""

from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace
from parties import USERS, certify, intercept, make_federation, one_round, request_for
from samples import make_samples

from basecagg.channels import wire
from basecagg.channels.wire import MAGIC, MAX_CONTROL_BYTES, AnyMessage, limit_for, pack, unpack
from basecagg.errors import ChannelError
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.messages import (
    MAX_REASON,
    Answer,
    CannotFollow,
    Contribution,
    Credential,
    EpochEnd,
    HolderKey,
    Inquiry,
    MaskName,
    Parcel,
    Parts,
    PlainUpdate,
    Refusal,
    Release,
    Shipment,
    Ticket,
    Upload,
    Verdict,
    Witness,
)

MASK = MaskName("ann", bytes(16))
VERDICT = Verdict(bytes(32), MASK, "admitted")


def conversation(suite="x25519"):
    """One of every message that a federation sends."""
    federation = make_federation(suite=suite)
    seen = []
    federation.network.observers.append(lambda letter: seen.append(letter.message))
    one_round(federation)
    seen += [make_samples()[Contribution]]  # where masks grow from keys
    members = [intercept(federation, name) for name in USERS[:3]]
    previous = federation.server.opening._past.opened
    certified = certify(federation, request_for(federation, members, 1, previous))
    seen += [certified, certified.request, make_samples()[CannotFollow]]
    seen += [federation.agreement.epoch, federation._credentials["user-0"]]
    seen += [Refusal("Malformed", "no"), PlainUpdate.unsigned(MASK, 0, bytes(32), bytes(200))]
    seen += [make_samples()[kind] for kind in (HolderKey, EpochEnd)]  # of operator and participants
    seen += [make_samples()[kind] for kind in (Release, Parts, Inquiry, Witness)]
    return federation, list({type(message): message for message in seen}.values())


CONVERSATION = conversation()
KINDS = pytest.mark.parametrize("message", CONVERSATION[1], ids=lambda m: type(m).__name__)


def body(*fields):
    return MAGIC + msgspec.msgpack.encode(fields)


def test_the_conversation_has_one_of_every_kind():
    assert {type(message) for message in CONVERSATION[1]} == set(AnyMessage.__args__)


@KINDS
def test_there_and_back(message):
    frame = pack(message)
    assert unpack(frame, len(frame)) == message
    assert pack(unpack(frame, len(frame))) == frame


@KINDS
def test_one_byte_over_the_limit(message):
    frame = pack(message)
    with pytest.raises(ChannelError, match="over the limit"):
        unpack(frame, len(frame) - 1)


@KINDS
def test_left_over_bytes(message):
    for rest in (b"\0", b"\xc0", pack(message)):
        with pytest.raises(ChannelError):
            unpack(pack(message) + rest, 10**8)


@KINDS
def test_truncated(message):
    frame = pack(message)
    for length in {0, 1, 4, 5, 6, len(frame) // 2, len(frame) - 1}:
        with pytest.raises(ChannelError):
            unpack(frame[:length], 10**8)


@KINDS
def test_a_field_too_many_or_too_few(message):
    name, *fields = msgspec.msgpack.decode(pack(message)[len(MAGIC) :])
    for other in ([*fields, 0], [*fields, None], fields[:-1], []):
        with pytest.raises(ChannelError):
            unpack(body(name, *other), 10**8)


@KINDS
def test_within_the_limit_of_its_kind(message):
    assert len(pack(message)) <= limit_for(type(message), CONVERSATION[0].agreement.parameters)


def test_within_the_limit_of_its_kind_with_the_hybrid_suite():
    federation, messages = conversation("mlkem768-x25519")
    for message in messages:
        assert len(pack(message)) <= limit_for(type(message), federation.agreement.parameters)


def test_the_limits_are_bulk_and_4_kib_or_16_mib():
    p = CONVERSATION[0].agreement.parameters
    share = 4 * p.share_size
    envelope = p.mask_quota * (share + 256) + 4096
    bulk = {
        Shipment: p.num_holders * envelope + 4096,
        Parcel: envelope,
        Answer: share + 4096,
        Upload: 4 * p.padded_size + 4096,
        Contribution: p.num_holders * envelope + 4 * p.padded_size + 4096,
        PlainUpdate: 4 * p.padded_size + 4096,
        Parts: p.parts_bytes + 8 * p.model_size + 2 * 16 * 2**20,
    }
    for kind in get_args(AnyMessage):
        assert limit_for(kind, p) == bulk.get(kind, 16 * 2**20)


def test_in_clear_an_update_is_as_long_as_its_numbers():
    p = ProtocolParameters.in_clear(buffer_size=3, model_size=1000)
    assert limit_for(PlainUpdate, p) == 4 * 1000 + 4096


def test_a_missing_signature_is_no_shorter_encoding():
    """Fields with a default are still written: there is one encoding of each message."""
    with pytest.raises(ChannelError):
        unpack(body("Credential", bytes(32), "ann", bytes(32)), 10**8)
    assert unpack(pack(Credential(bytes(32), "ann", bytes(32))), 10**8).signature == b""


@pytest.mark.parametrize("magic", [b"", b"BSAG\x06", b"BSAG\x08", b"bsag\x05", b"\x00" * 5])
def test_another_protocol_or_version(magic):
    with pytest.raises(ChannelError, match="not a frame"):
        unpack(magic + pack(VERDICT)[len(MAGIC) :], 10**8)


def test_an_unknown_name():
    for name in ("Nonsense", "MaskName", "Dealing", "", 7, None):
        with pytest.raises(ChannelError):
            unpack(body(name, bytes(32)), 10**8)


def test_a_map_instead_of_an_array():
    fields = msgspec.structs.asdict(VERDICT)
    with pytest.raises(ChannelError):
        unpack(MAGIC + msgspec.msgpack.encode({"type": "Verdict", **fields}), 10**8)


def test_a_longer_form_of_the_same_number():
    """0 as one byte is the number; 0 as uint8, uint64 or float is another byte string."""
    frame = pack(EpochEnd(bytes(32), 0, bytes(32)))
    marker = b"\x00\xc4\x20"  # the version, then 32 bytes
    assert frame.count(marker) == 1
    for longer in (b"\xcc\x00", b"\xcf" + bytes(8), b"\xca" + bytes(4), b"\xd0\x00"):
        with pytest.raises(ChannelError):
            unpack(frame.replace(marker, longer + b"\xc4\x20"), 10**8)


def large_ones():
    """Messages with a field that is not encoded again when they are read; `Parts` have two of them."""
    samples, words = make_samples(), bytes(range(256)) * 256
    changes = {Upload: "words", Answer: "words", PlainUpdate: "values", Parts: "model"}
    large = [replace(samples[kind], **{name: words}) for kind, name in changes.items()]
    return [*large, replace(large[-1], state=words + words)]


def encoded_again(frame):
    """What the frame says, if it is the one encoding of it: seen the plain way."""
    message = wire._DECODER.decode(frame[len(MAGIC) :])
    if pack(message) != frame:
        raise ChannelError("the frame is not in its canonical encoding")
    return message


def read(frame):
    return unpack(frame, 10**8)


def outcome(reader, frame):
    try:
        return reader(frame)
    except (ChannelError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


@pytest.mark.parametrize("message", large_ones(), ids=lambda m: type(m).__name__)
def test_a_large_frame_has_one_encoding_too(message, monkeypatch):
    """Every byte near its ends is left out, doubled, written as a longer number, and changed."""
    frame = pack(message)
    assert unpack(frame, 10**8) == message
    others = []
    for at in (*range(len(MAGIC), 400), *range(len(frame) - 400, len(frame))):
        one = frame[at : at + 1]
        changed = (b"", one + one, b"\xcc" + one, *(bytes([one[0] ^ bit]) for bit in (1, 16, 64)))
        others += [frame[:at] + each + frame[at + 1 :] for each in changed]
    said = [outcome(read, other) for other in others]
    assert said == [outcome(encoded_again, other) for other in others]
    monkeypatch.setattr(wire, "_is_canonical", lambda frame, message: True)
    assert said != [outcome(read, other) for other in others]  # the control


def test_a_longer_form_of_a_number_beside_a_large_field():
    message = PlainUpdate.unsigned(MASK, 0, bytes(32), bytes(10**5))
    frame, marker = pack(message), b"\x00\xc4\x20"
    assert unpack(frame, 10**8) == message
    for longer in (b"\xcc\x00", b"\xcf" + bytes(8), b"\xd0\x00"):
        with pytest.raises(ChannelError, match="canonical"):
            unpack(frame.replace(marker, longer + b"\xc4\x20", 1), 10**8)


def test_a_string_instead_of_bytes():
    with pytest.raises(ChannelError):
        unpack(body("Refusal", b"code", "reason"), 10**8)
    with pytest.raises(ChannelError):
        unpack(body("Verdict", bytes(32), ["MaskName", "ann", "x" * 16], "admitted", ""), 10**8)


@pytest.mark.parametrize(
    "name", ["", "a b", "ann\n", "\nann", "a/b", "ä", "x" * 65, "ann\0", "a\r"], ids=repr
)
def test_names_that_are_none(name):
    """A name is a key of stores and a word of log lines."""
    with pytest.raises(ChannelError):
        unpack(pack(Verdict(bytes(32), MaskName(name, bytes(16)), "admitted")), 10**8)


@pytest.mark.parametrize("name", ["a", "x" * 64, "Ann.B-c_d@e.org", "0"])
def test_names_that_are(name):
    message = Verdict(bytes(32), MaskName(name, bytes(16)), "admitted")
    assert unpack(pack(message), 10**8) == message


@pytest.mark.parametrize(
    "message",
    [
        Verdict(bytes(31), MASK, "admitted"),
        Verdict(bytes(33), MASK, "admitted"),
        Verdict(bytes(32), MaskName("ann", bytes(15)), "admitted"),
        Verdict(bytes(32), MASK, "maybe"),
        Verdict(bytes(32), MASK, "admitted", "x" * (MAX_REASON + 1)),
        PlainUpdate.unsigned(MASK, -1, bytes(32), b""),
        PlainUpdate.unsigned(MASK, 2**62, bytes(32), b""),
        PlainUpdate.unsigned(MASK, 1.0, bytes(32), b""),
        PlainUpdate.unsigned(MASK, True, bytes(32), b""),
        Answer(bytes(32), 0, bytes(32), 100_000, b""),
        Answer(bytes(32), 0, bytes(32), -1, b""),
        Answer(bytes(32), 0, bytes(32), 0, b"", bytes(65)),
    ],
)
def test_values_out_of_range(message):
    with pytest.raises(ChannelError):
        unpack(pack(message), 10**8)


def test_a_deep_nest_is_an_error_and_no_crash():
    for nest in (b"\x91" * 100_000, b"\x81\x00" * 100_000, b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(ChannelError):
            unpack(MAGIC + nest, 10**8)


def test_a_huge_count_takes_no_memory():
    """An array that claims 2³² − 1 elements in a few bytes."""
    for claim in (b"\xdd\xff\xff\xff\xff", b"\x92\xa7Receipt\xc6\xff\xff\xff\xff"):
        with pytest.raises(ChannelError):
            unpack(MAGIC + claim, 10**8)


def test_an_epoch_with_bad_parameters():
    """The rules of the parameters hold on the wire as well."""
    epoch = CONVERSATION[0].agreement.epoch
    name, *fields = msgspec.msgpack.decode(pack(epoch)[len(MAGIC) :])
    for change in (
        {"max_colluders": 0},
        {"buffer_size": 1},
        {"modulus": 15},
        {"clip": float("nan")},
        {"clip": 1e308},
        {"staleness": {"kind": "polynomial", "a": -1.0, "b": 0.0}},
        {"surprise": 1},
    ):
        damaged = [{**field, **change} if isinstance(field, dict) else field for field in fields]
        with pytest.raises(ChannelError):
            unpack(body(name, *damaged), 10**8)


def test_a_ticket_is_never_a_message_of_its_own():
    with pytest.raises(ChannelError):
        unpack(pack(Ticket(bytes(32), MASK, 0, bytes(32), bytes(32))), MAX_CONTROL_BYTES)
