"""FedML's LightSecAgg, as published: its encoder and decoder, from `fedml/core/mpc/lightsecagg.py`.

`pip install --no-deps --target <peers> fedml==0.9.6` fetches it. The one file is loaded by its path,
for the package wants many others. It imports torch for functions that are not called here, so an
empty module stands in for that.

Timed at its own field, p = 2¹⁵ − 19: in a field of 32 bits its int64 sums overflow and are wrong.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np

from benchmarks.sizes import Sizes

MODULUS = 2**15 - 19
PEERS = Path(sys.prefix) / "bench-peers"


def load(peers: Path = PEERS) -> ModuleType:
    """The module, or the command that fetches it."""
    file = peers / "fedml" / "core" / "mpc" / "lightsecagg.py"
    if not file.exists():
        raise SystemExit(
            f"FedML is not in {peers}: pip install --no-deps --target {peers} fedml==0.9.6"
        )
    spec = importlib.util.spec_from_file_location("fedml_lightsecagg", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"torch": sys.modules.get("torch", ModuleType("torch"))}):
        spec.loader.exec_module(module)
    return module


def encoder(module: ModuleType, sizes: Sizes) -> Callable[[], np.ndarray]:
    """Encode one mask for N users."""
    mask = np.random.default_rng(0).integers(0, MODULUS, (sizes.padded, 1))
    shape = sizes.padded, sizes.n, sizes.u, sizes.t
    return lambda: module.mask_encoding(*shape, MODULUS, mask)


def decoder(module: ModuleType, sizes: Sizes) -> Callable[[], np.ndarray]:
    """Decode from U users. FedML decodes the T rows of noise too; they are left out, in its favour."""
    shares = np.random.default_rng(1).integers(0, MODULUS, (sizes.u, sizes.width))
    users = np.arange(1, sizes.u + 1)
    pieces = np.arange(sizes.n + 1, sizes.n + 1 + sizes.u - sizes.t)
    return lambda: module.LCC_decoding_with_points(shares, users, pieces, MODULUS)
