"""T holders who lie together, and know all answers, never open a wrong sum; who lied is named exactly.

U + T answers have to agree. A forged code word can agree with T liars and U − 1 honest holders, and no more:
that is one too few. The paper takes holders to be honest, and there the same liars write the sum.
"""

import random
from dataclasses import dataclass
from itertools import combinations, permutations

import msgspec
import numpy as np
import pytest
from parties import Submitted, deal, make_federation, one_hop, submit

from basecagg.errors import ParameterError
from basecagg.maths.mds_code import MaskCode
from basecagg.parameters import ProtocolParameters
from basecagg.planning.planner import plan
from basecagg.protocol.messages import Answer, signed
from basecagg.protocol.opening import Burned, Opened
from basecagg.protocol.recovery import Recovery
from reproduction.bench import AT_SERVER, Federation

MOVED = 1000
"""What liars want to add to the first number of the sum, in levels: too little to be noticed by its size."""
ONE = {"num_holders": 5, "recovery_threshold": 2, "max_colluders": 1, "max_dropouts": 1, "liars": 1}
TWO = {"num_holders": 8, "recovery_threshold": 3, "max_colluders": 2, "max_dropouts": 1, "liars": 2}
TRUSTING = {"correctness": "honest-holders", "liars": 0}


@dataclass
class Asked:
    """A federation whose holders have answered, and nothing has arrived yet."""

    federation: Federation
    submitted: list[Submitted]
    answers: list[Answer]

    @property
    def parameters(self) -> ProtocolParameters:
        return self.federation.agreement.parameters

    def recovery(self, retries=1) -> Recovery:
        """A server that has asked, and heard nothing."""
        store = self.federation.network.nodes[AT_SERVER].store
        identity = self.federation.identity("server")
        return Recovery(self.federation.agreement, identity, store, retries)

    def moved(self, opened: Opened) -> np.ndarray:
        """How far the sum is from Σ s̄·Q(Δ), in levels."""
        by_mask = sorted(self.submitted, key=lambda each: each.ticket.mask)
        pairs = zip(opened.weights, by_mask, strict=True)
        wanted = sum(int(weight) * each.quantized for weight, each in pairs)
        got = opened.weighted_sum * self.parameters.update_levels
        return got - wanted[: self.parameters.model_size]

    def right(self, opened: Opened) -> bool:
        return not self.moved(opened).any()

    def lies(self, liars, friends, together) -> dict[int, Answer]:
        """All answers, with those of the liars changed."""
        q, points = self.parameters.modulus, self.federation.agreement.code.points
        changed = dict(enumerate(self.answers))
        for liar in liars:
            words = np.frombuffer(self.answers[liar].words, "<u4").astype(object)
            if together:
                words[0] += offset(points, friends, liar, q)
            else:
                words += liar + 1
            changed[liar] = self.signed(liar, (words % q).astype("<u4").tobytes())
        return changed

    def signed(self, liar, words) -> Answer:
        name = self.federation.agreement.holder_names[liar]
        answer = msgspec.structs.replace(self.answers[liar], words=words)
        return signed(answer, self.federation.identity(name))


def offset(points, friends, liar, q) -> int:
    """P(β) of the P that is 0 at the points of honest holders and −MOVED at 0, where the mask is.

    The sum of the masks becomes smaller by MOVED, so the sum of the updates larger. With U − T = 1 its degree
    may be U − 1: U − 1 honest holders agree with it.
    """
    at, value, start = int(points[liar]), 1, 1
    for friend in friends:
        value = value * (at - int(points[friend])) % q
        start = start * -int(points[friend]) % q
    return -MOVED * value * pow(start, -1, q) % q


