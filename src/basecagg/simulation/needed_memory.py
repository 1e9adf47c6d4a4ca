"""How much memory a run will take, told before it takes it.

Everything that grows with the model is counted in vectors: d numbers of four bytes. Small models are never
warned of, for what their users and messages take is not counted.
"""

from __future__ import annotations

import os
import re
import warnings
from math import ceil
from pathlib import Path

from basecagg.costs import shares_bytes
from basecagg.errors import BASecAggWarning
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.secure_sums import deals_late

_PROCESS = 0.4e9
"""Python, torch and the compiled kernels."""
_TRAINING = 4
"""Vectors: a module, its gradient, what backward makes of it, and Δ."""
_SMALL = 1e9


def warn_if_too_large(config: SimulationConfig, size: int) -> None:
    """Warn if a run with a model of d = `size` numbers will not fit into the memory that is free."""
    needed, free = needed_bytes(config, size), free_bytes()
    if needed > max(free, _SMALL):
        warnings.warn(
            f"this run will take about {needed / 1e9:.1f} GB of memory for its {size} parameters, and"
            f" {free / 1e9:.1f} GB are free: lower buffer_size, concurrency, holders or workers, or use"
            " cryptography 'arithmetic'",
            BASecAggWarning,
            stacklevel=2,
        )


def needed_bytes(config: SimulationConfig, size: int) -> float:
    """About how much a run takes at its peak, from N, K, d and the masks that are dealt ahead."""
    processes = (
        1 if config.executor == "in-process" else 1 + (config.workers or os.cpu_count() or 1)
    )
    # Published, stored and initial model, and the versions that users train from meanwhile.
    models = 3 + ceil(config.users_at_once / config.buffer_size)
    vectors = processes * _TRAINING + models + _server(config, size)
    return processes * _PROCESS + 4 * size * vectors


def _server(config: SimulationConfig, size: int) -> float:
    """What buffer and opening take: K updates, and a sum in float64 until its version is published."""
    clear, opened = config.buffer_size, 6
    masks = config.pair.guard.masks
    if masks != "coded":
        return clear + opened + (config.users_at_once if masks == "pairwise" else 0)
    parameters = config.protocol_parameters(size)
    shipment = shares_bytes(parameters) / (4 * size)
    if config.cryptography == "arithmetic":
        return clear + opened + config.buffer_size * (1 + shipment)
    late = deals_late(config, shares_bytes(parameters))
    held = config.buffer_size if late else min(config.users, config.users_at_once + clear)
    # Shares that are held, those of one more mask on their way, and twice the answers, which are as long.
    return clear + opened + shipment * (held + 1 + 2)


def free_bytes() -> float:
    """Memory that this process may still take: what the machine has free, or what its container leaves."""
    limits = [_of_machine(), _of_container()]
    return min(limit for limit in limits if limit is not None)


def _of_machine() -> float:
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text("/proc/meminfo"))
    if found:
        return 1024.0 * int(found[1])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _of_container() -> float | None:
    limit, used = (_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    return float(limit) - float(used) if limit.isdigit() and used.isdigit() else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
