"""Arbitrary replies to the real agent: statuses × headers × bodies, in any order. It lives; nothing weakens.

Half of the replies are what an honest server could say, so that the agent gets somewhere; the rest is anything.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import httpx
import numpy as np
import pytest
from participants import MODEL, PARAMETERS, quick  # noqa: F401 - a fixture
from puppet_server import PuppetServer, agent_of, erase, frames

from basecagg.channels.identity import Identity
from basecagg.channels.wire import pack
from basecagg.errors import ServerCaught, TooLarge, TurnedAway
from basecagg.protocol.epoch import first_link
from basecagg.protocol.messages import EpochEnd, MaskName, Shipment, Upload, Verdict
from basecagg.service.agent import agent as agents
from basecagg.service.agent.local_member import LocalMember

pytestmark = pytest.mark.usefixtures("quick")
STATUSES = (200, 201, 202, 204, 206, 301, 304, 400, 401, 403, 404, 408, 409, 413, 418, 429)
STATUSES += (500, 502, 503, 504, 599)
CODES = ("WrongEpoch", "EpochClosing", "NotInvited", "AlreadyEnrolled", "KeyUsed", "BadSignature")
CODES += ("WrongTime", "Retired", "Revoked", "Http", "MaskTaken", "²", "")
HEADERS = {
    "retry-after": ("0", "1", "-1", "²", "1e9", "9" * 400, "nan", "Wed, 21 Oct 2015 07:28:00 GMT"),
    "basecagg-boot": ("x", "", "²", "a" * 5000),
    "basecagg-version": ("0", "1", "7", "999999999999999", "1" * 16, "-1", "²", "0x1", ""),
    "basecagg-holder-key": ("wanted", "no", ""),
    "basecagg-time": ("0", "9" * 15, "9" * 30, "²"),
    "content-encoding": ("gzip", "identity", "nonsense"),
    "content-length": ("0", "7", "99999999999"),
    "location": ("https://elsewhere.invalid/",),
}
FAULTS = (httpx.ReadTimeout, httpx.ConnectError, httpx.RemoteProtocolError, ValueError, OSError)
MOST_WITHOUT_PAUSE = 40
"""Questions of one agent in a row. Answers do not count: with many letters in hand it sends many at once."""


class Chaos(PuppetServer):
    """Says anything."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        self.replies = 0
        self.in_a_row = 0
        self.longest_row = 0
        self.pool, self.present = [], []
        self.signed = set()
        self.agent = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.replies += 1
        self.in_a_row += request.method == "GET"
        self.longest_row = max(self.longest_row, self.in_a_row)
        path = request.url.path.removeprefix("/v1/")
        self.note(path, request.content)
        self.found_epoch()
        if self.agent is not None and hasattr(self.agent, "member") and self.replies % 5 == 0:
            try:
                await self.agent.look(self.judge)
            except AssertionError as fault:
                self.fault = fault
        return self.plausible(path) if self.dice.random() < 0.6 else self.anything()

    def found_epoch(self):
        """Now and then. The operator signs each key once."""
        now = not self.epoch or self.dice.random() < 0.02
        if now and self.keys and self.keys[-1] not in self.signed:
            self.signed.add(self.keys[-1])
            self.town.identities["server"] = Identity.create()  # the last one may be convicted
            zeros = np.zeros(PARAMETERS.model_size, np.float32)
            epoch = self.town.epoch(self.keys[-1], len(self.signed), first=first_link(zeros))
            self.epoch = [epoch, self.town.credential(epoch)]
            everything = list(self.town.everything(epoch))
            self.post(*everything)
            self.mail.clear()
            self.pool = [*self.pool[-60:], *self.epoch, *everything]
            self.present = [m for m in everything if not isinstance(m, EpochEnd)]

    def plausible(self, path):
        if path == "epoch":
            return httpx.Response(200, content=frames(self.epoch), headers=self.some("wanted"))
        if path == "mailbox":
            letters = self.dice.choice((self.present[:7], self.present, self.pool, []))
            chosen = self.dice.sample(letters, min(len(letters), 7))
            body = frames([*chosen, *self.outcomes()])
            return httpx.Response(200, content=body, headers={"basecagg-boot": "x"})
        if path == "model":
            model = np.zeros(PARAMETERS.model_size, "<f4").tobytes()
            whole = self.dice.random() < 0.5
            return httpx.Response(
                200 if whole else 304,
                content=model if whole else b"",
                headers={"basecagg-version": str(self.dice.randrange(3))},
            )
        return httpx.Response(204)

    def some(self, word):
        return {"basecagg-holder-key": word} if self.dice.random() < 0.1 else {}

    def outcomes(self):
        """Receipts and verdicts for what she sent last."""
        for message in self.inbox[-20:]:
            if isinstance(message, Shipment):
                epochs = [m for m in self.epoch if getattr(m, "id", b"") == message.dealing.epoch]
                for epoch in epochs:
                    yield from self.town.receipts(epoch, *message.dealing.masks)
            if isinstance(message, Upload) and self.dice.random() < 0.3:
                outcome = self.dice.choice(("admitted", "opened", "burned", "refused"))
                yield Verdict(message.ticket.epoch, message.ticket.mask, outcome)

    def anything(self):
        if self.dice.random() < 0.1:
            raise self.dice.choice(FAULTS)("out of the blue")
        names = self.dice.sample(sorted(HEADERS), self.dice.randint(0, 3))
        headers = [(n.encode(), self.dice.choice(HEADERS[n]).encode("latin-1")) for n in names]
        content = self.dice.choice((self.said, self.letters, self.noise, self.torn, self.much))()
        return httpx.Response(
            self.dice.choice(STATUSES), headers=headers, stream=Body(content, self.dice.random())
        )

    def said(self):
        code = self.dice.choice(CODES)
        return self.dice.choice(
            (
                b'{"code": "%s", "reason": "%s"}'
                % (code.encode(), b"y" * self.dice.randrange(900)),
                b'{"code": %d, "reason": null}' % self.dice.randrange(9),
                b'{"code": "%s"}' % code.encode(),
                b"[" * 50_000,
                b"null",
            )
        )

    def letters(self):
        return frames(self.dice.choices(self.pool, k=3)) if self.pool else b""

    def noise(self):
        return self.dice.randbytes(self.dice.randrange(300))

    def torn(self):
        body = bytearray(self.letters() or pack(Verdict(MODEL, MaskName("w", bytes(16)), "burned")))
        body[self.dice.randrange(len(body))] ^= 1 << self.dice.randrange(8)
        return bytes(body[: self.dice.randint(0, len(body))])

    def much(self):
        return bytes(17 * 2**20) if self.dice.random() < 0.01 else b"x" * 10_000


