"""Questions of a study: an analyst signs them, the server relays them, and centres answer in one sum each.

A study is an epoch whose `contract` is the hash of its terms. A question is for one version of that epoch: the
K = N updates from this version are its answers, and the sum that makes the next version is the result.

Before anybody answers, every centre signs that it will answer this question and no other of this version. It
answers when it has seen the signatures of all. So a question that one centre refuses costs nobody anything; and
nobody, not even an analyst with the server, gets a sum of one centre's answer to one question and the others'
answers to another: a second such sum would single the one out.

The board is the server's machine: it keeps questions and consents. The pledge is a centre's: it says what the
centre may sign, and when it may answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from basecagg.errors import BadSignature, Malformed, NotEnrolled, WrongEpoch, WrongVersion
from basecagg.protocol.effects import Effect, Forget, Write
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import (
    MAX_REASON,
    Digest,
    Message,
    Name,
    PublicKey,
    Signature,
    Version,
    digest_of,
    encode,
    signed,
    statement,
)
from basecagg.protocol.ports import Records, Signer, Verifier
from basecagg.protocol.stored import Stored, load, recall, write

MAX_TEXT = 2**18
MAX_RECIPE = 2**20
State: TypeAlias = Literal["asked", "agreed", "refused", "burned"]
"""Some have not said yet whether they answer; all will; one will not; its sum was given up."""
_KIND = "question"


class StudyTerms(Message, frozen=True, tag="StudyTerms"):
    """What everybody in a study agrees on. The operator signs its hash with the epoch."""

    federation: Name
    text: Annotated[str, Meta(max_length=MAX_TEXT)]
    """The study protocol, as it was written."""
    analyst: Name
    analyst_key: PublicKey

    @property
    def contract(self) -> bytes:
        """The hash that the epoch names, and that a centre's people approve."""
        return hashlib.sha256(encode(self)).digest()


class SignedQuestion(Message, frozen=True, tag="Question"):
    """Analyst → centres: one sum that is asked for."""

    epoch: Digest
    number: Annotated[int, Meta(ge=1, lt=2**24)]
    """Each question has its own; it travels in the answers, too."""
    version: Version
    """Whose updates are the answers."""
    private: bool
    """Whether answers are to have the noise that the study's budget takes."""
    recipe: Annotated[str, Meta(max_length=MAX_RECIPE)]
    """What of the statistic travels: its name, parameters and a hash, in JSON."""
    signature: Signature = b""


class Consent(Message, frozen=True, tag="Consent"):
    """Centre → all centres: I answer this question, and have answered no other of its version."""

    question: Digest
    """The digest of the signed question: its number, version and epoch are in it."""
    centre: Name
    signature: Signature = b""


Read = TypeVar("Read", StudyTerms, SignedQuestion, Consent)


def read(frame: bytes, kind: type[Read]) -> Read:
    """The terms or the question in these bytes, or `Malformed`. There is one encoding of each."""
    try:
        found = msgspec.msgpack.decode(frame, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"this is no {kind.__name__}: {error}") from None
    if encode(found) != frame:
        raise Malformed(f"this {kind.__name__} is not in its canonical encoding")
    return found


def require_asked(
    question: SignedQuestion, epoch: bytes, terms: StudyTerms, verifier: Verifier
) -> None:
    """Refuse a question that the study's analyst did not sign for this epoch."""
    if question.epoch != epoch:
        raise WrongEpoch("the question is for another epoch")
    if not verifier.verify(terms.analyst_key, statement(question), question.signature):
        raise BadSignature(f"the question is not signed by {terms.analyst}")


def require_consent(consent: Consent, key: bytes, verifier: Verifier) -> None:
    """Refuse a consent that the centre with this key did not sign."""
    if not verifier.verify(key, statement(consent), consent.signature):
        raise BadSignature(f"the consent of {consent.centre} is not signed by it")


class Pledged(Stored):
    """The last question of an epoch that a centre said it answers."""

    number: int
    version: int
    digest: bytes
    answered: bool = False


