"""Messages that nobody would send: every machine refuses them with a typed error, unchanged, in bounded memory.

Frames of a real run are damaged as bytes (bits, lengths, nesting, splices) and as trees (any field replaced,
moved, doubled or dropped, then encoded properly again), and fed to the wire and to machines in the middle of
their work. Half of the machines check no signatures, so that damage gets past them to whatever lies behind.
"""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np
import pytest
from harness import World, once, small
from samples import make_samples

from basecagg.channels.unprotected import NoVerifier
from basecagg.channels.wire import MAGIC, MAX_CONTROL_BYTES, AnyMessage, pack, unpack
from basecagg.errors import BASecAggError, ChannelError, Refused
from basecagg.protocol.buffer import Buffer
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import refusal_reply, sends_of
from basecagg.protocol.epoch import Epoch, accept
from basecagg.protocol.holder import Holder
from basecagg.protocol.mailroom import Mailroom
from basecagg.protocol.messages import (
    CannotFollow,
    CertifiedRequest,
    Closing,
    EpochEnd,
    HolderKey,
    Inquiry,
    MaskName,
    Parts,
    PlainUpdate,
    Receipt,
    RecoveryRequest,
    Refusal,
    Release,
    Ticket,
    Verdict,
    Witness,
)
from basecagg.protocol.opening import PlainOpening
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.server import Server, ServerSettings
from basecagg.protocol.weighing import Weighing
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import AT_SERVER, Address, Letter, Station

KINDS = sorted(kind.__name__ for kind in AnyMessage.__args__)
NAMES = [f"user-{index}" for index in range(4)]
HOLDER, CONTRIBUTOR = Address("holder", "user-1"), Address("contributor", "user-1")
AT_MOST = 2**21
"""Bytes that handling a frame may take, however short it is: a length of 100,000 is believed at first."""


# --- machines in the middle of their work -------------------------------------------------------


@dataclass
class Target:
    """A machine that can be put back to where it was."""

    role: str
    build: object
    records: dict

    def __post_init__(self):
        self.reset()

    def reset(self):
        self.node = Station(self.build(store := MemoryStore(self.records)), store)
        self.before = describe(self.node.machine)

    def feed(self, letter):
        """Hand over a message. A refusal changes nothing; whatever is sent has a proper encoding."""
        try:
            sends = sends_of(self.node.receive(letter))
        except Refused as refusal:
            reply = refusal_reply(letter.sender, letter.message, refusal)
            sends = [reply] if reply else []
            assert describe(self.node.machine) == self.before
            outcome = "refused"
        else:
            self.reset()
            outcome = "taken"
        for send in sends:
            assert unpack(pack(send.message), MAX_CONTROL_BYTES) == send.message
        assert self.node.store.snapshot() == self.records
        return outcome


def describe(machine):
    """All that a machine remembers, as bytes; its keys, its store and the epoch left out."""
    return msgspec.msgpack.encode(vars(machine), enc_hook=_describe_part)


def _describe_part(part):
    if isinstance(part, np.ndarray):
        return part.tobytes()
    if isinstance(part, Recovery | PlainOpening | Mailroom | Buffer):
        return vars(part)
    return None


