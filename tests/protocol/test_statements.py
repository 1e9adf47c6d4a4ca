"""What is signed is all there is: a message of any kind that was changed anywhere is refused.

`signature` is the check that production makes of a kind; the doors are the machines that meet such a message.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from changes import changes
from parties import AT_SERVER, USERS, at, make_federation, one_hop, one_round, picture, submit
from samples import (
    SOURCE,
    agreement,
    described,
    identity,
    kinds,
    make_samples,
    signed_kinds,
    study_terms,
)

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAGIC, MAX_CONTROL_BYTES, AnyMessage, pack, unpack
from basecagg.errors import BASecAggError, LocalProtocolError
from basecagg.protocol import messages
from basecagg.protocol.effects import Send
from basecagg.protocol.epoch import Agreement, Epoch, accept
from basecagg.protocol.messages import (
    Answer,
    CannotFollow,
    Certificate,
    CertifiedRequest,
    Closing,
    Contribution,
    Credential,
    Dealing,
    Endorsement,
    EpochEnd,
    HolderKey,
    MaskName,
    Message,
    Parcel,
    Receipt,
    RecoveryRequest,
    Release,
    Shipment,
    ShortRequest,
    Ticket,
    Upload,
    Witness,
    statement,
)
from basecagg.protocol.questions import Consent, SignedQuestion, require_asked, require_consent
from basecagg.service import signing
from basecagg.service.problems import Problem
from basecagg.service.signing import Guard, HttpRequest

VECTORS = Path(__file__).parents[1] / "vectors" / "statements.json"
GOLDEN = json.loads(VECTORS.read_text(encoding="utf-8"))
BULK = {"Answer": "words", "RecoveryRequest": "previous"}
Check = Callable[[Message], object]


# --- the check of each kind -------------------------------------------------------------------


def from_holder(agreed, message):
    agreed.require_signed_by_holder(message, message.holder, message.signature)


def from_(role):
    key = identity(role).public_key
    return lambda agreed, message: agreed.require_signed(message, key, message.signature)


def http_request(_, message):
    """A guard takes federation, method and target from itself and the request, the rest from the header."""
    clock, sent = [0], make_samples()[HttpRequest].time_ms
    guard = Guard(message.federation, lambda name: identity("ann").public_key, lambda: clock[0])
    clock[0] = sent
    parts = map(signing._text, (message.nonce, message.body_hash, message.signature))
    header = " ".join(("Basecagg", message.name, str(message.time_ms), *parts))
    guard.check(message.method, message.target, header)


SIGNATURES: dict[type[Message], Callable[[Agreement, Message], object]] = {
    Answer: from_holder,
    Closing: from_("server"),
    Consent: lambda agreed, message: require_consent(
        message, identity("h1").public_key, agreed.verifier
    ),
    Credential: lambda agreed, message: agreed.require_enrolled(message, message.contributor),
    Dealing: Agreement.require_dealt,
    Endorsement: from_holder,
    Epoch: lambda _, message: accept(message, identity("operator").public_key, Ed25519Verifier()),
    EpochEnd: from_("operator"),
    HolderKey: from_("h1"),
    HttpRequest: http_request,
    Receipt: from_holder,
    RecoveryRequest: from_("server"),
    Release: from_("server"),
    SignedQuestion: lambda agreed, message: require_asked(
        message, agreed.id, study_terms(), agreed.verifier
    ),
    Ticket: from_("ann"),
    Witness: from_holder,
}
GUARDED_TWICE = {
    (Answer, "holder"),
    (Credential, "epoch"),
    (Dealing, "credential"),
    (Dealing, "ticket"),
    (Endorsement, "holder"),
    (Epoch, "points"),
    (Epoch, "protocol"),
    (Epoch, "suite"),
    (Receipt, "holder"),
    (SignedQuestion, "epoch"),
    (Witness, "holder"),
}
"""Fields of which the check would refuse another value even if they were not signed."""


def takes(check: Check, message: Message) -> bool:
    try:
        check(message)
    except (BASecAggError, Problem):
        return False
    return True


def taken_changes(check: Check, message: Message, field: str = "") -> list[str]:
    """Where the message can be changed, in this field or anywhere, without being refused."""
    tried = [(where, other) for where, other in changes(message) if where.startswith(f".{field}")]
    assert tried, f"{type(message).__name__} has nothing to change in {field!r}"
    return [where for where, other in tried if takes(check, other)]


# --- the doors of the machines ----------------------------------------------------------------


def dealing_parties():
    federation = make_federation()
    for name in USERS[:3]:
        federation.network.perform(at(name), federation.contributor(name).deal(0, 2))
    return federation


def opening_parties():
    """At version 1, so that the request has a certificate in it."""
    federation = make_federation()
    one_round(federation)
    for name in USERS[:3]:
        submit(federation, name)
    return federation


def repeating_parties(certified=False):
    """All that they were asked is lost, and it comes again in its long form."""
    federation = opening_parties()
    while (federation.server.opening.stage() or (b"", None))[1] is not certified:
        one_hop(federation)
    federation.network.in_flight.clear()
    federation.network.perform(AT_SERVER, federation.server.deadline())
    return federation


def certified_parties():
    """The same, after they have endorsed the request."""
    return repeating_parties(certified=True)


def letter_at(federation, kind, role):
    """The first letter of this kind to this role, before it arrives."""
    letters = list(federation.network.in_flight)
    while letters:
        for letter in letters:
            if isinstance(letter.message, kind) and letter.to.role == role:
                return letter
        letters = one_hop(federation)
    raise AssertionError(f"no {kind.__name__} was sent to a {role}")


def once_parties():
    """All have come once: their dealings, envelopes and updates are on their way."""
    federation = make_federation(masks="keys")
    for name in USERS[:3]:
        submit(federation, name)
    return federation


DOORS = {
    "Contribution at the server": (once_parties, Contribution, "server", "dealing"),
    "Its ticket at the server": (once_parties, Contribution, "server", "ticket"),
    "Its update at the server": (once_parties, Contribution, "server", "words"),
    "Parcel of an update at a holder": (once_parties, Parcel, "holder", "dealing.ticket"),
    "Tickets of those who came once": (once_parties, RecoveryRequest, "holder", "tickets"),
    "Shipment at the server": (dealing_parties, Shipment, "server", "dealing"),
    "Parcel at a holder": (dealing_parties, Parcel, "holder", ""),
    "Receipt at the server": (dealing_parties, Receipt, "server", ""),
    "Receipt at its dealer": (dealing_parties, Receipt, "contributor", ""),
    "Upload at the server": (opening_parties, Upload, "server", ""),
    "RecoveryRequest at a holder": (repeating_parties, RecoveryRequest, "holder", ""),
    "ShortRequest at a holder": (opening_parties, ShortRequest, "holder", ""),
    "Certificate at a holder": (opening_parties, Certificate, "holder", ""),
    "CertifiedRequest at a holder": (certified_parties, CertifiedRequest, "holder", "certificate"),
    "Endorsement at the server": (opening_parties, Endorsement, "server", ""),
    "Answer at the server": (opening_parties, Answer, "server", ""),
    "Closing at a holder": (opening_parties, Closing, "holder", ""),
}


def door(federation, letter) -> Check:
    """A machine that takes a message does something; one that passes it over does nothing at all."""
    node = federation.network.nodes[letter.to]

    def check(message):
        message = unpack(pack(message), MAX_CONTROL_BYTES)
        before = picture(node.machine)
        effects = node.receive(msgspec.structs.replace(letter, message=message))
        lost = [e for e in effects if isinstance(e, Send) and isinstance(e.message, CannotFollow)]
        if effects == lost and picture(node.machine) == before:
            raise BASecAggError("passed over")

    return check


# --- one change and it is refused -------------------------------------------------------------


def by_signature(kind):
    return make_samples()[kind], partial(SIGNATURES[kind], agreement()), ""


def by_door(name):
    make, kind, role, field = DOORS[name]
    federation = make()
    letter = letter_at(federation, kind, role)
    return letter.message, door(federation, letter), field


@pytest.mark.parametrize(
    ("find", "what"),
    [
        *(pytest.param(by_signature, kind, id=kind.__name__) for kind in signed_kinds()),
        *(pytest.param(by_door, name, id=name) for name in DOORS),
    ],
)
def test_a_change_anywhere_is_refused(find, what):
    """Of every kind whose last field is `signature`. One without a sample and a check fails here."""
    message, check, field = find(what)
    if find is by_signature:
        assert takes(check, message)  # and is remembered, where good ones are
    assert taken_changes(check, message, field) == []
    assert takes(check, message)


def test_no_check_is_left_over():
    assert set(SIGNATURES) == set(signed_kinds())


@pytest.fixture
def leave_out(monkeypatch):
    """Sign a field of a kind no more."""

    def patch(kind, field):
        place = kind.__struct_fields__.index(field)

        def doctored(message):
            content = list(msgspec.structs.astuple(message)[:-1])
            if type(message) is kind:
                del content[place]
            return messages._tagged(str(type(message).__struct_config__.tag), content)

        monkeypatch.setattr(messages, "_statement", doctored)
        messages._known_statement.cache_clear()

    yield patch
    messages._known_statement.cache_clear()


@pytest.mark.parametrize("kind", signed_kinds(), ids=lambda kind: kind.__name__)
def test_control_a_field_that_is_not_signed_is_found(kind, leave_out):
    """The test above can fail, for every field of every kind that no other rule protects as well."""
    found = {}
    for field in kind.__struct_fields__[:-1]:
        leave_out(kind, field)
        message, check, _ = by_signature(kind)
        assert takes(check, message)
        found[field] = bool(taken_changes(check, message, field))
    missed = {(kind, field) for field, caught in found.items() if not caught}
    assert missed == {each for each in GUARDED_TWICE if each[0] is kind}


def test_no_message_can_be_changed_after_it_was_checked():
    assert all(kind.__struct_config__.frozen for kind in kinds())


def test_an_unsigned_message_has_no_signature():
    fields = [field for kind in kinds() for field in msgspec.structs.fields(kind)]
    defaults = [field.default for field in fields if field.name == "signature"]
    assert len(defaults) > 10
    assert {each for each in defaults if each is not msgspec.NODEFAULT} == {b""}


def test_an_envelope_is_bound_to_epoch_masks_and_holder():
    one, other = (MaskName("ann", bytes([number]) * 16) for number in (1, 2))
    bound = messages.sealing_context
    contexts = {
        bound(epoch, masks, place)
        for epoch in (bytes(32), b"e" * 32)
        for masks in ((one,), (other,), (one, other), (other, one))
        for place in (0, 1)
    }
    assert len(contexts) == 2 * 4 * 2
    assert msgspec.msgpack.decode(bound(bytes(32), (one,), 3))[:3] == ["basecagg", 7, "Shares"]


def test_what_has_no_room_for_a_signature_is_not_signed():
    for unsigned in (messages.Refusal("Malformed", "no"), make_samples()[Upload]):
        with pytest.raises(LocalProtocolError, match="not a message that is signed"):
            messages.signed(unsigned, identity("server"))


def test_only_messages_are_signed():
    """Who wants something signed makes a message of it. A key, TLS, the ends of chains and the price of a
    signature are none."""
    allowed = {
        "protocol/messages.py",
        "channels/identity.py",
        "service/operator/certificates.py",
        "auditing/transcript.py",
        "protocol/audit_log.py",
        "simulation/metering.py",
    }
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    signing_files = {
        name for name, path in files.items() if re.search(r"\.sign\(", path.read_text("utf-8"))
    }
    assert signing_files == allowed


# --- the same bytes for ever ------------------------------------------------------------------


def tag_of(kind):
    return str(kind.__struct_config__.tag)


def by_tag():
    return {tag_of(kind): message for kind, message in make_samples().items()}


def test_every_kind_has_the_tag_that_it_always_had():
    """A class may get another name; on the wire and in statements its kind keeps its own.

    Messages without a tag are those of other protections, which run in simulations only.
    """
    tags = [tag_of(kind) for kind in kinds() if kind.__struct_config__.tag is not None]
    assert sorted(tags) == sorted(vector["tag"] for vector in GOLDEN["messages"])
    assert len(set(tags)) == len(tags)


def test_the_magic_and_the_version_are_golden():
    assert MAGIC.hex() == GOLDEN["magic"]


@pytest.mark.parametrize("vector", GOLDEN["messages"], ids=lambda vector: vector["tag"])
def test_frames_and_statements_are_golden(vector):
    message = by_tag()[vector["tag"]]
    assert list(message.__struct_fields__) == list(vector["fields"])
    assert described(type(message)) == vector["fields"]
    assert pack(message).hex() == vector["frame"]
    if type(message) in AnyMessage.__args__:
        assert unpack(bytes.fromhex(vector["frame"]), len(vector["frame"])) == message
    if type(message) in signed_kinds():
        assert statement(message).hex() == vector["statement"]
    else:
        assert vector["statement"] is None


@pytest.mark.parametrize(
    "vector", [v for v in GOLDEN["messages"] if v["statement"]], ids=lambda vector: vector["tag"]
)
def test_a_statement_is_the_frame_under_a_name_of_its_own(vector):
    """Worked out here from the frame: every field but the last, bulk as its hash."""
    frame = bytes.fromhex(vector["frame"])
    tag, *fields = msgspec.msgpack.decode(frame[len(MAGIC) :])
    said = dict(zip(vector["fields"], fields, strict=True))
    assert list(said)[-1] == "signature"
    del said["signature"]
    if tag in BULK:
        large = said[BULK[tag]]
        whole = large if isinstance(large, bytes) else msgspec.msgpack.encode(large)
        said[BULK[tag]] = blake3(whole).digest()
    expected = ["basecagg", 7, vector["tag"], *said.values()]
    assert msgspec.msgpack.decode(bytes.fromhex(vector["statement"])) == expected
