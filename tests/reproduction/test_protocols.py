"""The cost table: rows from exact sums, the server's work done in full, repeats shown, resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from basecagg.baselines import secagg
from basecagg.protocol import recovery
from basecagg.simulation.federation import Federation
from basecagg.simulation.metering import MeteredLoopback
from reproduction import (
    coded_costs,
    costs,
    pairwise_costs,
    protocols,
    protocols_claims,
    protocols_tables,
)
from reproduction.costs import (
    PROTOCOLS,
    Cell,
    Once,
    PhaseCost,
    Phases,
    Protocol,
    Row,
    Setting,
    Spread,
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
    original = secagg.add_masks

    def spy(vector: Any, added: Any, subtracted: Any) -> Any:
        taken.append((vector.size, len(list(added)) + len(list(subtracted))))
        return original(vector, added, subtracted)

    monkeypatch.setattr(secagg, "add_masks", spy)
    assert pairwise_costs.aggregate(cell).exact
    # The server's call is the last, after its users': 4 survivors, and 4·4 masks between them and the dropped.
    *of_users, of_server = taken
    assert len(of_users) == 4
    assert of_server == (2000, 4 + 4 * 4)


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
    assert "(SecAgg 1, SecAgg+ 1, LightSecAgg 1, BASecAgg 2)" in few.notes[0]
    assert few.tables["Cells measured"] == [
        {
            "model": "d = 2,000",
            "SecAgg": "1 of 2",
            "SecAgg+": "1 of 2",
            "LightSecAgg": "1 of 2",
            "BASecAgg": "0 of 2",
            "missing": "N = 8 at 25 %: BASecAgg; N = 12: all",
        }
    ]
    assert not any(name.startswith(("Gains", "Measured exponents")) for name in few.tables)


def test_the_plots_are_of_the_largest_model_that_is_best_measured() -> None:
    rows = [
        synthetic(cell.protocol, cell.users, cell.dropout, 1.0, cell.model_size)
        for cell in protocols.cells("quick")
    ]
    assert rows[0].cell.model_size == 1_206_590
    for found, size in ((rows, "1,206,590"), (rows[1:], "61,706")):
        publication = protocols.report(results_of(found), "quick")
        assert f"d = {size}." in publication.figures["protocols-user-cpu"][1]
    assert {line["d"] for line in publication.summary} == {61_706}


def test_every_cell_is_in_a_table_under_the_protocols_proper_name() -> None:
    rows = [
        synthetic(cell.protocol, cell.users, cell.dropout, 1.0, cell.model_size)
        for cell in protocols.cells("quick")
    ]
    publication = protocols.report(results_of(rows), "quick")
    others = [table for name, table in publication.tables.items() if name.startswith("Figures")]
    lines = [*publication.summary, *(line for table in others for line in table)]
    found = {(line["protocol"], line["N"], line["dropout"], line["d"]) for line in lines}
    assert len(found) == len(lines) == len(rows)
    assert {line["protocol"] for line in lines} == {"SecAgg", "SecAgg+", "LightSecAgg", "BASecAgg"}


def test_a_cell_that_does_not_fit_into_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols.machine, "memory", lambda: 8 * 2**30)
    left = {job.key for job in protocols.jobs(Order("full"), {})}
    assert "secagg/200/0.5/5288548" in left
    assert "lightsecagg/200/0.5/5288548" not in left
    monkeypatch.setattr(protocols.machine, "memory", lambda: 24 * 2**30)
    assert len(protocols.jobs(Order("full"), {})) == len(protocols.cells("full"))


# --- tables ---------------------------------------------------------------------------------------


def test_the_exponent_of_a_known_law_is_found_for_every_share_of_dropouts() -> None:
    rows = [
        synthetic(p, n, q, 20 * q) for p in PROTOCOLS for n in (10, 20, 40) for q in (0.1, 0.15)
    ]
    table = protocols_tables.growth_table(rows)
    assert len(table) == 2 * len(PROTOCOLS)
    for line in table:
        expected = {"10 %": 2.0, "15 %": 3.0}[line["dropout"]]
        assert line["user CPU: measured"] == line["server CPU: measured"] == expected
        assert line["bytes sent: measured"] == 0


def test_growth_of_the_server_is_of_all_its_phases() -> None:
    rows = [synthetic(p, n, 0.1, 0.0) for p in PROTOCOLS for n in (10, 20, 40)]
    for row in rows:
        row.repeats[0]["offline"] = PhaseCost(1, 1e6 * row.cell.users**2, 1, 1)
        row.repeats = 3 * row.repeats[:1]
    (line, *_) = protocols_tables.growth_table(rows)
    assert (line["server CPU: measured"], line["recovery alone: measured"]) == (2, 0)


def test_growth_is_over_the_users_that_all_protocols_share() -> None:
    rows = [synthetic(p, n, 0.1, 1.0) for p in PROTOCOLS for n in (10, 20, 40)]
    alone = [row for row in rows if row.cell.users < 40 or row.cell.protocol == "secagg"]
    assert protocols_tables.common(rows, 0.1) == [10, 20, 40]
    assert protocols_tables.common(alone, 0.1) == [10, 20]
    assert {line["N"] for line in protocols_tables.growth_table(alone)} == {"10–20"}


def test_theory_knows_that_shares_may_be_as_long_as_the_model() -> None:
    rows = [synthetic(p, n, q, 1.0) for p in PROTOCOLS for n in (10, 20) for q in (0.1, 0.5)]
    expected = {
        (line["protocol"], line["dropout"]): line["server CPU: theory"]
        for line in protocols_tables.growth_table(rows)
    }
    assert expected["LightSecAgg", "10 %"] == expected["BASecAgg", "10 %"] == 1
    assert expected["LightSecAgg", "50 %"] == expected["BASecAgg", "50 %"] == 2
    assert expected["SecAgg", "10 %"] == expected["SecAgg", "50 %"] == 2


def test_durations_add_up() -> None:
    row = synthetic("secagg", 2, 0.1, 1.0)
    # 2 s of a user, 2 s of the server, and 2 MB at 16 Mb/s for each of three phases
    assert row.duration(16, overlapped=False).middle == pytest.approx(3 * (2 + 2 + 1))
    assert row.duration(16, overlapped=True).middle == pytest.approx(2 * (2 + 2 + 1))


def test_a_row_survives_json() -> None:
    row = synthetic("secagg+", 4, 0.3, 1.0)
    again = Row.from_dict(json.loads(json.dumps(row.as_dict())))
    assert again.flat() == row.flat()


def test_gains_are_of_both_coded_protocols_at_the_largest_n_that_all_have() -> None:
    rows = [synthetic(p, n, 0.1, 1.0) for p in PROTOCOLS for n in (10, 20, 200)]
    rows += [synthetic(p, n, 0.5, 1.0) for p in PROTOCOLS for n in (10, 20)]
    rows.append(synthetic("secagg", 200, 0.5, 1.0))
    gains = protocols_tables.gains_table(rows)
    assert [line["time"] for line in gains] == [1.0] * 8
    assert {(line["N"], line["dropout"]) for line in gains} == {(200, "10 %"), (20, "50 %")}
    assert [(line["of"], line["over"]) for line in gains[:4]] == [
        ("LightSecAgg (T = 2)", "SecAgg (T = 2)"),
        ("LightSecAgg (T = 2)", "SecAgg+ (T = 2)"),
        ("BASecAgg (T = 2)", "SecAgg (T = 2)"),
        ("BASecAgg (T = 2)", "SecAgg+ (T = 2)"),
    ]
    published = [line["published for N = 200"] for line in gains]
    assert published == ["8–13×", "3–4×", *6 * ["–"]]


def test_a_gain_above_one_means_that_the_other_takes_longer() -> None:
    rows = [synthetic(p, 20, 0.1, 2.0 if p == "secagg" else 1.0) for p in PROTOCOLS]
    over_secagg, over_the_other, *_ = protocols_tables.gains_table(rows)
    assert over_secagg["server CPU"] == over_secagg["server CPU in the recovery"] == 20
    assert over_secagg["time, overlapped"] > 1 == over_the_other["time, overlapped"]


# --- claims ---------------------------------------------------------------------------------------


def about(*middles: float) -> list[Spread]:
    return [Spread(middle, 0.9 * middle, 1.1 * middle) for middle in middles]


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ((1, 2, 3), "reproduced"),
        ((1, 3, 3.1), "partly"),  # the last step is within what repeats differ by
        ((1, 1.3, 1.7), "partly"),  # not much
        ((1, 1.05, 1.1), "not reproduced"),
        ((3, 2, 1), "not reproduced"),
    ],
)
def test_a_time_grows_if_every_step_is_beyond_noise(times: list[float], verdict: str) -> None:
    assert protocols_claims.grows(about(*times)) == verdict


@pytest.mark.parametrize(
    ("light", "ours", "verdict"),
    [
        ((1, 1, 0.5), (2, 2.1, 1), "reproduced"),
        ((1, 1, 4), (2, 2, 8), "partly"),
        ((1, 2, 4), (2, 4, 8), "not reproduced"),
    ],
)
def test_a_time_stays_if_no_share_takes_longer(
    light: list[float], ours: list[float], verdict: str
) -> None:
    assert protocols_claims.stays([about(*light), about(*ours)]) == verdict


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((3, 30), "reproduced"),
        ((2.1, 30), "partly"),
        ((0.5, 30), "partly"),
        ((0.5, 1), "not reproduced"),
    ],
)
def test_faster_is_much_faster_at_every_share(gains: list[float], verdict: str) -> None:
    assert protocols_claims.faster(about(*gains)) == verdict


def as_the_paper_says(**changed: float) -> list[Row]:
    """SecAgg takes longer the more drop out, the others a second for each sum."""
    rows = []
    for cell in protocols.cells("quick"):
        if cell.model_size != 1_206_590:
            continue
        row = Row(cell, 3, 2, 1, [])
        seconds = 100 * cell.dropout if cell.protocol == "secagg" else cell.sums
        row.repeats = [phases_of(changed.get(cell.key, seconds))] * 3
        rows.append(row)
    return rows


def verdicts(rows: list[Row]) -> list[str]:
    return [claim.verdict for claim in protocols.report(results_of(rows), "quick").claims]


def test_claims_follow_the_figures() -> None:
    assert verdicts(as_the_paper_says()) == ["reproduced"] * 3
    slow_decoding = {f"{p}/50/0.5/1206590": 40.0 for p in protocols_tables.CODED}
    assert verdicts(as_the_paper_says(**slow_decoding)) == ["reproduced", "partly", "partly"]
    fast_secagg = {f"secagg/50/{q:g}/1206590": 0.5 for q in protocols.DROPOUTS}
    expected = ["not reproduced", "reproduced", "not reproduced"]
    assert verdicts(as_the_paper_says(**fast_secagg)) == expected


def test_fewer_sums_do_not_hide_that_each_takes_longer() -> None:
    alike = {f"basecagg/50/{q:g}/1206590": 1.0 for q in protocols.DROPOUTS}
    assert verdicts(as_the_paper_says(**alike))[1] == "partly"


def test_a_claim_without_all_its_cells_is_undecided_and_says_what_smaller_n_say() -> None:
    rows = [row for row in as_the_paper_says() if row.cell.key != "basecagg/50/0.5/1206590"]
    found = protocols.report(results_of(rows), "quick").claims
    assert [claim.verdict for claim in found] == ["reproduced", "undecided", "undecided"]
    assert "N = 25" not in found[0].found
    for claim in found[1:]:
        assert "not measured yet at 50 %" in claim.found
        assert "N = 25" in claim.found
        assert "missing" in claim.why


def test_two_repeats_or_a_wrong_sum_settle_nothing() -> None:
    rows = as_the_paper_says()
    (last,) = [row for row in rows if row.cell.key == "secagg/50/0.5/1206590"]
    last.repeats.pop()
    assert verdicts(rows) == ["undecided", "reproduced", "undecided"]
    last.repeats, last.exact = last.repeats * 2, False
    assert verdicts(rows) == ["undecided", "reproduced", "undecided"]


def test_the_shortest_form_has_no_dropouts_to_compare() -> None:
    rows = [synthetic(cell.protocol, cell.users, 0.25, 1.0, 2000) for cell in SMOKE]
    assert not protocols.report(results_of(rows), "smoke").claims


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
