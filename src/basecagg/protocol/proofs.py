"""What convicts a server before anybody with the operator's key: its own words.

They contradict each other, or what they name. `judging` decides, from scratch.
"""

from __future__ import annotations

from typing import TypeAlias

from basecagg.errors import Refused
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.messages import (
    Certificate,
    Message,
    Parts,
    PublicKey,
    RecoveryRequest,
    Release,
)

Word: TypeAlias = Release | RecoveryRequest
"""What the server signs about its models."""


class Fork(Message, frozen=True, tag="Fork"):
    """Two words of one server after which a version has two different models."""

    first: Word
    second: Word


class DoubleRequest(Message, frozen=True, tag="DoubleRequest"):
    """Two requests of one server for one slot, or with a mask in common."""

    first: RecoveryRequest
    second: RecoveryRequest


class Miscalculation(Message, frozen=True, tag="Miscalculation"):
    """A release with the parts that it names, from which another model or another blame follows."""

    parts: Parts


Proof: TypeAlias = Fork | DoubleRequest | Miscalculation


class Evidence(Message, frozen=True, tag="Evidence"):
    """A proof with the epoch that names the server's key: all that a judge needs besides the operator's."""

    epoch: Epoch
    proof: Proof
    operator_key: PublicKey
    """Whose key it is handed in under. Anybody can write one here: compare it with the one you know."""


class Account(Message, frozen=True, tag="Account"):
    """What one version was made from, with its epoch: enough to recompute it with the operator's key."""

    epoch: Epoch
    parts: Parts
    operator_key: PublicKey


class Pedigree(Message, frozen=True, tag="Pedigree"):
    """What an exported model carries: the words that lead from the operator's key to its numbers."""

    epoch: Epoch
    release: Release | None
    """The server's word; None for the model that the epoch begins with."""
    certificate: Certificate | None
    """Of the request whose sum made it."""
    operator_key: PublicKey

    @property
    def version(self) -> int:
        """Of the model."""
        return self.release.history.last if self.release else self.epoch.first_version


IN_WORDS: dict[type[Proof], str] = {
    Fork: "the server shows two different models under one version",
    DoubleRequest: "the server asks for two sums at once, or twice with one mask",
    Miscalculation: "the server released what does not follow from the parts that it names",
}


class Caught(Refused):
    """The server contradicted itself; the proof goes with it."""

    def __init__(self, proof: Proof, reason: str = "") -> None:
        """Keep the proof; say what is wrong if its kind does not say it all."""
        super().__init__(": ".join(filter(None, (IN_WORDS[type(proof)], reason))))
        self.proof = proof


def contradiction(first: Word, second: Word) -> Proof | None:
    """What two words of one server prove together, if anything."""
    heads, others = first.history.heads, second.history.heads
    if any(heads[version] != others[version] for version in heads.keys() & others.keys()):
        return Fork(first, second)
    if not isinstance(first, RecoveryRequest) or not isinstance(second, RecoveryRequest):
        return None
    if first.digest == second.digest:
        return None
    same_slot = (first.version, first.attempt) == (second.version, second.attempt)
    if same_slot or set(first.masks) & set(second.masks):
        return DoubleRequest(first, second)
    return None