def ask(**changes) -> Asked:
    federation = make_federation(cryptography=False, **{"buffer_size": 4} | changes)
    contributors = [f"user-{index}" for index in range(federation.agreement.parameters.buffer_size)]
    deal(federation, *contributors)
    submitted = [submit(federation, name) for name in contributors]
    letters = one_hop(federation)
    while not any(isinstance(letter.message, Answer) for letter in letters):
        assert letters
        letters = one_hop(federation)
    answers = [letter.message for letter in letters if isinstance(letter.message, Answer)]
    return Asked(federation, submitted, sorted(answers, key=lambda answer: answer.holder))


@pytest.fixture(scope="module", params=[ONE, TWO], ids=["T=1", "T=2"])
def asked(request):
    return ask(**request.param)


def hear(asked, order, lies, deadlines, retries=1):
    """The answers in this order, and deadlines after so many of them; what became of it, and after how many."""
    recovery = asked.recovery(retries)
    for count in range(len(order) + 1):
        for _ in range(deadlines.count(count)):
            _, outcome = recovery.deadline()
            if outcome is not None:
                return outcome, count
        if count == len(order):
            return None, count
        answer = lies[order[count]]
        name = asked.federation.agreement.holder_names[answer.holder]
        _, outcome = recovery.receive(name, answer, 0)
        if outcome is not None:
            return outcome, count + 1
    raise AssertionError


def check(asked, liars, order, deadlines, together):
    """The right sum as soon as U + T honest answers are there, with the liars among them named.

    It is burned if answers disagree and the last deadline passes; until they do, deadlines change nothing.
    """
    p = asked.parameters
    honest = [holder for holder in order if holder not in liars]
    lies = asked.lies(liars, honest[: p.recovery_threshold - 1], together)
    outcome, count = hear(asked, order, lies, deadlines)
    case = (liars, order, deadlines, together)
    enough = len(honest) >= p.answers_needed
    opens_at = order.index(honest[p.answers_needed - 1]) + 1 if enough else len(order) + 1
    last = sorted(deadlines)[1]
    if opens_at <= last or (enough and last < p.answers_needed):
        assert isinstance(outcome, Opened), case
        assert asked.right(outcome), case
        assert outcome.inconsistent_holders == tuple(sorted(set(order[:opens_at]) & set(liars)))
        assert count == opens_at, case
    elif last >= p.answers_needed:
        assert isinstance(outcome, Burned), case
        assert count == last, case
    else:
        assert outcome is None, case


def coalitions(p):
    """Every set of at most T holders."""
    holders = range(p.num_holders)
    return [liars for count in range(p.max_colluders + 1) for liars in combinations(holders, count)]


def rotations(n):
    return [[(start + index) % n for index in range(n)] for start in range(n)]


TOGETHER = pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])


@TOGETHER
def test_all_coalitions_in_every_place(asked, together):
    """Who lies first, last or between; all answers come, and the deadlines are after all of them."""
    n = asked.parameters.num_holders
    for liars in coalitions(asked.parameters):
        for order in rotations(n):
            check(asked, liars, order, (n, n), together)


