"""Answers that go out in pieces: no second copy of the whole, and a caller that does not read is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_PIECE = 512 * 2**10
"""Bytes that are handed on at one time: letters that are fetched together, or most models, in one go."""
_GRACE, _SLOWEST = 20.0, 16_384.0


class Pieces(Response):
    """A body of several byte strings, sent as fast as the caller reads but not arbitrarily slowly."""

    media_type = "application/octet-stream"

    def __init__(self, pieces: Sequence[bytes], headers: Mapping[str, str]) -> None:
        self._pieces = pieces
        self._length = sum(map(len, pieces))
        super().__init__(headers={**headers, "content-length": str(self._length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; when the caller takes too long the connection is closed in the middle."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        async with asyncio.timeout(_GRACE + self._length / _SLOWEST):
            await send({"type": "http.response.start", **start})
            is_short = self._length <= _PIECE
            for body in () if is_short else self._portions():
                await send({"type": "http.response.body", "body": body, "more_body": True})
            last = b"".join(self._pieces) if is_short else b""
            await send({"type": "http.response.body", "body": last})

    def _portions(self) -> Iterator[bytes]:
        for piece in self._pieces:
            view = memoryview(piece)
            for at in range(0, len(view), _PIECE):
                yield bytes(view[at : at + _PIECE])
