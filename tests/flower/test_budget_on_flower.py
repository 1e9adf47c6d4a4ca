"""A budget of privacy on Flower: nodes clip, add noise, keep their own ledgers over all runs, and stop."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_grid
import numpy as np
import pytest
from audit import noting_sums
from fake_grid import FakeGrid, make_grid
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from own_process import grid_with
from small_app import initial_arrays, make_app, small_strategy

from basecagg.errors import BudgetSpent, DataError, LocalProtocolError, ParameterError
from basecagg.flower import basecagg_mod, loop, visits
from basecagg.flower.node_folder import NodeStore
from basecagg.flower.visits import REPORT
from basecagg.maths.staleness import polynomial
from basecagg.planning.budget import Budget
from basecagg.privacy import Mechanism
from basecagg.protocol import masking
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Released
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.storage.participant_store import ParticipantStore

K, NODES, USES = 3, 5, 2
BUDGET = Budget(epsilon=4.0, delta=1e-5, max_uses=USES, clip_norm=1.0)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 1.0)
    monkeypatch.setattr(loop, "_LOOK_AROUND", 0.0)


@pytest.fixture(autouse=True)
def _listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")


def run(grid: FakeGrid, versions: int = 20, **options: Any) -> Any:
    usual = {
        "privacy": BUDGET,
        "min_available_nodes": len(grid.nodes),
        "concurrency": len(grid.nodes),
    }
    arrays = options.pop("arrays", None) or initial_arrays()
    strategy = small_strategy(**(usual | {"buffer_size": K, "collect_interval": 0.02} | options))
    return strategy.start(grid=grid, initial_arrays=arrays, num_rounds=versions)


def uses(folder: Path, partition: int) -> int:
    """What a node's ledger has, as it lies on the disk."""
    path = folder / str(partition) / "state.db"
    with ParticipantStore(path, "privacy", anchor_folder=folder / "anchors") as store:
        return PrivacyLedger(store).uses


# --- the budget halts training ---


