"""What a server says without a signature undoes nothing: attacks on the real agent, each with its control."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import tracemalloc

import httpx
import pytest
from participants import ANN, DEALERS, quick  # noqa: F401 - a fixture
from puppet_server import URL, PuppetServer, agent_of, erase, frames, profile_in

from basecagg.channels.identity import Identity
from basecagg.channels.wire import pack
from basecagg.errors import ChannelError, LocalProtocolError, ServerCaught, TurnedAway
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Answer, Receipt, Refusal
from basecagg.protocol.stored import StoredSealingKey, load, write
from basecagg.service.agent.local_member import LocalMember
from basecagg.service.connection import Connection, Reply, Unreachable
from basecagg.service.framing import Numbered
from basecagg.service.signing import Caller

pytestmark = pytest.mark.usefixtures("quick")


async def answered_sum(server, epoch):
    """Ann answers for three masks; her parcels, and a certified sum that overlaps."""
    dealt = [server.town.deal(epoch, dealer) for dealer in DEALERS]
    parcels, tickets = [parcel for parcel, _ in dealt], [ticket for _, ticket in dealt]
    server.post(*parcels)
    await server.received(Receipt)
    server.post(server.town.certified(server.town.request(epoch, tickets[:3])))
    await server.received(Answer)
    return parcels, server.town.certified(server.town.request(epoch, tickets[1:]))


# --- 409 WrongEpoch ---------------------------------------------------------------------------------


async def kick_and_ask_again(folder, server):
    async with agent_of(server, folder):
        epoch = await server.found()
        parcels, overlapping = await answered_sum(server, epoch)
        server.inbox.clear()
        server.kicks, looks = 1, server.looks
        await server.until(lambda: server.looks > looks)
        server.post(*parcels, overlapping)
        await server.until(lambda: False)


def test_a_word_that_there_is_another_epoch_makes_no_holder_forget(tmp_path):
    """She remembers what the server asked before, so that its second question convicts it."""
    server = PuppetServer()
    with pytest.raises(ServerCaught, match="twice with one mask"):
        asyncio.run(kick_and_ask_again(tmp_path, server))
    assert not [message for message in server.inbox if isinstance(message, Answer)]


def test_control_the_old_reaction_gives_a_second_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalMember, "hear_of_epochs", erase)
    with pytest.raises(AssertionError, match="two different answers"):
        asyncio.run(kick_and_ask_again(tmp_path, PuppetServer()))


async def test_nobody_goes_back_to_an_earlier_epoch(tmp_path):
    server = PuppetServer()
    async with agent_of(server, tmp_path) as agent:
        first = await server.found(1)
        await server.until(lambda: len(server.keys) == 2)  # the key for the next epoch
        second = await server.found(2)
        machine = agent.member.participant
        server.kicks = 1
        await server.until(lambda: machine.number == 2)
        server.epoch, server.kicks = [first], 1
        await server.until(lambda: machine.refusals)
        looks = server.looks
        await server.until(lambda: server.looks > looks or not server.kicks)
        parcel, _ = server.town.deal(second, "w")
        server.post(parcel)
        await server.received(Receipt)
        assert machine.agreement.id == second.id
        assert machine.keys.states()[second.holders[0].sealing_key.hex()] == "joined"


# --- a backup without the store ----------------------------------------------------------------------


@pytest.mark.parametrize("key_outside", [False, True], ids=["", "control"])
def test_a_restored_identity_holds_nothing_in_the_same_epoch(tmp_path, key_outside):
    """The control: a sealing key in the identity's file, as there was, and the holder is born again."""
    server = PuppetServer()
    profile = profile_in(tmp_path / ANN, server.town)

    def life():
        member = LocalMember(profile, LocalFloor(), tmp_path / "anchors", contributes=False)
        member.start(0)
        return member

    member = life()
    epoch = server.town.epoch(member.announce().sealing_key)
    secrets = load(member._store, "sealing", StoredSealingKey)
    member.hear_of_epochs([Numbered(0, pack(epoch))])
    assert member.participant.holder is not None
    member.close()
    identity = (tmp_path / ANN / "identity.json").read_bytes()
    shutil.rmtree(tmp_path)
    (tmp_path / ANN).mkdir(parents=True)
    (tmp_path / ANN / "identity.json").write_bytes(identity)
    member = life()
    if key_outside:
        member._store.commit([write("sealing", key, secret) for key, secret in secrets.items()])
        member.close()
        member = life()
    member.hear_of_epochs([Numbered(0, pack(epoch))])
    assert member.participant.agreement.id == epoch.id
    assert (member.participant.holder is not None) == key_outside
    member.close()


# --- replies that ended an agent ----------------------------------------------------------------------

ODD = {
    "a torn frame": lambda: httpx.Response(200, content=b"\x00"),
    "half a frame": lambda: httpx.Response(200, content=frames([Refusal("x", "y")])[:-1]),
    "Retry-After: ²": lambda: httpx.Response(
        503, headers=[(b"retry-after", b"\xb2")], json={"code": "x", "reason": "y"}
    ),
    "an endless Retry-After": lambda: httpx.Response(503, headers={"retry-after": "9" * 400}),
    "no text": lambda: httpx.Response(500, content=b"\xff\xfe"),
    "a proxy's 403": lambda: httpx.Response(403, text="<h1>Forbidden</h1>"),
    "not invited": lambda: httpx.Response(403, json={"code": "NotInvited", "reason": "y"}),
    "not found": lambda: httpx.Response(404),
    "no JSON object": lambda: httpx.Response(409, json=[1, 2]),
    "a deep one": lambda: httpx.Response(409, content=b"[" * 100_000),
}


