"""SecAgg in plain Python integers, written from the papers and RFC 7748: shares no code with the package.

It is given every user's secrets and who was there, and says what each input must look like and what the sum is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

Q = 2**32 - 5
P = 2**255 - 19


def x25519(secret: bytes, point: bytes) -> bytes:
    """RFC 7748, §5: the Montgomery ladder."""
    k = bytearray(secret)
    k[0] &= 248
    k[31] = (k[31] & 127) | 64
    scalar = int.from_bytes(k, "little")
    u = int.from_bytes(point, "little") & (2**255 - 1)
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in reversed(range(255)):
        if (scalar >> bit) & 1:
            x2, z2, x3, z3 = *_add(x2, z2, x3, z3, u), *_double(x3, z3)
        else:
            x2, z2, x3, z3 = *_double(x2, z2), *_add(x2, z2, x3, z3, u)
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def _double(x: int, z: int) -> tuple[int, int]:
    aa, bb = (x + z) ** 2 % P, (x - z) ** 2 % P
    e = aa - bb
    return aa * bb % P, e * (aa + 121665 * e) % P


def _add(x2: int, z2: int, x3: int, z3: int, u: int) -> tuple[int, int]:
    da, cb = (x3 - z3) * (x2 + z2), (x3 + z3) * (x2 - z2)
    return (da + cb) ** 2 % P, u * (da - cb) ** 2 % P


def public_key(secret: bytes) -> bytes:
    return x25519(secret, (9).to_bytes(32, "little"))


def pairwise_seed(secret: bytes, peer: bytes, round_id: bytes) -> bytes:
    own = public_key(secret)
    keys = min(own, peer) + max(own, peer)
    content = b"basecagg/agree/v1" + x25519(secret, peer) + keys + b"mask" + round_id
    return hashlib.sha256(content).digest()


def prg(seed: bytes, size: int) -> list[int]:
    """AES-256-CTR from counter 0, little-endian words, those ≥ q skipped."""
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    elements: list[int] = []
    while len(elements) < size:
        word = int.from_bytes(stream.update(bytes(4)), "little")
        if word < Q:
            elements.append(word)
    return elements


def masked_input(
    user: int,
    values: Sequence[int],
    private_seed: bytes,
    masking_keys: Mapping[int, bytes],
    peers: Iterable[int],
    round_id: bytes,
) -> list[int]:
    """y_i = x_i + PRG(b_i) + Σ_{i<j} PRG(a_ij) − Σ_{i>j} PRG(a_ji)."""
    total = [x + b for x, b in zip(values, prg(private_seed, len(values)), strict=True)]
    for peer in peers:
        seed = pairwise_seed(masking_keys[user], public_key(masking_keys[peer]), round_id)
        sign = 1 if user < peer else -1
        total = [y + sign * a for y, a in zip(total, prg(seed, len(values)), strict=True)]
    return [y % Q for y in total]


def plain_sum(inputs: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) % Q for column in zip(*inputs, strict=True)]


def polynomial_value(coefficients: Sequence[int], x: int) -> int:
    return sum(c * pow(x, u, Q) for u, c in enumerate(coefficients)) % Q


def interpolate_at_zero(points: Mapping[int, int]) -> int:
    """Lagrange: the value at 0 of the polynomial through these points."""
    total = 0
    for x, y in points.items():
        weight = 1
        for other in points:
            if other != x:
                weight = weight * other * pow(other - x, -1, Q) % Q
        total += y * weight
    return total % Q
