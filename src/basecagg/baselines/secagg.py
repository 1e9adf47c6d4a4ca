"""SecAgg and SecAgg+: what a round agrees on, and its messages as data.

A round has four phases (Bonawitz et al. 2017, Fig. 4, for a server that is honest but curious):

    keys       every user advertises two public keys                              → U1
    shares     every user shares its secrets among its neighbours, sealed         → U2
    inputs     every user uploads y = x + PRG(b) ± Σ PRG(a), Eq. (secagg_maskedmodel) → U3
    unmasking  for each neighbour a survivor reveals one share: of b if that neighbour is in U3, else of
               the key behind its a; the server opens the sum over U3

Nobody checks here that all users were told the same U3 (Bonawitz et al. have a signed round for that): a server
that lies could collect both shares of a user from different people. For comparisons, not for deployment.

Differs from the paper: SecAgg+ is the same machine on a sparse graph, and what is shared for a dropped user is
its key (32 bytes), from which all its pairwise seeds a follow, as Bonawitz et al. do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from basecagg.baselines.secagg_graph import Graph, complete
from basecagg.errors import ParameterError
from basecagg.maths.kernels.modular_sums import add_row, reduce_totals, subtract_row
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import FieldStream, Words
from basecagg.options import Count, Range, check
from basecagg.protocol.messages import Message, PublicKey

User: TypeAlias = Annotated[int, Meta(ge=0)]
RoundId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
_PIECE = 1 << 15
"""Elements of a vector that `add_masks` works on at once: they stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class SecAggParameters:
    """What all users of a round agree on. Users are 0 … N−1."""

    num_holders: Annotated[int, Range(2)]
    """N"""
    threshold: int
    """t: shares that give a secret back; t − 1 colluders among a user's neighbours learn nothing."""
    vector_size: Count
    """d"""
    graph: Graph = field(default=(), repr=False)
    """Who masks with whom; everybody with everybody unless given."""

    def __post_init__(self) -> None:
        """Check every number; the graph must be one."""
        check(self)
        if not self.graph:
            object.__setattr__(self, "graph", complete(self.num_holders))
        _check_graph(self.graph, self.num_holders)
        fewest = 1 + min(map(len, self.graph))
        if not 2 <= self.threshold <= fewest:
            raise ParameterError(
                f"threshold t = {self.threshold} is outside 2…{fewest}, the shares of a secret",
                rule="2 ≤ t ≤ k + 1",
            )


def _check_graph(graph: Graph, num_holders: int) -> None:
    edges = {(user, other) for user, others in enumerate(graph) for other in others}
    symmetric = all((other, user) in edges and other != user for user, other in edges)
    if len(graph) != num_holders or not symmetric:
        raise ParameterError(
            "the graph does not join N users both ways; use complete() or random_regular()",
            rule="the graph is undirected on 0…N−1",
        )


class Keys(Message, frozen=True):
    """User → server: the public halves of the key for masks (s) and of the key for envelopes (c)."""

    round: RoundId
    user: User
    masking_key: PublicKey
    sealing_key: PublicKey


class Roster(Message, frozen=True):
    """Server → user: the keys of its neighbours in U1."""

    round: RoundId
    keys: tuple[Keys, ...]


class SealedShares(Message, frozen=True):
    """User → server: for each neighbour an envelope with one share of b and one of the masking key."""

    round: RoundId
    user: User
    envelopes: tuple[tuple[User, bytes], ...]


class Delivery(Message, frozen=True):
    """Server → user: the envelopes for it, from its neighbours in U2."""

    round: RoundId
    envelopes: tuple[tuple[User, bytes], ...]


class MaskedInput(Message, frozen=True):
    """User → server: y as little-endian 32-bit words."""

    round: RoundId
    user: User
    words: bytes


class UnmaskRequest(Message, frozen=True):
    """Server → survivor: these are U3. Both shares of one user cannot even be asked for in one request."""

    round: RoundId
    survivors: tuple[User, ...]


class Unmasking(Message, frozen=True):
    """Survivor → server: for each neighbour in U2 a share, of b if it survived, else of its masking key."""

    round: RoundId
    user: User
    seed_shares: tuple[tuple[User, bytes], ...]
    key_shares: tuple[tuple[User, bytes], ...]

    def __repr__(self) -> str:
        """Nothing of the shares."""
        return f"Unmasking(user={self.user}, …)"


FromUser: TypeAlias = Keys | SealedShares | MaskedInput | Unmasking
ToUser: TypeAlias = Roster | Delivery | UnmaskRequest


def mask_purpose(round_id: bytes) -> bytes:
    """The purpose that a pairwise seed a is bound to: this round only."""
    return b"mask" + round_id


def envelope_context(round_id: bytes, sender: int, recipient: int) -> bytes:
    """The bytes that are bound to an envelope: nobody can deliver it to another user, or in another round."""
    return b"share" + round_id + sender.to_bytes(4, "big") + recipient.to_bytes(4, "big")


def add_masks(vector: Words, added: Iterable[bytes], subtracted: Iterable[bytes]) -> Words:
    """vector + Σ PRG(seed) over `added` − Σ PRG(seed) over `subtracted`, mod q = 2³² − 5.

    SecAgg spends its time here. Every stream fills the same scratch memory, which is added to 64-bit totals at
    once, and each total is reduced mod q once.
    """
    plus = [FieldStream(seed, PAPER_MODULUS) for seed in added]
    minus = [FieldStream(seed, PAPER_MODULUS) for seed in subtracted]
    out = np.empty(vector.size, np.uint32)
    scratch = np.empty(_PIECE, np.uint32)
    q = np.uint32(PAPER_MODULUS)
    for start in range(0, vector.size, _PIECE):
        total = vector[start : start + _PIECE].astype(np.uint64)
        words = scratch[: total.size]
        for stream in plus:
            add_row(total, stream.draw(total.size, words))
        for stream in minus:
            subtract_row(total, stream.draw(total.size, words), q)
        reduce_totals(total, q, out[start : start + _PIECE])
    return out