class Scene:
    """A federation that was stopped half-way, at two moments; and the letters that led there."""

    def __init__(self, mode, cryptography, parameters=small):
        self.world = World(parameters(mode), cryptography=cryptography)
        self.targets = []
        self.world.judge.inspect(self.world.network)
        self.world.train(NAMES, 1)
        ahead = NAMES if not self.world.parameters.one_visit else ()
        for name in ahead:
            self.world.deal(name, 2)
        self.world.network.run()
        if ahead:
            self.world.deal(CONTRIBUTOR.name)
        self.world.network.in_flight.clear()
        for name in NAMES:
            if self.world.contributor(name).is_ready:
                self.world.submit(name, self.world.server.version)
        self.remember(HOLDER, CONTRIBUTOR)
        self.deliver_to(AT_SERVER)
        self.remember(AT_SERVER)
        for name in NAMES:
            self.deliver_to(Address("holder", name))
        self.remember(HOLDER)
        self.deliver_to(AT_SERVER)
        self.remember(AT_SERVER)
        self.targets.append(Target("server", plain_server, {}))
        self.frames = {kind: [] for kind in KINDS}
        for letter in (*self.world.judge.letters, *self.other_letters()):
            frames = self.frames[type(letter.message).__name__]
            frames.append((letter, pack(letter.message)))
            del frames[:-20]

    def remember(self, *addresses):
        for address in addresses:
            records = self.world.stores.stores[address].snapshot()

            def build(store, address=address):
                return self.world.federation._build(address, store)

            self.targets.append(Target(address.role, build, records))

    def deliver_to(self, address):
        """Only what is on its way to this machine arrives."""
        letters = list(self.world.network.in_flight)
        mine = [letter for letter in letters if letter.to == address]
        self.world.network.in_flight.clear()
        self.world.network.in_flight.extend(letter for letter in letters if letter.to != address)
        self.world.network.deliver(address, mine)

    def other_letters(self):
        """What no machine sends in this run, or what is agreed on beforehand."""
        federation, size = self.world.federation, self.world.parameters.model_size
        mask = MaskName("user-1", bytes(16))
        yield Letter("user-1", AT_SERVER, PlainUpdate.unsigned(mask, 0, bytes(32), bytes(4 * size)))
        yield Letter("server", CONTRIBUTOR, Verdict(federation.agreement.id, mask, "burned", "why"))
        yield Letter("user-1", AT_SERVER, Refusal("Malformed", "a reason"))
        yield Letter("server", HOLDER, federation.agreement.epoch)
        yield Letter("server", HOLDER, federation._credentials["user-1"])
        yield Letter("server", HOLDER, make_samples()[EpochEnd])
        yield Letter("user-1", AT_SERVER, make_samples()[HolderKey])
        yield Letter("user-1", AT_SERVER, make_samples()[Witness])
        for kind in (Inquiry, Release, Parts):
            yield Letter("server", HOLDER, make_samples()[kind])
        request = list(self.world.judge.requests.values())[-1]
        yield Letter("user-1", AT_SERVER, CannotFollow(federation.agreement.id, request.digest))
        yield Letter("server", HOLDER, request)
        for certificate in self.world.judge.certificates.values():
            asked = self.world.judge.requests[certificate.digest]
            yield Letter("server", HOLDER, CertifiedRequest(asked, certificate))

    def feed(self, chance, letter):
        """Hand a message to all machines that it could be meant for, and to one that it was not."""
        if isinstance(letter.message, Epoch):
            self.consider(letter.message)
        meant = [target for target in self.targets if target.role == letter.to.role]
        return [target.feed(letter) for target in (*meant, chance.choice(self.targets))]

    def consider(self, epoch):
        with suppress(BASecAggError):
            accept(epoch, bytes(32), NoVerifier())


def plain_server(store):
    opening = PlainOpening(5, Weighing.of(small()), store)
    return Server(ServerSettings(3, Weighing.of(small())), opening, store, np.zeros(5, np.float32))


@cache
def scenes():
    return [
        Scene(mode, cryptography)
        for mode in ("certified", "honest-server")
        for cryptography in (True, False)
    ]


@cache
def scenes_of_one_visit():
    return [Scene("certified", cryptography, once) for cryptography in (True, False)]


# --- damage ---------------------------------------------------------------------------------------


def damage_bytes(chance, frame, others):
    """Anything at all may happen to a frame on its way."""
    body, where = bytearray(frame), chance.randrange(len(frame))
    how = chance.randrange(7)
    if how == 0:
        for _ in range(chance.randint(1, 8)):
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    elif how == 1:
        del body[where:]
    elif how == 2:
        body += chance.randbytes(chance.randint(1, 40))
    elif how == 3:
        other = chance.choice(others)
        body[where:] = other[chance.randrange(len(other)) :]
    elif how == 4:
        body[where : where + 1] = chance.choice(LENGTHS)
    elif how == 5:
        body[where:where] = chance.choice((b"\x91", b"\x92\xc0", b"\x81\xa0")) * chance.choice(
            DEPTHS
        )
    else:
        heads = [at for at, byte in enumerate(body) if byte in HEADS]
        at = chance.choice(heads or [where])
        body[at + 1 : at + 1 + chance.randint(1, 4)] = chance.randbytes(chance.randint(1, 4))
    return bytes(body)


