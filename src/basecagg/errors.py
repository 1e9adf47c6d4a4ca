"""Everything that can go wrong, on one page.

`LocalProtocolError` is our caller's mistake, `RemoteProtocolError` the peer's. Dropouts, late replies and
too few answers are ordinary life: the machines report them as effects, not as exceptions.
No error text ever holds a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class BASecAggError(Exception):
    """The root of all errors that basecagg raises on purpose."""


class BASecAggWarning(UserWarning):
    """A run goes on, but its owner should know."""


class ParameterError(BASecAggError, ValueError):
    """A parameter breaks a rule; `rule` is the rule as docs/reference/parameters prints it."""

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class DataError(BASecAggError, ValueError):
    """An array, file or number is not what it must be: shape, dtype, range, NaN."""


class DecodingError(DataError):
    """Shares are too few, or too many of them are wrong: at least `wrong`."""

    def __init__(self, message: str, *, wrong: int = 0) -> None:
        super().__init__(message)
        self.wrong = wrong


class LocalProtocolError(BASecAggError):
    """Our own caller broke the order of the protocol."""


class BudgetSpent(LocalProtocolError):  # noqa: N818 - the protocol at work, not a fault
    """A contributor's budget of privacy does not allow another upload."""


class QuestionRefused(LocalProtocolError):  # noqa: N818 - the protocol at work, not a fault
    """A centre does not answer a question about its rows: the sum would single a centre out."""


class MissingHolders(LocalProtocolError):  # noqa: N818 - a state of affairs that may pass
    """An epoch would lack holders that belong to it; `reasons` says why, by name."""

    def __init__(self, reasons: dict[str, str]) -> None:
        said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        without = " ".join(f"--without {name}" for name in reasons)
        super().__init__(
            f"holders would be missing from the epoch ({said}). Wait for their keys, or leave them out by"
            f" name: {without}"
        )
        self.reasons = reasons


class RemoteProtocolError(BASecAggError):
    """A peer sent what the protocol forbids; `peer` names it: the machine that took the message knows."""

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.peer}: {message}" if self.peer else message


class Refused(RemoteProtocolError):  # noqa: N818 - a refusal is the protocol at work, not a fault
    """A message was refused. Nothing was changed because of it."""

    also: Sequence[Any] = ()
    """Signed letters that go out with the answer, as effects."""

    @property
    def code(self) -> str:
        """The kind of refusal, as a peer and a log line see it."""
        return type(self).__name__


class Malformed(Refused):
    """Wrong length, a word ≥ q, an unexpected message."""


class WrongEpoch(Refused):
    """The message belongs to another epoch, or the epoch itself is not acceptable."""


class NotEnrolled(Refused):
    """The sender has no valid credential for this epoch."""


class BadSignature(Refused):
    """A signature does not fit its statement."""


class WrongRecipient(Refused):
    """A sealed share is not the one that its dealer made for this holder."""


class KnownMask(Refused):
    """A mask of this name was seen before, with other bytes or already used up."""


class UnknownMask(Refused):
    """No share of this mask is held here."""


class MaskTaken(Refused):
    """The mask was endorsed for, or spent in, another request."""


class SlotTaken(Refused):
    """Another sum was endorsed for this attempt of the version, or there were too many attempts."""


class VersionTaken(Refused):
    """The contributor was in a sum with an update from this version: one that was opened, or too many."""


class MaskExpired(Refused):
    """The mask's last version has passed."""


class QuotaExceeded(Refused):
    """Too many masks dealt ahead, or too many updates waiting."""


class WrongMembers(Refused):
    """Not exactly K members, one twice, out of order, or too few of one base version."""


class WrongVersion(Refused):
    """A version was skipped, has passed, or is newer than the model."""


class StaleUpdate(Refused):
    """The update was made from a model more than τ_max versions old: download again."""


class WrongModel(Refused):
    """The update was trained from a model that is not this version's."""


class PartsDamaged(Refused):
    """What a version was made from is incomplete, or not what its release names: that convicts nobody."""


class BadCertificate(Refused):
    """Too few endorsements, forged ones, or for another request."""


class TooFewHolders(Refused):
    """Too few holders have a share of every member of the buffer."""


class AlreadyBuffered(Refused):
    """The contributor has an update in the buffer, or the mask was used for another one."""


class Retired(Refused):
    """A holder or epoch that has ended takes no more messages."""


class NotProven(BASecAggError):  # noqa: N818 - a verdict, not a fault
    """What was handed in as evidence convicts nobody; the text says why."""


REFUSAL_CODES = frozenset(kind.__name__ for kind in Refused.__subclasses__())
"""Every code that a refusal can have; a peer may claim any other."""


class ChannelError(BASecAggError):
    """Bytes could not be decoded, opened or verified."""


class StorageError(BASecAggError):
    """A store cannot be read or written, or is an older copy of itself."""


class PassingFault(StorageError):  # noqa: N818 - a state of affairs that may pass
    """What a store stands on fails at present: disk full or failing, database gone. Try again later."""

    def __init__(self, what: str, reason: str) -> None:
        """Say what cannot be done, and why; `reason` alone may be told to others."""
        super().__init__(f"{what}: {reason}")
        self.reason = reason


class StoreInUse(StorageError):  # noqa: N818 - not a fault: somebody else is at work
    """Another process has the store and shows signs of life."""


class LeaseLost(StorageError):  # noqa: N818 - the store is fine, we are not
    """Another process has taken the store over; this one writes nothing any more."""


class TurnedAway(BASecAggError):  # noqa: N818 - the server's word, which may change
    """The server says that this user has no part in the federation, and asking again would not help.

    Nobody signed that. So an agent may end, but it destroys nothing, and it can be started again.
    """


class TooLarge(ChannelError):  # noqa: N818 - a fact about this message and this line
    """The server, or a proxy before it, takes no message of this size: the same bytes never get through."""


class ServerCaught(BASecAggError):  # noqa: N818 - the server is at fault, not we
    """A participant has proof that its server cheats, and takes no more part; the text says where it is."""


class MissingPartError(BASecAggError, ImportError):
    """A part that does not come with the package is not there; the text says how to get it."""


class MissingExtraError(MissingPartError):
    """An optional part is not installed; the text says how to get it."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the optional part '{extra}': pip install '.[{extra}]'"
            " from a checkout of basecagg"
        )
        self.extra = extra


LONGEST_QUOTE = 500
"""Characters of what a peer said that people are shown."""


def quoted(text: str) -> str:
    """What a peer said, for a terminal or a log: in one line that does nothing, and not without end."""
    cut = text[:LONGEST_QUOTE]
    return printable(cut) + ("…" if len(text) > len(cut) else "")


def printable(text: str, keep: str = "") -> str:
    """Text that may quote what somebody sent, with escapes for all that a terminal would act on but `keep`."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
