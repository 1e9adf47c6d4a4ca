"""What the protocol costs: bytes of every message, seconds of every step and of sealing. Arithmetic only.

The one model of cost: `basecagg plan`, the simulated clock and the tables of results use it. The large terms
are exact, for an element of the field is 3 or 4 bytes. What a message carries beside them is within some bytes
of the wire, for names of six characters and versions from τ_max to 127. The simulated clock counts the large
terms only.
"""

from __future__ import annotations

from dataclasses import dataclass

from basecagg.channels.sealing import OVERHEAD
from basecagg.parameters import ProtocolParameters

# --- bytes --------------------------------------------------------------------------------------

FLOAT = 4
"""One number of the model: a float32."""
HASH = 34
NAME = 36
"""The name of one mask."""
TICKET = 213
"""Mask name, base version, age, hashes of model and upload, signature."""
SHORT_TICKET = 130
"""The same without what a request says for all of them."""
LINK = 109
"""One link of the chain of models."""
ENDORSED = 68
"""One signature of a certificate."""


def share_bytes(p: ProtocolParameters) -> int:
    """One share of one mask, in clear."""
    return p.word_bytes * p.share_size


def shares_bytes(p: ProtocolParameters, *, sealed: bool = True) -> int:
    """All N shares of one mask."""
    return p.num_holders * (share_bytes(p) + (OVERHEAD if sealed else 0))


def message_bytes(p: ProtocolParameters) -> dict[str, int]:
    """One message of each kind, by its name; a receipt is for as many masks as a buffer holds.

    Questions have a short form, and a long one for holders that missed a version.
    """
    share, links = share_bytes(p), LINK * max(1, p.max_staleness)
    certified = p.consistency == "certified"
    certificate = ENDORSED * p.quorum + 121 if certified else 0
    request = TICKET * p.buffer_size + links + (certificate or 1) + 171
    shipment, upload = _dealt_bytes(p), p.word_bytes * p.padded_size + TICKET + 16
    sent = {"Shipment": shipment, "Upload": upload}
    return {
        **({"Contribution": shipment + upload} if p.one_visit else sent),
        "Parcel": share + OVERHEAD + HASH + 350 + _served_bytes(p),
        "Receipt": NAME * p.buffer_size + 116,
        "ShortRequest": SHORT_TICKET * p.buffer_size + LINK + 156,
        "RecoveryRequest": request,
        "Endorsement": 189,
        "Certificate": certificate + 5,
        "CertifiedRequest": request + certificate + 18,
        "CannotFollow": 87,
        "Verdict": 91,
        "Answer": share + 151,
        "Closing": NAME * p.buffer_size + 123,
    }


def _dealt_bytes(p: ProtocolParameters) -> int:
    """A dealing with its N envelopes."""
    return shares_bytes(p) + p.num_holders * (HASH + 3) + 354 + _served_bytes(p)


def _served_bytes(p: ProtocolParameters) -> int:
    """In a dealing, which ticket it comes with."""
    return HASH if p.one_visit else 1


def sent_bytes(p: ProtocolParameters) -> int:
    """All that a contributor sends for one update, in one message or two."""
    size = message_bytes(p)
    return size["Contribution"] if p.one_visit else size["Shipment"] + size["Upload"]


@dataclass(frozen=True)
class Phase:
    """Bytes that one user sends and receives in one phase."""

    name: str
    what: str
    up: int = 0
    down: int = 0


@dataclass(frozen=True)
class Network:
    """The speed of a user's line, in megabits (10⁶ bits) per second."""

    up: float
    down: float

    def seconds(self, up: float, down: float) -> float:
        """Give the time that so many bytes spend on the wire."""
        return 8e-6 * (up / self.up + down / self.down)


def phases(p: ProtocolParameters) -> tuple[Phase, ...]:
    """Give the bytes of a user who contributes one update and keeps shares for one buffer."""
    size = message_bytes(p)
    asked, answered = size["ShortRequest"], size["Answer"]
    if p.consistency == "certified":
        asked, answered = asked + size["Certificate"], answered + size["Endorsement"]
    dealt, when = _dealt_bytes(p), "with the update" if p.one_visit else "ahead of time"
    return (
        Phase("deal", f"{p.num_holders} sealed shares of its mask, {when}", dealt),
        Phase(
            "keep",
            f"one sealed share of each of {p.buffer_size} masks",
            down=p.buffer_size * size["Parcel"],
            up=size["Receipt"],
        ),
        Phase("download", "the model, in float32", down=FLOAT * p.model_size),
        Phase("upload", "the masked update and its ticket", up=sent_bytes(p) - dealt),
        Phase(
            "recover",
            "the request, then one weighted sum of shares",
            down=asked + size["Closing"],
            up=answered,
        ),
    )


