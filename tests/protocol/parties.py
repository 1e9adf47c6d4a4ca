"""A small federation for tests, the moves of its honest parties, and the forgeries of a cheating server."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.errors import Refused
from basecagg.maths.key_masks import key_of, mask_of_sum
from basecagg.maths.packing import unpack as unpack_words
from basecagg.maths.quantization import signed as with_sign
from basecagg.maths.randomness import SEED_BYTES, FieldStream, derive_seed, system_entropy
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Abandoned, Released
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import (
    Answer,
    Certificate,
    CertifiedRequest,
    Contribution,
    Endorsement,
    History,
    Link,
    Message,
    RecoveryRequest,
    Refusal,
    ShortRequest,
    Ticket,
    Upload,
    coin_of,
    encode,
    endorsement_of,
    signed,
)
from basecagg.protocol.messages import certificate_of as message_of
from basecagg.protocol.stored import OwnMask, parse
from basecagg.protocol.weighing import Weighing
from reproduction.bench import AT_SERVER, Address, Federation, Letter

SIZE = 50
USERS = tuple(f"user-{index}" for index in range(7))
QUORUM = 5
_seeds = itertools.count()


def parameters(**changes) -> ProtocolParameters:
    """N = 7, U = 4, T = 1, D = 2, K = 3, d = 50, s(τ) = 1/(1 + τ)."""
    usual = {
        "num_holders": 7,
        "recovery_threshold": 4,
        "max_colluders": 1,
        "max_dropouts": 2,
        "buffer_size": 3,
        "model_size": SIZE,
        "staleness": polynomial(1.0),
    }
    return ProtocolParameters(**usual | changes)


def make_federation(
    *,
    suite="x25519",
    holders=None,
    cryptography=True,
    retries=1,
    max_burns=20,
    keep=1,
    entropy=lambda purpose: system_entropy,
    **changes,
) -> Federation:
    """Keys, epoch, server and holders; contributors appear when they are first asked for."""
    p = parameters(**changes)
    start = np.zeros(p.model_size, np.float64)
    return Federation(
        p,
        start,
        suite=suite,
        holders=holders,
        cryptography=cryptography,
        retries=retries,
        keep=keep,
        entropy=entropy,
        max_burns=max_burns,
    )


def holder_at(name: str) -> Address:
    return Address("holder", name)


def at(name: str) -> Address:
    return Address("contributor", name)


def fresh_update(scale: float = 0.5, size: int = SIZE) -> np.ndarray:
    """An update that no other test or call makes."""
    return np.random.default_rng(next(_seeds)).normal(scale=scale, size=size)


# --- honest moves -----------------------------------------------------------------------------


def deal(federation: Federation, *names: str, version: int | None = None, count: int = 1) -> None:
    """Each of them deals masks, and all their shares arrive, unless masks come with the updates.

    A cheating server may claim any version.
    """
    if version is not None:
        federation.server._state.history = history_at(federation, version)
    version = federation.server.version
    for name in names if not federation.agreement.parameters.one_visit else ():
        federation.network.perform(at(name), federation.contributor(name).deal(version, count))
    federation.network.run()


@dataclass
class Submitted:
    """An upload, and what it hides: Q(Δ), worked out from the mask's seed and not from the protocol's sum."""

    upload: Upload | Contribution
    quantized: np.ndarray
    base_version: int

    @property
    def ticket(self) -> Ticket:
        return self.upload.ticket


def submit(federation: Federation, name: str, update=None, *, base=None, head=None) -> Submitted:
    """Deal a mask if none is ready, mask an update, and leave the upload on its way."""
    contributor, drawn = federation.contributor(name), list[bytes]()
    if not contributor.is_ready:
        deal(federation, name)
    if ready := contributor.ready:
        stored = federation.network.nodes[at(name)].store.read("mask", ready[0].key)
        drawn.append(parse(stored, OwnMask).seed)
    draw = contributor._entropy
    contributor._entropy = lambda count: noted(drawn, draw(count))
    base = federation.server.version if base is None else base
    if head is None:
        head = federation.server.head_of(base) or head_at(federation, base)
    size = federation.agreement.parameters.model_size
    update = fresh_update(size=size) if update is None else update
    federation.submit(name, update, base, head)
    contributor._entropy = draw
    upload = federation.network.in_flight[-1].message
    assert isinstance(upload, Upload | Contribution)
    seed = next(each for each in drawn if len(each) == SEED_BYTES)
    return Submitted(upload, unmask(upload, seed, federation.agreement.parameters), base)


def noted(drawn: list[bytes], secret: bytes) -> bytes:
    """What was drawn, once it is in the list."""
    drawn.append(secret)
    return secret


def unmask(upload: Upload | Contribution, seed: bytes, p: ProtocolParameters) -> np.ndarray:
    """Q(Δ): the upload minus the mask that the seed expands to, in exact integers; with keys Q(Δ) + e."""
    if p.masks == "keys":
        mask = mask_of_sum(key_of(seed, p.modulus), upload.ticket.epoch, p.modulus)
    else:
        mask = FieldStream(derive_seed(seed, "mask"), p.modulus)
    mask = mask.draw(p.padded_size)
    words = unpack_words(upload.words, p.modulus).astype(object)
    return with_sign(((words - mask) % p.modulus).astype(np.uint32), p.modulus)


def intercept(federation: Federation, name: str, update=None, **changes) -> Submitted:
    """Like `submit`, but the upload falls into the hands of the cheating server."""
    submitted = submit(federation, name, update, **changes)
    federation.network.in_flight.pop()
    return submitted


def one_round(federation: Federation, names: Iterable[str] = USERS[:3]) -> list[Submitted]:
    """Everyone deals, submits, and the sum is opened."""
    submitted = [submit(federation, name) for name in names]
    federation.network.run()
    return submitted


def one_hop(federation: Federation) -> list[Letter]:
    """Deliver what is on its way, and no more; return what is on its way now."""
    letters = list(federation.network.in_flight)
    federation.network.in_flight.clear()
    for letter in letters:
        federation.network.deliver(letter.to, [letter])
    return list(federation.network.in_flight)


def released(federation: Federation) -> list[Released]:
    return [news for news in federation.take_news() if isinstance(news, Released)]


def abandoned(federation: Federation) -> list[Abandoned]:
    return [news for news in federation.take_news() if isinstance(news, Abandoned)]


def exact_sum(news: Released, submitted: Sequence[Submitted], p: ProtocolParameters) -> bool:
    """Whether the recovered sum is Σ s̄·Q(Δ), bit for bit, over these members; with own weights Σ Q(2^−t·Δ)."""
    by_name = {each.ticket.mask: each for each in submitted}
    if set(by_name) != set(news.members):
        return False
    own, weighted = p.weights == "own", zip(news.weights, news.members, strict=True)
    wanted = sum((1 if own else int(weight)) * by_name[name].quantized for weight, name in weighted)
    got = news.weighted_sum * p.update_levels
    pad = np.abs(wanted[p.model_size :].astype(np.int64)).max()
    return bool((wanted[: p.model_size] == got).all() and pad <= p.buffer_size * p.error_reach)


def asked_by(federation: Federation) -> list[RecoveryRequest]:
    """Every request that is sent from now on, in its long form: the honest server's, and those of a cheat."""
    seen: list[RecoveryRequest] = []

    def see(letter: Letter) -> None:
        message = letter.message
        if isinstance(message, ShortRequest):
            message = federation.server.opening._request
        if isinstance(message, RecoveryRequest) and message not in seen:
            seen.append(message)

    federation.network.observers.append(see)
    return seen


