"""Questions of a study: whom board and centres believe. Nobody answers two questions of one version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.errors import BadSignature, Malformed, NotEnrolled, WrongEpoch, WrongVersion
from basecagg.protocol.effects import writes_of
from basecagg.protocol.epoch import Agreement, Seat, draft_epoch, first_link
from basecagg.protocol.messages import encode, signed
from basecagg.protocol.questions import Board, Consent, Pledge, SignedQuestion, StudyTerms, read
from basecagg.statistics.study import parameters_for
from basecagg.storage.in_memory import MemoryStore

NAMES = ("ann", "ben", "cem", "dan", "eve")
ANALYST, STRANGER, OPERATOR, SERVER = (Identity.create() for _ in range(4))
KEYS = {name: Identity.create() for name in NAMES}
TERMS = StudyTerms("town", "what it says", "ana", ANALYST.public_key)
VERIFIER = Ed25519Verifier()


def agreed() -> Agreement:

    seats = [
        Seat(name, key.public_key, SealingSecret.create().public_key) for name, key in KEYS.items()
    ]
    p = parameters_for(len(NAMES), 7)
    epoch = draft_epoch(
        federation="town",
        holders=seats,
        enrolment_key=OPERATOR.public_key,
        operator=OPERATOR,
        number=1,
        ends=2**40,
        suite="x25519",
        server_key=SERVER.public_key,
        parameters=p,
        first=first_link(np.zeros(7, np.float32), 0),
        max_burns=0,
        contract=TERMS.contract,
    )
    return Agreement(epoch, VERIFIER)


AGREEMENT = agreed()


def question(
    number: int = 1, version: int = 0, recipe: str = "{}", **changes: Any
) -> SignedQuestion:
    asked = SignedQuestion(AGREEMENT.id, number, version, False, recipe)
    return signed(replace(asked, **changes), ANALYST)


class Desk:
    """A board with the store behind it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.board = self.again()

    def again(self) -> Board:
        return Board(AGREEMENT.id, TERMS, NAMES, VERIFIER, self.store)

    def ask(self, asked: SignedQuestion, version: int = 0, burns: int = 0) -> None:
        self.store.commit(writes_of(self.board.ask(asked, version, burns)))

    def consent(self, name: str, asked: SignedQuestion) -> None:
        effects = self.board.consent(name, asked.number, consent(name, asked))
        self.store.commit(writes_of(effects))

    def state(self, version: int = 0, burns: int = 0) -> str:
        posted = self.again().at(version)
        return "" if posted is None else self.again().state(posted, burns)


def consent(name: str, asked: SignedQuestion) -> Consent:
    return Pledge(AGREEMENT, name, KEYS[name], MemoryStore()).consent(asked)[0]


# --- the board ------------------------------------------------------------------------------------


def test_all_agree_before_anybody_answers_and_the_board_outlives_a_restart() -> None:
    desk, asked = Desk(), question()
    desk.ask(asked)
    for name in NAMES[:-1]:
        desk.consent(name, asked)
    assert desk.state() == "asked"
    posted = desk.again().at(0)
    assert posted is not None
    assert desk.again().missing(posted) == ["eve"]
    desk.consent("eve", asked)
    assert desk.state() == "agreed"
    assert desk.again().last == 1


def test_one_refusal_ends_a_question_and_another_may_be_asked() -> None:
    desk, asked = Desk(), question()
    desk.ask(asked)
    with pytest.raises(WrongVersion, match="not over"):
        desk.ask(question(2))
    desk.store.commit(writes_of(desk.board.refuse("ben", 1, "no")))
    assert desk.state() == "refused"
    desk.ask(question(2))
    assert desk.state() == "asked"


def test_a_refusal_comes_too_late_once_all_agreed() -> None:
    desk, asked = Desk(), question()
    desk.ask(asked)
    for name in NAMES:
        desk.consent(name, asked)
    assert desk.board.refuse("ben", 1, "no") == []
    assert desk.state() == "agreed"
    assert desk.state(burns=1) == "burned"


def test_the_same_question_again_changes_nothing() -> None:
    desk, asked = Desk(), question()
    desk.ask(asked)
    assert desk.board.ask(asked, 0, 0) == []


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (signed(question(), STRANGER), BadSignature),
        (replace(question(), recipe="[]"), BadSignature),
        (question(epoch=bytes(32)), WrongEpoch),
        (question(version=1), WrongVersion),
    ],
)
def test_a_board_takes_the_analysts_questions_only(asked: SignedQuestion, error: type) -> None:
    desk = Desk()
    with pytest.raises(error):
        desk.ask(asked)
    assert desk.state() == ""


