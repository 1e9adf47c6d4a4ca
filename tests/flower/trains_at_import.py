"""An app that uses torch's threads when it is imported, as one that prepares its data there would."""

from __future__ import annotations

from typing import Any

import torch
from small_app import make_app

from basecagg.flower import basecagg_mod

torch.set_num_threads(2)


def work() -> None:
    """Enough for torch to share it among its threads."""
    a = torch.randn(300, 300)
    (a @ a).sum().item()
    torch.randn(1_000_000).exp().sum().item()


def train(*_: Any) -> None:
    work()


work()
app = make_app([basecagg_mod], watch=train)
