from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from basecagg.errors import DataError
from basecagg.learning import MODELS, FlatModel, build_model, seeded
from basecagg.learning.models import CentreCrop

DIGITS, MNIST, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "trainable", "size"),
    [
        ("logistic", DIGITS, 650, 650),
        ("logistic", MNIST, 7_850, 7_850),
        ("mlp", DIGITS, 4_810, 4_810),
        ("lenet5", MNIST, 61_706, 61_706),
        ("lenet-431k", MNIST, 431_080, 431_080),
        ("fedasync-cnn", CIFAR, 2_625_866, 2_626_634),
        ("small-cnn", CIFAR, 28_954, 28_954),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], trainable: int, size: int) -> None:
    model = FlatModel(build_model(name, shape, 10))
    assert (model.num_weights, model.size) == (trainable, size)
    assert model.module(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("shape", [DIGITS, MNIST, CIFAR])
@pytest.mark.parametrize("name", ["logistic", "mlp", "small-cnn"])
def test_models_that_take_any_image(name: str, shape: tuple[int, ...]) -> None:
    assert build_model(name, shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet5", DIGITS), ("lenet-431k", CIFAR), ("fedasync-cnn", MNIST), ("small-cnn", (64,))],
)
def test_a_shape_that_does_not_fit_is_refused_with_a_way_out(
    name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(DataError, match=f"{name}.*mlp and logistic take any"):
        build_model(name, shape, 10)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"'resnet'.*lenet5"):
        build_model("resnet", MNIST, 10)


@pytest.mark.parametrize("name", MODELS)
def test_first_weights_depend_on_the_seed_alone(name: str) -> None:
    shape = {"fedasync-cnn": CIFAR}.get(name, MNIST)

    def first_weights(seed: int) -> np.ndarray:
        with seeded(seed):
            return FlatModel(build_model(name, shape, 10)).vector()

    torch.manual_seed(1)
    one = first_weights(5)
    torch.manual_seed(2)
    torch.rand(10)
    np.testing.assert_array_equal(first_weights(5), one)
    assert (first_weights(6) != one).any()


def test_the_fedasync_network_sees_the_centre_only() -> None:
    module = build_model("fedasync-cnn", CIFAR, 10).eval()
    images = torch.randn(2, *CIFAR)
    framed = images.clone()
    framed[..., :4, :] = framed[..., 28:, :] = framed[..., :, :4] = framed[..., :, 28:] = 9.0
    assert torch.equal(module(images), module(framed))
    framed[..., 4, 4] += 1.0
    assert not torch.equal(module(images), module(framed))


def test_the_fedasync_network_begins_with_xavier_weights_and_zero_biases() -> None:
    convolution = build_model("fedasync-cnn", CIFAR, 10)[1]
    bound = (6 / (3 * 9 + 64 * 9)) ** 0.5
    assert 0.95 * bound < float(convolution.weight.detach().abs().max()) <= bound
    assert not convolution.bias.any()


def test_centre_crop_is_rows_and_columns_4_to_27() -> None:
    rows = torch.arange(32).expand(1, 32, 32)
    assert CentreCrop(24)(rows)[0, 0].tolist() == list(range(4, 28))


def test_lenet5_is_the_textbook_order_of_relu_and_pooling() -> None:
    """Pooling before ReLU, which is faster, computes the same outputs and the same gradients."""
    with seeded(0):
        ours = build_model("lenet5", MNIST, 10)
    layers = list(ours)
    textbook = nn.Sequential(
        layers[0], nn.ReLU(), layers[1], layers[3], nn.ReLU(), layers[4], *layers[6:]
    )
    images = torch.randn(3, *MNIST)

    def run(module: nn.Module) -> tuple[Tensor, ...]:
        loss = module(images).square().sum()
        return (loss, *torch.autograd.grad(loss, list(ours.parameters())))

    for a, b in zip(run(ours), run(textbook), strict=True):
        torch.testing.assert_close(a, b)
