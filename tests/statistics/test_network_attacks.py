"""Attacks on a study over the network: by an asker, a server, both, and a centre. Real agents, real TLS.

Controls take the rule out, and the same attack succeeds: a question of somebody else, other terms (at the
analyst; what a centre makes of them is not tried here), a mixed sum, an answer with another number, a question
that is not in the protocol. A withdrawn study is its own control: approved again, it is answered. The two
tests of crashes are no attacks, and have no control.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import pooled
from test_network import MOST, network

from basecagg.channels.identity import Identity
from basecagg.errors import DataError, QuestionRefused
from basecagg.protocol.effects import Effect
from basecagg.protocol.messages import encode, signed
from basecagg.protocol.questions import Board, Consent, Pledge, SignedQuestion, StudyTerms
from basecagg.service.connection import Connection
from basecagg.service.server.app import Api
from basecagg.service.server.core import Service
from basecagg.statistics import count, mean
from basecagg.statistics.centre import StudyAnswers
from basecagg.statistics.desk import Question
from basecagg.statistics.protocol_file import StudyProtocol
from basecagg.statistics.recipe import written
from basecagg.statistics.remote import RemoteStudy

COUNT, AGE = count("age", most=MOST), mean("age", 0.0, 100.0, most=MOST)
OTHER = mean("time", 0.0, 40.0, most=MOST)
"""Also in the protocol, and of the same form."""
PATIENCE = 6.0
"""Seconds after which nothing comes any more."""


def question(
    remote: RemoteStudy, statistic: Any, number: int, signer: Any = None
) -> SignedQuestion:
    asked = SignedQuestion(remote.agreement.id, number, 0, False, written(statistic.recipe))
    return signed(asked, signer or remote.profile.identity)


async def post(line: Connection, asked: SignedQuestion) -> None:
    await line.call("POST", "/v1/questions", encode(asked))


def answered(study: Any) -> dict[str, int]:
    """How many answers each desk has given."""
    return {name: len(study.desk(name).answered()) for name in study.centres}


# --- a server that asks by itself -----------------------------------------------------------------


async def post_a_forged_question(study: Any) -> Connection:
    """Ask in the analyst's name, with another key. The server takes any question."""
    await study.begin()
    asked = await study.ask(lambda remote: question(remote, AGE, 1, Identity.create()))
    line: Connection = study.analyst.connect()
    await post(line, asked)
    return line


def test_a_question_that_the_analyst_did_not_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes any question; the centres do not."""
    monkeypatch.setattr("basecagg.protocol.questions.require_asked", lambda *_: None)

    async def tell() -> None:
        async with network(tmp_path) as study:
            line = await post_a_forged_question(study)
            await asyncio.sleep(PATIENCE)
            reply = await line.call("GET", "/v1/questions/0")
            assert b'"refused"' in reply.content
            assert b"not signed by ana" in reply.content
            await line.close()
            assert set(answered(study).values()) == {0}

    asyncio.run(tell())


def test_centres_that_check_no_signature_answer_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    for place in ("protocol.questions", "statistics.centre"):
        monkeypatch.setattr(f"basecagg.{place}.require_asked", lambda *_: None)

    async def tell() -> None:
        async with network(tmp_path) as study:
            line = await post_a_forged_question(study)
            await line.close()

            async def all_have_answered() -> bool:
                return set(answered(study).values()) == {1}

            await study.federation.until(all_have_answered)

    asyncio.run(tell())


def test_other_terms_than_the_operator_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin()
            said = study.terms
            other = StudyTerms("test", said.text + "# more", "ana", said.analyst_key)

            async def lie(_: Service) -> bytes:
                return encode(other)

            monkeypatch.setattr(Service, "terms", lie)
            with pytest.raises(DataError, match="not the terms that the operator signed"):
                await study.ask(lambda remote: remote)
            # The control: an analyst that does not compare them asks under other terms.
            monkeypatch.setattr("basecagg.statistics.remote.require_terms", lambda *_: None)
            assert await study.ask(lambda remote: remote.terms) == other

    asyncio.run(tell())


# --- an asker together with the server --------------------------------------------------------------


def take_any_consent(self: Board, centre: str, number: int, consent: Consent) -> list[Effect]:
    """A board of the asker's own."""
    self._posted[number].willing[centre] = consent
    return self._keep(self._posted[number])


async def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float] | None:
    """Show centre-00 another question than the rest. What the sum gives, and an honest one would.

    None if no sum is opened.
    """
    swap, show = list[bytes](), Api.question

    async def lie(api: Api, request: Any, name: str, body: bytes) -> Any:
        response = await show(api, request, name, body)
        if name == "centre-00" and swap:
            response.body = response.body.replace(*swap)
            response.headers["content-length"] = str(len(response.body))
        return response

    monkeypatch.setattr(Api, "question", lie)
    monkeypatch.setattr(Board, "consent", take_any_consent)
    async with network(tmp_path) as study:
        await study.begin()
        alone = await study.ask(lambda remote: question(remote, OTHER, 1))
        rest = await study.ask(lambda remote: question(remote, AGE, 1))
        swap += [base64.b64encode(encode(each)) for each in (rest, alone)]
        line = study.analyst.connect()
        await post(line, rest)
        await line.close()
        await asyncio.sleep(PATIENCE)

        def opened(remote: RemoteStudy) -> tuple[float, float] | None:
            if remote._do(remote._version()) == 0:
                return None
            parts = remote._do(remote._until_opened(rest))
            total, _ = remote._open(parts, rest)
            own = Question(AGE, remote.protocol.members, 1)
            return own.decode(total[: own.size]).mean, pooled(study.centres)["age"].mean()

        return await study.ask(opened)


