"""Asynchronous federated learning with secure aggregation (BASecAgg)."""

from basecagg.errors import BASecAggError
from basecagg.parameters import ProtocolParameters

__all__ = ["BASecAggError", "ProtocolParameters", "__version__"]
__version__ = "0.1.0"
