"""The strategy and the mod together, on a grid in this process: what they open, publish and leave behind."""

from __future__ import annotations

import inspect
import logging
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_plain_updates, noting_sums, require_exact
from deployment_stores import kinds_of_records
from fake_grid import flat, make_grid, without_protection
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from small_app import TRUTH, initial_arrays, make_app, small_strategy

from basecagg.errors import DataError, LocalProtocolError, ParameterError
from basecagg.flower import BufferedSecAgg, basecagg_mod
from basecagg.flower.settings import Settings
from basecagg.maths.staleness import constant, polynomial
from basecagg.options import settings_of
from basecagg.protocol.recovery import Recovery


def strategy(**options: Any) -> BufferedSecAgg:
    return small_strategy(**({"min_available_nodes": 6} | options))


def error_of(arrays: Any) -> float:
    return float(np.abs(flat(arrays)[:5] - TRUTH).max())


def evaluate(version: int, arrays: Any) -> MetricRecord:
    return MetricRecord({"error": error_of(arrays), "version": version})


@pytest.mark.parametrize("weights", [None, "own"])
@pytest.mark.parametrize("consistency", ["honest-server", "certified"])
@pytest.mark.parametrize("holders", [None, 5])
def test_every_version_opens_the_exact_sum(
    tmp_path: Path, holders: Any, consistency: Any, weights: Any
) -> None:
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path / "nodes")
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        result = strategy(holders=holders, consistency=consistency, weights=weights).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=5, evaluate_fn=evaluate
        )
    require_exact(sums, tmp_path)
    assert [released.version for released in sums] == [0, 1, 2, 3, 4]
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4, 5]
    assert result.evaluate_metrics_serverapp[5]["error"] < 0.5 * 5.0
    assert error_of(result.arrays) == result.evaluate_metrics_serverapp[5]["error"]


def test_the_check_of_sums_notices_a_wrong_one(tmp_path: Path) -> None:
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path / "nodes")
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)
    sums[0].weighted_sum[0] += 2**-16
    with pytest.raises(AssertionError):
        require_exact(sums, tmp_path)


LASTING = {"name", "operator", "key", "membership", "highest", "salt", "sent"}
"""Who it is, that it was there, and fingerprints of what it sent."""


def test_nodes_keep_no_key_share_or_mask_when_the_run_is_over(tmp_path: Path) -> None:
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)
    assert kinds_of_records(tmp_path) == LASTING


def test_nodes_keep_their_state_when_told_to(tmp_path: Path) -> None:
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    strategy(erase_state=False).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)
    assert len(list(tmp_path.rglob("state.db"))) == 6
    assert kinds_of_records(tmp_path) > LASTING | {"sealing", "held"}


def test_a_committee_can_be_kept_free_for_answering(tmp_path: Path) -> None:
    trained: list[int] = []
    app = make_app([basecagg_mod], watch=lambda node_id, *_: trained.append(node_id))
    grid = make_grid(9, app, tmp_path)
    holders = list(grid.nodes)[:4]
    strategy(holders=holders, holders_train=False, min_available_nodes=9).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=2
    )
    assert trained
    assert not set(trained) & set(holders)


def test_no_more_than_the_chosen_number_train_at_once(tmp_path: Path) -> None:
    most = 0

    def late(node_id: int, message: Message) -> str | None:
        nonlocal most
        training = [m for m in grid.outstanding.values() if "arrays" in m.content]
        most = max(most, len(training))
        return "late" if "arrays" in message.content and chooser.random() < 0.5 else None

    chooser = random.Random(1)
    grid = make_grid(8, make_app([basecagg_mod]), tmp_path, fault=late)
    strategy(concurrency=4).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=4)
    assert most == 4


def test_concurrency_follows_fraction_train_unless_it_is_given() -> None:
    assert strategy(concurrency=None, fraction_train=0.5).settings.concurrency_among(20) == 10
    assert strategy(concurrency=None, min_train_nodes=3).settings.concurrency_among(2) == 3
    assert strategy(concurrency=7).settings.concurrency_among(20) == 7


def test_the_options_are_spelled_once() -> None:
    taken = inspect.signature(BufferedSecAgg).parameters.values()
    assert [(each.name, each.default) for each in taken] == [
        (each.name, each.default) for each in fields(Settings)
    ]
    assert {each.kind for each in taken} == {inspect.Parameter.KEYWORD_ONLY}
    said = {each.name for each in settings_of(Settings) if each.meaning or each.why}
    assert said == {each.name for each in fields(Settings)}
    with pytest.raises(TypeError, match="bufer_size"):
        BufferedSecAgg(bufer_size=3)  # type: ignore[call-arg]


