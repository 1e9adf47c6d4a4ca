"""Recorder and audit on whole federations: honest ones teach sums only, broken ones are found out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from basecagg.auditing.leakage import Report, audit
from basecagg.auditing.recorder import Recorder
from basecagg.auditing.transcript import (
    AnyLine,
    OutcomeLine,
    PlainLine,
    RequestLine,
    Scribe,
    Transcript,
)
from basecagg.cli import main
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Effect, Persist, Released, Send
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import (
    Answer,
    Link,
    MaskName,
    Message,
    PlainUpdate,
    RecoveryRequest,
    ShortRequest,
    signed,
)
from basecagg.protocol.stored import OwnMask, load
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import AT_SERVER, Address, Federation, Letter, Loopback

N, U, T, D, K = 7, 5, 2, 2, 4
PIECES = U - T
USERS = [f"user-{index}" for index in range(N)]
MODES = ["certified", "honest-server"]
_seeds = itertools.count()


class CheatingServer(Loopback):
    """A network on which the server's letters may be replaced before anybody sees them."""

    forge: Callable[[Letter], Letter] = staticmethod(lambda letter: letter)

    def post(self, letter: Letter) -> None:
        super().post(self.forge(letter))


@dataclass
class Recorded:
    """A federation with its recorder."""

    consistency: str = "certified"
    colluders: Sequence[int] = ()
    weights: str = "field"
    masks: str = "long"
    model_size: int = 20
    lines: list[AnyLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        parameters = ProtocolParameters(
            num_holders=N,
            recovery_threshold=U,
            max_colluders=T,
            max_dropouts=D,
            buffer_size=K,
            model_size=self.model_size,
            weights=self.weights,
            masks=self.masks,
            staleness=polynomial(1.0),
            consistency=self.consistency,
            correctness="honest-holders",
            min_per_version=1,
            repeated_versions=True,
        )
        self.network = CheatingServer()
        self.federation = Federation(
            parameters, np.zeros(self.model_size), network=self.network, retries=0
        )
        recorder = Recorder(self.federation.agreement, self.lines.append, self.colluders)
        self.network.observers.append(lambda letter: recorder.see(letter.sender, letter.message))
        self.requests: list[RecoveryRequest] = []
        self.network.observers.append(self._keep_request)
        self.models = {0: self.federation.server.head}

    def _keep_request(self, letter: Letter) -> None:
        message = letter.message
        if isinstance(message, ShortRequest):
            message = self.federation.server.opening._request
        if isinstance(message, RecoveryRequest):
            self.requests.append(message)

    def deal(self, names: Iterable[str]) -> None:
        if self.federation.agreement.parameters.one_visit:
            return  # each mask is dealt with its update
        for name in names:
            self.federation.deal(name)
        self.network.run()

    def submit(self, names: Iterable[str], base: int | None = None) -> None:
        """Each of them uploads an update that was trained from a version; a full buffer is opened."""
        server = self.federation.server
        for name in names:
            version = server.version if base is None else base
            update = np.random.default_rng(next(_seeds)).normal(size=self.model_size)
            self.federation.submit(name, update, version, self.models[version])
            self.network.run()
            self.models[server.version] = server.head

    def contribute(self, names: Sequence[str], base: int | None = None) -> None:
        self.deal(names)
        self.submit(names, base)

    def mixed_buffer(self) -> None:
        """A round, then a buffer in which one update is older than the others and weighs less."""
        self.contribute(USERS[:K])
        self.contribute(USERS[:1], base=0)
        self.contribute(USERS[1:K], base=1)

    def stop(self, names: Iterable[str]) -> None:
        for name in names:
            self.federation.stop(Address("holder", name))

    def audit(self) -> Report:
        return audit(Transcript(self.lines))


# --- honest runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", MODES)
@pytest.mark.parametrize("colluders", [(), (0, 1), (5, 6)])
def test_an_honest_run_teaches_its_sums_and_nothing_else(consistency: str, colluders) -> None:
    run = Recorded(consistency, colluders)
    run.mixed_buffer()
    run.contribute(USERS[3:7], base=1)
    report = run.audit()
    assert report.only_sums
    assert [found.version for found in report.sums] == [0, 1, 2]
    assert all(found.legitimate and found.outcome == "opened" for found in report.sums)
    assert [found.learned for found in report.sums] == [PIECES] * 3
    assert [group.causes for group in report.groups] == [()] * 3
    assert report.colluders == colluders


@pytest.mark.parametrize("consistency", MODES)
def test_weights_are_those_of_the_machines(consistency: str) -> None:
    run = Recorded(consistency)
    run.mixed_buffer()
    recorded = [
        {m.mask: m.weight for m in line.members}
        for line in run.lines
        if isinstance(line, RequestLine)
    ]
    released = [news for news in run.federation.take_news() if isinstance(news, Released)]
    assert recorded == [
        {name.key: weight for name, weight in zip(news.members, news.weights, strict=True)}
        for news in released
    ]
    assert len(set(recorded[1].values())) == 2


def test_own_weights_are_none_in_the_field() -> None:
    run = Recorded(weights="own")
    run.mixed_buffer()
    requests = [line for line in run.lines if isinstance(line, RequestLine)]
    assert {member.weight for line in requests for member in line.members} == {1}
    released = [news for news in run.federation.take_news() if isinstance(news, Released)]
    assert set(released[-1].weights) == {0.5, 1.0}
    assert run.audit().only_sums


@pytest.mark.parametrize("consistency", MODES)
@pytest.mark.parametrize("colluders", [(), (0, 1)])
def test_dropouts_change_nothing(consistency: str, colluders) -> None:
    run = Recorded(consistency, colluders)
    run.deal(USERS[:K])
    run.submit(USERS[: K - 1])
    run.stop(USERS[:D])
    run.submit(USERS[K - 1 : K])
    (found,) = run.audit().sums
    assert run.audit().only_sums
    assert (found.answers, found.learned, found.outcome) == (N - D, PIECES, "opened")


@pytest.mark.parametrize("colluders", [(), (5, 6)])
def test_a_sum_that_never_opens_teaches_a_part_of_it_at_most(colluders) -> None:
    run = Recorded("honest-server", colluders)
    run.deal(USERS[:K])
    run.submit(USERS[: K - 1])
    run.stop(USERS[U - 1 :])
    run.submit(USERS[K - 1 : K])
    run.network.perform(AT_SERVER, run.federation.server.deadline())
    run.network.run()
    (found,) = run.audit().sums
    assert run.audit().only_sums
    assert (found.answers, found.outcome) == (U - 1, "unknown")
    assert found.learned == (PIECES if colluders else U - 1 - T)


def test_the_transcript_holds_no_payload() -> None:
    sizes = []
    for model_size in (300, 3000):  # as numbers of one length in the signed epoch
        run = Recorded(model_size=model_size)
        run.mixed_buffer()
        written: list[str] = []
        scribe = Scribe(written.append)
        for line in run.lines:
            scribe.add(line)
        sizes.append(sum(map(len, written)))
    assert sizes[0] == sizes[1]


def test_each_request_and_ending_is_written_once() -> None:
    run = Recorded()
    run.mixed_buffer()
    assert sum(isinstance(line, RequestLine) for line in run.lines) == 2
    assert sum(isinstance(line, OutcomeLine) for line in run.lines) == 2


@pytest.mark.parametrize("weights", ["own", "field"])
def test_who_has_no_say_leaves_no_trace(weights: str) -> None:
    """Others refuse a forged sender, another epoch and an impossible request, so they teach nothing."""
    run, letters = Recorded(weights=weights), list[Letter]()
    run.network.observers.append(letters.append)
    run.contribute(USERS[:K])
    here, elsewhere = list[AnyLine](), list[AnyLine]()
    recorder = Recorder(run.federation.agreement, here.append, [0])
    stranger = Recorder(Recorded().federation.agreement, elsewhere.append, [0])
    for letter in letters:
        recorder.see("mallory", letter.message)
        stranger.see(letter.sender, letter.message)
    request = next(each.message for each in letters if isinstance(each.message, ShortRequest))
    unborn = tuple(replace(ticket, base_version=9) for ticket in request.tickets)
    recorder.see(SERVER, replace(request, tickets=unborn))
    assert len(here) == len(elsewhere) == 1  # the epoch


def test_an_update_in_clear_is_written_down() -> None:
    run = Recorded()
    lines = list[AnyLine]()
    recorder = Recorder(run.federation.agreement, lines.append)
    update = PlainUpdate.unsigned(MaskName("user-1", bytes(16)), 0, bytes(32), bytes(80))
    recorder.see("user-1", update)
    recorder.see("mallory", update)  # of whom nobody would take it
    assert lines[1:] == [PlainLine(update.ticket.mask.key, "user-1", 0)]


# --- broken ones ------------------------------------------------------------------------------


class Careless(Holder):
    """Keeps all its shares for ever and answers whatever it is asked."""

    def receive(self, message: Message) -> list[Effect]:
        if isinstance(message, ShortRequest):
            message = self.completed(message) or message
        if isinstance(message, RecoveryRequest):
            self._last.note(message)
            return [Send(SERVER, self._careless_answer(message))]
        effects = super().receive(message)
        kept = self.__dict__.setdefault("kept", {})
        kept |= {e.key: e.value for e in effects if isinstance(e, Persist) and e.kind == "share"}
        return effects

    def _careless_answer(self, request: RecoveryRequest) -> Answer:
        weights = self._weighing.in_field(request)
        rows = [np.frombuffer(self.kept[mask.key], "<u4") for mask in request.masks]
        words = self._field.weighted_sum(rows, weights).astype("<u4").tobytes()
        answer = Answer(self.agreement.id, request.version, request.digest, self.index, words)
        return signed(answer, self._signer)


def with_careless(names: Iterable[str], **options) -> Recorded:
    run = Recorded(**options)
    for name in names:
        run.federation.holder(name).__class__ = Careless
    return run


def ask_again_later(run: Recorded, names: Iterable[str]) -> None:
    """The server asks for its last sum a second time, at the next version: the weights are others."""
    request = run.requests[-1]
    later = signed(replace(request, version=request.version + 1), run.federation.identity(SERVER))
    for name in names:
        run.network.post(Letter(SERVER, Address("holder", name), later))
    run.network.run()


def test_one_careless_holder_and_t_colluders_leak_one_dimension() -> None:
    run = with_careless(["user-2"], colluders=(5, 6))
    run.mixed_buffer()
    assert run.audit().only_sums
    ask_again_later(run, USERS)
    report = run.audit()
    leaking = report.groups[-1]
    assert [group.leaked for group in report.groups] == [0, 1]
    assert [(found.version, found.answers) for found in leaking.sums][1] == (2, 1)
    assert "both by 1 holder (2)" in leaking.causes[0]


def test_careless_holders_determine_the_update_that_differs() -> None:
    """Σ and Σ′ weigh one update differently from the rest: it is their difference."""
    run = with_careless(USERS[:U], consistency="honest-server")
    run.mixed_buffer()
    ask_again_later(run, USERS)
    report = run.audit()
    assert [group.leaked for group in report.groups] == [0, PIECES]
    (exposure,) = report.groups[-1].exposed
    assert (exposure.contributor, exposure.learned) == ("user-0", PIECES)


@pytest.mark.parametrize("consistency", MODES)
def test_only_a_certificate_stops_a_server_that_asks_for_two_sums(consistency: str) -> None:
    """Every holder obeys its rules and answers once; one of them was asked for another sum."""

    def equivocate(letter: Letter) -> Letter:
        message = letter.message
        if not isinstance(message, ShortRequest) or message.version != 1:
            return letter
        message = run.requests[-1]
        later = message.history.after(Link(2, bytes(32), bytes(32), bytes(32)), 10)
        asked = replace(message, version=2, history=later)
        other = signed(asked, run.federation.identity(SERVER))
        return Letter(letter.sender, letter.to, other) if letter.to.name == "user-4" else letter

    run = Recorded(consistency, colluders=(5, 6))
    run.network.forge = equivocate
    run.mixed_buffer()
    report = run.audit()
    assert report.only_sums == (consistency == "certified")
    assert report.groups[-1].leaked == (0 if consistency == "certified" else 1)


def one_holder_too_many(masks: str) -> Report:
    """T + 1 holders show the server their shares, so each mask, or key, is known in one of its pieces."""
    run = Recorded(colluders=range(T + 1), weights="own", masks=masks)
    run.contribute(USERS[:K])
    return run.audit()


def test_one_piece_of_a_key_counts_as_the_whole_update() -> None:
    long, keys = one_holder_too_many("long"), one_holder_too_many("keys")
    assert {each.learned for each in long.exposed} == {1}
    assert {each.learned for each in keys.exposed} == {PIECES}
    assert len(long.exposed) == len(keys.exposed) == K
    assert Recorded(weights="own", masks="keys").audit().only_sums


def test_a_mask_used_twice_is_found() -> None:
    """A contributor restarts from a copy that nobody noticed, and hides a second update."""
    run, address = Recorded(), Address("contributor", "user-1")
    run.deal(USERS[:K])
    copy = MemoryStore(run.network.nodes[address].store.snapshot())
    masks = load(copy, "mask", OwnMask)
    run.submit(["user-1"])
    run.federation.start(address, copy)
    run.federation.contributor("user-1")._masks = masks  # as one that gives none up at its start
    run.submit(["user-1"])
    (group,) = run.audit().groups
    assert group.leaked == PIECES
    assert group.causes[0].startswith("mask user-1/")
    assert "hides 2 updates" in group.causes[0]


def test_more_than_t_colluders_are_found() -> None:
    run = Recorded(colluders=range(T + 1))
    run.contribute(USERS[:K])
    (group,) = run.audit().groups
    assert [exposure.learned for exposure in group.exposed] == [1] * K
    assert "3 holders (0, 1, 2) collude" in group.causes[0]


def test_a_point_that_is_zero_is_found() -> None:
    """No epoch with such a point is accepted, so it is put into the transcript."""
    run = Recorded(colluders=(0,))
    run.contribute(USERS[:K])
    assert run.audit().only_sums
    run.lines[0] = replace(
        run.lines[0],
        points=(0, *run.lines[0].points[1:]),
        signed=b"",  # no operator signs such an epoch
    )
    (group,) = run.audit().groups
    assert [exposure.learned for exposure in group.exposed] == [1] * K


def test_buffers_shifted_by_one_reveal_a_difference_over_two_rounds() -> None:
    run = Recorded()
    run.contribute(USERS[:K])
    run.contribute(USERS[1 : K + 1])
    report = run.audit()
    assert report.only_sums
    assert report.rounds.rank == 2
    assert report.rounds.smallest == ("user-0", "user-4")


def test_the_page_shows_what_the_command_prints() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    names: dict[str, Any] = {}
    exec("".join(body for kind, body in blocks if kind == "python"), names)
    (shown,) = [body for kind, body in blocks if kind == "console"]
    arguments = ["audit", str(names["transcript"])]
    printed = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"}).output
    lines = [line.rstrip() for line in printed.splitlines()]
    assert shown.splitlines()[1:] == lines[: shown.count("\n") - 1]
