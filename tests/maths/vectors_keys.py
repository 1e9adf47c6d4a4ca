"""The vectors of masks that grow from keys, made by the oracle alone; docs/reference/key-masks.md tells more.

`python tests/maths/vectors_keys.py` writes them to tests/vectors; a test compares the file with what it makes.
A long row of words is told by its length, its first and last words, and the SHA-256 of its packed bytes.
"""

import hashlib
from itertools import islice

import oracle_keys as oracle
from oracle_keys import BLOCKS, CHUNK, GROUP, NARROW, WIDE, N
from oracle_rounding import field_elements
from vectors_rounding import VECTORS, as_text

FILE = VECTORS / "key_masks.json"
CODES = ((7, 4, 1), (12, 7, 2))
"""N, U and T"""
SEED, FRESH, EPOCH = (bytes(range(first, first + 32)) for first in (0, 64, 128))


def key_vectors():
    fields = (NARROW, WIDE)
    return {
        "about": "n = 2048, 16 blocks a group, 8 groups a chunk; seeds and epochs in hex",
        "root": [{"q": q, "psi": oracle.psi(q)} for q in fields],
        "transform": [_transform(q, *case) for q in fields for case in _values(q)],
        "key": [{"q": q, "seed": SEED.hex()} | told(oracle.key_of(SEED, q), q) for q in fields],
        "public": [_public(q, chunk) for q in fields for chunk in (0, 1, 4095)],
        "product": [_product(q) for q in fields],
        "bare mask": [
            _bare(q, *case) for q in fields for case in ((0, 40), (0, GROUP + 3), (1, 5))
        ],
        "mask": [_mask(q, size) for q in fields for size in (1, 2047, GROUP + 5)],
        "shares": [
            _share(q, holder, *case)
            for q in fields
            for case in CODES
            for holder in (0, case[0] - 1)
        ],
        "packed": [_packed(q) for q in fields],
    }


def told(words, q):
    return {
        "count": len(words),
        "first": words[:4],
        "last": words[-4:],
        "sha256": hashlib.sha256(oracle.packed(words, q)).hexdigest(),
    }


def _values(q):
    """Values of one block: how they are said, and they themselves."""
    yield "one at every place", [1] * N
    yield "q - 1 at every place", [q - 1] * N
    for place in (0, 1, 1024, 2047):
        yield f"one at place {place}, else zero", [int(j == place) for j in range(N)]
    yield "j at place j", [*range(N)]
    yield f"elements of the seed {SEED.hex()}", [*islice(field_elements(SEED, q), N)]


def _transform(q, values, block):
    return {"q": q, "values": values, "input": told(block, q), **told(oracle.inverse(block, q), q)}


def _public(q, chunk):
    words = oracle.public_words(EPOCH, q, chunk, GROUP)
    return {"q": q, "epoch": EPOCH.hex(), "chunk": chunk, **told(words, q)}


def _product(q):
    """One block has the values a_k·ŝ_k, the others none: what is word 16·k + 3 is coefficient k."""
    key, public = oracle.key_of(SEED, q), [0] * GROUP
    public[3::BLOCKS] = oracle.public_words(EPOCH, q, 0, N)
    words = oracle.product(public, key, q)
    return {"q": q, "seed": SEED.hex(), "epoch": EPOCH.hex(), "block": 3, **told(words, q)}


def _bare(q, chunk, size):
    words = oracle.bare_mask(oracle.key_of(SEED, q), EPOCH, q, chunk, size)
    about = {"q": q, "seed": SEED.hex(), "epoch": EPOCH.hex(), "first word": chunk * CHUNK}
    return about | told(words, q)


def _mask(q, size):
    words = oracle.mask(SEED, FRESH, EPOCH, q, size)
    about = {"q": q, "seed": SEED.hex(), "fresh": FRESH.hex(), "epoch": EPOCH.hex()}
    return about | told(words, q)


def _share(q, holder, holders, threshold, colluders):
    about = {"q": q, "seed": SEED.hex(), "N": holders, "U": threshold, "T": colluders}
    words = oracle.share_of(SEED, q, holder, threshold, colluders)
    return about | {"holder": holder} | told(words, q)


def _packed(q):
    words = [0, 1, 255, 256, 65535, 65536, q - 2, q - 1]
    return {"q": q, "words": words, "bytes": oracle.packed(words, q).hex()}


if __name__ == "__main__":
    FILE.write_text(as_text(key_vectors()), encoding="utf-8")