@pytest.mark.parametrize("training", ["attached", "detached"])
def test_a_run_ends_when_the_budget_is_used_up(
    tmp_path: Path, training: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_with(NODES, tmp_path)
    with noting_sums() as sums:
        result = run(grid, training=training)
    made = [uses(tmp_path / "nodes", each) for each in range(NODES)]
    members = Counter(name.contributor for each in sums for name in each.members)
    assert max(made) == USES
    assert sum(made) >= K * len(sums) >= 2 * K
    assert max(members.values()) <= USES
    assert f"training ends at version {len(sums)} of 20" in caplog.text
    assert "the privacy budget is used up on" in caplog.text
    assert f"this node trains no more: all k_max = {USES} uploads of ε = 4" in caplog.text
    assert np.isfinite(result.arrays["0"].numpy()).all()


def test_nobody_trains_for_an_upload_that_cannot_be_made(tmp_path: Path) -> None:
    trainings: Counter[int] = Counter()
    app = make_app([basecagg_mod], lambda node_id, *_: trainings.update([node_id]))
    run(make_grid(NODES, app, tmp_path))
    assert max(trainings.values()) == USES


def test_a_server_that_does_not_listen_gets_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes have masks left when another run spends the rest of their budget."""
    trainings: list[int] = []
    app = make_app([basecagg_mod], lambda node_id, *_: trainings.append(node_id))
    grid = make_grid(K, app, tmp_path)
    run(grid, versions=1, server_state=tmp_path / "server.db", erase_state=False)
    run(grid)
    made = len(trainings)
    listened = visits.read_report
    monkeypatch.setattr(visits, "read_report", lambda it: replace(listened(it), spent=False))
    monkeypatch.setattr(fake_grid, "ENDLESS", grid.sent + 100)
    with pytest.raises(AssertionError, match="does not end"):
        run(grid, versions=2, server_state=tmp_path / "server.db")
    assert len(trainings) == made == K * USES


def test_a_ledger_that_forgets_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: training would go on to the last version."""
    monkeypatch.setattr(PrivacyLedger, "_with", lambda self, mechanism, staleness: {})
    grid = make_grid(NODES, make_app([basecagg_mod]), tmp_path)
    with noting_sums() as sums:
        run(grid, versions=6)
    assert len(sums) == 6 > NODES * USES // K


# --- one ledger for all runs ---


def test_the_next_run_finds_what_the_last_one_spent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every run is a federation of its own, and none of them gives a budget anew."""
    grid = make_grid(K, make_app([basecagg_mod]), tmp_path)
    with noting_sums() as sums:
        run(grid, versions=1)
        run(grid, versions=5)
        assert len(sums) == USES
        run(grid, versions=5)
    assert len(sums) == USES
    assert "training ends at version 0 of 5" in caplog.text
    assert [uses(tmp_path, each) for each in range(K)] == [USES] * K


def test_a_larger_budget_counts_what_was_spent_under_a_smaller_one(tmp_path: Path) -> None:
    grid = make_grid(K, make_app([basecagg_mod]), tmp_path)
    larger = Budget(epsilon=6.0, delta=1e-5, max_uses=3, clip_norm=1.0)
    with noting_sums() as sums:
        run(grid)
        run(grid, privacy=larger)
    assert USES < len(sums) <= larger.max_uses


@pytest.mark.parametrize("way", ["older", "deleted"])
def test_an_older_copy_has_spent_everything(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is put back between two runs: no federation that was open then is ever opened again."""
    grid, folder = make_grid(K, make_app([basecagg_mod]), tmp_path), tmp_path / "0"
    large = Budget(epsilon=9.0, delta=1e-5, max_uses=9)
    with noting_sums() as sums:
        run(grid, versions=1, privacy=large)
        shutil.copytree(folder, tmp_path / "old")
        run(grid, versions=1, privacy=large)
        shutil.rmtree(folder)
        if way == "older":
            shutil.copytree(tmp_path / "old", folder)
        run(grid, versions=3, privacy=large)
    assert len(sums) == 2
    assert "training ends at version 0 of 3" in caplog.text


def test_a_charge_is_on_the_disk_before_what_it_pays_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two: an upload is counted that was never made."""
    mechanism, path = Mechanism(privacy_of(BUDGET), K, 1, 6, 2**10), tmp_path / "state.db"
    with closing(NodeStore(path, "a", tmp_path)) as store:
        charge = PrivacyLedger(store).charge(mechanism, 0)
        own = [each for each in charge if getattr(each, "kind", "") == "ledger"]
        whole = ParticipantStore.commit

        def dies(self: ParticipantStore, writes: Any) -> None:
            if self.namespace == "a":
                raise KeyboardInterrupt
            whole(self, writes)

        monkeypatch.setattr(ParticipantStore, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            store.commit(own)
    monkeypatch.undo()
    with closing(NodeStore(path, "b", tmp_path)) as store:
        ledger = PrivacyLedger(store)
        assert ledger.uses == 1
        store.commit([e for e in ledger.charge(mechanism, 0) if getattr(e, "kind", "") == "ledger"])
        with pytest.raises(BudgetSpent):
            ledger.charge(mechanism, 0)


def privacy_of(budget: Budget) -> Any:
    return small_strategy(privacy=budget, holders=6).settings.parameters(6, 6).privacy


# --- clip and noise ---

SIZE = 3000


def idle_app(change: float = 0.0) -> ClientApp:
    """Every number of the model moves by the same."""
    app = ClientApp(mods=[basecagg_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (numbers,) = message.content["arrays"].to_numpy_ndarrays()
        record = ArrayRecord([numbers + np.float32(change)])
        return Message(RecordDict({"arrays": record}), reply_to=message)

    return app


def excess(folder: Path, change: float) -> tuple[float, Released]:
    """The variance of the noise in a sum against what was promised, with K − T_c of K members counted."""
    found: list[Mechanism] = []
    original = Contributor.submit

    def submit(self: Contributor, *arguments: Any) -> Any:
        assert self.agreement.parameters.mechanism is not None
        found.append(self.agreement.parameters.mechanism)
        return original(self, *arguments)

    grid = make_grid(K, idle_app(change), folder)
    with noting_sums() as sums, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contributor, "submit", submit)
        run(grid, versions=1, arrays=ArrayRecord([np.zeros(SIZE, np.float32)]))
    mechanism, steps = found[0], sums[0].weighted_sum * found[0].levels
    assert steps.size == mechanism.size == SIZE  # no number beside the model's own
    assert float(steps @ steps) <= mechanism.squared_sum_bound([0] * K)
    return float(steps.var() / (K * mechanism.variance)), sums[0]


def test_a_sum_has_the_noise_that_was_promised(tmp_path: Path) -> None:
    ratio, _ = excess(tmp_path, 0.0)
    assert 0.88 < ratio < 1.12  # its own deviation is √(2/3000)


def test_half_the_noise_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = masking.noise_table
    monkeypatch.setattr(masking, "noise_table", lambda variance: original(variance // 4))
    ratio, _ = excess(tmp_path, 0.0)
    assert ratio < 0.5


@pytest.mark.parametrize("change", [1e6, float("nan")])
def test_no_update_is_longer_than_the_clip(tmp_path: Path, change: float) -> None:
    """What is no number counts as nothing, plus noise like everybody else's: nobody sees the difference."""
    ratio, released = excess(tmp_path, change)
    assert 0.88 < ratio < 1.12
    assert released.applied


def test_a_detached_node_weighs_by_how_far_the_model_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training is held until somebody else hands in an update of a later version."""
    ages: list[int] = []
    original, go = Contributor.submit, tmp_path / "go"

    def submit(
        self: Contributor, update: Any, base: int, head: bytes, version: int, *more: Any
    ) -> Any:
        ages.append(version - base)
        if version:
            go.touch()
        return original(self, update, base, head, version, *more)

    monkeypatch.setattr(Contributor, "submit", submit)
    grid = grid_with(NODES + 2, tmp_path, "hold_first")
    budget = Budget(epsilon=9.0, delta=1e-5, max_uses=9)
    try:
        run(grid, versions=8, privacy=budget, training="detached", staleness=polynomial())
    finally:
        go.touch()
    assert min(ages) == 0
    assert max(ages) > 0


# --- what a node insists on ---


@pytest.mark.parametrize(("limit", "takes_part"), [(3.9, False), (4.0, True)])
def test_a_node_refuses_an_epoch_that_would_spend_more_than_it_allows(
    tmp_path: Path, limit: float, takes_part: bool, caplog: pytest.LogCaptureFixture
) -> None:
    grid = make_grid(NODES, make_app([basecagg_mod]), tmp_path)
    picky, node = next(iter(grid.nodes.items()))
    node.context.node_config["max-epsilon"] = limit
    run(grid)
    assert (uses(tmp_path, 0) > 0) == takes_part
    assert (f"node {picky}: it declined the epoch (WrongEpoch)" in caplog.text) != takes_part
    assert ("it would spend ε = 4 at δ = 1e-05, my floor is ε = 3.9" in caplog.text) != takes_part
    assert (f"├── node {picky}: " in caplog.text) != takes_part  # counted in the summary


@pytest.mark.parametrize("config", [{"max-epsilon": 1.0}, {"max-epsilon": 9.0, "max-delta": 1e-6}])
def test_when_all_refuse_the_run_ends_and_says_so(tmp_path: Path, config: dict[str, Any]) -> None:
    grid = make_grid(NODES, make_app([basecagg_mod]), tmp_path)
    for node in grid.nodes.values():
        node.context.node_config.update(config)
    with pytest.raises(LocalProtocolError, match="declined the epoch"):
        run(grid, max_failures=2)


def test_a_node_that_insists_on_a_budget_takes_part_in_nothing_else(tmp_path: Path) -> None:
    grid = make_grid(NODES, make_app([basecagg_mod]), tmp_path)
    for node in grid.nodes.values():
        node.context.node_config["max-epsilon"] = 9.0
    with pytest.raises(LocalProtocolError, match="declined the epoch"):
        run(grid, max_failures=2, privacy=None)


# --- what else could tell of a node ---


@pytest.mark.parametrize("training", ["attached", "detached"])
@pytest.mark.parametrize(("privacy", "told"), [(BUDGET, False), (None, True)])
def test_with_a_budget_not_even_the_type_of_an_error_leaves(
    tmp_path: Path, privacy: Budget | None, told: bool, training: str
) -> None:
    grid, reports = grid_with(K, tmp_path, "fail_always"), []
    grid.after.append(lambda _, reply: reports.append(str(dict(reply.content[REPORT]))))
    with pytest.raises(LocalProtocolError, match="2 times in a row"):
        run(grid, privacy=privacy, training=training, max_failures=2)
    assert any("ZeroDivisionError" in report for report in reports) == told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protection": "none"}, "updates leave one by one"),
        ({"weigh_examples": 20.0}, "how many examples a node has"),
        ({"train_metrics": {"loss": 10.0}}, "evaluate_fn"),
        ({"fraction_evaluate": 0.5, "evaluate_metrics": {"mse": 9.0}}, "evaluate_fn"),
        ({"clip": 8.0}, "follows from the budget"),
        ({"update_levels": 2**10}, "follows from the budget"),
        ({"weight_levels": 1}, "follows from the budget"),
        ({"privacy": Budget(epsilon=-1.0)}, "must be positive"),
        ({"privacy": Budget(epsilon=1.0, unit="record")}, "a budget of users"),
        ({"max_colluding_contributors": K}, "T_c = 3 may be silent"),
    ],
)
def test_what_does_not_go_with_a_budget_is_refused_in_words(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ParameterError, match=said):
        small_strategy(**({"privacy": BUDGET} | options))
    plain = {key: each for key, each in options.items() if key != "max_colluding_contributors"}
    small_strategy(**(plain | {"privacy": None}))  # each of them works without one


def test_another_budget_does_not_go_on_with_a_stored_run(tmp_path: Path) -> None:
    grid = make_grid(K, make_app([basecagg_mod]), tmp_path)
    state = tmp_path / "server.db"
    run(grid, versions=1, server_state=state, erase_state=False)
    for other in (None, Budget(epsilon=5.0, delta=1e-5, max_uses=USES)):
        with pytest.raises(DataError, match="choose another server_state"):
            run(grid, versions=2, server_state=state, privacy=other)
    run(grid, versions=2, server_state=state)


def test_a_floor_that_is_raised_holds_for_a_run_that_goes_on(tmp_path: Path) -> None:
    grid = make_grid(K, make_app([basecagg_mod]), tmp_path)
    run(grid, versions=1, server_state=tmp_path / "server.db", erase_state=False)
    for node in grid.nodes.values():
        node.context.node_config["max-epsilon"] = 1.0
    with pytest.raises(LocalProtocolError, match="declined the epoch"):
        run(grid, versions=2, server_state=tmp_path / "server.db", max_failures=2)
