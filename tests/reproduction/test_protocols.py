"""The cost table: rows from exact sums, the server's work done in full, repeats shown, resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from basecagg.protections import secagg_server
from basecagg.protocol import recovery
from basecagg.simulation.federation import Federation
from basecagg.simulation.metering import MeteredLoopback
from reproduction import coded_costs, costs, pairwise_costs, protocols
from reproduction.costs import (
    PROTOCOLS,
    Cell,
    Once,
    PhaseCost,
    Phases,
    Protocol,
    Row,
    Setting,
    recovery_seconds,
    server_seconds,
    user_seconds,
)
from reproduction.jobs import Order


@pytest.fixture(autouse=True)
def three_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SHORT_SECONDS", 0.0)


def phases_of(seconds: float) -> Phases:
    phase = PhaseCost(seconds, seconds, 1e6, 1e6)
    return {"offline": phase, "upload": phase, "recovery": phase}


def synthetic(protocol: Protocol, users: int, dropout: float, exponent: float, d: int = 10) -> Row:
    repeats = [phases_of(users**exponent)] * 3
    return Row(Cell(protocol, users, dropout, d), 3, 2, users - 1, repeats)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_a_small_cell_is_measured_exactly(protocol: Protocol, dropout: float) -> None:
    row = protocols.measure(Cell(protocol, 10, dropout, 3000))
    assert row.exact
    assert len(row.repeats) == 3
    assert row.spread(user_seconds).least > 0
    assert row.spread(server_seconds).least > 0
    assert row.colluders == min(5, 10 - round(10 * dropout) - 1) or protocol == "secagg+"
    # An upload is the vector itself and little more.
    assert 4 * 3000 <= row.repeats[0]["upload"].bytes_up <= 4 * 3000 + 2000


def test_thresholds_follow_the_dropouts() -> None:
    assert Cell("secagg", 100, 0.1, 1).colluders == 50
    assert Cell("secagg", 100, 0.3, 1).colluders == 50
    half = Cell("secagg", 100, 0.5, 1)
    assert (half.survivors, half.colluders) == (50, 49)


# --- all the work is done -------------------------------------------------------------------------


def test_the_server_takes_every_mask_off_the_whole_vector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell, taken = Cell("secagg", 8, 0.5, 2000), []
    original = secagg_server.add_masks

    def spy(vector: Any, added: Any, subtracted: Any) -> Any:
        taken.append((vector.size, len(list(added)) + len(list(subtracted))))
        return original(vector, added, subtracted)

    monkeypatch.setattr(secagg_server, "add_masks", spy)
    assert pairwise_costs.aggregate(cell).exact
    # 4 survivors, and 4·4 masks between them and the dropped.
    assert taken == [(2000, 4 + 4 * 4)]


@pytest.mark.parametrize(("protocol", "members"), [("lightsecagg", 15), ("basecagg", 10)])
def test_the_server_decodes_all_answers_and_sums_all_updates(
    protocol: Protocol, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, seen = Cell(protocol, 20, 0.25, 2000), []
    original = recovery.open_sum

    def spy(agreement: Any, request: Any, uploads: Any, answers: Any) -> Any:
        words = list(uploads)
        seen.append((len(words), min(map(len, words)) // 4, len(answers)))
        return original(agreement, request, words, answers)

    monkeypatch.setattr(recovery, "open_sum", spy)
    assert coded_costs.aggregate(cell).exact
    assert seen == [(members, 2005, 15)]


def test_a_wrong_stand_in_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, original = Cell("basecagg", 12, 0.25, 500), coded_costs.Rehearsal._foresee

    def wrong(self: coded_costs.Rehearsal) -> tuple[bytes, dict[int, bytes]]:
        own, answers = original(self)
        return own, {**answers, 3: bytes(len(answers[3]))}

    assert coded_costs.aggregate(cell).exact
    monkeypatch.setattr(coded_costs.Rehearsal, "_foresee", wrong)
    assert not coded_costs.aggregate(cell).exact


def test_a_head_that_is_not_masked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, original = Cell("secagg", 6, 0.5, 500), pairwise_costs.HeadClient.mask

    def wrong(self: Any, delivery: Any, values: Any) -> Any:
        return original(self, delivery, np.zeros_like(values))

    monkeypatch.setattr(pairwise_costs.HeadClient, "mask", wrong)
    assert not pairwise_costs.aggregate(cell).exact


def test_stand_ins_send_as_many_bytes_as_those_they_stand_for() -> None:
    cell = Cell("lightsecagg", 12, 0.25, 900)
    rehearsal = coded_costs.Rehearsal(cell)
    stages = (rehearsal.deal_first(), rehearsal.deal_others(), rehearsal.open_sum()[0])
    network = MeteredLoopback()
    everybody = Federation(coded_costs.coded_parameters(cell), network=network)
    for index in range(cell.members):
        everybody.contribute(f"user-{index}", np.full(900, 0.01, np.float32))
    everybody.run()
    for stage, kind in [(0, "Shipment"), (0, "Parcel"), (2, "Upload"), (2, "Answer")]:
        meter = stages[stage].meter
        mean = network.meter.bytes_sent[kind] / network.meter.messages[kind]
        assert meter.bytes_sent[kind] / meter.messages[kind] == pytest.approx(mean, abs=1)


# --- repeats --------------------------------------------------------------------------------------


def test_kernels_are_loaded_before_the_first_repeat_and_once() -> None:
    sizes: list[int] = []

    def aggregate(cell: Cell) -> Once:
        sizes.append(cell.model_size)
        return Once(phases_of(1.0), len(sizes) != 7)

    for size in (5000, 6000):
        row = costs.measured(Cell("secagg", 31, 0.1, size), Setting(3, 2, 1), aggregate)
    assert sizes == [1000, *3 * [5000], *3 * [6000]]
    assert not row.exact


def test_a_short_cell_is_repeated_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SHORT_SECONDS", 600.0)
    row = costs.measured(
        Cell("secagg", 32, 0.1, 10), Setting(3, 2, 1), lambda cell: Once(phases_of(1.0), True)
    )
    assert len(row.repeats) == costs.MOST_REPEATS


def test_the_middle_of_the_repeats_is_shown_with_their_spread() -> None:
    row = synthetic("secagg", 8, 0.25, 1.0, 2000)
    row.repeats = [phases_of(seconds) for seconds in (1.0, 10.0, 2.0)]
    assert row.spread(recovery_seconds) == (2, 1, 10)
    others = [synthetic(cell.protocol, cell.users, 0.25, 1.0, 2000) for cell in SMOKE[1:]]
    publication = protocols.report(results_of([row, *others]), "smoke")
    assert publication.summary[0]["of it in the recovery"] == "2 (1–10)"
    assert publication.lines[0]["server CPU s, most"] == 30


SMOKE = protocols.cells("smoke")


def results_of(rows: list[Row]) -> dict[str, Any]:
    return {row.cell.key: row.as_dict() for row in rows}


def test_the_page_says_which_cells_are_missing() -> None:
    rows = [synthetic(cell.protocol, cell.users, 0.25, 1.0, 2000) for cell in SMOKE]
    assert "not measured yet" not in protocols.report(results_of(rows), "smoke").notes[0]
    few = protocols.report(results_of(rows[:3]), "smoke")
    assert f"{len(rows) - 3} of {len(rows)} cells are not measured yet" in few.notes[0]
    assert rows[-1].cell.key in few.notes[0]
    assert few.tables["Growth with N"][0]["N^, measured (user)"] == "–"
    assert "Gains at 320 Mb/s" not in protocols.report(results_of(rows[:2]), "smoke").tables


def test_the_plots_are_of_the_largest_model_that_is_best_measured() -> None:
    rows = [
        synthetic(cell.protocol, cell.users, cell.dropout, 1.0, cell.model_size)
        for cell in protocols.cells("quick")
    ]
    assert rows[0].cell.model_size == 1_206_590
    for found, size in ((rows, "1,206,590"), (rows[1:], "61,706")):
        publication = protocols.report(results_of(found), "quick")
        assert f"d = {size}." in publication.figures["protocols-user-cpu"][1]
    assert {line["d"] for line in publication.summary} == {61_706, 1_206_590}


def test_a_cell_that_does_not_fit_into_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols.machine, "memory", lambda: 8 * 2**30)
    left = {job.key for job in protocols.jobs(Order("full"), {})}
    assert "secagg/200/0.5/5288548" in left
    assert "lightsecagg/200/0.5/5288548" not in left
    monkeypatch.setattr(protocols.machine, "memory", lambda: 24 * 2**30)
    assert len(protocols.jobs(Order("full"), {})) == len(protocols.cells("full"))


# --- tables ---------------------------------------------------------------------------------------


def test_the_exponent_of_a_known_law_is_found() -> None:
    rows = [synthetic(p, n, q, 2.0) for p in PROTOCOLS for n in (10, 20, 40) for q in (0.1, 0.3)]
    assert protocols.growth(
        rows, "secagg", lambda row: row.spread(server_seconds).middle
    ) == pytest.approx(2)
    assert len(protocols.growth_table(rows)) == len(PROTOCOLS)


def test_durations_add_up() -> None:
    row = synthetic("secagg", 2, 0.1, 1.0)
    # 2 s of a user, 2 s of the server, and 2 MB at 16 Mb/s for each of three phases
    assert row.duration(16, overlapped=False).middle == pytest.approx(3 * (2 + 2 + 1))
    assert row.duration(16, overlapped=True).middle == pytest.approx(2 * (2 + 2 + 1))


def test_a_row_survives_json() -> None:
    row = synthetic("secagg+", 4, 0.3, 1.0)
    again = Row.from_dict(json.loads(json.dumps(row.as_dict())))
    assert again.flat() == row.flat()


def test_gains_are_against_lightsecagg() -> None:
    rows = [synthetic(p, n, 0.1, 1.0) for p in PROTOCOLS for n in (10, 20)]
    gains = protocols.gains_table(rows)
    assert [line["gain"] for line in gains] == [1.0, 1.0]
    assert {line["N"] for line in gains} == {20}


def test_a_run_is_resumed_without_measuring_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def fake(cell: Cell) -> Row:
        measured.append(cell.key)
        return synthetic(cell.protocol, cell.users, cell.dropout, 1.0, cell.model_size)

    monkeypatch.setattr(protocols, "measure", fake)
    cells = protocols.cells("quick")
    first = protocols.COSTS.run(Order("quick"), tmp_path)
    assert len(measured) == len(cells) == len(first.lines)
    protocols.COSTS.run(Order("quick"), tmp_path)
    assert len(measured) == len(cells)


def test_the_full_table_has_every_cell() -> None:
    assert len(protocols.cells("full")) == 4 * 4 * 3 * 4
    quick = {cell.key for cell in protocols.cells("quick")}
    assert quick < {cell.key for cell in protocols.cells("full")}
