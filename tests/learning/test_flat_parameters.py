from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from basecagg.errors import DataError
from basecagg.learning import FlatModel


def test_the_vector_holds_the_parameters_in_their_order() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    model = FlatModel(module)
    assert model.size == model.num_weights == 11
    np.testing.assert_array_equal(model.vector(), expected)


def test_load_and_vector_are_inverse_and_the_module_computes_with_what_was_loaded() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    x = np.arange(model.size, dtype=np.float32)
    model.load(x)
    np.testing.assert_array_equal(model.vector(), x)
    first = model.module[0]
    np.testing.assert_array_equal(first.weight.detach().numpy(), x[:6].reshape(2, 3))
    assert first(torch.ones(1, 3)).tolist() == [[0 + 1 + 2 + 6, 3 + 4 + 5 + 7]]


def test_the_vector_is_a_copy() -> None:
    model = FlatModel(nn.Linear(2, 1))
    before = model.vector()
    model.weights.add_(1)
    assert (model.vector() == before + 1).all()


def test_backward_fills_the_flat_gradient() -> None:
    model = FlatModel(nn.Linear(2, 1))
    torch.autograd.backward(model.module(torch.tensor([[3.0, 5.0]])).sum())
    assert model.gradient.tolist() == [3.0, 5.0, 1.0]


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    assert FlatModel(module).size == 3


def test_tied_parameters_are_one() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    model = FlatModel(module)
    model.load(np.array([1, 2, 3, 4], np.float32))
    assert module[1].weight.tolist() == [[1, 2], [3, 4]]
    assert model.size == 4


@pytest.mark.parametrize(
    "vector", [np.zeros(2, np.float32), np.zeros((3, 1), np.float32), np.zeros(3)]
)
def test_a_vector_of_another_shape_or_type_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"float32\[3\]"):
        FlatModel(nn.Linear(2, 1)).load(vector)


def test_models_that_cannot_be_flattened_are_refused() -> None:
    with pytest.raises(DataError, match="no trainable parameters"):
        FlatModel(nn.ReLU())
    with pytest.raises(DataError, match="float64"):
        FlatModel(nn.Linear(2, 1).double())


def test_statistics_of_another_type_are_refused() -> None:
    norm = nn.BatchNorm1d(2)
    norm.running_var = torch.ones(2, dtype=torch.float64)
    with pytest.raises(DataError, match="float64"):
        FlatModel(norm)
