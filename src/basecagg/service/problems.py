"""What the service answers instead of what was asked: one exception with the status, a code and the reason."""

from typing import TypeVar

from basecagg.channels.wire import unpack
from basecagg.errors import BASecAggError, ChannelError
from basecagg.protocol.messages import Message

MessageType = TypeVar("MessageType", bound=Message)

STORE_FAULT = "StoreFault"
"""The code of a server whose disk or database fails at present: it goes on by itself."""

BUSY = "Busy"
"""The code of a server that has no room at present for one more line, job or byte."""


class Problem(BASecAggError):  # noqa: N818 - an answer, not a fault
    """A request that is not carried out. `retry_after` (seconds) invites the caller to come back."""

    def __init__(
        self, status: int, code: str, reason: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.retry_after = retry_after


def unpacked(frame: bytes, limit: int, *kinds: type[MessageType]) -> MessageType:
    """The message of one of these kinds in a frame that a caller sent."""
    try:
        message = unpack(frame, limit)
    except ChannelError as error:
        raise Problem(400, "Malformed", str(error)) from None
    if not isinstance(message, kinds):
        raise Problem(400, "Malformed", f"a {type(message).__name__} is not taken here")
    return message


def busy(reason: str, retry_after: float = 1.0) -> Problem:
    """The service has too much to do at the moment."""
    return Problem(503, BUSY, reason, retry_after=retry_after)