def test_the_app_gets_its_config_with_the_round(tmp_path: Path) -> None:
    configs = []
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    grid.before.append(lambda _, message: configs.append(message.content.get("config")))
    strategy().start(
        grid=grid,
        initial_arrays=initial_arrays(),
        num_rounds=2,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    seen = [dict(config) for config in configs if config is not None]
    assert {"lr": 0.1, "server-round": 1} in seen
    assert {"lr": 0.1, "server-round": 2} in seen


# --- metrics ---


def test_metrics_are_averaged_inside_the_sum(tmp_path: Path) -> None:
    losses: dict[str, float] = {}

    def spying_mod(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if reply.content.metric_records:
            (metrics,) = reply.content.metric_records.values()
            losses[str(context.node_id)] = metrics.get("loss", 0.0)
        return reply

    grid = make_grid(6, make_app([basecagg_mod, spying_mod]), tmp_path)
    limits = {"loss": 100.0}
    with noting_sums() as sums:
        result = strategy(train_metrics=limits).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=1
        )
    (released,) = sums
    members = [losses[name.contributor] for name in released.members]
    weights = released.weights
    expected = sum(w * loss for w, loss in zip(weights, members, strict=True)) / sum(weights)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(expected, rel=1e-3)
    assert list(result.train_metrics_clientapp[1]) == ["loss"]


def test_everybody_evaluates_before_training_if_evaluation_is_wanted(tmp_path: Path) -> None:
    kinds: dict[int, list[str]] = {}
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    grid.before.append(
        lambda node_id, message: (
            kinds.setdefault(node_id, []).append(message.metadata.message_type)
            if "arrays" in message.content
            else None
        )
    )
    result = strategy(fraction_evaluate=1.0, evaluate_metrics={"mse": 200.0}).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=3
    )
    for orders in kinds.values():
        assert orders == (["evaluate", "train"] * len(orders))[: len(orders)]
    first, *_, last = (result.evaluate_metrics_clientapp[v]["mse"] for v in (1, 2, 3))
    assert 0 < last < first
    assert not result.train_metrics_clientapp


def test_metrics_of_an_evaluation_that_nobody_makes_are_not_asked_for(tmp_path: Path) -> None:
    """An app may name them once and choose by `fraction_evaluate` alone."""
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    result = strategy(fraction_evaluate=0.0, evaluate_metrics={"mse": 200.0}).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=1
    )
    assert not result.evaluate_metrics_clientapp


def test_evaluation_needs_names_for_what_is_averaged() -> None:
    with pytest.raises(ParameterError, match="unless evaluate_metrics names"):
        strategy(fraction_evaluate=0.5)
    with pytest.raises(ParameterError, match="between 0 and 1"):
        strategy(fraction_evaluate=1.5)


def test_a_metric_has_a_limit_and_is_no_constant() -> None:
    with pytest.raises(ParameterError, match="solve for every client's"):
        strategy(train_metrics={"num-examples": 100, "loss": 10.0})
    with pytest.raises(ParameterError, match="positive"):
        strategy(train_metrics={"loss": 0})


@pytest.mark.parametrize(
    "options",
    [{"protection": "secagg"}, {"training": "sometimes"}, {"concurrency": 0}, {"holders": 1}],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        strategy(**options)


# --- FedBuff ---


@pytest.mark.parametrize("mods", [[], [basecagg_mod]])
def test_without_protection_any_app_is_trained_by_fedbuff(tmp_path: Path, mods: list[Any]) -> None:
    pairs: list[Any] = []
    app = make_app(mods, watch=lambda _, before, after: pairs.append(before - after))
    grid = without_protection(make_grid(6, app, tmp_path))
    with noting_sums() as sums:
        result = strategy(protection="none", fraction_evaluate=1.0, staleness=constant()).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=4, evaluate_fn=evaluate
        )
    assert result.evaluate_metrics_serverapp[4]["error"] < 2.5
    assert (
        set(result.train_metrics_clientapp)
        == set(result.evaluate_metrics_clientapp)
        == {1, 2, 3, 4}
    )
    assert "mse" in result.evaluate_metrics_clientapp[1]
    np.testing.assert_allclose(sums[0].weighted_sum, sum(pairs[:3]), rtol=1e-5, atol=1e-6)
    assert not list(tmp_path.rglob("state.db"))


