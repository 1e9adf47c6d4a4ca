"""A centre of a study over the network: what its agent does instead of training.

The agent asks this object for an update from each version of the epoch. It waits for the version's question,
says whether the centre answers, and gives the answer once all have said that they do. Everything else, masks,
uploads and recoveries, is the agent's and its machines' own, as in training.

Nothing that the server says is believed: the terms are those that the operator signed with the epoch and that
people here approved, and a question is signed by the analyst of these terms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack_file
from basecagg.errors import (
    BASecAggError,
    BudgetSpent,
    ChannelError,
    DataError,
    Malformed,
    QuestionRefused,
    Refused,
)
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.epoch import Agreement, accept
from basecagg.protocol.messages import MAX_REASON, encode
from basecagg.protocol.proofs import Pedigree
from basecagg.protocol.questions import (
    Consent,
    Pledge,
    SignedQuestion,
    StudyTerms,
    read,
    require_asked,
)
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience
from basecagg.service.documents import Notice, Stance, from_json, to_json
from basecagg.service.logs import Log
from basecagg.service.training import RoundInfo, Vector
from basecagg.statistics import desk
from basecagg.statistics.desk_folder import DeskFolder
from basecagg.statistics.protocol_file import parse

_LOG = Log("basecagg.agent")
_WAIT, _PAUSE = 25, 2.0
"""Seconds: that the server may let a call wait, and between two looks at what people approved."""
Result = TypeVar("Result")


class StudyAnswers:
    """Answers a study's questions from a desk. It is a `Training` for the agent."""

    def __init__(
        self, profile: Profile, folder: DeskFolder, patience: Patience, *urls: str
    ) -> None:
        self._profile = profile
        self._folder = folder
        self._persist = patience.persist
        self._urls = urls
        self._study: tuple[str, Agreement, StudyTerms] | None = None
        """Of which epoch, and what it is about."""

    async def __call__(self, model: Vector, info: RoundInfo) -> Vector:
        """The model minus this centre's answer to the question for this version."""
        self._connection = self._profile.connect(*self._urls)
        try:
            return await self._work(model, info)
        finally:
            await self._connection.close()

    async def _work(self, model: Vector, info: RoundInfo) -> Vector:
        agreement, terms = await self._terms(info.epoch)
        known = ""
        while True:
            await self._until_approved(terms)
            shown = await self._shown(info.version, known)
            known = f"{_number(shown)}-{shown.state}"
            if not shown.question or shown.state in ("refused", "burned"):
                continue
            try:
                question = self._read(shown.question, agreement, terms, info.version)
                if shown.state == "asked":
                    await self._agree(question, terms)
                    continue
                consents = [read(each, Consent) for each in shown.consents]
                answer = await asyncio.to_thread(self._answer, question, terms, consents)
            except (QuestionRefused, BudgetSpent, Refused) as refusal:
                self._note(refusal)
                await self._say(Stance(number=_number(shown), refusal=str(refusal)[:MAX_REASON]))
                continue
            except (DataError, OSError) as fault:  # the mapping, or where the records are
                _LOG.error("desk", reason=str(fault))
                known = ""
                await asyncio.sleep(_PAUSE)
                continue
            if answer.size > model.size:
                raise DataError(f"an answer of {answer.size} numbers, the epoch has {model.size}")
            padded = np.zeros(model.size, np.float32)
            # Whole numbers of 24 bits at most: float32 has them all.
            padded[: answer.size] = answer
            # The model is zeros throughout: see `protocol_file.RATE`.
            return -padded

    def close(self) -> None:
        """Nothing goes on by itself."""

    # --- what it is about -------------------------------------------------------------------------

    async def _terms(self, epoch: str) -> tuple[Agreement, StudyTerms]:
        """The terms of this epoch's study, if the operator signed them with it."""
        if self._study is None or self._study[0] != epoch:
            agreement, terms = await self._persist(partial(self._fetch, epoch))
            await asyncio.to_thread(self._folder.receive, terms)
            self._study = epoch, agreement, terms
        return self._study[1:]

    async def _fetch(self, epoch: str) -> tuple[Agreement, StudyTerms]:
        reply = await self._connection.call("GET", "/v1/pedigree")
        pedigree = unpack_file(reply.content, MAX_CONTROL_BYTES)
        if not isinstance(pedigree, Pedigree):
            raise ChannelError("the server sent something else than its present version")
        key = self._profile.invitation.operator_key
        agreement = accept(pedigree.epoch, key, Ed25519Verifier())
        reply = await self._connection.call("GET", "/v1/study")
        terms = read(reply.content, StudyTerms)
        if agreement.id.hex() != epoch:
            raise DataError("the server is in another epoch by now")
        require_terms(agreement, terms)
        return agreement, terms

    async def _until_approved(self, terms: StudyTerms) -> None:
        """Until people here approve, nothing is said about any question."""
        told = False
        while not await asyncio.to_thread(self._folder.is_approved, terms):
            if not told:
                short = terms.contract.hex()[:12]
                command = f"basecagg desk approve {self._folder.folder} {short}"
                _LOG.warning("a study waits for approval", study=short, run=command)
                told = True
            await asyncio.sleep(_PAUSE)

    # --- questions --------------------------------------------------------------------------------

    async def _shown(self, version: int, known: str) -> Notice:
        query: dict[str, str | int] = {"known": known, "wait": _WAIT}
        ask = partial(
            self._connection.call, "GET", f"/v1/questions/{version}", query=query, patience=_WAIT
        )
        return from_json((await self._persist(ask)).content, Notice)

    def _read(
        self, frame: bytes, agreement: Agreement, terms: StudyTerms, at: int
    ) -> SignedQuestion:
        question = read(frame, SignedQuestion)
        require_asked(question, agreement.id, terms, Ed25519Verifier())
        if question.version != at:
            raise Malformed(f"the question is for version {question.version}")
        return question

    async def _agree(self, question: SignedQuestion, terms: StudyTerms) -> None:
        """Sign that this centre answers, if it would."""
        consent = await asyncio.to_thread(self._consider, question, terms)
        await self._say(Stance(number=question.number, consent=encode(consent)))

    def _consider(self, question: SignedQuestion, terms: StudyTerms) -> Consent:
        with self._desk(terms) as (own, members):
            own.require_answerable(_asked(own, question, members))
            consent, writes = self._pledge(own).consent(question)
            own.store.commit(writes)
            return consent

    def _answer(
        self, question: SignedQuestion, terms: StudyTerms, consents: Sequence[Consent]
    ) -> Vector:
        with self._desk(terms) as (own, members):
            asked = _asked(own, question, members)
            promised = self._pledge(own).answer(question, consents)
            key = f"{question.epoch.hex()[:32]}/{question.number:08d}"
            answer = own.answer(asked, key, promised).astype(np.float32)
        _LOG.info("answered", number=question.number, what=asked.statistic.name)
        return answer

    def _pledge(self, own: desk.Desk) -> Pledge:
        assert self._study is not None
        profile = self._profile
        return Pledge(self._study[1], profile.name, profile.identity, own.store)

    def _desk(self, terms: StudyTerms) -> _Opened:
        return _Opened(self._folder, self._profile, terms)

    async def _say(self, said: Stance) -> None:
        say = partial(self._connection.call, "POST", "/v1/consents", to_json(said))
        await self._persist(say, 409)

    def _note(self, refusal: BASecAggError) -> None:
        code = type(refusal).__name__
        _LOG.info("refuse", kind="Question", code=code, reason=str(refusal))