class Body(httpx.AsyncByteStream):
    """A body that may end in an error half-way."""

    def __init__(self, content, chance):
        self.content, self.fails = content, chance < 0.1

    async def __aiter__(self):
        yield self.content[: len(self.content) // 2]
        if self.fails:
            raise httpx.ReadError("torn off")
        yield self.content[len(self.content) // 2 :]


class Nudge:
    """Trains at once, and never the same."""

    def __init__(self):
        self.calls = 0

    async def __call__(self, model, info):
        self.calls += 1
        return model + np.float32(self.calls)

    def close(self):
        pass


_sleep = asyncio.sleep


def watch_pauses(server, monkeypatch):
    """Nobody waits here, but who pauses is seen to do so."""

    async def pause(seconds):
        if seconds == agents._TICK:  # the clock's, which goes on beside everything
            await _sleep(seconds)
        server.in_a_row = 0
        assert 0 <= seconds <= 60
        await _sleep(0)

    monkeypatch.setattr(agents.asyncio, "sleep", pause)
    monkeypatch.setattr(agents, "_WORRY", 0.05)


async def fuzz(folder, seed, replies, monkeypatch):
    """One agent after the other on the same files, until so many replies were given and all was said once."""
    server = Chaos(seed)
    watch_pauses(server, monkeypatch)
    while server.replies < replies or (server.replies < 10 * replies and not said_all(server)):
        goal = server.replies + server.dice.randint(100, 600)
        server.in_a_row = 0  # the last one may have ended in the middle of its row
        # It asks for two sums at once, or says "Revoked", or that it takes no message of any size.
        with suppress(ServerCaught, TooLarge, TurnedAway):
            async with agent_of(server, folder, Nudge(), breath=0.5) as agent:
                server.agent = agent
                while server.replies < goal and server.fault is None:
                    await _sleep(0.005)
                    if server.task.done():
                        await server.task
        server.agent = None
        if server.fault is not None:
            raise server.fault
    return server


def said_all(server):
    """Whether the replies led the agent into everything that it can say."""
    kinds = {type(message).__name__ for message in server.inbox}
    return kinds >= {"Receipt", "Endorsement", "Answer", "Shipment", "Upload", "Refusal"}


def run(folder, seed, replies, monkeypatch):
    try:
        server = asyncio.run(fuzz(folder, seed, replies, monkeypatch))
    except BaseException as error:
        error.add_note(f"with the seed {seed}")
        raise
    assert server.longest_row <= MOST_WITHOUT_PAUSE
    return said_all(server)


def test_a_thousand_replies(tmp_path, monkeypatch):
    """How far the agent gets also depends on how busy the machine is: on a bad day a few thousand."""
    folders = {seed: tmp_path / str(seed) for seed in range(1, 6)}
    for folder in folders.values():
        folder.mkdir()
    assert any(run(folder, seed, 1000, monkeypatch) for seed, folder in folders.items())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_replies_each(tmp_path, monkeypatch, seed):
    assert run(tmp_path, 100 + seed, 10_000, monkeypatch)


# --- controls -----------------------------------------------------------------------------------------


class Empty(Chaos):
    """Answers at once that there is nothing, instead of waiting for something."""

    def anything(self):
        return httpx.Response(200)

    def plausible(self, path):
        return super().plausible(path) if path == "epoch" else self.anything()


@pytest.mark.parametrize("breath", [0.5, 0.0], ids=["", "control"])
def test_an_empty_mailbox_is_no_reason_to_spin(tmp_path, monkeypatch, breath):
    async def story():
        server = Empty(1)
        watch_pauses(server, monkeypatch)
        async with agent_of(server, tmp_path, breath=breath):
            while server.replies < 300:
                await _sleep(0.005)
        return server.longest_row

    assert (asyncio.run(story()) <= MOST_WITHOUT_PAUSE) == bool(breath)


def test_an_agent_that_takes_a_server_at_its_word_is_found(tmp_path, monkeypatch):
    """The old reaction to 409: whoever looks for an epoch has forgotten the one it was in."""
    monkeypatch.setattr(LocalMember, "hear_of_epochs", erase)

    def twenty_lives():
        for seed in range(20):  # how far one comes depends on the machine, too
            asyncio.run(fuzz(tmp_path / str(seed), seed, 2000, monkeypatch))

    with pytest.raises(AssertionError, match=r"number fell|that was|is forgotten|two different"):
        twenty_lives()
