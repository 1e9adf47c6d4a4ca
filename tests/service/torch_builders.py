"""Models that a user might build."""

from torch import nn


def linear() -> nn.Module:
    return nn.Linear(3, 2)