# --- a cheating server ------------------------------------------------------------------------


def request_for(
    federation: Federation,
    members: Iterable[Submitted | Ticket],
    version=0,
    previous=None,
    **changes,
) -> RecoveryRequest:
    """A request over any members at all, in order and signed by the server's true key."""
    tickets = [m.ticket if isinstance(m, Submitted) else m for m in members]
    tickets.sort(key=lambda ticket: ticket.mask)
    return sign_request(federation, tuple(tickets), version, previous, **changes)


def sign_request(
    federation, tickets, version=0, previous=None, *, attempt=None, history=None
) -> RecoveryRequest:
    """The next attempt of the version unless another is given, and a history that fits the certificate."""
    tale = told(federation)
    if attempt is None:
        attempt = tale.attempts[version]
        tale.attempts[version] += 1
    if previous is not None:
        tale.digests[previous.version + 1] = previous.digest
    history = history or history_at(federation, version)
    request = RecoveryRequest(federation.agreement.id, version, attempt, history, tickets, previous)
    return signed(request, federation.identity("server"))


@dataclass
class Tale:
    """What a cheating server has told so far: attempts of each version, and what its models were made from."""

    attempts: Counter = field(default_factory=Counter)
    digests: dict[int, bytes] = field(default_factory=dict)


def told(federation) -> Tale:
    """What the cheating server of this federation says."""
    if not hasattr(federation, "tale"):
        federation.tale = Tale()
    return federation.tale


