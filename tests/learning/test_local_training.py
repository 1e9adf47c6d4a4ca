from __future__ import annotations

import dataclasses
import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from basecagg.errors import DataError, ParameterError
from basecagg.learning import (
    Dataset,
    LocalTraining,
    LocalUpdate,
    Task,
    built_in_task,
    derive_seed,
    evaluate,
    seeded,
    train_locally,
)

ONE_PASS = LocalTraining(learning_rate=0.05, epochs=1, batch_size=16, weight_decay=0.01)


def train(task: Task, training: LocalTraining, *, seed: int = 1, **changes: Any) -> LocalUpdate:
    model = task.build_model(0)
    indices = changes.pop("indices", np.arange(60))
    return train_locally(
        task, model, model.vector(), indices, training, seed=seed, user="Ada", **changes
    )


def batch_sizes(num_examples: int, training: LocalTraining) -> list[int]:
    """The sizes of the batches that a training really uses, as its loss sees them."""
    sizes: list[int] = []

    def counting_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(targets))
        return functional.cross_entropy(outputs, targets)

    task = dataclasses.replace(built_in_task("logistic", "digits"), loss=counting_loss)
    train(task, training, indices=np.arange(num_examples))
    return sizes


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_update_is_that_of_torch_sgd(normed_task: Task, weight_decay: float) -> None:
    """Bit for bit, over three passes, with BatchNorm and dropout in the network."""
    training = dataclasses.replace(ONE_PASS, epochs=3, weight_decay=weight_decay)
    indices = np.arange(5, 55)
    model = normed_task.build_model(0)
    start = model.vector()
    ours = train_locally(normed_task, model, start, indices, training, seed=4, user=0)

    with seeded(0):
        module = normed_task.model().train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, weight_decay=weight_decay)
    data, losses = normed_task.dataset, []
    with seeded(4):
        for _ in range(3):
            order = torch.tensor(indices)[torch.randperm(50)]
            for batch in order.split(16):
                optimiser.zero_grad()
                loss = functional.cross_entropy(module(data.train_x[batch]), data.train_y[batch])
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
    norm = module[1]
    end = [*module.parameters(), norm.running_mean, norm.running_var]
    expected = start - torch.cat([entry.detach().reshape(-1) for entry in end]).numpy()
    np.testing.assert_array_equal(ours.delta, expected)
    assert ours.mean_loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert ours.num_examples == 50


def test_the_update_points_uphill() -> None:
    """Δ = x_start − x_end: subtracting it from the global model lowers the loss."""
    task = built_in_task("logistic", "digits")
    model = task.build_model(0)
    start = model.vector()
    update = train(task, LocalTraining(learning_rate=0.1, epochs=2), indices=np.arange(1437))
    before, after = (evaluate(task, model, x) for x in (start, start - update.delta))
    assert after.loss < before.loss / 2
    assert after.score > 0.85 > before.score


def test_steps_and_epochs_are_what_they_say() -> None:
    def training(**how_long: int) -> LocalTraining:
        return LocalTraining(learning_rate=0.1, batch_size=10, **how_long)

    assert batch_sizes(25, training(epochs=2)) == [10, 10, 5, 10, 10, 5]
    assert batch_sizes(25, training(steps=2)) == [10, 10]
    assert batch_sizes(25, training(steps=4)) == [10, 10, 5, 10]
    assert batch_sizes(3, training(steps=3)) == [3, 3, 3]


