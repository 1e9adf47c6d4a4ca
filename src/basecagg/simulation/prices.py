"""What the protocol costs on a device: a list of measured prices, so that a run can be repeated.

A stopwatch would give every run other times, so another order of events, so another model. The prices are CPU
seconds of one core of a server, as `basecagg plan` measures them. With `crypto_time = "stopwatch"` a run is
charged what its own machine takes, and cannot be repeated. The totals hold the measured seconds either way.
"""

from __future__ import annotations

from basecagg.parameters import ProtocolParameters

SIGN = 40e-6
VERIFY = 115e-6
SEAL = 55e-6
"""One share: key agreement (once for several masks), HKDF, AES-GCM."""
ENCODE_ELEMENT = 2.5e-9
"""One element of one share, from drawing the mask on."""
MASK_ELEMENT = 1.4e-9
"""One element of an update, rounded and masked."""
SUM_ELEMENT = 0.3e-9
"""One element of one summand."""
DECODE_ANSWER = 85e-6
"""One answer's part in the decoding matrix."""
DECODE_ELEMENT = 17e-9
"""One element of the model, decoded."""
EXPAND_ELEMENT = 1.0e-9
"""One element of a pairwise mask, drawn from its seed and added."""
SHAMIR_SHARE = 10e-6
"""One share of a seed, in its reconstruction."""


class Prices:
    """Seconds of each step of one epoch; without cryptography nothing is sealed, signed or checked."""

    def __init__(self, parameters: ProtocolParameters, *, cryptography: bool) -> None:
        """Price the steps of these parameters."""
        self._p = parameters
        factor = 1.0 if cryptography else 0.0
        self._sign, self._verify, self._seal = factor * SIGN, factor * VERIFY, factor * SEAL

    def deal(self) -> float:
        """Contributor: draw a mask, encode it, seal a share for every holder, sign."""
        shares = self._p.num_users * (self._seal + ENCODE_ELEMENT * self._p.share_size)
        return self._sign + shares

    def mask(self) -> float:
        """Contributor: round the update, add the mask, sign the ticket."""
        return self._sign + MASK_ELEMENT * self._p.padded_size

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
        elements = p.padded_size + compared * p.share_size
        decoding = p.answers_needed * DECODE_ANSWER + DECODE_ELEMENT * elements
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