def history_at(federation, version: int) -> History:
    """The true chain of models as far as it goes; from there on, models that the cheating server made up."""
    history, most = federation.server.history, federation.agreement.parameters.max_staleness
    if version <= history.last:
        return History(history.version, history.root, history.links[: version - history.version])
    if version > history.last + 100:
        history = History(version - most, bytes(32))  # nobody can look that far back
    for v in range(history.last + 1, version + 1):
        made_from = told(federation).digests.get(v, bytes(32))
        history = history.after(Link(v, b"%032d" % v, bytes(32), made_from), most)
    return history


def head_at(federation, version: int) -> bytes:
    """The head of a version in this story."""
    return history_at(federation, version).head


def ask(federation: Federation, name: str, message: Message) -> list[Message]:
    """Hand a message to one holder, over the wire format, and return what it sends back."""
    message = unpack(pack(message), MAX_CONTROL_BYTES)
    waiting = list(federation.network.in_flight)
    federation.network.in_flight.clear()
    federation.network.deliver(holder_at(name), [Letter("server", holder_at(name), message)])
    replies = [letter.message for letter in federation.network.in_flight]
    federation.network.in_flight.clear()
    federation.network.in_flight.extend(waiting)
    return replies


def endorse(federation: Federation, request: RecoveryRequest, names=USERS) -> list[Endorsement]:
    """The endorsements that these holders give."""
    replies = [reply for name in names for reply in ask(federation, name, request)]
    return [reply for reply in replies if isinstance(reply, Endorsement)]


def certificate_of(request: RecoveryRequest, endorsements: Iterable[Endorsement]) -> Certificate:
    """Whatever signatures there are, put together as a certificate of the request."""
    signatures = tuple((each.holder, each.signature) for each in endorsements)
    return message_of(request, signatures)


def certify(federation: Federation, request: RecoveryRequest, names=USERS) -> CertifiedRequest:
    """The request with the certificate that these holders make; the next version is made from its sum."""
    told(federation).digests[request.version + 1] = request.digest
    return CertifiedRequest(request, certificate_of(request, endorse(federation, request, names)))


def answers(federation: Federation, question: Message, names=USERS) -> dict[int, np.ndarray]:
    """What these holders answer, as numbers."""
    replies = [reply for name in names for reply in ask(federation, name, question)]
    q = federation.agreement.parameters.modulus
    return {r.holder: unpack_words(r.words, q) for r in replies if isinstance(r, Answer)}


def mask_sum(federation: Federation, shares: dict[int, np.ndarray]) -> np.ndarray:
    """What the cheating server decodes from answers: the weighted sum of the masks."""
    return federation.agreement.code.decode(shares).astype(object)


def unmasked_sum(
    federation: Federation, request: RecoveryRequest, members, shares: dict[int, np.ndarray]
) -> np.ndarray:
    """What the cheating server learns from answers to a request: Σ s̄·Q(Δ) mod q, as a list of integers."""
    q = federation.agreement.parameters.modulus
    uploads = {each.ticket: unpack_words(each.upload.words, q) for each in members}
    masked = sum(
        weigh(federation, ticket, request.version) * uploads[ticket].astype(object)
        for ticket in request.tickets
    )
    return (masked - mask_sum(federation, shares)) % q


