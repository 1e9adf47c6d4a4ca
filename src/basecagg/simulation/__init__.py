"""Whole federations in one process: the same machines as on a network, with a loopback between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from basecagg.simulation.config import SimulationConfig

if TYPE_CHECKING:
    from basecagg.simulation.run import SimulationResult, simulate

__all__ = ["SimulationConfig", "SimulationResult", "simulate"]


def __getattr__(name: str) -> Any:
    """Load torch only when a simulation is run."""
    if name in ("simulate", "SimulationResult"):
        from basecagg.simulation import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
