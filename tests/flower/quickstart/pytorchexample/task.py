"""pytorchexample: model, data, training and testing."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.set_num_threads(1)
_TESTED = 300


class Net(nn.Module):
    """A small network."""

    def __init__(self) -> None:
        """One hidden layer."""
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Score the classes."""
        return self.fc2(relu(self.fc1(x)))


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader, DataLoader]:
    """One node's examples, for training and for testing."""
    images, labels = _digits()
    own = slice(_TESTED + partition_id, None, num_partitions)
    part = TensorDataset(images[own], labels[own])
    tested = len(part) // 5
    train, test = random_split(
        part, [len(part) - tested, tested], generator=torch.Generator().manual_seed(42)
    )
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size)


def load_centralized_dataset() -> DataLoader:
    """What the server tests on."""
    images, labels = _digits()
    return DataLoader(TensorDataset(images[:_TESTED], labels[:_TESTED]), batch_size=128)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Loss and accuracy."""
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            scores = net(images)
            loss += cross_entropy(scores, labels).item()
            correct += int((scores.argmax(1) == labels).sum())
    return loss / len(loader), correct / len(loader.dataset)
