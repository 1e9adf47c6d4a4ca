"""LightSecAgg (So et al. 2021) is BASecAgg in rounds: all t_i are equal, nothing is stale, nothing weighed.

The same machines run it: masks are dealt, K users upload, U holders answer, one decoding opens the sum.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from basecagg.maths.staleness import constant

IN_ROUNDS: MappingProxyType[str, Any] = MappingProxyType(
    {"staleness": constant(), "weight_levels": 1, "max_staleness": 0}
)
"""What `ProtocolParameters` are given to be LightSecAgg: s = 1, c_g = 1, τ_max = 0."""