async def survive(folder, odd):
    """After three such replies the agent still keeps a share."""
    server = PuppetServer()
    deliver, left = server.deliver, [3]

    async def odd_first():
        if left[0]:
            left[0] -= 1
            return odd()
        return await deliver()

    server.deliver = odd_first
    async with agent_of(server, folder):
        parcel, _ = server.town.deal(await server.found(), "w")
        server.post(parcel)
        await server.received(Receipt)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_reply_is_as_good_as_none(tmp_path, odd):
    asyncio.run(survive(tmp_path, ODD[odd]))


def test_control_an_agent_that_reads_replies_as_they_come_ends(tmp_path, monkeypatch):
    from basecagg.service import framing

    monkeypatch.setattr(Reply, "frames", lambda reply: framing.split(reply.content))
    with pytest.raises(ChannelError):
        asyncio.run(survive(tmp_path, ODD["a torn frame"]))


@pytest.mark.parametrize("code", ["Revoked", "InvitationExpired"])
def test_who_is_turned_away_ends_keeps_everything_and_can_be_started_again(tmp_path, code):
    """The server's word is not signed: it may end the process, as it could by silence, and nothing else."""

    server = PuppetServer()
    town, tickets, deliver = server.town, [], server.deliver

    async def turn_away():
        return httpx.Response(403, json={"code": code, "reason": "ann is not wanted"})

    async def first():
        async with agent_of(server, tmp_path):
            epoch = await server.found()
            dealt = [town.deal(epoch, dealer) for dealer in DEALERS[:3]]
            tickets.extend(ticket for _, ticket in dealt)
            server.post(*(parcel for parcel, _ in dealt))
            await server.received(Receipt)
            server.deliver = turn_away
            await server.until(lambda: False)

    async def second():
        server.deliver = deliver
        async with agent_of(server, tmp_path):
            server.post(town.certified(town.request(server.epoch[0], tickets)))
            await server.received(Answer)

    with pytest.raises(TurnedAway, match=rf"ann is not wanted \({code}\)\. Ask the operator"):
        asyncio.run(first())
    asyncio.run(second())


def test_a_small_reply_does_not_grow():
    """Packed twice, a few hundred bytes become as many as one likes before anybody can count them."""
    much = gzip.compress(gzip.compress(bytes(40 * 2**20)))
    coding = {"content-encoding": "gzip, gzip"}
    packed = httpx.MockTransport(
        lambda _: httpx.Response(200, headers=coding, stream=httpx.ByteStream(much))
    )

    async def story():
        connection = Connection(URL, "", Caller("test", ANN, Identity.create()), packed)
        with pytest.raises(Unreachable):
            await connection.call("GET", "/v1/epoch", limit=1000)

    tracemalloc.start()
    try:
        asyncio.run(story())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * 2**20


async def test_a_long_word_of_the_server_is_not_said_back(tmp_path):
    """As part of an address it would be too long for any server, and the agent would ask with it for ever."""
    server = PuppetServer()
    deliver, boots = server.deliver, ["a" * 70_000]

    async def deliver_by_a_long_name():
        reply = await deliver()
        if reply.content and boots:
            reply.headers["basecagg-boot"] = boots.pop()
        return reply

    server.deliver = deliver_by_a_long_name
    async with agent_of(server, tmp_path):
        epoch = await server.found()
        for count, dealer in enumerate(DEALERS[:2], 1):
            server.post(server.town.deal(epoch, dealer)[0])
            await server.received(Receipt, count)


@pytest.mark.parametrize("code", ["NotInvited", "AlreadyEnrolled"])
async def test_nobody_is_ended_by_a_refused_enrolment(tmp_path, code):
    server = PuppetServer()
    note, refused = server.note, []

    async def refuse(request):
        if request.url.path == "/v1/enrolment" and not refused:
            refused.append(note("enrolment", request.content))
            return httpx.Response(403, json={"code": code, "reason": "y"})
        return await PuppetServer.__call__(server, request)

    refuse.town = server.town
    async with agent_of(refuse, tmp_path):
        parcel, _ = server.town.deal(await server.found(), "w")
        server.post(parcel)
        await server.received(Receipt)


async def test_an_epoch_that_ends_during_a_contribution_ends_no_agent(tmp_path):
    """The model is asked for when the other half of the agent has just heard the end."""
    server = PuppetServer()
    async with agent_of(server, tmp_path) as agent:
        epoch = await server.found()
        await server.until(lambda: agent.member.epoch)
        server.post(server.town.end(epoch))
        await server.until(lambda: not agent.member.epoch)
        with pytest.raises(LocalProtocolError, match="no epoch now"):
            await agent._download(agent.member)


class SilentServer(PuppetServer):
    async def __call__(self, request):
        raise httpx.ConnectError("nobody is there")


async def test_an_epoch_ends_by_the_own_clock_while_no_server_answers(tmp_path, monkeypatch):
    """Without a reply there is no letter to take, but time passes."""
    monkeypatch.setattr("basecagg.service.agent.agent._TICK", 0.01)

    ticks = asyncio.Event()
    monkeypatch.setattr(LocalMember, "tick", lambda self, now: ticks.set() or [])

    async with agent_of(SilentServer(), tmp_path):
        await asyncio.wait_for(ticks.wait(), 20)