def test_numbers_ascend_and_strangers_say_nothing() -> None:
    desk = Desk()
    desk.ask(question(5))
    desk.store.commit(writes_of(desk.board.refuse("ann", 5, "no")))
    with pytest.raises(Malformed, match="ascend"):
        desk.ask(question(5, recipe="[]"))
    with pytest.raises(NotEnrolled):
        desk.board.refuse("zoe", 5, "no")
    with pytest.raises(Malformed, match="no consent of ann"):
        desk.board.consent("ann", 5, consent("ben", question(5)))


def test_a_board_of_another_epoch_starts_empty() -> None:
    desk = Desk()
    desk.ask(question())
    other = Board(bytes(32), TERMS, NAMES, VERIFIER, desk.store)
    assert other.last == 0
    desk.store.commit(other.start())
    assert desk.again().last == 0


def test_terms_and_questions_have_one_encoding() -> None:
    assert read(encode(TERMS), StudyTerms) == TERMS
    for bad in (encode(TERMS) + b"\0", encode(TERMS)[:-1], b"", encode(question())):
        with pytest.raises(Malformed):
            read(bad, StudyTerms)
    assert replace(TERMS, text="another").contract != TERMS.contract
    assert replace(TERMS, analyst_key=bytes(32)).contract != TERMS.contract


# --- a centre -------------------------------------------------------------------------------------


class Centre:
    """One centre, with the store of its desk."""

    def __init__(self, name: str = "ann") -> None:
        self.name = name
        self.store = MemoryStore()

    @property
    def pledge(self) -> Pledge:
        """As after a restart."""
        return Pledge(AGREEMENT, self.name, KEYS[self.name], self.store)

    def consent(self, asked: SignedQuestion) -> Consent:
        word, writes = self.pledge.consent(asked)
        self.store.commit(writes)
        return word

    def answer(self, asked: SignedQuestion, *words: Consent) -> None:
        self.store.commit(self.pledge.answer(asked, words))


def others(asked: SignedQuestion) -> list[Consent]:
    return [consent(name, asked) for name in NAMES[1:]]


def test_a_centre_answers_when_all_have_signed() -> None:
    centre, asked = Centre(), question()
    own = centre.consent(asked)
    assert centre.consent(asked) == own
    with pytest.raises(NotEnrolled, match="eve"):
        centre.answer(asked, own, *others(asked)[:-1])
    centre.answer(asked, own, *others(asked))
    centre.answer(asked, own, *others(asked))  # again, after a restart
    assert centre.pledge.answer(asked, [own, *others(asked)]) == []


def test_consents_to_another_question_or_by_others_are_none() -> None:
    centre, asked = Centre(), question()
    own, other = centre.consent(asked), question(recipe="[]")
    with pytest.raises(NotEnrolled, match="eve"):
        centre.answer(asked, own, *others(asked)[:-1], consent("eve", other))
    forged = signed(consent("eve", asked), KEYS["dan"])
    with pytest.raises(BadSignature, match="eve"):
        centre.answer(asked, own, *others(asked)[:-1], forged)


def test_nobody_gets_a_sum_of_answers_to_two_questions() -> None:
    """An analyst with the server: ann is to answer the first question, all others the second."""
    centre, first, second = Centre(), question(1), question(2, recipe="[]")
    own = centre.consent(first)
    centre.answer(first, own, *others(first))
    with pytest.raises(WrongVersion, match="answered already"):
        centre.consent(second)  # without this word the others do not answer
    # The other way round: ann has signed for the second, and so answers the first no more.
    centre = Centre()
    own = centre.consent(first)
    centre.consent(second)
    with pytest.raises(WrongVersion, match="not the one that was promised last"):
        centre.answer(first, own, *others(first))
    with pytest.raises(WrongVersion, match="promised an answer"):
        centre.consent(first)


def test_two_questions_of_one_number_are_two_questions() -> None:
    centre, asked = Centre(), question()
    centre.consent(asked)
    with pytest.raises(WrongVersion, match="question 1 was promised"):
        centre.consent(question(recipe="[]"))


def test_the_next_version_has_another_question() -> None:
    centre, asked = Centre(), question()
    centre.answer(asked, centre.consent(asked), *others(asked))
    later = question(2, version=1)
    centre.answer(later, centre.consent(later), *others(later))
    with pytest.raises(WrongVersion):
        centre.consent(question(3, version=0))