class Pledge:
    """A centre in one study: it signs for one question at a time, and answers one of each version."""

    def __init__(self, agreement: Agreement, name: str, signer: Signer, records: Records) -> None:
        self._agreement = agreement
        self._name = name
        self._signer = signer
        self._last = recall(records, "pledge", Pledged, agreement.id.hex())

    def consent(self, question: SignedQuestion) -> tuple[Consent, list[Write]]:
        """The word that this question is answered, if no later one was promised and its version has no answer.

        Carry out the writes before the word leaves. Who signed for a question answers no earlier one.
        """
        digest, last = digest_of(question), self._last
        if last is not None and digest != last.digest:
            if question.number <= last.number:
                raise WrongVersion(f"question {last.number} was promised an answer already")
            if question.version < last.version or (
                question.version == last.version and last.answered
            ):
                raise WrongVersion(f"a question of version {last.version} was answered already")
        consent = signed(Consent(digest, self._name), self._signer)
        if last is not None and digest == last.digest:
            return consent, []
        self._last = Pledged(number=question.number, version=question.version, digest=digest)
        return consent, [self._kept()]

    def answer(self, question: SignedQuestion, consents: Collection[Consent]) -> list[Write]:
        """What to store with the answer; refused unless it is the promised one and all centres promised it."""
        digest = digest_of(question)
        if self._last is None or self._last.digest != digest:
            raise WrongVersion(f"question {question.number} is not the one that was promised last")
        given = {each.centre: each for each in consents if each.question == digest}
        for seat in self._agreement.epoch.holders:
            word = given.get(seat.name)
            if word is None:
                raise NotEnrolled(f"{seat.name} has not said that it answers", peer=seat.name)
            require_consent(word, seat.signing_key, self._agreement.verifier)
        if self._last.answered:
            return []
        self._last = replace(self._last, answered=True)
        return [self._kept()]

    def _kept(self) -> Write:
        assert self._last is not None
        return write("pledge", self._agreement.id.hex(), self._last, irreversible=True)


class Posted(Stored):
    """A question on the board, and what centres said to it."""

    question: SignedQuestion
    burns: int
    """How many sums of its version were given up before it was asked."""
    willing: dict[str, Consent]
    refusals: dict[str, str]
    """Why, by centre."""


class Board:
    """The questions of one epoch, as its server knows them. Rebuilt from its records after a restart."""

    def __init__(
        self,
        epoch: bytes,
        terms: StudyTerms,
        centres: Collection[str],
        verifier: Verifier,
        records: Records,
    ) -> None:
        self.terms = terms
        self._epoch = epoch
        self._centres = frozenset(centres)
        self._verifier = verifier
        self._records = records
        mine = load(records, _KIND, Posted)
        self._posted = {
            posted.question.number: posted
            for key, posted in sorted(mine.items())
            if key.startswith(self._prefix)
        }

    def start(self) -> list[Write]:
        """Carry this out once after construction: questions of other epochs are forgotten."""
        keys = self._records.keys(_KIND)
        return [Forget(_KIND, key) for key in keys if not key.startswith(self._prefix)]

    @property
    def last(self) -> int:
        """The number of the newest question; 0 before the first."""
        return max(self._posted, default=0)

    def at(self, version: int) -> Posted | None:
        """The newest question for this version."""
        found = [each for each in self._posted.values() if each.question.version == version]
        return found[-1] if found else None

    def state(self, posted: Posted, burns: int) -> State:
        """Where a question stands, if so many sums of its version were given up."""
        if posted.refusals:
            return "refused"
        if burns > posted.burns:
            return "burned"
        return "agreed" if self._centres <= posted.willing.keys() else "asked"

    def missing(self, posted: Posted) -> list[str]:
        """Centres that have not said anything yet."""
        return sorted(self._centres - set(posted.willing) - set(posted.refusals))

    def ask(self, question: SignedQuestion, version: int, burns: int) -> list[Effect]:
        """Take a question for the present version, once the one before is over; the same again is no other."""
        known = self._posted.get(question.number)
        if known is not None and known.question == question:
            return []
        require_asked(question, self._epoch, self.terms, self._verifier)
        if question.version != version:
            raise WrongVersion(f"the study is at version {version}", peer=self.terms.analyst)
        if question.number <= self.last:
            raise Malformed(f"question {self.last} was asked already: numbers ascend")
        before = self.at(version)
        if before is not None and self.state(before, burns) in ("asked", "agreed"):
            raise WrongVersion(f"question {before.question.number} is not over yet")
        return self._keep(Posted(question=question, burns=burns, willing={}, refusals={}))

    def consent(self, centre: str, number: int, consent: Consent) -> list[Effect]:
        """A centre will answer. Whether it signed that is for the others to check."""
        posted = self._known(centre, number)
        if (consent.centre, consent.question) != (centre, digest_of(posted.question)):
            raise Malformed(f"that is no consent of {centre} to question {number}")
        if centre in posted.refusals or centre in posted.willing:
            return []
        posted.willing[centre] = consent
        return self._keep(posted)

    def refuse(self, centre: str, number: int, reason: str) -> list[Effect]:
        """A centre will not answer. Once all said that they will it is too late: others may have answered."""
        posted = self._known(centre, number)
        if centre in posted.refusals or self._centres <= posted.willing.keys():
            return []
        posted.refusals[centre] = reason[:MAX_REASON]
        return self._keep(posted)

    def _known(self, centre: str, number: int) -> Posted:
        if centre not in self._centres:
            raise NotEnrolled(f"{centre} is none of the study's centres", peer=centre)
        if number not in self._posted:
            raise Malformed(f"nobody asked question {number}")
        return self._posted[number]

    @property
    def _prefix(self) -> str:
        return f"{self._epoch.hex()[:32]}/"

    def _keep(self, posted: Posted) -> list[Effect]:
        number = posted.question.number
        self._posted[number] = posted
        return [write(_KIND, f"{self._prefix}{number:08d}", posted)]
