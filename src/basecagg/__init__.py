"""Asynchronous federated learning with secure aggregation (BASecAgg).

This is the front door: the few names that most people want, each imported when it is first used. A name whose
optional part is not installed says which one it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# For type checkers and editors: the same names as in `_HOMES`, which a test compares.
if TYPE_CHECKING:
    from basecagg.auditing.leakage import audit
    from basecagg.auditing.verification import verify
    from basecagg.errors import (
        BASecAggError,
        BASecAggWarning,
        ChannelError,
        DataError,
        LocalProtocolError,
        MissingExtraError,
        MissingPartError,
        NotProven,
        ParameterError,
        RemoteProtocolError,
        ServerCaught,
        StorageError,
        TurnedAway,
    )
    from basecagg.parameters import ProtocolParameters
    from basecagg.planning.planner import plan
    from basecagg.simulation.config import SimulationConfig
    from basecagg.simulation.federation import Federation
    from basecagg.simulation.result import SimulationResult
    from basecagg.simulation.simulate import simulate
    from basecagg.simulation.sweep import sweep

__all__ = [
    "BASecAggError",
    "BASecAggWarning",
    "ChannelError",
    "DataError",
    "Federation",
    "LocalProtocolError",
    "MissingExtraError",
    "MissingPartError",
    "NotProven",
    "ParameterError",
    "ProtocolParameters",
    "RemoteProtocolError",
    "ServerCaught",
    "SimulationConfig",
    "SimulationResult",
    "StorageError",
    "TurnedAway",
    "__version__",
    "audit",
    "plan",
    "simulate",
    "sweep",
    "verify",
]
__version__ = "0.2.0"

_HOMES = {
    "Federation": "simulation.federation",
    "ProtocolParameters": "parameters",
    "SimulationConfig": "simulation.config",
    "SimulationResult": "simulation.result",
    "audit": "auditing.leakage",
    "plan": "planning.planner",
    "simulate": "simulation.simulate",
    "sweep": "simulation.sweep",
    "verify": "auditing.verification",
}
"""The module of each name, below this package; every other name of `__all__` is an error."""


def __getattr__(name: str) -> Any:
    """Import a name from its home when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names that are offered, used already or not, and what belongs to every module."""
    return sorted({*__all__, *globals()})
