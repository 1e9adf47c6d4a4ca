"""Randomness of experiments that is the same in every process. Never for anything secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(root: int, *key: int) -> int:
    """A seed for one purpose of a run, such as (user, version): equal keys give equal seeds anywhere."""
    words = np.random.SeedSequence(root, spawn_key=key).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))  # torch takes seeds below 2⁶³


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make torch's randomness on the CPU a function of `seed` inside the block; outside it goes on as before.

    Dropout and initialisation draw from torch's global generator, so it is borrowed rather than replaced.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
