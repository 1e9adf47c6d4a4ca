"""A hash chain: what stands in it can be neither changed, moved nor taken out without changing its head.

head₀ = H(purpose), head_n = H(head_{n−1}, entry_n). A head vouches for all entries up to it. That there are no
more must be said by the last entry, or by a signature over the head.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from msgspec import Meta, Struct

_TAG = b"basecagg/chain/"


class Chain(Struct, frozen=True):
    """How far a chain has come."""

    head: bytes
    length: Annotated[int, Meta(ge=0, lt=2**62)]

    @classmethod
    def begin(cls, purpose: str) -> Chain:
        """An empty chain. Chains of different purposes have no head in common."""
        return cls(hashlib.sha256(_TAG + purpose.encode()).digest(), 0)

    def after(self, entry: bytes) -> Chain:
        """The chain with one more entry. All heads have one length, so nothing is ambiguous."""
        return Chain(hashlib.sha256(self.head + entry).digest(), self.length + 1)

    def statement(self, purpose: str) -> bytes:
        """What is signed to say that the chain ends here."""
        return _TAG + purpose.encode() + b"/end/" + self.length.to_bytes(8, "big") + self.head
