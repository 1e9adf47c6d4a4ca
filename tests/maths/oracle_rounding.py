"""A second opinion on streams, rounding and weights: plain integers and fractions, slow and obvious.

It shares no code with the package: AES block by block instead of a CTR mode, HMAC instead of an
HKDF, `Fraction` instead of float64 and decimal arithmetic.
"""

import hashlib
import hmac
import math
import struct
from fractions import Fraction
from itertools import count

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def keystream_words(seed):
    """AES-256 of the counters 0, 1, 2, … (128 bits, big-endian) as little-endian 32-bit words."""
    encrypt = Cipher(algorithms.AES(seed), modes.ECB()).encryptor().update
    for counter in count():
        yield from struct.unpack("<4I", encrypt(counter.to_bytes(16, "big")))


def field_elements(seed, q):
    """The low ⌈log₂ q⌉ bits of each word, where these are below q."""
    bits = math.ceil(math.log2(q))
    return (word % 2**bits for word in keystream_words(seed) if word % 2**bits < q)


def derived(seed, purpose):
    """HKDF-Expand to 32 bytes is a single HMAC (RFC 5869, §2.3)."""
    return hmac.digest(seed, b"basecagg/derive-seed/v1/" + purpose.encode() + b"\x01", "sha256")


def rounded(x, levels, word):
    """c·Q_c(x) as an integer: product and fraction are float64 by definition, the rest is exact."""
    scaled = float(x) * float(levels)
    fraction = Fraction(scaled - math.floor(scaled))
    return math.floor(scaled) + (word < fraction * 2**32)


def phi(integer, q):
    """Eq. (phi), and mod q for what is beyond it."""
    return integer % q


def phi_inverse(value, q):
    """Eq. (inv_phi), as printed."""
    return value if value < Fraction(q - 1, 2) else value - q


def staleness_value(kind, a, b, tau):
    """s(τ) as a fraction, exact to far more than 60 digits. Of the polynomials: α in halves."""
    if kind == "polynomial":
        square_root = Fraction(math.isqrt((1 + tau) * 10**200), 10**100)
        return 1 / (square_root ** int(2 * a) if a % 1 else Fraction(1 + tau) ** int(a))
    if kind == "hinge" and tau > Fraction(b):
        return 1 / (Fraction(a) * (tau - Fraction(b)) + 1)
    return Fraction(1)


def weight(function, tau, levels, coin, rounding):
    """s̄(τ): c_g·s(τ) to 40 places, then rounded by the public coin or to the nearest."""
    places = 10**40
    scaled = Fraction(round(levels * staleness_value(*function, tau) * places), places)
    whole, fraction = divmod(scaled, 1)
    if rounding == "nearest":
        return int(whole) + (fraction >= Fraction(1, 2))
    tag = struct.pack("<Q", len(coin)) + coin + struct.pack("<Q", tau)
    digest = hashlib.sha256(b"basecagg/staleness-coin/v1" + tag).digest()
    return int(whole) + (Fraction(int.from_bytes(digest, "little"), 2**256) < fraction)