class _Opened:
    """The desk of a study for a moment, and the study's members."""

    def __init__(self, folder: DeskFolder, profile: Profile, terms: StudyTerms) -> None:
        self._members = parse(terms.text).members
        self._desk = folder.open(profile.name, terms, profile.invitation.operator_key)

    def __enter__(self) -> tuple[desk.Desk, tuple[str, ...]]:
        return self._desk.__enter__(), self._members

    def __exit__(self, *fault: object) -> None:
        self._desk.__exit__(*fault)  # type: ignore[arg-type]


def _asked(
    own: desk.Desk, question: SignedQuestion, members: tuple[str, ...]
) -> desk.Question[object]:
    return own.question(question.recipe, members, question.number, private=question.private)


def _number(shown: Notice) -> int:
    return read(shown.question, SignedQuestion).number if shown.question else 0


def require_terms(agreement: Agreement, terms: StudyTerms) -> None:
    """Refuse terms that the operator did not sign with this epoch, and an epoch that does not fit them."""
    if terms.contract != agreement.epoch.contract:
        raise DataError("these are not the terms that the operator signed with the epoch")
    protocol = parse(terms.text)
    if terms.federation != agreement.epoch.federation or terms.analyst != protocol.analyst:
        raise DataError("the terms are of another federation or analyst than the protocol")
    if agreement.holder_names != protocol.members:
        raise DataError("the epoch's holders are not the members of the protocol")
    if agreement.epoch.max_burns:
        raise DataError(
            "the epoch allows a second sum of a version: a centre answers each version once"
        )
    own: ProtocolParameters = protocol.parameters
    if agreement.parameters != own:
        raise DataError("the epoch has other parameters than the protocol needs")
