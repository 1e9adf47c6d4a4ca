"""The models that have names. Every builder takes the shape of one input and the number of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from basecagg.errors import DataError

InputShape = tuple[int, ...]
"""Channels, height, width of one image."""


def build_model(name: str, input_shape: InputShape, num_classes: int) -> nn.Module:
    """Build the model called `name`; its first weights come from torch's generator (see `seeded`)."""
    if name not in MODELS:
        raise DataError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name](input_shape, num_classes)


def logistic(input_shape: InputShape, num_classes: int) -> nn.Module:
    """Multinomial logistic regression: 7,850 parameters on MNIST."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def mlp(input_shape: InputShape, num_classes: int) -> nn.Module:
    """One hidden layer of 64: 4,810 parameters on digits."""
    return nn.Sequential(nn.Flatten(), *_dense(math.prod(input_shape), 64, num_classes))


def lenet5(input_shape: InputShape, num_classes: int) -> nn.Module:
    """LeNet-5 for 28×28 images: 61,706 parameters.

    Differs from LeCun's: ReLU for tanh, max-pooling, a plain linear output, every map of the second
    convolution sees all of the first. The images are padded to the original's 32×32.
    """
    _require(input_shape == (1, 28, 28), "lenet5", "1×28×28", input_shape)
    maps = *_pooled_convolution(1, 6, padding=2), *_pooled_convolution(6, 16)
    return nn.Sequential(*maps, nn.Flatten(), *_dense(400, 120, 84, num_classes))


def lenet_431k(input_shape: InputShape, num_classes: int) -> nn.Module:
    """The wide LeNet that came with Caffe (20 and 50 maps, 500 hidden): 431,080 parameters.

    Differs from Caffe's: ReLU after the convolutions too.
    """
    _require(input_shape == (1, 28, 28), "lenet-431k", "1×28×28", input_shape)
    maps = *_pooled_convolution(1, 20), *_pooled_convolution(20, 50)
    return nn.Sequential(*maps, nn.Flatten(), *_dense(800, 500, num_classes))


def fedasync_cnn(input_shape: InputShape, num_classes: int) -> nn.Module:
    """The CIFAR-10 network of the FedAsync authors: 2,625,866 trainable parameters.

    As in their code: the image's centre of 24×24, padding 1, ReLU *before* each BatchNorm, a third dropout
    after the hidden layer, Xavier weights. Its 768 running statistics travel too, so d = 2,626,634.
    """
    _require(input_shape == (3, 32, 32), "fedasync-cnn", "3×32×32", input_shape)
    maps = *_fedasync_block(3, 64), *_fedasync_block(64, 128)
    hidden, relu, output = _dense(128 * 6 * 6, 512, num_classes)
    network = nn.Sequential(
        CentreCrop(24), *maps, nn.Flatten(), hidden, relu, nn.Dropout(0.25), output
    )
    return network.apply(_xavier)


def small_cnn(input_shape: InputShape, num_classes: int) -> nn.Module:
    """Four convolutions with GroupNorm for quick runs: 28,954 parameters on CIFAR-10.

    GroupNorm keeps no running statistics, so nothing but weights travels. Of larger images it sees the centre
    of 24×24, as the network of the FedAsync authors does.
    """
    fits = len(input_shape) == 3 and min(input_shape[1:]) >= 8
    wanted = "channels × height × width with at least 8×8 pixels"
    _require(fits, "small-cnn", wanted, input_shape, "mlp and logistic")
    layers: list[nn.Module] = [CentreCrop(min(24, *input_shape[1:]))]
    for inputs, outputs in ((input_shape[0], 16), (16, 32), (32, 32)):
        layers += [*_group_normed(inputs, outputs), nn.MaxPool2d(2)]
    layers += [*_group_normed(32, 48), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(48, num_classes)).apply(_long_filters)


class CentreCrop(nn.Module):
    """Keep the middle `size`×`size` pixels."""

    def __init__(self, size: int) -> None:
        """Remember the size to keep."""
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Cut the same margin off both sides."""
        top, left = ((side - self.size) // 2 for side in images.shape[-2:])
        return images[..., top : top + self.size, left : left + self.size]


def _dense(*sizes: int) -> list[nn.Module]:
    """Linear layers of these sizes, with a ReLU between any two."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _pooled_convolution(inputs: int, outputs: int, padding: int = 0) -> list[nn.Module]:
    # The maximum of ReLUs is the ReLU of the maximum: pooling first leaves it a quarter of the work.
    return [nn.Conv2d(inputs, outputs, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()]


def _fedasync_block(inputs: int, outputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(outputs)]
    return [*layers, nn.MaxPool2d(2), nn.Dropout(0.25)]


def _group_normed(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]


def _xavier(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


def _long_filters(layer: nn.Module) -> None:
    """Twice He's length: before a norm only a filter's direction counts, and a long one turns less per step.

    Steps that were computed ten versions ago have to be short, or errors grow from version to version.
    """
    if isinstance(layer, nn.Conv2d):
        nn.init.normal_(layer.weight, std=2 * (2 / layer.weight[0].numel()) ** 0.5)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


def _require(
    fits: bool,
    name: str,
    wanted: str,
    given: InputShape,
    others: str = "small-cnn, mlp and logistic",
) -> None:
    if not fits:
        inputs = "×".join(map(str, given))
        raise DataError(
            f"{name} takes images of {wanted}, these inputs are {inputs}: {others} take any"
        )


MODELS: dict[str, Callable[[InputShape, int], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet5": lenet5,
    "lenet-431k": lenet_431k,
    "fedasync-cnn": fedasync_cnn,
    "small-cnn": small_cnn,
}