def ages_and_weights(tmp_path: Path, **options: Any) -> tuple[list[int], list[float]]:
    """Of all members of five sums, while eight train at once."""
    grid = without_protection(make_grid(8, make_app([basecagg_mod]), tmp_path))
    with noting_sums() as sums:
        strategy(concurrency=8, staleness=polynomial(1.0), **options).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=5
        )
    ages = [s.version - base for s in sums for base in s.base_versions]
    assert max(ages) > 0
    return ages, [weight for s in sums for weight in s.weights]


@pytest.mark.parametrize("protection", ["basecagg", "none"])
def test_staleness_counts_from_the_sum_not_from_the_arrival(
    tmp_path: Path, protection: Any
) -> None:
    ages, weights = ages_and_weights(tmp_path, protection=protection, weights="field")
    unit = 64 if protection == "basecagg" else 1
    relative = [weight / unit for weight in weights]
    np.testing.assert_allclose(relative, [1 / (1 + age) for age in ages], atol=1 / 64)


def test_attached_training_hears_of_no_newer_version(tmp_path: Path) -> None:
    """A node that trains while a message is answered takes its update for fresh, however late it is summed.

    So unless it is told otherwise the field weighs there.
    """
    _, weights = ages_and_weights(tmp_path, weights="own")
    assert set(weights) == {1.0}
    ages, weights = ages_and_weights(tmp_path / "field")
    assert len(set(weights)) > 1
    np.testing.assert_allclose(weights, [64 / (1 + age) for age in ages], atol=1)


# --- mistakes of the app ---


@pytest.mark.parametrize("asked_again", [False, True], ids=["", "control"])
def test_nobody_trains_for_nothing_while_a_sum_is_opened(
    tmp_path: Path, asked_again: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Whoever is in it may not upload from the same version again: it waits for the next one."""
    if asked_again:
        monkeypatch.setattr(Recovery, "may_contribute", lambda self, name, history: True)
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path / "nodes")
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy(consistency="certified", concurrency=6).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=6
        )
    dropped = [record for record in caplog.records if "uploaded already" in record.getMessage()]
    assert bool(dropped) == asked_again


def test_an_app_without_the_mod_is_told_so(tmp_path: Path) -> None:
    grid = make_grid(6, make_app([]), tmp_path)
    with pytest.raises(LocalProtocolError, match=r"mods=\[basecagg_mod\]"):
        strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)


def test_a_node_without_a_folder_says_how_to_give_it_one(tmp_path: Path) -> None:
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    for node in grid.nodes.values():
        del node.context.node_config["state-dir"]
    with pytest.raises(LocalProtocolError, match="state-dir"):
        strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)


def test_a_failing_app_does_not_stop_the_others_and_keeps_its_reason(tmp_path: Path) -> None:
    secret = "patient 4711 is missing"

    def fail_for_one(node_id: int, before: Any, after: Any) -> None:
        if node_id == victim:
            raise ValueError(secret)

    grid = make_grid(6, make_app([basecagg_mod], watch=fail_for_one), tmp_path)
    victim = next(iter(grid.nodes))
    replies: list[Message] = []
    grid.after.append(lambda _, reply: replies.append(reply))
    strategy(holders=4).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=3)
    reports = [reply.content["basecagg.report"] for reply in replies]
    assert "ValueError" in {report.get("problem") for report in reports}
    assert not any(secret in str(reply.content) for reply in replies)


def test_a_model_of_two_precisions_is_refused(tmp_path: Path) -> None:

    mixed = ArrayRecord([np.zeros(2, np.float32), np.zeros(2, np.float64)])
    with pytest.raises(DataError, match="float32, float64"):
        strategy().start(grid=make_grid(2, make_app([]), tmp_path), initial_arrays=mixed)


# --- pace ---


def test_updates_do_not_age_behind_sums_that_open_slowly(tmp_path: Path) -> None:
    """Training takes no time and answers take long: no more updates are under way than FedBuff would have."""
    chooser = random.Random(2)

    def slow(node_id: int, message: Message) -> str | None:
        return "late" if "arrays" not in message.content and chooser.random() < 0.7 else None

    grid = make_grid(12, make_app([basecagg_mod]), tmp_path, fault=slow)
    with noting_sums() as sums:
        strategy(concurrency=6, min_available_nodes=12).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=10
        )
    ages = [s.version - base for s in sums for base in s.base_versions]
    assert max(ages) <= (6 + 3 - 1) // 3 + 1
