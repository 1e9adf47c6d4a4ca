"""What a node may tell the server of a failure: our own words, and of an app's error the type alone."""

from __future__ import annotations

from basecagg.errors import BASecAggError, printable

LONGEST = 300
"""Characters of a text that leaves a node, or that the server takes from one."""


class AppFailedError(Exception):
    """The app's own function raised, or something beneath us did. The text can quote data: it stays here."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)


def told_of(error: BaseException) -> str:
    """What the server hears: the type of an error, and the text if it is ours, which quotes no data."""
    if isinstance(error, AppFailedError):
        return bounded(str(error))
    kind = type(error).__name__
    return bounded(f"{kind}: {error}" if isinstance(error, BASecAggError) else kind)


def bounded(text: str) -> str:
    """So much of a text as a log can take, without what a terminal would act on."""
    return printable(text[:LONGEST])[:LONGEST]