def wire_seconds(p: ProtocolParameters, network: Network) -> float:
    """Give the time on the wire of one user for one update and one buffer: what the planner minimises."""
    return sum(network.seconds(phase.up, phase.down) for phase in phases(p))


def live_masks_each(p: ProtocolParameters) -> int:
    """Give the masks of one contributor that holders keep: its quota, and as many that wait in a buffer."""
    return 2 * p.mask_quota


def storage_per_holder(p: ProtocolParameters, contributors: int) -> int:
    """Give the bytes that a holder keeps at most, when all contributors have all the masks they may."""
    return contributors * live_masks_each(p) * share_bytes(p)


# --- seconds ------------------------------------------------------------------------------------
# CPU of one core of a server, as `basecagg plan` measures it. A list of prices, so that a simulated run can be
# repeated: a stopwatch would give every run other times, so another order of events, so another model.

SIGN = 40e-6
VERIFY = 115e-6
SEAL = 55e-6
"""One share: key agreement (once for several masks), HKDF, AES-GCM."""
ENCODE_ELEMENT = 2.5e-9
"""One element of one share, from drawing the mask on."""
ENCODE_KEY_ELEMENT = 15e-9
"""The same of a key: in a field without fast transforms, and too few elements to be quick."""
MASK_ELEMENT = 1.4e-9
"""One element of an update, rounded and masked."""
GROW_ELEMENT = 2.5e-9
"""One element of a mask, grown from its key with an error, or from a sum of keys and taken off."""
SUM_ELEMENT = 0.3e-9
"""One element of one summand."""
DECODE_ANSWER = 85e-6
"""One answer's part in the decoding matrix."""
DECODE_ELEMENT = 17e-9
"""One element of a sum of masks or keys, decoded."""
EXPAND_ELEMENT = 1.0e-9
"""One element of a pairwise mask, drawn from its seed and added."""
SHAMIR_SHARE = 10e-6
"""One share of a seed, in its reconstruction."""


class Prices:
    """Seconds of each step of one epoch; without cryptography nothing is sealed, signed or checked."""

    def __init__(self, parameters: ProtocolParameters, *, cryptography: bool) -> None:
        self._p = parameters
        factor = 1.0 if cryptography else 0.0
        self._sign, self._verify, self._seal = factor * SIGN, factor * VERIFY, factor * SEAL
        keys = parameters.masks == "keys"
        self._encode = ENCODE_KEY_ELEMENT if keys else ENCODE_ELEMENT
        self._grown = GROW_ELEMENT * parameters.padded_size if keys else 0.0

    def deal(self) -> float:
        """Contributor: draw a mask or its key, encode it, seal a share for every holder, sign."""
        shares = self._p.num_holders * (self._seal + self._encode * self._p.share_size)
        return self._sign + shares

    def mask(self) -> float:
        """Contributor: round the update, add the mask, which grows if it is from a key; sign the ticket."""
        return self._sign + self._grown + MASK_ELEMENT * self._p.padded_size

    def upload(self) -> float:
        """Contributor: mask the update, and deal the mask if it comes with it."""
        return self.mask() + (self.deal() if self._p.one_visit else 0.0)

    def answer(self) -> float:
        """Holder: check the tickets and the certificate, endorse, add up K shares, sign."""
        checks = self._p.buffer_size + self._endorsements
        shares = SUM_ELEMENT * self._p.buffer_size * self._p.share_size
        return checks * self._verify + 2 * self._sign + shares

    def open(self) -> float:
        """Server: ask, check endorsements and answers, decode, subtract."""
        p = self._p
        checks = (self._endorsements + p.answers_needed) * self._verify
        compared = p.answers_needed - p.recovery_threshold
        elements = p.shared_size + compared * p.share_size
        decoding = p.answers_needed * DECODE_ANSWER + DECODE_ELEMENT * elements + self._grown
        return 2 * self._sign + checks + decoding + SUM_ELEMENT * p.buffer_size * p.padded_size

    @property
    def _endorsements(self) -> int:
        return self._p.quorum if self._p.consistency == "certified" else 0


def open_pairwise(
    model_size: int, survivors: int, dropped: int, neighbours: int, threshold: int
) -> float:
    """Server of SecAgg or SecAgg+: a seed for each survivor, and all pairwise ones of those who dropped out."""
    seeds = survivors + dropped
    masks = survivors + dropped * neighbours
    return seeds * threshold * SHAMIR_SHARE + masks * model_size * EXPAND_ELEMENT
