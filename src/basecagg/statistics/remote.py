"""The analyst of a study over the network: asks, waits, and opens every sum again before it is believed.

A result is not the server's word: the sum is recomputed from the centres' signed uploads and the holders'
signed answers, as a participant does that makes a version again. What the analyst asked before is on the
server's board and in a folder here, so a question is not asked, nor paid for, twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from basecagg.auditing.rounds import over_all_rounds
from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, unpack, unpack_file
from basecagg.errors import ChannelError, DataError, QuestionRefused
from basecagg.protocol.epoch import Agreement, accept
from basecagg.protocol.messages import Parts, encode, signed
from basecagg.protocol.proofs import Pedigree
from basecagg.protocol.questions import SignedQuestion, StudyTerms, read
from basecagg.protocol.recomputation import open_sum, recompute
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience
from basecagg.service.documents import Notice, from_json
from basecagg.statistics.centre import require_terms
from basecagg.statistics.desk import Question
from basecagg.statistics.protocol_file import StudyProtocol, parse
from basecagg.statistics.statistic import Result, Statistic, Vector
from basecagg.statistics.study import StudyAudit
from basecagg.storage.disk import write_private

_WAIT = 10
_LOOK = 0.5
_NEVER = 10**14
"""A version that no model is newer than: the reply then says which version there is, and nothing else."""
Got = TypeVar("Got")


@dataclass(frozen=True)
class Asked:
    """One sum, as the analyst knows it."""

    number: int
    name: str
    private: bool
    members: tuple[str, ...]
    """Whose signed uploads were in it."""
    seconds: float


@dataclass
class RemoteStudy:
    """A study on a service, with the interface of `Study`. Use it as a context manager.

    `profile` is the analyst's own; `folder` keeps the sums; `tell` hears what is being waited for.
    """

    profile: Profile
    folder: Path
    tell: Callable[[str], None] = lambda words: None
    patience: Patience = field(default_factory=Patience)
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> RemoteStudy:
        self._loop = asyncio.new_event_loop()
        self._connection = self.profile.connect()
        try:
            self.agreement, self.terms = self._do(self._fetch_terms())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *fault: object) -> None:
        self._do(self._connection.close())
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    @property
    def protocol(self) -> StudyProtocol:
        """What everybody agreed on."""
        return parse(self.terms.text)

    @property
    def uses_left(self) -> int | None:
        """Noisy questions that the budget allows still, by what was opened; None without a budget."""
        budget = self.protocol.budget
        kept = [json.loads(path.read_text()) for path in (self.folder / "sums").glob("*.json")]
        return None if budget is None else budget.max_uses - sum(each["private"] for each in kept)

    def ask(self, statistic: Statistic[Result], *, members: Iterable[str] | None = None) -> Result:
        """The exact result over all centres; no others can be chosen."""
        return self._ask(statistic, members, private=False)

    def ask_privately(
        self, statistic: Statistic[Result], *, members: Iterable[str] | None = None
    ) -> Result:
        """The result with noise that hides each record, one of the k_max in the budget."""
        return self._ask(statistic, members, private=True)

    def audit(self) -> StudyAudit:
        """What the server learned: who is in every exact sum, by the centres' own signatures."""
        exact = [dict.fromkeys(each.members, 1) for each in self.asked if not each.private]
        return StudyAudit((), over_all_rounds(exact))

    # --- one question -----------------------------------------------------------------------------

    def _ask(
        self, statistic: Statistic[Result], members: Iterable[str] | None, *, private: bool
    ) -> Result:
        centres = self.protocol.members
        if members is not None and tuple(sorted(members)) != centres:
            raise DataError("a study's sums are over all its centres")
        question = Question(statistic, centres, 1)
        if private:
            question = question.with_noise(self.protocol.budget)
        number, total = self._do(self._sum(question, private=private))
        own = Question(statistic, centres, number, question.noise)
        return own.decode(total[: own.size])

    async def _sum(self, question: Question[Any], *, private: bool) -> tuple[int, Vector]:
        """The number under which it was asked, and the sum."""
        began = time.monotonic()
        kept = self._kept(question, private)
        if kept is None:
            asked = await self._post(question, private)
            await self._until_agreed(asked)
            parts = await self._until_opened(asked)
            total, members = await asyncio.to_thread(self._open, parts, asked)
            self._keep(asked, total, members)
            kept = asked.number, total, members
        number, total, members = kept
        spent = time.monotonic() - began
        self.asked.append(Asked(number, question.statistic.name, private, members, spent))
        return number, total

    async def _post(self, question: Question[Any], private: bool) -> SignedQuestion:
        """Ask, or find what was asked before this program was ended."""
        while True:
            version = await self._version()
            # Its sum may have been opened after this program was ended: it is the newest then.
            for at in (version, version - 1):
                shown = await self._shown(max(at, self.agreement.epoch.first_version), "")
                if not shown.question or shown.state not in ("asked", "agreed"):
                    continue
                known = read(shown.question, SignedQuestion)
                if known.recipe == question.recipe and known.private == private:
                    return known
            shown = await self._shown(version, "")
            if shown.question and shown.state in ("asked", "agreed"):
                known = read(shown.question, SignedQuestion)
                self.tell(f"question {known.number} is not over yet")
                await asyncio.sleep(_LOOK)
                continue
            asked = SignedQuestion(
                self.agreement.id, shown.last + 1, version, private, question.recipe
            )
            asked = signed(asked, self.profile.identity)
            post = partial(self._connection.call, "POST", "/v1/questions", encode(asked))
            await self._persist(post)
            return asked

    async def _until_agreed(self, asked: SignedQuestion) -> None:
        known = ""
        while True:
            shown = await self._shown(asked.version, known)
            number = read(shown.question, SignedQuestion).number if shown.question else 0
            if number != asked.number:
                raise DataError(f"the server does not know question {asked.number} any more")
            known = f"{number}-{shown.state}"
            match shown.state:
                case "agreed":
                    return
                case "refused":
                    said = "; ".join(f"{name}: {why}" for name, why in shown.refusals.items())
                    raise QuestionRefused(said)
                case "burned":
                    raise DataError("the sum was given up by the server: ask again")
            self.tell(f"question {number} waits for {', '.join(shown.missing) or 'nobody'}")

    async def _until_opened(self, asked: SignedQuestion) -> Parts:
        self.tell(f"question {asked.number}: all centres answer")
        while await self._version() <= asked.version:
            shown = await self._shown(asked.version, "")
            if shown.state == "refused":
                await self._until_agreed(asked)
            if shown.state == "burned":
                raise DataError("the sum was given up by the server: ask again")
            await asyncio.sleep(_LOOK)
        limit = limit_for(Parts, self.agreement.parameters)
        path = f"/v1/parts/{asked.version + 1}"
        reply = await self._persist(partial(self._connection.call, "GET", path, limit=limit), 404)
        parts = unpack(reply.content, limit)
        if not isinstance(parts, Parts) or parts.release.history.last != asked.version + 1:
            raise ChannelError("the server sent something else than what the sum was made from")
        return parts

    def _open(self, parts: Parts, asked: SignedQuestion) -> tuple[Vector, tuple[str, ...]]:
        """The sum and its members; `Caught` if the server released another."""
        recompute(self.agreement, parts)
        answers = {answer.holder: answer for answer in parts.answers}
        opened = open_sum(self.agreement, parts.request, parts.uploads, answers)
        members = tuple(sorted(ticket.mask.contributor for ticket in parts.request.tickets))
        if members != self.protocol.members:
            raise DataError(f"the sum is of {', '.join(members)}, and not of the study's members")
        return np.asarray(opened.weighted_sum, np.float64), members

    # --- the server -------------------------------------------------------------------------------

    async def _fetch_terms(self) -> tuple[Agreement, StudyTerms]:
        reply = await self._persist(partial(self._connection.call, "GET", "/v1/pedigree"), 404)
        pedigree = unpack_file(reply.content, MAX_CONTROL_BYTES)
        if not isinstance(pedigree, Pedigree):
            raise ChannelError("the server sent something else than its present version")
        key = self.profile.invitation.operator_key
        agreement = accept(pedigree.epoch, key, Ed25519Verifier())
        reply = await self._persist(partial(self._connection.call, "GET", "/v1/study"), 404)
        terms = read(reply.content, StudyTerms)
        require_terms(agreement, terms)
        if terms.analyst_key != self.profile.identity.public_key:
            raise DataError(f"the analyst of this study is {terms.analyst}, with another key")
        return agreement, terms

    async def _version(self) -> int:
        query = {"newer_than": _NEVER}
        ask = partial(self._connection.call, "GET", "/v1/model", query=query)
        version: int = (await self._persist(ask)).number("basecagg-version")
        return version

    async def _shown(self, version: int, known: str) -> Notice:
        query: dict[str, str | int] = {"known": known, "wait": _WAIT if known else 0}
        ask = partial(
            self._connection.call, "GET", f"/v1/questions/{version}", query=query, patience=_WAIT
        )
        return from_json((await self._persist(ask)).content, Notice)

    async def _persist(self, attempt: Any, *final: str | int) -> Any:
        return await self.patience.persist(attempt, 400, 403, 409, *final)

    # --- what was asked before --------------------------------------------------------------------

    def _path(self, recipe: str, private: bool) -> Path:
        said = f"{self.agreement.id.hex()} {private} {recipe}"
        return self.folder / "sums" / f"{hashlib.sha256(said.encode()).hexdigest()[:32]}.json"

    def _kept(
        self, question: Question[Any], private: bool
    ) -> tuple[int, Vector, tuple[str, ...]] | None:
        path = self._path(question.recipe, private)
        if not path.exists():
            return None
        kept = json.loads(path.read_text())
        return kept["number"], np.array(kept["sum"], np.float64), tuple(kept["members"])

    def _keep(self, asked: SignedQuestion, total: Vector, members: tuple[str, ...]) -> None:
        path = self._path(asked.recipe, asked.private)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"number": asked.number, "sum": total.tolist(), "members": members}
        kept["private"] = asked.private
        write_private(path, json.dumps(kept).encode())
