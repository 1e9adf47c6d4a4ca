"""What messages are for, in words that a user knows: so the bytes of a run are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_KINDS = {
    "updates": ("Upload", "PlainUpdate", "MaskedInput"),
    "updates with sealed shares of their masks": ("Contribution",),
    "sealed shares of masks": ("Shipment", "Parcel", "SealedShares", "Delivery"),
    "receipts for shares": ("Receipt",),
    "keys": ("Keys", "Roster"),
    "requests to open a sum": (
        *("RecoveryRequest", "ShortRequest", "CannotFollow"),
        "UnmaskRequest",
    ),
    "certificates that holders agree on a sum": ("Endorsement", "Certificate", "CertifiedRequest"),
    "answers that open a sum": ("Answer", "Unmasking"),
    "what became of updates": ("Verdict", "Closing"),
}
PURPOSES = {kind: purpose for purpose, kinds in _KINDS.items() for kind in kinds}
"""Of every kind of message that a simulated run sends."""


def by_purpose(sent: Mapping[str, int]) -> dict[str, int]:
    """Bytes by what they are for, most first, from bytes by kind of message."""
    totals: Counter[str] = Counter()
    for kind, size in sent.items():
        totals[PURPOSES.get(kind, kind)] += size
    return dict(totals.most_common())


def largest_part(sent: Mapping[str, int]) -> str:
    """What most bytes are for, and their share of all, in words."""
    totals = by_purpose(sent)
    if not any(totals.values()):
        return "nothing was sent"
    purpose, size = next(iter(totals.items()))
    return f"{purpose}, {size / sum(totals.values()):.0%}".replace("%", "\u00a0%")
