"""What docs/explanation/batchnorm.md promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from basecagg.errors import DataError
from basecagg.learning import FlatModel, LocalTraining, Task, evaluate, train_locally

ONE_PASS = LocalTraining(learning_rate=0.1, epochs=1, batch_size=20, weight_decay=0.5)
EVERYONE = np.arange(60)


def test_statistics_lie_behind_the_weights_means_first(normed_task: Task) -> None:
    model = normed_task.build_model(0)
    weights = sum(p.numel() for p in model.module.parameters())
    assert (model.num_weights, model.size) == (weights, weights + 2 * 6)
    assert model.vector()[weights:].tolist() == [0.0] * 6 + [1.0] * 6


def test_an_update_carries_the_change_of_the_statistics(normed_task: Task) -> None:
    """One step without learning: the running mean moves by a tenth of the batch's mean."""
    model = normed_task.build_model(0)
    start = model.vector()
    still = LocalTraining(learning_rate=1e-30, steps=1, batch_size=60)
    update = train_locally(normed_task, model, start, EVERYONE, still, seed=1, user=0)
    with torch.no_grad():
        seen = normed_task.build_model(0).module[0](normed_task.dataset.train_x)
    means = -update.delta[model.num_weights : model.num_weights + 6]
    np.testing.assert_allclose(means, 0.1 * seen.mean(dim=(0, 2, 3)).numpy(), atol=1e-6)


def test_evaluation_reads_the_statistics_and_leaves_them_alone(normed_task: Task) -> None:
    model = normed_task.build_model(0)
    x = model.vector()
    usual = evaluate(normed_task, model, x)
    np.testing.assert_array_equal(model.vector(), x)
    x[model.num_weights :] = 7.0
    assert evaluate(normed_task, model, x).loss != usual.loss


def test_a_negative_variance_is_read_as_zero_and_training_pulls_it_back(normed_task: Task) -> None:
    model = normed_task.build_model(0)
    x = model.vector()
    x[-6:] = -0.5
    assert np.isfinite(evaluate(normed_task, model, x).loss)
    update = train_locally(normed_task, model, x, EVERYONE, ONE_PASS, seed=1, user=0)
    assert (x - update.delta)[-6:].min() > 0


def test_without_the_guard_a_negative_variance_would_give_nan() -> None:
    """Negative control of the test above."""
    norm = nn.BatchNorm1d(2).eval()
    norm.running_var = torch.tensor([-0.5, -0.5])
    assert norm(torch.ones(3, 2)).isnan().all()


def flat_normed_task(task: Task) -> Task:
    """BatchNorm1d after a linear layer: it has no pixels to average over."""
    size = math.prod(task.dataset.input_shape)
    layers = [nn.Flatten(), nn.Linear(size, 4), nn.BatchNorm1d(4), nn.Linear(4, 10)]
    return replace(task, model=lambda: nn.Sequential(*layers))


@pytest.mark.parametrize("examples", [21, 41])
def test_a_single_example_that_is_left_over_is_no_batch(normed_task: Task, examples: int) -> None:
    """One step for each batch as ever, but the one example waits for another pass."""
    task = flat_normed_task(normed_task)
    model = task.build_model(0)
    seen: list[int] = []
    model.module[1].register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    train_locally(task, model, model.vector(), np.arange(examples), ONE_PASS, seed=1, user=0)
    assert seen == [20] * ONE_PASS.steps_for(examples)


@pytest.mark.parametrize(("examples", "batch_size"), [(1, 20), (5, 1)])
def test_a_batch_of_one_that_cannot_be_helped_is_named(
    normed_task: Task, examples: int, batch_size: int
) -> None:
    task = flat_normed_task(normed_task)
    model, start = task.build_model(0), task.build_model(0).vector()
    training = replace(ONE_PASS, batch_size=batch_size)
    text = rf"user 7 has {examples} example.*batch_size = {batch_size}.*one example"
    with pytest.raises(DataError, match=text):
        train_locally(task, model, start, np.arange(examples), training, seed=1, user=7)


def test_a_batch_of_one_image_will_do_where_there_are_pixels(normed_task: Task) -> None:
    """BatchNorm2d averages over them."""
    model = normed_task.build_model(0)
    update = train_locally(
        normed_task, model, model.vector(), EVERYONE[:1], ONE_PASS, seed=1, user=0
    )
    assert np.isfinite(update.delta).all()


@pytest.mark.parametrize("max_staleness", [0, 3])
def test_statistics_move_by_their_share_and_weights_as_ever(
    normed_task: Task, max_staleness: int
) -> None:
    model = normed_task.build_model(0)
    start, stale = model.vector(), replace(ONE_PASS, max_staleness=max_staleness)
    whole, part = (
        train_locally(normed_task, model, start, EVERYONE, each, seed=1, user=0).delta
        for each in (ONE_PASS, stale)
    )
    np.testing.assert_array_equal(part[: model.num_weights], whole[: model.num_weights])
    share = whole[model.num_weights :] / (1 + max_staleness)
    np.testing.assert_array_equal(part[model.num_weights :], share)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_users_training_leaves_no_trace_in_the_next(momentum: float | None) -> None:
    """With momentum=None the count of batches matters: it must not be carried over."""
    model = FlatModel(nn.Sequential(nn.BatchNorm1d(2, momentum=momentum)))
    start, inputs = model.vector(), torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    ends = []
    for _ in range(2):
        model.load(start)
        model.module(inputs)
        ends.append(model.vector())
    np.testing.assert_array_equal(*ends)


def test_group_norm_adds_nothing_to_the_vector() -> None:
    model = FlatModel(nn.GroupNorm(2, 4))
    assert model.size == model.num_weights == 8
