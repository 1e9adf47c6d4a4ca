"""The cost table: rows from exact sums, extrapolation marked, exponents fitted, resumed without measuring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from reproduction import coded_costs, pairwise_costs, protocols
from reproduction.costs import PROTOCOLS, Cell, PhaseCost, Protocol, Row
from reproduction.jobs import Order


def synthetic(protocol: Protocol, users: int, dropout: float, exponent: float, d: int = 10) -> Row:
    phase = PhaseCost(users**exponent, users**exponent, 1e6, 1e6)
    phases = {"offline": phase, "upload": phase, "recovery": phase}
    return Row(Cell(protocol, users, dropout, d), 3, 2, users - 1, phases)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_a_small_cell_is_measured_exactly(protocol: Protocol, dropout: float) -> None:
    row = protocols.measure(Cell(protocol, 10, dropout, 3000))
    assert row.exact
    assert row.user_seconds > 0
    assert row.server_seconds > 0
    assert row.colluders == min(5, 10 - round(10 * dropout) - 1) or protocol == "secagg+"
    # An upload is the vector itself and little more.
    assert 4 * 3000 <= row.phases["upload"].bytes_up <= 4 * 3000 + 2000


def test_thresholds_follow_the_dropouts() -> None:
    assert Cell("secagg", 100, 0.1, 1).colluders == 50
    assert Cell("secagg", 100, 0.3, 1).colluders == 50
    half = Cell("secagg", 100, 0.5, 1)
    assert (half.survivors, half.colluders) == (50, 49)


def test_many_streams_are_scaled_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("secagg", 8, 0.5, 2000)
    assert pairwise_costs.measure_pairwise(cell).extrapolated == ""
    monkeypatch.setattr(pairwise_costs, "MOST_STREAMS", 6)
    # 4 survivors, and 4·4 masks between them and the dropped.
    assert "6 of the server's 20" in pairwise_costs.measure_pairwise(cell).extrapolated


def test_large_shares_are_extended_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("lightsecagg", 8, 0.5, 4000)
    whole = coded_costs.measure_coded(cell)
    assert whole.extrapolated == ""
    monkeypatch.setattr(coded_costs, "MOST_SHARE_BYTES", 8 * 4 * 1000)
    extended = coded_costs.measure_coded(cell)
    assert "extended along the line" in extended.extrapolated
    # Bytes are exactly linear, so the line must hit them.
    for name, phase in extended.phases.items():
        assert phase.bytes_up == pytest.approx(whole.phases[name].bytes_up, rel=0.02)
        assert phase.bytes_down == pytest.approx(whole.phases[name].bytes_down, rel=0.02)


def test_the_exponent_of_a_known_law_is_found() -> None:
    rows = [synthetic(p, n, q, 2.0) for p in PROTOCOLS for n in (10, 20, 40) for q in (0.1, 0.3)]
    assert protocols.growth(rows, "secagg", lambda row: row.server_seconds) == pytest.approx(2)
    assert len(protocols.growth_table(rows)) == len(PROTOCOLS)


def test_durations_add_up() -> None:
    row = synthetic("secagg", 2, 0.1, 1.0)
    # 2 s of a user, 2 s of the server, and 2 MB at 16 Mb/s for each of three phases
    assert row.duration(16, overlapped=False) == pytest.approx(3 * (2 + 2 + 1))
    assert row.duration(16, overlapped=True) == pytest.approx(2 * (2 + 2 + 1))


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
    assert len(protocols.cells("full")) == 4 * 4 * 3 * 5
    quick = {cell.key for cell in protocols.cells("quick")}
    assert quick < {cell.key for cell in protocols.cells("full")}
