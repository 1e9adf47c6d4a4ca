"""One message of every kind, the same on every day and machine: fixed keys, names and bytes."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec
from msgspec import inspect

import basecagg
from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SealingSecret
from basecagg.parameters import ProtocolParameters
from basecagg.protocol import merkle
from basecagg.protocol.epoch import Agreement, Epoch, Seat, accept, draft_epoch
from basecagg.protocol.messages import (
    Answer,
    CannotFollow,
    Certificate,
    CertifiedRequest,
    Closing,
    Contribution,
    Credential,
    Dealing,
    EpochEnd,
    HolderKey,
    Inquiry,
    Link,
    MaskName,
    Message,
    Parcel,
    Parts,
    PlainUpdate,
    Receipt,
    RecoveryRequest,
    Refusal,
    Release,
    Shipment,
    Ticket,
    Upload,
    Verdict,
    Witness,
    certificate_of,
    content_hash,
    digest_of,
    endorsement_of,
    signed,
    signed_digest,
    statement,
)
from basecagg.protocol.proofs import (
    Account,
    DoubleRequest,
    Evidence,
    Fork,
    Miscalculation,
    Pedigree,
)
from basecagg.protocol.questions import Consent, SignedQuestion, StudyTerms
from basecagg.protocol.short_letters import shortened
from basecagg.protocol.step_rule import StepRule
from basecagg.service.signing import HttpRequest

SOURCE = Path(basecagg.__file__).parent
HOLDERS = ("h0", "h1", "h2", "h3")
WORDS = bytes(range(24))


def fixed(label: str) -> bytes:
    """32 bytes that depend on the label alone."""
    return hashlib.sha256(f"sample/{label}".encode()).digest()


@cache
def identity(role: str) -> Identity:
    return Identity.from_secret(fixed(f"signing/{role}"))


def sealing_key(name: str) -> bytes:
    return SealingSecret("x25519", fixed(f"sealing/{name}")).public_key


def agreement() -> Agreement:
    """N = 4, U = 3, T = 1, D = 1, K = 3."""
    p = ProtocolParameters(
        num_holders=4,
        recovery_threshold=3,
        max_colluders=1,
        max_dropouts=0,
        buffer_size=3,
        model_size=5,
    )
    epoch = draft_epoch(
        federation="sample",
        parameters=p,
        holders=[Seat(name, identity(name).public_key, sealing_key(name)) for name in HOLDERS],
        server_key=identity("server").public_key,
        enrolment_key=identity("enrolment").public_key,
        operator=identity("operator"),
        number=3,
        first=Link(7, fixed("model 7"), fixed("optimiser 7"), fixed("the last epoch's head")),
        step=StepRule("momentum", 0.5, averaged=((1, 3),)),
        max_burns=2,
        ends=2_000_000_000,
        contract=fixed("charge"),
    )
    return accept(epoch, identity("operator").public_key, Ed25519Verifier())


def make_samples() -> dict[type[Message], Message]:
    """Every kind once, signed, and each in its place in one story: epoch 3 opens version 8."""
    epoch, history = agreement().epoch, agreement().beginning
    link = Link(8, fixed("model 8"), fixed("optimiser 8"), fixed("request 7"))
    now = history.after(link, 10)
    masks = {name: _mask(name, f"mask/{name}") for name in ("ann", "bob", "cat")}
    shipment = _shipment(epoch, (masks["ann"], _mask("ann", "mask/ann/2")))
    parcel_path = merkle.proof(merkle.tree(shipment.leaves), 2, shipment.dealing.root)
    tickets = tuple(_ticket(epoch, mask, history.root) for mask in masks.values())
    first = Certificate(epoch.id, 7, 0, history.root, fixed("request 7"), ())
    request = RecoveryRequest(epoch.id, 8, 1, now, tickets, _endorsed(first))
    request = signed(request, identity("server"))
    certificate = _endorsed(certificate_of(request, ()))
    answer = signed(Answer(epoch.id, 8, request.digest, 1, WORDS), identity("h1"))
    made = tuple((1, signed_digest(statement(each), each.signature)) for each in (answer,))
    release = signed(Release(epoch.id, now, made, (2,)), identity("server"))
    parts = Parts(release, request, certificate, (WORDS,) * 3, (answer,), WORDS, WORDS)
    key = identity("operator").public_key
    question = SignedQuestion(epoch.id, 4, 8, False, "{}")
    question = signed(question, identity("analyst"))
    messages: list[Message] = [
        masks["ann"],
        epoch.holders[0],
        epoch,
        signed(EpochEnd(epoch.id, 9, fixed("model 9")), identity("operator")),
        signed(HolderKey("sample", "h1", "x25519", sealing_key("h1"), 3), identity("h1")),
        shipment.dealing.credential,
        shipment.dealing,
        shipment,
        Parcel(shipment.dealing, 2, parcel_path, shipment.sealed[2]),
        signed(Receipt(epoch.id, 1, shipment.dealing.masks), identity("h1")),
        tickets[0],
        Upload(tickets[0], WORDS),
        _contribution(epoch, tickets[0]),
        PlainUpdate(tickets[0], WORDS, shipment.dealing.credential),
        link,
        now,
        release,
        parts,
        Fork(release, request),
        DoubleRequest(request, request),
        Miscalculation(parts),
        Evidence(epoch, Miscalculation(parts), key),
        Account(epoch, parts, key),
        Pedigree(epoch, release, certificate, key),
        Inquiry(epoch.id, fixed("nonce")[:16]),
        signed(Witness(epoch.id, fixed("nonce")[:16], 1, (8, 1)), identity("h1")),
        epoch.step,
        Verdict(epoch.id, masks["ann"], "refused", "too late"),
        request,
        signed(endorsement_of(request, 1), identity("h1")),
        certificate,
        CertifiedRequest(request, certificate),
        shortened(request),
        CannotFollow(epoch.id, request.digest),
        answer,
        signed(Closing(epoch.id, 8, request.masks, "opened"), identity("server")),
        Refusal("Malformed", "no"),
        study_terms(),
        question,
        signed(Consent(digest_of(question), "h1"), identity("h1")),
        _http_request(),
    ]
    return {type(message): message for message in messages}


def study_terms() -> StudyTerms:
    return StudyTerms("sample", "a protocol", "ana", identity("analyst").public_key)


def _mask(name: str, serial: str) -> MaskName:
    return MaskName(name, fixed(serial)[:16], 107)


def _shipment(epoch: Epoch, masks: tuple[MaskName, ...]) -> Shipment:
    ann = identity("ann")
    credential: Credential = enrol(identity("enrolment"), epoch.id, "ann", ann.public_key)
    sealed = tuple(fixed("sender") + fixed(f"envelope {index}") for index in range(len(HOLDERS)))
    leaves = tuple(merkle.leaf(index, envelope) for index, envelope in enumerate(sealed))
    dealing = Dealing(epoch.id, masks, merkle.root_of(leaves, fixed("sender")), credential)
    return Shipment(signed(dealing, ann), leaves, sealed)


def _contribution(epoch: Epoch, ticket: Ticket) -> Contribution:
    shipment = _shipment(epoch, (ticket.mask,))
    dealing = msgspec.structs.replace(shipment.dealing, ticket=digest_of(ticket))
    dealing = signed(dealing, identity("ann"))
    return Contribution(dealing, shipment.leaves, shipment.sealed, ticket, WORDS)


def _ticket(epoch: Epoch, mask: MaskName, head: bytes) -> Ticket:
    ticket = Ticket(epoch.id, mask, 7, head, content_hash(WORDS))
    return signed(ticket, identity(mask.contributor))


def _endorsed(certificate: Certificate) -> Certificate:
    votes = [endorsement_of(certificate, index) for index in range(3)]
    signatures = [signed(vote, identity(HOLDERS[vote.holder])).signature for vote in votes]
    return msgspec.structs.replace(certificate, signatures=tuple(enumerate(signatures)))


def _http_request() -> HttpRequest:
    nonce, body_hash = fixed("nonce")[:16], hashlib.sha256(b"body").digest()
    target = "/v1/mailbox?wait=5"
    request = HttpRequest("sample", "ann", "GET", target, 1_900_000_000_000, nonce, body_hash)
    return signed(request, identity("ann"))


# --- what there is in the source --------------------------------------------------------------


@cache
def kinds() -> frozenset[type[Message]]:
    """Every kind of message that basecagg defines, in whichever file."""
    for module in _modules_with_messages():
        import_module(module)
    everything = _subclasses(Message)
    return frozenset(kind for kind in everything if kind.__module__.startswith("basecagg."))


def signed_kinds() -> list[type[Message]]:
    found = [kind for kind in kinds() if kind.__struct_fields__[-1:] == ("signature",)]
    return sorted(found, key=lambda kind: kind.__name__)


def _subclasses(kind: type) -> set[type]:
    return {kind for below in kind.__subclasses__() for kind in (below, *_subclasses(below))}


def _modules_with_messages() -> set[str]:
    """Read, not imported: most modules have none, and some need minutes or a framework."""
    classes = [
        (".".join(("basecagg", *path.relative_to(SOURCE).with_suffix("").parts)), node)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    names, before = {"Message"}, 0
    while len(names) > before:
        before = len(names)
        names |= {node.name for _, node in classes if names & set(_bases(node))}
    return {module for module, node in classes if names & set(_bases(node))}


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rpartition(".")[2] for base in node.bases]


# --- what a field may hold --------------------------------------------------------------------

LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


def described(kind: type) -> dict[str, str]:
    """The type and the limits of every field, in words."""
    return {field.name: _in_words(field.type) for field in inspect.type_info(kind).fields}


def _in_words(known: inspect.Type) -> str:
    if isinstance(known, inspect.Metadata):
        return _in_words(known.type)
    if isinstance(known, inspect.StructType):
        parts = () if known.tag else described(known.cls).items()
        return f"{known.cls.__name__}{''.join(f' {name}: {words};' for name, words in parts)}"
    if isinstance(known, inspect.UnionType):
        return " | ".join(map(_in_words, known.types))
    if isinstance(known, inspect.LiteralType):
        return " | ".join(map(repr, known.values))
    found = ((name, getattr(known, name, None)) for name in LIMITS)
    limits = [f"{name} {value}" for name, value in found if value is not None]
    several = getattr(known, "item_types", None) or [getattr(known, "item_type", None)]
    items = [f"[{_in_words(item)}]" for item in several if item is not None]
    return " ".join([type(known).__name__.removesuffix("Type"), *limits, *items])