@TOGETHER
def test_all_coalitions_at_every_deadline(asked, together):
    """The second deadline gives up if answers disagree by then; liars answer first."""
    n = asked.parameters.num_holders
    for liars in coalitions(asked.parameters):
        order = [*liars, *(holder for holder in range(n) if holder not in liars)]
        for last in range(n + 1):
            check(asked, liars, order, (last // 2, last), together)


def test_with_d_holders_gone_e_liars_cannot_stop_it(asked):
    """N − D ≥ U + T + E, with equality here."""
    p = asked.parameters
    here = list(range(p.num_holders - p.max_dropouts))
    for liars in combinations(here, p.liars):
        check(asked, liars, here, (len(here), len(here)), together=True)


def test_a_sum_is_decoded_once_more_for_each_liar_at_most(asked, monkeypatch):
    correct, calls = MaskCode.correct, []

    def counted(*arguments):
        calls.append(arguments)
        return correct(*arguments)

    monkeypatch.setattr(MaskCode, "correct", counted)
    p = asked.parameters
    for liars in coalitions(p):
        calls.clear()
        order = sorted(range(p.num_holders), key=lambda holder: holder not in liars)
        check(asked, liars, order, (len(order), len(order)), together=True)
        assert len(calls) <= 1 + len(liars)


@pytest.mark.soak
@TOGETHER
def test_every_order_every_coalition_and_every_two_deadlines(together):
    asked = ask(**ONE)
    for liars in coalitions(asked.parameters):
        for order in permutations(range(5)):
            for deadlines in combinations(range(6), 2):
                check(asked, liars, list(order), deadlines, together)


@pytest.mark.soak
@TOGETHER
@pytest.mark.parametrize("consistency", ["certified", "honest-server"])
def test_many_orders_and_deadlines_with_larger_coalitions(together, consistency):
    three = {"num_holders": 12, "recovery_threshold": 4, "max_colluders": 3, "max_dropouts": 2}
    asked = ask(**three, liars=3, buffer_size=5, consistency=consistency, correctness="agreed")
    generator = random.Random(7)
    for _ in range(4000):
        order = generator.sample(range(12), generator.randint(6, 12))
        liars = tuple(generator.sample(range(12), generator.randint(0, 3)))
        deadlines = tuple(sorted(generator.choices(range(len(order) + 1), k=2)))
        check(asked, liars, order, deadlines, together)


# --- the same where holders are taken to be honest ------------------------------------------------


@pytest.mark.parametrize("numbers", [ONE, TWO], ids=["T=1", "T=2"])
def test_control_liars_write_the_sum_when_holders_are_taken_to_be_honest(numbers):
    """The answers of T liars and the first honest one are U, and they say what the server wants."""
    asked = ask(**numbers | TRUSTING)
    p = asked.parameters
    order = list(range(p.num_holders))
    liars, friends = order[: p.max_colluders], order[p.max_colluders :][: p.recovery_threshold - 1]
    outcome, count = hear(asked, order, asked.lies(liars, friends, True), (len(order),))
    assert isinstance(outcome, Opened)
    assert count == p.recovery_threshold
    assert outcome.inconsistent_holders == ()
    assert asked.moved(outcome)[0] == MOVED
    assert not asked.moved(outcome)[1:].any()


def test_control_with_one_answer_less_they_write_it_too(asked, monkeypatch):
    """U + T is the least: with U + T − 1, T liars and U − 1 honest holders agree on a wrong sum."""
    p = asked.parameters
    monkeypatch.setattr(
        ProtocolParameters,
        "answers_needed",
        property(lambda p: p.recovery_threshold + p.max_colluders - 1),
    )
    order = list(range(p.num_holders))
    liars, friends = order[: p.max_colluders], order[p.max_colluders :][: p.recovery_threshold - 1]
    outcome, _ = hear(asked, order, asked.lies(liars, friends, True), (len(order),))
    assert isinstance(outcome, Opened)
    assert not asked.right(outcome)


# --- what is planned ------------------------------------------------------------------------------

WISHES = {
    "num_holders": 12,
    "max_dropouts": 1,
    "model_size": 50,
    "max_colluders": 3,
    "buffer_size": 5,
}


@pytest.mark.parametrize("liars", range(4))
def test_a_plan_for_liars_corrects_them(liars):
    """D holders are gone, E lie in one column and leave the pad alone: the sum opens, they are named."""
    p = plan(**WISHES, liars=liars).parameters
    assert p.recovery_threshold == 12 - 1 - 3 - liars
    asked = ask(**{name: getattr(p, name) for name in p.__dataclass_fields__})
    lying = tuple(range(liars))
    lies = asked.lies(lying, (), together=True)
    order = list(range(11))
    outcome, _ = hear(asked, order, lies, (11,))
    assert isinstance(outcome, Opened)
    assert asked.right(outcome)
    assert outcome.inconsistent_holders == lying


def test_a_plan_for_more_liars_than_colluders_is_refused():
    with pytest.raises(ParameterError, match=r"E = 4 is outside 0…T = 3.*possible: E = 3"):
        plan(**WISHES, liars=4)
