"""What parameters cost: bytes per phase, time on the wire, storage. Arithmetic only.

The large terms are exact: field elements are 4 bytes each. The small ones, what a message carries beside
them, are the named constants below.
"""

from __future__ import annotations

from dataclasses import dataclass

from basecagg.parameters import ProtocolParameters

ELEMENT = 4
"""Bytes of one field element on the wire and of one float32 of the model."""
SEALED_OVERHEAD = 28 + 68
"""Bytes around one sealed share: AES-GCM's nonce and tag, then epoch, dealer, mask and holder."""
SIGNED_OVERHEAD = 128
"""Bytes around one signed message: signature, epoch, digest."""
TICKET = 256
"""Bytes of one ticket: mask name, base version, hashes of model and upload, signature."""


@dataclass(frozen=True)
class Network:
    """The speed of a user's line, in megabits (10⁶ bits) per second."""

    up: float
    down: float

    def seconds(self, phase: Phase) -> float:
        """Give the time that a phase spends on the wire."""
        return 8e-6 * (phase.up / self.up + phase.down / self.down)


@dataclass(frozen=True)
class Phase:
    """Bytes that one user sends and receives in one phase."""

    name: str
    what: str
    up: int = 0
    down: int = 0


def phases(p: ProtocolParameters) -> tuple[Phase, ...]:
    """Give the bytes of a user who contributes one update and keeps shares for one buffer."""
    share = ELEMENT * p.share_size
    certified = p.consistency == "certified"
    signatures = p.quorum * SIGNED_OVERHEAD if certified else 0
    endorsement = SIGNED_OVERHEAD if certified else 0
    return (
        Phase(
            "deal",
            f"{p.num_users} sealed shares of its mask, ahead of time",
            up=p.num_users * (share + SEALED_OVERHEAD) + SIGNED_OVERHEAD,
        ),
        Phase(
            "keep",
            f"one sealed share of each of {p.buffer_size} masks",
            down=p.buffer_size * (share + SEALED_OVERHEAD + SIGNED_OVERHEAD),
            up=SIGNED_OVERHEAD,
        ),
        Phase("download", "the model, in float32", down=ELEMENT * p.model_size),
        Phase("upload", "the masked update and its ticket", up=ELEMENT * p.padded_size + TICKET),
        Phase(
            "recover",
            "the request, then one weighted sum of shares",
            down=p.buffer_size * TICKET + signatures + SIGNED_OVERHEAD,
            up=share + SIGNED_OVERHEAD + endorsement,
        ),
    )


def wire_seconds(p: ProtocolParameters, network: Network) -> float:
    """Give the time on the wire of one user for one update and one buffer: what the planner minimises."""
    return sum(network.seconds(phase) for phase in phases(p))


def live_masks_each(p: ProtocolParameters) -> int:
    """Give the masks of one contributor that holders keep: its quota, and as many that wait in a buffer."""
    return 2 * p.mask_quota


def storage_per_holder(p: ProtocolParameters, contributors: int) -> int:
    """Give the bytes that a holder keeps at most, when all contributors have all the masks they may."""
    return contributors * live_masks_each(p) * ELEMENT * p.share_size


STEPS = {
    "encode": "contributor: draw a mask and its noise, encode them for N holders",
    "seal": "contributor: agree on a key with every holder, seal its share",
    "mask": "contributor: quantise the update and add the mask",
    "answer": "holder: weighted sum of K shares",
    "decode": "server: weighted sum of K updates, decode the mask's, subtract",
}
"""The work of processors: each step, who does it, and what it is."""