HEADS = {*range(0x90, 0xA0), 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDC, 0xDD}
"""The bytes of MessagePack that announce a length."""
LENGTHS = [
    head + length
    for head in (b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9")
    for length in (
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x01\x86\xa0",
        b"\x00\x00\x00\x00",
    )
]
DEPTHS = [1, 2, 100, 5_000]


def damage_tree(chance, frame, others):
    """The same fields, but not the same values; properly encoded."""
    tree = msgspec.msgpack.decode(frame[len(MAGIC) :])
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        parent, index = chance.choice(list(nodes(tree)))
        parent[index] = other_value(chance, parent[index], others)
    if chance.random() < 0.1:
        rearrange(chance, parent)
    return MAGIC + msgspec.msgpack.encode(tree)


def nodes(tree):
    """Every place in a tree, as (parent, index or key). The name of the message comes first and stays."""
    places = enumerate(tree) if isinstance(tree, list) else tree.items()
    for index, value in list(places):
        if index != 0 or not isinstance(value, str):
            yield tree, index
        if isinstance(value, list | dict) and value:
            yield from nodes(value)


def rearrange(chance, parent):
    if isinstance(parent, list) and len(parent) > 1:
        chance.choice((parent.reverse, parent.pop, lambda: parent.append(parent[-1])))()


def other_value(chance, value, others):
    """Mostly of the same type; now and then of another, or a piece of another message."""
    luck = chance.random()
    if luck < 0.1:
        tree = msgspec.msgpack.decode(chance.choice(others)[len(MAGIC) :])
        parent, index = chance.choice(list(nodes(tree)))
        return parent[index]
    if luck < 0.15 or type(value) not in SAME_TYPE:
        return chance.choice((None, True, 0, 1.5, b"", "", [], {}, float("nan"), -1))
    usual, strange = SAME_TYPE[type(value)](value)
    return chance.choice(usual if chance.random() < 0.7 else strange)


SAME_TYPE = {
    bool: lambda value: ([not value], [not value]),
    int: lambda value: (
        [min(value + 1, 2**63), max(0, value - 1), 0, 1, 2, 3],
        [-1, 2**31, 2**32 - 5, 2**62 - 1, 2**62, 2**64 - 1],
    ),
    float: lambda value: (
        [-value, 0.0, value / 2],
        [-0.0, 1e-300, 1e308, float("inf"), float("nan")],
    ),
    bytes: lambda value: (
        [bytes([byte ^ 1 for byte in value[:1]]) + value[1:], value[::-1]],
        [value[:-1], value + b"\0", b"", value + value],
    ),
    str: lambda value: (
        [*NAMES, "server", "opened"],
        ["", "x" * 64, "x" * 65, "a\n", "é", "certified"],
    ),
    list: lambda value: (
        [value[1:], value[::-1], value[:1] * 3],
        [[], value + value],
    ),
}
"""Other values of the same type: such as are to be expected, and such as are not."""


# --- the tests ------------------------------------------------------------------------------------


def fuzz(kind, count):
    """Feed so many damaged messages of a kind to the machines; count what becomes of them."""
    chance, outcomes = random.Random(kind), Counter()
    talking = [scene for scene in scenes() if scene.frames[kind]] or scenes_of_one_visit()
    for _ in range(count):
        scene = chance.choice(talking)
        letter, frame = chance.choice(scene.frames[kind])
        others = [frames[-1][1] for frames in scene.frames.values() if frames]
        damage = damage_bytes if chance.random() < 0.3 else damage_tree
        damaged = damage(chance, frame, others)
        with measured(len(damaged)):
            outcomes.update(handle(chance, scene, letter, damaged))
    return outcomes


def handle(chance, scene, letter, frame):
    try:
        message = unpack(frame, MAX_CONTROL_BYTES)
    except ChannelError:
        return ["not a message"]
    return scene.feed(chance, Letter(letter.sender, letter.to, message))


@contextmanager
def measured(length):
    """No more memory than a frame of this length deserves."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < AT_MOST + 50 * length
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damaged_messages(kind):
    outcomes = fuzz(kind, 1_000)
    assert outcomes["not a message"] > 200
    assert outcomes["refused"] > 200


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_damaged_messages(kind):
    fuzz(kind, 100_000)


@pytest.mark.parametrize("kind", ["Receipt", "RecoveryRequest", "Closing"])
def test_large_messages_leave_nothing_behind(kind):
    """No cache may fill up with what a stranger sends: 30 large messages, all of them different."""
    scene = scenes()[1]
    tracemalloc.start()
    try:
        for number in range(30):
            letter = large_letter(scene, kind, number)
            assert len(pack(letter.message)) > 50_000
            scene.feed(random.Random(number), letter)
        del letter
        assert tracemalloc.get_traced_memory()[0] < 2**21
    finally:
        tracemalloc.stop()


def large_letter(scene, kind, number):
    """A message with far too many parts. This scene checks no signatures, so the machine looks at all of it."""
    epoch, version = scene.world.federation.agreement.id, scene.world.server.version
    masks = tuple(MaskName(f"nobody-{number}", serial.to_bytes(16)) for serial in range(1_500))
    if kind == "Receipt":
        return Letter("user-1", AT_SERVER, Receipt(epoch, 1, masks))
    if kind == "Closing":
        return Letter("server", HOLDER, Closing(epoch, version, masks, "burned"))
    tickets = tuple(Ticket(epoch, mask, 0, bytes(32), bytes(32)) for mask in masks)
    history = scene.world.server.history
    return Letter("server", HOLDER, RecoveryRequest(epoch, version, 0, history, tickets, None))


# --- negative controls ----------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [Holder, Server, Contributor])
def test_a_machine_that_changes_before_it_refuses_is_found(machine, monkeypatch):
    receive = machine.receive

    def careless(self, *arguments):
        self.messages_seen = getattr(self, "messages_seen", 0) + 1
        return receive(self, *arguments)

    monkeypatch.setattr(machine, "receive", careless)
    with pytest.raises(AssertionError):
        fuzz("Refusal", 100)


def test_a_wire_that_trusts_lengths_is_found(monkeypatch):
    decode = unpack

    def trusting(frame, limit):
        bytearray(2**23)
        return decode(frame, limit)

    monkeypatch.setattr("test_fuzz.unpack", trusting)
    with pytest.raises(AssertionError):
        fuzz("Verdict", 10)