def reveals(federation: Federation, candidate: np.ndarray, weight: int, victim: Submitted) -> bool:
    """Whether the numbers are the victim's weighted update: privacy is lost."""
    q = federation.agreement.parameters.modulus
    return bool((candidate % q == weight * victim.quantized.astype(object) % q).all())


def colluding_answer(federation: Federation, name: str, request: RecoveryRequest) -> dict:
    """A holder that works with the server answers whatever it is asked, from the shares in its store."""
    store, q = (
        federation.network.nodes[holder_at(name)].store,
        federation.agreement.parameters.modulus,
    )
    total = sum(
        weigh(federation, ticket, request.version)
        * unpack_words(store.read("share", ticket.mask.key), q).astype(object)
        for ticket in request.tickets
    )
    index = federation.agreement.holder_names.index(name)
    return {index: (total % q).astype(np.uint32)}


def colluding_endorsement(federation: Federation, name: str, request: RecoveryRequest):
    """It endorses whatever it is shown, too."""
    index = federation.agreement.holder_names.index(name)
    return signed(endorsement_of(request, index), federation.identity(name))


def weigh(federation: Federation, ticket: Ticket, version: int) -> int:
    """s̄ as everyone computes it."""
    coin = coin_of(federation.agreement.id, ticket.mask)
    return Weighing.of(federation.agreement.parameters).factor(version, ticket, coin)


# --- nothing happened -------------------------------------------------------------------------


def picture(machine) -> object:
    """Everything that a machine remembers, as plain data."""
    if isinstance(machine, np.ndarray):
        return machine.tobytes()
    if isinstance(machine, Agreement):
        return machine.id  # all else in it is fixed, or a note of signatures that were found good
    if type(machine).__module__.startswith("basecagg.protocol.") and hasattr(machine, "__dict__"):
        own = {name: part for name, part in vars(machine).items() if name != "agreement"}
        parts = {name: picture(part) for name, part in own.items()}
        return {name: part for name, part in parts.items() if part is not None}
    try:
        return msgspec.to_builtins(machine, order="sorted")
    except TypeError:
        return None


@contextmanager
def nothing_changes(federation: Federation, address: Address):
    """Neither the machine nor its store may be different afterwards."""
    node = federation.network.nodes[address]
    before = node.store.snapshot(), picture(node.machine)
    yield
    after = node.store.snapshot(), picture(node.machine)
    assert after == before


def refuse(federation: Federation, name: str, message: Message, error: type[Refused]) -> Refused:
    """The holder refuses with this very error, sends no byte of a share, and remembers nothing of it."""
    with nothing_changes(federation, holder_at(name)):
        replies = ask(federation, name, message)
    address, refusal = federation.network.refusals[-1]
    assert address == holder_at(name)
    assert type(refusal) is error, refusal
    assert [type(reply) for reply in replies] == [Refusal]
    assert not share_bytes_in(federation, replies)
    return refusal


def all_refuse(federation: Federation, message: Message, error: type[Refused]) -> None:
    for name in federation.agreement.holder_names:
        refuse(federation, name, message, error)


def server_refuses(
    federation: Federation, sender: str, message: Message, error: type[Refused]
) -> Refused:
    """The server refuses with this very error and remembers nothing of it."""
    with (
        nothing_changes(federation, AT_SERVER),
        pytest.raises(Refused) as caught,
    ):
        federation.server.receive(sender, message)
    assert type(caught.value) is error, caught.value
    return caught.value


def share_bytes_in(federation: Federation, messages: Iterable[Message]) -> bool:
    """Whether any 8 bytes of any share that is held anywhere occur in the messages."""
    sent = b"".join(encode(message) for message in messages)
    shares = [
        value
        for name in federation.agreement.holder_names
        for _, value in federation.network.nodes[holder_at(name)].store.scan("share")
    ]
    return any(
        share[start : start + 8] in sent
        for share in shares
        for start in range(0, len(share) - 7, 4)
    )
