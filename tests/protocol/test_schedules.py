"""Whatever order the world chooses: messages late, lost, doubled, machines killed, holders gone.

The state machine plays a federation in steps that hypothesis picks; the judge of the harness looks on after
each. In the end everyone is brought back, and whatever is still open must come to its end.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from harness import Memory, World, once, small
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from basecagg.errors import LocalProtocolError
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Persist
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import (
    CertifiedRequest,
    Link,
    RecoveryRequest,
    certificate_of,
)
from basecagg.protocol.server import Server
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import AT_SERVER, Address, Letter

CONTRIBUTORS = [f"user-{index}" for index in range(5)]
FRESH = [f"fresh-{index}" for index in range(3)]
names = st.sampled_from(CONTRIBUTORS)
anywhere = st.integers(0, 2**16)
"""Taken modulo the length of whatever is to be chosen from, so that it shrinks well."""


class Schedules(RuleBasedStateMachine):
    """An honest federation in a hostile world."""

    @initialize(
        mode=st.sampled_from(["certified", "honest-server"]),
        form=st.sampled_from(["field weights", "own weights", "one visit"]),
        version=st.integers(0, 2),
    )
    def begin(self, mode, form, version):
        """A few sums may have been opened in peace, and everyone has a mask or two at hand."""
        stores = self.open_stores()
        parameters = {
            "field weights": small(mode),
            "own weights": small(mode, "own", min_per_version=3),
            "one visit": once(mode),
        }[form]
        self.world = World(parameters, stores=stores, keeps_masks=self.keeps_masks)
        self.network, self.judge = self.world.network, self.world.judge
        self.judge.inspect(self.network)
        self.world.train(CONTRIBUTORS, version)
        for name in CONTRIBUTORS if not parameters.one_visit else ():
            self.world.deal(name)
        self.network.run()

    keeps_masks = False

    def open_stores(self):
        return Memory()

    @property
    def server(self):
        node = self.network.nodes.get(AT_SERVER)
        return node.machine if node else None

    def contributor(self, name):
        """None while it is offline; one that was never there comes when it is first needed."""
        address = Address("contributor", name)
        if address not in self.network.nodes and address not in self.missing():
            self.world.restart(address)
        node = self.network.nodes.get(address)
        return node.machine if node else None

    # --- what people do ---------------------------------------------------------------------------

    @precondition(lambda self: self.server)
    @rule(name=names, count=st.integers(1, 3))
    def deal(self, name, count):
        if self.contributor(name):
            with suppress(LocalProtocolError):  # too many are dealt ahead
                self.world.deal(name, count)

    @precondition(lambda self: self.server)
    @rule(who=st.lists(names, min_size=1, unique=True), lag=st.integers(0, 3))
    def submit(self, who, lag):
        """These contributors finish training, all from this old a model."""
        for name in who:
            contributor = self.contributor(name)
            if contributor and contributor.is_ready and self.server:
                base = max(0, self.server.version - lag)
                if contributor.may_train_from(base):
                    self.world.submit(name, base)

    @rule()
    def work(self):
        """Whoever is there does what comes next: submit, or deal a mask for the next time."""
        for lag, name in enumerate(CONTRIBUTORS):
            if self.contributor(name) and self.server:
                self.world.take_part(name, lag)

    @precondition(lambda self: self.server)
    @rule(name=names)
    def expire(self, name):
        contributor = self.contributor(name)
        if contributor:
            effects = contributor.expire(self.server.version)
            self.world.perform(Address("contributor", name), effects)

    @precondition(lambda self: self.server)
    @rule()
    def deadline(self):
        self.world.deadline()

    @precondition(lambda self: self.server)
    @rule(seconds=st.sampled_from([0.5, 2, 25]))
    def tick(self, seconds):
        """After more than twenty seconds what is parked is returned."""
        self.world.tick(seconds)

    # --- what the network does --------------------------------------------------------------------

    def choose(self, where):
        """One letter on its way, moved to the front."""
        self.network.in_flight.rotate(-(where % len(self.network.in_flight)))
        return self.network.in_flight[0]

    @rule()
    def deliver_all(self):
        self.network.run()

    @rule(dice=st.integers(0, 2**32), lost=st.sampled_from([0, 0.05, 0.3]), doubled=st.booleans())
    def storm(self, dice, lost, doubled):
        """Many letters arrive one by one in any order; some never do, some twice."""
        chance = random.Random(dice)
        for _ in range(100):
            if not self.network.in_flight:
                return
            letter = self.choose(chance.randrange(2**16))
            if not (doubled and chance.random() < 0.1):
                self.network.in_flight.popleft()
            if chance.random() >= lost:
                self.network.deliver(letter.to, [letter])

    @precondition(lambda self: self.network.in_flight)
    @rule(where=anywhere)
    def deliver(self, where):
        letter = self.choose(where)
        self.network.in_flight.popleft()
        self.network.deliver(letter.to, [letter])

    @precondition(lambda self: self.network.in_flight)
    @rule(where=anywhere)
    def lose(self, where):
        self.choose(where)
        self.network.in_flight.popleft()

    @precondition(lambda self: self.judge.letters)
    @rule(where=anywhere)
    def repeat(self, where):
        """A copy of any letter ever sent arrives once more."""
        letter = self.judge.letters[-1 - where % len(self.judge.letters)]
        self.network.in_flight.append(letter)

    # --- what machines suffer ---------------------------------------------------------------------

    @precondition(lambda self: self.network.nodes)
    @rule(where=anywhere)
    def restart(self, where):
        """What a machine knows is what it wrote down."""
        address = self.pick(where)
        before = memory_of(self.network.nodes[address].machine)
        self.world.restart(address)
        if address in self.network.nodes:
            self.remembers(address, before)

    def remembers(self, address, before):
        assert memory_of(self.network.nodes[address].machine) == before

    @precondition(lambda self: self.network.nodes)
    @rule(where=anywhere)
    def stop(self, where):
        self.world.stop(self.pick(where))

    @rule(after=st.integers(1, 12))
    def crash(self, after):
        """Somebody will die soon, between a write and a send."""
        self.network.crash_at = {len(self.network.boundaries) + after}

    @precondition(lambda self: self.missing())
    @rule(where=anywhere)
    def come_back(self, where):
        missing = self.missing()
        self.world.restart(missing[where % len(missing)])

    @precondition(lambda self: self.server)
    @rule()
    def reconnect(self):
        self.world.reconnect()

    def pick(self, where):
        addresses = sorted(self.network.nodes)
        return addresses[where % len(addresses)]

    def missing(self):
        everyone = set(self.world.stores.stores)
        return sorted(everyone - set(self.network.nodes))

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def nothing_is_broken(self):
        self.judge.inspect(self.network)

    def teardown(self):
        if hasattr(self, "world"):
            self.calm_down()
            self.judge.inspect(self.network)
            self.everyone_knows()
            self.training_goes_on()

    def calm_down(self):
        """All are back and every letter arrives: what was begun comes to its end, without a deadline."""
        self.network.crash_at = set()
        for address in self.missing():
            self.world.restart(address)
        for _ in range(3):
            self.network.run()
            self.world.reconnect()
        self.network.run()
        assert not self.server.is_opening

    def everyone_knows(self):
        """Contributors know the truth about every update they sent."""
        present = self.judge.admitted - self.judge.opened - self.judge.burned
        unsure = {
            mask.key
            for mask in self.judge.updates
            if (node := self.network.nodes.get(Address("contributor", mask.contributor)))
            and node.machine.states().get(mask.key) == "uploaded"
        }
        assert unsure == {mask.key for mask in present}
        for mask, state in self.judge.ended.items():
            # As with verdicts: of an expired name the server knows nothing, and refuses an update as too old.
            late = {"refused"} if mask.expires < len(self.judge.released) else set()
            if mask in self.judge.opened:
                assert state in {"opened", "expired"} | late
            elif mask in self.judge.burned:
                assert state in {"burned", "expired"} | late

    def training_goes_on(self):
        self.world.train(FRESH, self.server.version + 1)


def memory_of(machine):
    """What a machine acts upon, as far as it must survive."""
    if isinstance(machine, Server):
        waiting = [update.name for update in machine.buffer.waiting]
        parked = [update.name for update in machine.buffer.parked]
        asked = machine.opening.outstanding()
        return machine.version, waiting, parked, asked, machine.model.tobytes()
    if isinstance(machine, Holder):
        return machine.version, machine.states()
    assert isinstance(machine, Contributor)
    # What was not used is given up by every start.
    unused = ("dealt", "ready")
    return {k: "withdrawn" if state in unused else state for k, state in machine.states().items()}


class Equivocations(Schedules):
    """The server is honest no more: it also sends requests of its own making, and one holder helps it."""

    corrupt = 0
    looked_ahead = equivocated = False

    @precondition(lambda self: self.server)
    @rule(dice=anywhere, ahead=st.sampled_from([0, 0, 0, -1, 1]))
    def equivocate(self, dice, ahead):
        """Ask each half of the holders for a sum of its own."""
        chance = random.Random(dice)
        holders = list(self.world.federation.agreement.holder_names)
        chance.shuffle(holders)
        version = max(0, self.server.version + ahead)
        self.looked_ahead |= version > self.server.version
        for half in (holders[::2], holders[1::2]):
            request = self.invent(chance, version)
            if request:
                self.equivocated = True
                self.send(half, request)

    def invent(self, chance, version):
        """A request for any K updates."""
        tickets, size = self.tickets(), self.world.parameters.buffer_size
        if len(tickets) < size:
            return None
        chosen = [chance.choice(tickets[name]) for name in chance.sample(sorted(tickets), size)]
        previous = next((c for c in self.certificates() if c.version == version - 1), None)
        return RecoveryRequest(
            self.world.federation.agreement.id,
            version,
            chance.choice([0, 0, 1, 2]),
            self.tell(chance, version, previous),
            tuple(sorted(chosen, key=lambda ticket: ticket.mask)),
            previous,
        )

    def tell(self, chance, version, previous):
        """The true history, or one that goes on as it should from a certificate, or just another one."""
        true = self.server.history
        if version == true.last and chance.random() < 0.7:
            return true
        known = [r.history for r in self.judge.requests.values() if r.version == version - 1]
        digest = previous.digest if previous else bytes(32)
        link = Link(version, bytes([chance.randrange(3)]) * 32, bytes(32), digest)
        return chance.choice([*known, true]).after(link, self.world.parameters.max_staleness)

    @rule(dice=anywhere)
    def certify(self, dice):
        """Show some holders a certificate, for whichever request enough holders have endorsed."""
        chance, certificates = random.Random(dice), list(self.certificates())
        if certificates:
            certificate = chance.choice(certificates)
            request = self.judge.requests[certificate.digest]
            holders = self.world.federation.agreement.holder_names
            some = chance.sample(holders, chance.randint(1, len(holders)))
            self.send(some, CertifiedRequest(request, certificate))

    def tickets(self):
        """The tickets of updates that are not opened or burned yet, by contributor."""
        tickets = {}
        for mask, ticket in self.judge.tickets.items():
            if mask not in self.judge.opened | self.judge.burned:
                tickets.setdefault(mask.contributor, []).append(ticket)
        return tickets

    def certificates(self):
        """All that can be made from real endorsements and those of the corrupt holder, who signs anything."""
        for digest, holders in self.judge.endorsements.items():
            signers = sorted(holders | {self.corrupt})
            if len(signers) >= self.world.parameters.quorum:
                request = self.judge.requests[digest]
                signatures = tuple((holder, b"") for holder in signers)
                yield certificate_of(request, signatures)

    def send(self, holders, message):
        for name in holders:
            self.network.post(Letter("server", Address("holder", name), message))

    def calm_down(self):
        """Holders that were led astray refuse the sum that the server wants: it waits, and that is all."""
        with suppress(AssertionError):
            super().calm_down()

    def training_goes_on(self):
        # Else holders wait for a version that this server has not reached, or gave its slots away.
        if not self.looked_ahead and not self.equivocated:
            super().training_goes_on()


def play(machine, schedules, **options):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=schedules,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            deadline=None,
            database=None,
            **options,
        ),
    )


def test_any_schedule():
    play(Schedules, 200)


def test_any_schedule_under_an_equivocating_server():
    play(Equivocations, 100)


@pytest.mark.soak
def test_ten_thousand_schedules():
    play(Schedules, 10_000)


@pytest.mark.soak
def test_ten_thousand_schedules_under_an_equivocating_server():
    play(Equivocations, 10_000)


# --- negative controls: the same machines find what is broken on purpose -------------------------


FIXED = {"derandomize": True, "phases": [Phase.generate], "report_multiple_bugs": False}
"""The same schedules in every run, and the first failure as it is."""


class LyingDisk(MemoryStore):
    """Says that it has written, and has not yet: a restart takes the last transaction away, if it matters."""

    def __init__(self, matters, records=None):
        super().__init__(records)
        self._matters = matters
        self.written = self.snapshot()

    def commit(self, writes):
        before = self.snapshot()
        super().commit(writes)
        self.written = before if any(map(self._matters, writes)) else self.snapshot()


def irreversible(write):
    return isinstance(write, Persist) and write.irreversible


def admission(write):
    return isinstance(write, Persist) and write.kind == "buffered"


def with_lying_disks(machine, role, matters):
    class Stores(Memory):
        def open(self, address):
            if address.role == role:
                known = self.stores.get(address)
                self.stores[address] = LyingDisk(matters, known.written if known else None)
            return super().open(address)

    class Broken(machine):
        open_stores = Stores
        keeps_masks = True

        @rule()
        def power_cut(self):
            """All letters arrive, and then everybody of the role begins again: such a disk is soon caught."""
            self.deliver_all()
            for address in self.world.online(role):
                self.world.restart(address)

    return left_to_the_judge(Broken)


def left_to_the_judge(machine):
    """Not what a machine forgets is the question here, nor how all ends, but what the judge sees meanwhile."""

    class Watched(machine):
        def remembers(self, address, before):
            pass

        @invariant()
        def nothing_is_broken(self):
            if AT_SERVER in self.network.nodes:
                self.judge.inspect_server(self.server)

        def teardown(self):
            pass

    return Watched


@pytest.mark.parametrize(
    ("machine", "role", "matters", "found"),
    [
        (Equivocations, "holder", irreversible, "two different (endorsements|answers)"),
        (Schedules, "contributor", irreversible, "two different uploads"),
        (Schedules, "server", admission, "an admitted update is lost"),
    ],
    ids=["holder", "contributor", "server"],
)
def test_the_judge_finds_a_disk_that_lies(machine, role, matters, found):
    with pytest.raises(AssertionError, match=found):
        play(with_lying_disks(machine, role, matters), 2_000, **FIXED)


def split_vote(dice):
    """Updates that the server keeps to itself, asking each half of the holders for another sum of them."""
    machine = Equivocations()
    machine.begin(mode="certified", form="field weights", version=0)
    machine.submit(CONTRIBUTORS, lag=0)
    machine.network.in_flight.clear()
    machine.equivocate(dice, ahead=0)
    machine.deliver_all()
    for again in range(5):
        machine.certify(10 * dice + again)
        machine.deliver_all()
    return machine.judge


def test_after_a_split_vote_a_mask_is_in_one_sum_at_most():
    splits = [split_vote(dice).endorsements for dice in range(60)]
    assert sum(len(endorsed) == 2 for endorsed in splits) >= 10


def test_the_judge_finds_a_quorum_that_is_too_small(monkeypatch):
    quorum = ProtocolParameters.quorum.fget
    monkeypatch.setattr(ProtocolParameters, "quorum", property(lambda self: quorum(self) - 1))
    with pytest.raises(AssertionError, match="two different sums"):
        [split_vote(dice) for dice in range(20)]
