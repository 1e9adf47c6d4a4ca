"""A desk's folder: what people approve is what is answered, and what was answered is remembered."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import made_up
from network import write_desk
from test_protocol_file import BUDGET, ask, text

from basecagg.errors import BudgetSpent, DataError, QuestionRefused
from basecagg.protocol.questions import StudyTerms
from basecagg.statistics import count, mean
from basecagg.statistics.desk_folder import DeskFolder
from basecagg.statistics.mapping import read_mapping
from basecagg.statistics.protocol_file import StudyProtocol, parse
from basecagg.statistics.recipe import written

KEY = bytes(32)
NAMES = tuple(made_up(6))
ROWS = made_up(6, least=10)["centre-00"]
MOST = 64


def terms(said: str) -> StudyTerms:
    return StudyTerms("town", said, "ana", KEY)


def folder(tmp_path: Path) -> DeskFolder:
    write_desk(tmp_path / "desk", ROWS)
    return DeskFolder(tmp_path / "desk", tmp_path / "anchors")


def approved(tmp_path: Path, said: str) -> tuple[DeskFolder, StudyTerms]:
    desk, agreed = folder(tmp_path), terms(said)
    desk.receive(agreed)
    desk.approve(desk.study(agreed.contract.hex()[:8]), "a person")
    return desk, agreed


def answer(
    desk: DeskFolder, agreed: StudyTerms, statistic: Any, number: int = 1, **how: Any
) -> np.ndarray:
    private, members, key = (
        how.get(*each) for each in (("private", False), ("members", NAMES), ("key", b"operator"))
    )
    with desk.open("centre-00", agreed, key) as own:
        asked = own.question(written(statistic.recipe), members, number, private=private)
        own.require_answerable(asked)
        return own.answer(asked, f"epoch/{number:08d}")


COUNT = count("age", most=MOST)
PLAIN = text()
NOISY = text(ask("count", 'column = "age"', "noise = true"), more=BUDGET)


def test_nothing_is_answered_that_people_did_not_approve(tmp_path: Path) -> None:
    desk, agreed = folder(tmp_path), terms(PLAIN)
    desk.receive(agreed)
    with pytest.raises(QuestionRefused, match="has not approved"):
        answer(desk, agreed, COUNT)
    desk.approve(desk.study(agreed.contract.hex()[:8]), "a person")
    assert answer(desk, agreed, COUNT)[0] == 1
    desk.withdraw(desk.study(agreed.contract.hex()))
    with pytest.raises(QuestionRefused, match="has not approved"):
        answer(desk, agreed, COUNT, 2)


def test_a_protocol_that_changed_after_the_approval_is_refused(tmp_path: Path) -> None:
    desk, agreed = approved(tmp_path, PLAIN)
    for changed in (terms(PLAIN.replace("most = 64", "most = 65")), terms(PLAIN + "# a comment")):
        assert not desk.is_approved(changed)
        with pytest.raises(QuestionRefused, match="has not approved"):
            answer(desk, changed, COUNT)
    assert not desk.is_approved(StudyTerms("town", PLAIN, "ana", bytes([1]) * 32))
    assert desk.is_approved(agreed)


def test_with_another_program_it_is_approved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, agreed = approved(tmp_path, PLAIN)
    monkeypatch.setattr("basecagg.statistics.desk_folder.files_digest", lambda: "another")
    assert not desk.is_approved(agreed)
    assert not desk.study(agreed.contract.hex()).is_open


def test_two_studies_over_one_desk_know_of_each_other(tmp_path: Path) -> None:
    desk, agreed = approved(tmp_path, PLAIN)
    answer(desk, agreed, COUNT)
    fewer = terms(PLAIN.replace(', "centre-05"', "").replace("A study", "Another study"))
    desk.receive(fewer)
    desk.approve(desk.study(fewer.contract.hex()), "a person")
    with pytest.raises(QuestionRefused, match="together with other centres"):
        answer(desk, fewer, COUNT, members=NAMES[:5])
    with pytest.raises(QuestionRefused, match="together with other centres"):
        answer(desk, agreed, COUNT, 2, key=b"another operator")
    assert answer(desk, agreed, COUNT, 2)[0] == 2  # a control: the same centres


def test_an_answer_has_noise_if_people_approved_it_with_noise(tmp_path: Path) -> None:
    """The analyst signs whether a question is private: a desk answers it only as its people read it."""
    desk, agreed = approved(tmp_path / "noisy", NOISY)
    with pytest.raises(QuestionRefused, match="count without noise: this is not in the study"):
        answer(desk, agreed, COUNT)
    assert answer(desk, agreed, COUNT, private=True).size
    desk, agreed = approved(tmp_path / "plain", PLAIN)
    with pytest.raises(QuestionRefused):
        answer(desk, agreed, COUNT, private=True)
    assert answer(desk, agreed, COUNT).size


def test_control_a_desk_that_knows_hashes_only_answers_without_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, agreed = approved(tmp_path, NOISY)
    both = property(lambda p: {(s.digest, n) for a in p.analyses for s in a.sums for n in (0, 1)})
    monkeypatch.setattr(StudyProtocol, "answered", both)
    assert answer(desk, agreed, COUNT).size


def test_noise_of_two_studies_comes_from_one_ledger(tmp_path: Path) -> None:
    desk, agreed = approved(tmp_path, NOISY)
    answer(desk, agreed, COUNT, private=True)
    with pytest.raises(BudgetSpent):
        answer(desk, agreed, COUNT, 2, private=True)
    other = terms(NOISY.replace("A study", "Another study"))
    desk.receive(other)
    desk.approve(desk.study(other.contract.hex()), "a person")
    with pytest.raises(BudgetSpent):
        answer(desk, other, COUNT, 3, private=True)


def test_a_question_has_one_answer_whatever_is_killed(tmp_path: Path) -> None:
    """Every call of `answer` here opens the folder anew, as a program does that was killed."""
    both = ask("count", 'column = "age"', "noise = true") + ask("mean", 'column = "age"')
    desk, agreed = approved(tmp_path, text(both, more=BUDGET))
    first = answer_kept(desk, agreed)
    assert answer_kept(desk, agreed).tolist() == first.tolist()  # no other noise, nothing paid
    with desk.open("centre-00", agreed, b"operator") as own:
        assert own.ledger.uses == 1
        other = own.question(
            written(mean("age", 0, 100, most=MOST).recipe), NAMES, 1, private=False
        )
        with pytest.raises(QuestionRefused, match="has answered under the number"):
            own.answer(other, "epoch/00000001")


def answer_kept(desk: DeskFolder, agreed: StudyTerms) -> np.ndarray:
    with desk.open("centre-00", agreed, b"operator") as own:
        asked = own.question(written(COUNT.recipe), NAMES, 1, private=True)
        return own.answer(asked, "epoch/00000001")


class Killed(BaseException):
    """As by kill -9."""


def test_killed_before_it_is_written_nothing_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, agreed = approved(tmp_path, NOISY)

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr("basecagg.statistics.desk.perform", die)
        with pytest.raises(Killed):
            answer_kept(desk, agreed)
    with desk.open("centre-00", agreed, b"operator") as own:
        assert own.ledger.uses == 0
    answer_kept(desk, agreed)


def test_numbers_of_an_answer_are_forgotten_with_the_next(tmp_path: Path) -> None:
    desk, agreed = approved(tmp_path, PLAIN)
    answer(desk, agreed, COUNT)
    answer(desk, agreed, COUNT, 2)
    assert [bool(given.numbers) for _, given in desk.answered()] == [False, True]
    with pytest.raises(QuestionRefused, match="has answered under the number"):
        answer(desk, agreed, COUNT, 1)


def test_an_older_copy_of_a_desk_answers_and_approves_nothing(tmp_path: Path) -> None:
    desk, agreed = approved(tmp_path, PLAIN)
    copy = tmp_path / "copy.db"
    shutil.copy(tmp_path / "desk" / "desk.db", copy)
    answer(desk, agreed, COUNT)
    shutil.copy(copy, tmp_path / "desk" / "desk.db")
    with pytest.raises(QuestionRefused, match="older copy"):
        answer(desk, agreed, COUNT, 2)
    with pytest.raises(DataError, match="older copy"):
        desk.approve(desk.study(agreed.contract.hex()), "a person")


def test_a_refusal_depends_on_no_row(tmp_path: Path) -> None:
    """The same question to two desks that have the same columns and quite other rows."""
    said = []
    for index, rows in enumerate((ROWS, {name: np.full(1, np.nan) for name in ROWS})):
        place = tmp_path / f"{index}"
        write_desk(place / "desk", rows)
        desk, agreed = DeskFolder(place / "desk", place / "anchors"), terms(PLAIN)
        desk.receive(agreed)
        desk.approve(desk.study(agreed.contract.hex()), "a person")
        answer(desk, agreed, COUNT)
        refusals = []
        for asked, members in (
            (mean("age", 0, 50, most=MOST), NAMES),
            (COUNT, NAMES[:4]),
            (COUNT, NAMES[1:]),
        ):
            with pytest.raises(QuestionRefused) as refusal:
                answer(desk, agreed, asked, 2, members=members)
            refusals.append(str(refusal.value))
        said.append(refusals)
    assert said[0] == said[1]


# --- mapping --------------------------------------------------------------------------------------


def test_words_become_numbers_and_units_are_converted(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("SEX;AGE_MONTHS\nF;120\nM;\nx;abc\n")
    (tmp_path / "mapping.toml").write_text(
        '[source]\ncsv = "p.csv"\n[columns]\nsex = { from = "SEX", values = { F = 0, M = 1 } }\n'
        'age = { from = "AGE_MONTHS", times = 0.08333333333333333, unit = "years" }\n'
    )
    rows = read_mapping(tmp_path).read(["sex", "age"])
    np.testing.assert_allclose(rows["sex"], [0, 1, np.nan])
    np.testing.assert_allclose(rows["age"], [10, np.nan, np.nan])


def test_a_database_is_read_and_cannot_be_written(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("CREATE TABLE p (age REAL)")
        database.executemany("INSERT INTO p VALUES (?)", [(1.0,), (2.5,)])
    database.close()
    said = '[source]\nsqlite = "p.db"\nquery = "{}"\n[columns]\nage = "age"\n'
    (tmp_path / "mapping.toml").write_text(said.format("SELECT age FROM p"))
    assert read_mapping(tmp_path).read(["age"])["age"].tolist() == [1.0, 2.5]
    (tmp_path / "mapping.toml").write_text(said.format("DELETE FROM p RETURNING age"))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        read_mapping(tmp_path).read(["age"])


def test_parquet_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"age": [1, 2, None]}), tmp_path / "p.parquet")
    (tmp_path / "mapping.toml").write_text(
        '[source]\nparquet = "p.parquet"\n[columns]\nage = "age"\n'
    )
    np.testing.assert_allclose(read_mapping(tmp_path).read(["age"])["age"], [1, 2, np.nan])


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "[source]\n[columns]\n",
        '[source]\nxml = "p"\n[columns]\n',
        '[source]\ncsv = "p"\nquery = "q"\n[columns]\n',
    ],
)
def test_a_bad_mapping_file_is_named(tmp_path: Path, bad: str) -> None:
    (tmp_path / "mapping.toml").write_text(bad)
    with pytest.raises(DataError, match=r"mapping\.toml"):
        read_mapping(tmp_path)


def test_units_that_differ_are_not_approved_and_people_are_told(tmp_path: Path) -> None:
    desk, agreed = folder(tmp_path), terms(PLAIN.replace("high = 100", 'high = 50\nunit = "years"'))
    desk.receive(agreed)
    study = desk.study(agreed.contract.hex())
    notes = desk.findings(study.protocol)
    assert any("lie outside 0…50" in note for note in notes)
    with pytest.raises(DataError, match="UNIT: age is in no unit here"):
        desk.approve(study, "a person")


def test_small_sums_are_not_approved(tmp_path: Path) -> None:
    said = PLAIN.replace("most = 64", "most = 64\nleast = 3")
    assert parse(said).least == 3
    desk = folder(tmp_path)
    desk.receive(terms(said))
    with pytest.raises(DataError, match="sums of 3 centres"):
        desk.approve(desk.study(""), "a person")
