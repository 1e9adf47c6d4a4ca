"""A step on records: each is in it by its own coin, clipped by itself, and shows in nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from basecagg.errors import DataError, ParameterError
from basecagg.learning import (
    Dataset,
    FlatModel,
    LocalTraining,
    Task,
    build_model,
    record_update,
    train_locally,
)
from basecagg.learning.record_updates import _padded, _sample
from basecagg.maths.norm_bounds import most_sampled
from basecagg.privacy import Privacy

SEED = bytes(range(32))
SHAPE = (1, 8, 8)


def privacy(**changes):
    usual = {"clip_norm": 1.0, "noise": 2.0, "epsilon": 3.0, "max_uses": 10, "unit": "record"}
    return Privacy(**(usual | {"sampling_rate": 1.0, "max_records": 100} | changes))


@pytest.fixture(params=["logistic", "mlp", "small-cnn"])
def model(request):
    torch.manual_seed(1)
    return FlatModel(build_model(request.param, SHAPE, 10))


def data(count=20, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *SHAPE, generator=generator)
    return x, torch.randint(0, 10, (count,), generator=generator)


def update(model, records, step=1.0, **changes):
    start = model.vector()
    return record_update(
        model, start, records, functional.cross_entropy, privacy(**changes), step=step, seed=SEED
    )


def gradient(model, x, y):
    """One record's, by `backward`."""
    model.gradient.zero_()
    functional.cross_entropy(model.module(x[None]), y[None]).backward()
    return model.gradient.numpy().copy()


def test_it_is_the_sum_of_the_clipped_gradients(model):
    x, y = data()
    gradients = [gradient(model, *record) for record in zip(x, y, strict=True)]
    lengths = [float(np.linalg.norm(each)) for each in gradients]
    clip = float(np.median(lengths))
    limit = clip * (1 - 2**-7)
    clipped = [g * min(1, limit / n) for g, n in zip(gradients, lengths, strict=True)]
    found = update(model, (x, y), clip_norm=clip)
    assert found == pytest.approx(np.sum(clipped, axis=0), abs=2e-5 * clip)
    assert np.linalg.norm(np.sum(gradients, axis=0) - found) > clip / 10  # some were clipped


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e18, math.nan, math.inf])
def test_one_record_moves_it_by_no_more_than_c(model, scale):
    """Whatever the record is: the model that is trained without it is C away at most, as it is uploaded."""
    (x, y), start = data(), model.vector()
    x[7] *= scale
    without = torch.arange(len(x)) != 7
    with_all, others = (
        start - (start - update(model, each)) for each in ((x, y), (x[without], y[without]))
    )
    assert np.isfinite(with_all).all()
    moved = float(np.linalg.norm((with_all - others).astype(np.float64)))
    assert moved <= 1.0
    assert moved > 0.5 or not math.isfinite(scale)


def test_without_clipping_one_record_would_move_it_far(model):
    """Negative control: a clip that is never reached."""
    x, y = data()
    x[7] *= 1e4
    without = torch.arange(len(x)) != 7
    far = {"clip_norm": 1e6, "max_records": 1}
    moved = update(model, (x, y), **far) - update(model, (x[without], y[without]), **far)
    assert np.linalg.norm(moved.astype(np.float64)) > 1.0


# --- the sample -----------------------------------------------------------------------------------


def test_every_record_has_a_coin_of_its_own():
    drawn = [_sample(1000, 0.1, bytes([seed]) * 32) for seed in range(200)]
    counts = np.bincount(np.concatenate(drawn), minlength=1000)
    # Binomial(200, 0.1): a variance of 18 for each record, and of 90 for the size of a sample.
    assert counts.mean() == pytest.approx(20, rel=0.03)
    assert counts.var() == pytest.approx(18, rel=0.2)
    assert np.var([len(each) for each in drawn]) == pytest.approx(90, rel=0.35)
    assert len(_sample(1000, 1.0, SEED)) == 1000