def test_a_pass_uses_every_example_of_the_user_once_and_no_other() -> None:
    dataset = built_in_task("logistic", "digits").dataset
    seen: list[float] = []

    class Remember(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.extend(inputs.flatten(1).sum(dim=1).tolist())
            return super().forward(inputs.flatten(1))

    indices = np.arange(100, 173)
    task = Task(name="remember", model=lambda: Remember(64, 10), dataset=dataset)
    train(task, LocalTraining(learning_rate=0.1, epochs=1), indices=indices)
    expected = dataset.train_x[torch.tensor(indices)].flatten(1).sum(dim=1).tolist()
    assert sorted(seen) == pytest.approx(sorted(expected))
    assert seen != pytest.approx(expected)  # but shuffled


def test_the_same_seed_gives_the_same_update_whatever_came_before(normed_task: Task) -> None:
    model = normed_task.build_model(0)
    start, mine = model.vector(), np.arange(30)

    def update(seed: int) -> np.ndarray:
        return train_locally(normed_task, model, start, mine, ONE_PASS, seed=seed, user=0).delta

    first = update(1)
    torch.rand(3)
    other = update(2)
    evaluate(normed_task, model, start + 1)
    np.testing.assert_array_equal(update(1), first)
    assert (first != other).any()


def test_training_leaves_the_callers_randomness_and_arrays_alone(normed_task: Task) -> None:
    model = normed_task.build_model(0)
    start, indices = model.vector(), np.arange(30)
    start.flags.writeable = indices.flags.writeable = False
    state = torch.get_rng_state()
    train_locally(normed_task, model, start, indices, ONE_PASS, seed=1, user=0)
    assert torch.equal(torch.get_rng_state(), state)


def digits_update(user: int, version: int) -> np.ndarray:
    torch.set_num_threads(1)  # as conftest does for this process
    task = built_in_task("small-cnn", "digits")
    return train(task, ONE_PASS, seed=derive_seed(3, user, version)).delta


def test_another_process_computes_the_same_update() -> None:
    here = digits_update(5, 9)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(digits_update, (5, 9))
    np.testing.assert_array_equal(here, there)


def test_divergence_names_the_user() -> None:
    task = built_in_task("mlp", "digits")
    with pytest.raises(DataError, match=r"user Ada diverged.*learning_rate = 1e"):
        train(task, LocalTraining(learning_rate=1e30, steps=5))


def test_divergence_in_the_last_step_is_noticed_though_no_loss_has_seen_it() -> None:
    task = built_in_task("logistic", "digits")
    with pytest.raises(DataError, match="user Ada diverged"):
        train(task, LocalTraining(learning_rate=1e38, steps=1, weight_decay=1e5))


def test_a_user_without_examples_is_refused(normed_task: Task) -> None:
    with pytest.raises(DataError, match="user Ada has no examples"):
        train(normed_task, LocalTraining(learning_rate=0.1, steps=1), indices=np.arange(0))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"weight_decay": -1e-4}, "weight_decay"),
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": None}, "exactly one"),
        ({"steps": 5}, "exactly one"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        dataclasses.replace(ONE_PASS, **changes)


def test_evaluation_does_not_depend_on_its_batches(normed_task: Task) -> None:
    model = normed_task.build_model(0)
    whole = evaluate(normed_task, model, model.vector())
    pieces = evaluate(normed_task, model, model.vector(), batch_size=7)
    assert pieces.score == whole.score
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)


def test_evaluation_counts_right_answers() -> None:
    """A model whose outputs are the inputs: right where the largest input is the label."""
    dataset = Dataset(
        name="given",
        train_x=torch.eye(4),
        train_y=torch.arange(4),
        test_x=torch.eye(4),
        test_y=torch.tensor([0, 1, 2, 0]),
        num_classes=4,
    )
    task = Task(name="given", model=lambda: nn.Linear(4, 4), dataset=dataset)
    model = task.build_model(0)
    identity = np.concatenate([np.eye(4).reshape(-1), np.zeros(4)]).astype(np.float32)
    result = evaluate(task, model, identity)
    assert result.score == 0.75
    expected = functional.cross_entropy(dataset.test_x, dataset.test_y)
    assert result.loss == pytest.approx(float(expected))


def test_a_task_of_ones_own_learns() -> None:
    """Any module, data, loss and score: here a line fitted to real-valued targets."""

    def closeness(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).abs() < 0.1).float().squeeze(1)

    x = torch.linspace(-1, 1, 80).unsqueeze(1)
    data = Dataset(
        name="line",
        train_x=x,
        train_y=3 * x + 1,
        test_x=x[::4],
        test_y=3 * x[::4] + 1,
        num_classes=1,
    )
    task = Task(
        name="line",
        model=lambda: nn.Linear(1, 1),
        dataset=data,
        loss=functional.mse_loss,
        score=closeness,
    )
    model = task.build_model(0)
    start = model.vector()
    training = LocalTraining(learning_rate=0.1, steps=200, batch_size=20)
    update = train_locally(task, model, start, np.arange(80), training, seed=1, user=0)
    np.testing.assert_allclose(start - update.delta, [3, 1], atol=0.01)
    assert evaluate(task, model, start - update.delta).score == 1.0
