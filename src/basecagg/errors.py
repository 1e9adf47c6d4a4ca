"""Everything that can go wrong, on one page.

`LocalProtocolError` is our caller's mistake, `RemoteProtocolError` the peer's. Dropouts, late replies and
too few answers are ordinary life: the machines report them as effects, not as exceptions.
No error text ever holds a secret.
"""

from __future__ import annotations


class BASecAggError(Exception):
    """The root of all errors that basecagg raises on purpose."""


class ParameterError(BASecAggError, ValueError):
    """A parameter breaks a rule; `rule` is the rule as docs/reference/parameters prints it."""

    def __init__(self, message: str, *, rule: str) -> None:
        """Say what is wrong and keep the broken rule."""
        super().__init__(message)
        self.rule = rule


class DataError(BASecAggError, ValueError):
    """An array, file or number is not what it must be: shape, dtype, range, NaN."""


class DecodingError(DataError):
    """Shares are too few, or more of them are wrong than can be corrected."""


class LocalProtocolError(BASecAggError):
    """Our own caller broke the order of the protocol."""


class RemoteProtocolError(BASecAggError):
    """A peer sent what the protocol forbids; `peer` names it."""

    def __init__(self, message: str, *, peer: str = "") -> None:
        """Say what is wrong and who sent it."""
        super().__init__(f"{peer}: {message}" if peer else message)
        self.peer = peer


class ChannelError(BASecAggError):
    """Bytes could not be decoded, opened or verified."""


class StorageError(BASecAggError):
    """A store cannot be read or written, or is an older copy of itself."""


class MissingExtraError(BASecAggError, ImportError):
    """An optional part is not installed; the text says how to get it."""

    def __init__(self, extra: str, needed_for: str) -> None:
        """Name the extra and the one command that installs it."""
        super().__init__(
            f"{needed_for} needs the optional part '{extra}': pip install 'basecagg[{extra}]'"
        )
        self.extra = extra