def test_an_empty_sample_is_an_update_of_zeros(model):
    assert not update(model, data(5), sampling_rate=1e-9).any()


def test_the_operating_system_draws_unless_told_otherwise(model):
    start, records = model.vector(), data(40)
    half = privacy(sampling_rate=0.5)
    made = [
        record_update(model, start, records, functional.cross_entropy, half, step=1.0)
        for _ in range(3)
    ]
    assert any((made[0] != other).any() for other in made[1:])
    again = [update(model, records, sampling_rate=0.5) for _ in range(2)]
    assert (again[0] == again[1]).all()


@pytest.mark.parametrize("size", [10, 2**20, 2**21])
def test_the_work_does_not_tell_how_many_there_are(size):
    most = most_sampled(1000, 0.1)
    few, many = (list(_padded(np.arange(count), most, size)) for count in (0, most))
    assert [len(rows) for rows, _ in few] == [len(rows) for rows, _ in many]
    assert sum(float(real.sum()) for _, real in many) == most
    assert not any(real.any() for _, real in few)


@pytest.mark.parametrize(("records", "rate"), [(6000, 0.05), (100, 0.5), (10, 1.0), (10**6, 1e-6)])
def test_nearly_no_sample_is_larger_than_the_most(records, rate):
    most = most_sampled(records, rate)
    assert most <= records
    assert most == records or stats.binom.sf(most - 1, records, rate) <= 2.0**-40
    assert most <= records * rate + 12 * math.sqrt(records * rate) + 40


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.BatchNorm1d(64), "BatchNorm1d"),
        (nn.SyncBatchNorm(64), "SyncBatchNorm"),
        (nn.InstanceNorm1d(64, track_running_stats=True), "InstanceNorm1d"),
    ],
)
def test_layers_that_mix_records_are_refused_by_name(layer, name):
    mixing = FlatModel(nn.Sequential(nn.Flatten(), layer, nn.Linear(64, 10)))
    with pytest.raises(DataError, match=rf"layer 1 is a {name}: .*GroupNorm"):
        update(mixing, data())


def test_another_unit_is_refused(model):
    with pytest.raises(ParameterError, match="unit of this privacy is the user"):
        update(model, data(), unit="user")


def test_a_model_too_long_for_float32_is_refused(model):
    with pytest.raises(ParameterError, match="Raise C and the local rate alike"):
        update(model, data(), clip_norm=1e-6)


@pytest.mark.parametrize("changes", [{"steps": 2}, {"steps": None, "epochs": 1}])
def test_more_than_one_step_is_refused(changes):
    settings = {"learning_rate": 0.1, "steps": 1, "privacy": privacy()} | changes
    with pytest.raises(ParameterError, match="1 where records are the unit"):
        LocalTraining(**settings)


# --- in local training ----------------------------------------------------------------------------


def test_local_training_takes_the_same_step():
    (x, y), (test_x, test_y) = data(60), data(5)
    dataset = Dataset(
        name="random", train_x=x, train_y=y, test_x=test_x, test_y=test_y, num_classes=10
    )
    task = Task(name="records", model=lambda: build_model("logistic", SHAPE, 10), dataset=dataset)
    model, indices = task.build_model(1), np.arange(50)
    private = privacy(sampling_rate=0.5, clip_norm=100.0)
    training = LocalTraining(learning_rate=2.0, steps=1, batch_size=25, privacy=private)
    made = train_locally(task, model, model.vector(), indices, training, seed=3, user=0)
    again = train_locally(task, model, model.vector(), indices, training, seed=3, user=0)
    other = train_locally(task, model, model.vector(), indices, training, seed=4, user=0)
    assert (made.delta == again.delta).all()
    assert (made.delta != other.delta).any()
    step = record_update(
        model,
        model.vector(),
        (x[:50], y[:50]),
        functional.cross_entropy,
        private,
        step=2.0 / 25,
        seed=(3).to_bytes(32, "little"),
    )
    assert (made.delta == step).all()