def test_no_sum_mixes_answers_to_two_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asyncio.run(mix(tmp_path, monkeypatch)) is None


def test_without_consents_a_mixed_sum_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the difference of this sum to an honest one is about centre-00 alone."""
    monkeypatch.setattr(Pledge, "answer", lambda *_: [])
    found = asyncio.run(mix(tmp_path, monkeypatch))
    assert found is not None
    mixed, honest = found
    assert abs(mixed - honest) > 1  # months of centre-00 among everybody's years


# --- a centre ---------------------------------------------------------------------------------------


def test_a_centre_that_answers_something_else_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the question's number, which is in the sum. A false answer with the right number is not noticed."""
    truth, decode = StudyAnswers._answer, Question.decode

    def lie(self: StudyAnswers, *given: Any) -> np.ndarray:
        answer = truth(self, *given)
        return answer + 1 if self._profile.name == "centre-03" else answer

    def trust(self: Question[Any], total: np.ndarray) -> Any:
        honest = self.number * len(self.members)
        return decode(self, np.concatenate([[honest], total[1:]]))

    monkeypatch.setattr(StudyAnswers, "_answer", lie)

    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin()
            with pytest.raises(DataError, match="answered another question"):
                await study.ask(lambda remote: remote.ask(COUNT))
            # The control: the same sum is believed if nobody looks at the number.
            monkeypatch.setattr(Question, "decode", trust)
            found = await study.ask(lambda remote: remote.ask(COUNT))
            assert found != pooled(study.centres)["age"].size

    asyncio.run(tell())


# --- crashes ----------------------------------------------------------------------------------------


class Killed(Exception):  # noqa: N818
    """As by kill -9: nothing of the agent goes on."""


def test_a_centre_is_killed_between_its_desk_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, times, given = StudyAnswers._answer, [0], list[Any]()

    def die(self: StudyAnswers, *said: Any) -> np.ndarray:
        answer = truth(self, *said)
        if self._profile.name == "centre-03":
            given.append(answer)
            times[0] += 1
            if times[0] <= 2:
                raise Killed
        return answer

    monkeypatch.setattr(StudyAnswers, "_answer", die)

    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin()

            async def revive() -> None:
                while True:
                    await asyncio.sleep(0.1)
                    if study.federation.agents["centre-03"].done():
                        with suppress(Killed):
                            await study.federation.stop("centre-03")
                        study.launch("centre-03")

            nurse = asyncio.create_task(revive())
            noisy = await study.ask(lambda remote: remote.ask_privately(count("time", most=MOST)))
            nurse.cancel()
            with suppress(asyncio.CancelledError):
                await nurse
            assert abs(noisy - pooled(study.centres)["age"].size) < 60
            assert len(given) == 3
            assert all(each.tolist() == given[0].tolist() for each in given)
            with study.desk("centre-03").open(
                "centre-03", study.terms, study.federation.operator.identity.public_key
            ) as desk:
                assert desk.ledger.uses == 1

    asyncio.run(tell())


def test_server_and_analyst_are_ended_and_go_on(tmp_path: Path) -> None:
    """A question was asked, and server and analyst begin again: it is not asked, nor paid for, twice."""

    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin(approve=False)
            noisy = count("time", most=MOST)
            first = asyncio.create_task(study.ask(_post_only(noisy), "first"))
            await first
            await study.federation.stop_server()
            await study.federation.start_server()
            for name in study.centres:
                await study.approve(name)
            found = await study.ask(lambda remote: remote.ask_privately(noisy), "second")
            again = await study.ask(lambda remote: remote.ask_privately(noisy), "third")
            assert found == again
            assert set(answered(study).values()) == {1}

    asyncio.run(tell())


def _post_only(statistic: Any) -> Any:
    def work(remote: RemoteStudy) -> None:
        question = Question(statistic, remote.protocol.members, 1)
        remote._do(remote._post(question.with_noise(remote.protocol.budget), private=True))

    return work


def test_a_withdrawn_study_is_answered_no_more(tmp_path: Path) -> None:
    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin()
            assert await study.ask(lambda remote: remote.ask(COUNT)) > 0
            desk = study.desk("centre-02")
            await asyncio.to_thread(lambda: desk.withdraw(desk.study("")))
            waiting = asyncio.create_task(study.ask(_post_only_exact))
            await waiting
            await asyncio.sleep(PATIENCE)
            assert answered(study)["centre-01"] == 1
            await study.approve("centre-02")  # the control
            found = await study.ask(lambda remote: remote.ask(AGE))
            assert found.records == pooled(study.centres)["age"].size

    asyncio.run(tell())


def _post_only_exact(remote: RemoteStudy) -> None:
    remote._do(remote._post(Question(AGE, remote.protocol.members, 1), private=False))


def test_what_is_not_in_the_protocol_costs_nobody_anything(tmp_path: Path) -> None:
    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin()
            with pytest.raises(QuestionRefused, match="not in the study protocol"):
                await study.ask(lambda remote: remote.ask(count("event", most=MOST)))
            assert set(answered(study).values()) == {0}
            assert await study.ask(lambda remote: remote.ask(COUNT)) > 0  # and the study goes on

    asyncio.run(tell())


def test_desks_without_a_list_answer_what_is_not_in_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(StudyProtocol, "answered", None)

    async def tell() -> None:
        async with network(tmp_path) as study:
            await study.begin()
            found = await study.ask(lambda remote: remote.ask(count("event", most=MOST)))
            assert found == pooled(study.centres)["event"].size

    asyncio.run(tell())
