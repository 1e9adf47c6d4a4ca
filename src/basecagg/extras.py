"""Optional parts: imported when first needed, and a missing one is answered with its install command."""

from __future__ import annotations

import importlib
from types import ModuleType

from basecagg.errors import MissingExtraError


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import `module`, or say which extra of basecagg brings it.

    An installed module that fails to import one of its *own* parts is a broken installation, not a missing
    extra: that error passes through.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(extra, needed_for) from error
