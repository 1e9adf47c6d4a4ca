"""The vectors of streams, rounding and weights, made by the oracle: good ones, and calls to be refused.

`python tests/maths/vectors_rounding.py` writes them to tests/vectors; a test compares them with it.
"""

import hashlib
import json
import math
import struct
from itertools import islice
from pathlib import Path

from oracle_rounding import (
    derived,
    field_elements,
    keystream_words,
    phi,
    phi_inverse,
    rounded,
    weight,
)

VECTORS = Path(__file__).parents[1] / "vectors"
Q = 2**32 - 5
SEED = bytes(range(32))


def randomness_vectors():
    seeds = [bytes(32), SEED, bytes([255] * 32)]
    moduli = [2, 5, 7, 251, 257, 2**15 - 19, 2**31 - 1, 2**31 + 11, Q]
    long = list(islice(field_elements(SEED, 2**31 + 11), 300_000))
    return {
        "about": "AES-256-CTR streams, seeds in hex; long: SHA-256 of the elements as little-endian words",
        "words": [{"seed": s.hex(), "words": [*islice(keystream_words(s), 9)]} for s in seeds],
        "elements": [
            {"seed": s.hex(), "modulus": q, "elements": [*islice(field_elements(s, q), 12)]}
            for s in seeds
            for q in moduli
        ],
        "long": [
            {
                "seed": SEED.hex(),
                "modulus": 2**31 + 11,
                "count": len(long),
                "sha256": hashlib.sha256(struct.pack(f"<{len(long)}I", *long)).hexdigest(),
            }
        ],
        "derived": [
            {"seed": s.hex(), "purpose": purpose, "child": derived(s, purpose).hex()}
            for s in seeds
            for purpose in ("mask", "noise", "rounding", "β")
        ],
        "bad": [
            _bad("short seed", "DataError", "31 bytes", seed="00" * 31, modulus=Q),
            _bad("long seed", "DataError", "33 bytes", seed="00" * 33, modulus=Q),
            _bad("modulus 1", "ParameterError", "q = 1 ", seed="00" * 32, modulus=1),
            _bad("modulus too large", "ParameterError", "2³²", seed="00" * 32, modulus=2**32 + 15),
            _bad("not a prime", "ParameterError", "prime", seed="00" * 32, modulus=2**32 - 1),
        ],
    }


def quantization_vectors():
    tie = -(0.25 - 2.0**-55)  # its fraction 0.75 + 2⁻⁵⁵ is 0.75 in float64
    words = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    numbers = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1 / 3, -1 / 3, 2.0**-40, -(2.0**-40), 51.2, -51.2]
    single = [struct.unpack("<f", struct.pack("<f", x))[0] for x in numbers]
    edge = (Q - 3) // 2
    far = [1e9, -1e9, 1e22, -1e22, 1e300, 4.5, -4.5, 12345.678]
    return {
        "about": "x as hexadecimal floats; element i takes words[i] and mask[i]",
        "quantized": [
            _rounding("default field", "float64", 2**16, Q, numbers, words),
            _rounding("single precision", "float32", 2**16, Q, single, words),
            _rounding("float64 product of float32", "float32", 2**24 + 1, Q, single[:10], words),
            _rounding("coarse", "float64", 1, Q, [0.25, -0.25, 2.5, -2.5, tie], [3 * 2**30]),
            _rounding("edges", "float64", 1, Q, [edge, edge - 0.5, -edge, 0.5 - edge], words),
            _rounding("small field", "float64", 2, 7, [0.0, 0.3, -0.3, 1.0, -1.0], words),
            _rounding("nothing", "float64", 2**16, Q, [], words),
        ],
        "wrapped": [
            _wrapping("default field", 2**16, Q, far[:4], words),
            _wrapping("beyond 2⁵³", 1, 2**31 - 1, far, words),
            _wrapping("small field", 3, 7, far, words),
        ],
        "signed": [
            {"modulus": q, "values": v, "signed": [phi_inverse(value, q) for value in v]}
            for q, v in [(5, [*range(5)]), (7, [*range(7)]), (Q, [0, 1, edge, edge + 1, Q - 1])]
        ],
        "bad": [
            _bad("not a number", "DataError", "NaN", **_one_element(math.nan)),
            _bad("infinite", "DataError", "infinite", **_one_element(-math.inf)),
            _bad("too large", "DataError", "(q − 3)/2", **_one_element(edge / 2**16 + 1e-4)),
            _bad("too small", "DataError", "clip", **_one_element(-edge / 2**16 - 1e-4)),
            _bad("just too large", "DataError", "clip", **_one_element(edge + 0.25, levels=1)),
            _bad("just too small", "DataError", "clip", **_one_element(-edge - 0.25, levels=1)),
            _bad("far too large", "DataError", "clip", **_one_element(1e308)),
            _bad("integers", "DataError", "int64", **_one_element(1.0, dtype="int64")),
            _bad("half precision", "DataError", "float16", **_one_element(1.0, dtype="float16")),
            _bad("too many words", "DataError", "random_words", **_one_element(1.0, words=[0, 0])),
            _bad("too few mask elements", "DataError", "mask", **_one_element(1.0, mask=[])),
            _bad("mask not canonical", "DataError", "below q", **_one_element(1.0, mask=[Q])),
            _bad("no levels", "ParameterError", "levels c = 0", **_one_element(1.0, levels=0)),
            _bad("broken levels", "ParameterError", "whole", **_one_element(1.0, levels=1.5)),
            _bad("not a prime", "ParameterError", "prime", **_one_element(1.0, modulus=2**32 - 1)),
            _bad("even prime", "ParameterError", "odd", **_one_element(0.0, modulus=2)),
        ],
    }


def staleness_vectors():
    functions = [("constant", 0, 0), ("hinge", 10, 4), ("hinge", 0.1, 0), ("hinge", 0.25, 2.5)]
    functions += [("polynomial", alpha, 0) for alpha in (0, 0.5, 1, 1.5, 2)]
    weights = []
    for function in functions:
        for tau in (0, 1, 2, 4, 5, 10, 63):
            for levels, coin in ((64, b""), (64, b"mask 1"), (1000, b"mask 2")):
                for rounding in ("stochastic", "nearest"):
                    result = weight(function, tau, levels, coin, rounding)
                    weights.append([*function, tau, levels, coin.hex(), rounding, result])
    return {
        "about": "rows of kind, a (or α), b, τ, c_g, coin in hex, rounding, weight s̄(τ)",
        "weights": weights,
        "bad": [
            _bad("negative τ", "ParameterError", "τ = -1", **_weigh(staleness=-1)),
            _bad("no levels", "ParameterError", "c_g = 0", **_weigh(levels=0)),
            _bad("unknown rounding", "ParameterError", "'up'", **_weigh(rounding="up")),
            _bad("unknown kind", "ParameterError", "'linear'", **_weigh(kind="linear")),
            _bad("growing polynomial", "ParameterError", "a = -1", **_weigh(a=-1.0)),
            _bad("growing hinge", "ParameterError", "b = -0.5", **_weigh(kind="hinge", b=-0.5)),
        ],
    }


def _bad(name, error, says, **call):
    return {"name": name, "error": error, "says": says, "call": call}


def _rounding(name, dtype, levels, q, x, words):
    words = [words[i % len(words)] for i in range(len(x))]
    mask = [(q - 1 - 3**i) % q for i in range(len(x))]
    quantized = [phi(rounded(v, levels, w), q) for v, w in zip(x, words, strict=True)]
    return _call(dtype, levels, q, x, words) | {
        "name": name,
        "quantized": quantized,
        "mask": mask,
        "masked": [(a + b) % q for a, b in zip(quantized, mask, strict=True)],
    }


def _wrapping(name, levels, q, x, words):
    words = [words[i % len(words)] for i in range(len(x))]
    quantized = [phi(rounded(v, levels, w), q) for v, w in zip(x, words, strict=True)]
    return _call("float64", levels, q, x, words) | {"name": name, "quantized": quantized}


def _call(dtype, levels, q, x, words):
    numbers = [float(v).hex() for v in x]
    return {"dtype": dtype, "levels": levels, "modulus": q, "x": numbers, "words": words}


def _one_element(x, dtype="float64", levels=2**16, modulus=Q, words=(0,), mask=(0,)):
    return _call(dtype, levels, modulus, [x], list(words)) | {"mask": list(mask)}


def _weigh(kind="polynomial", a=1.0, b=0.0, staleness=3, levels=64, rounding="stochastic"):
    function = {"kind": kind, "a": a, "b": b}
    return function | {"staleness": staleness, "levels": levels, "rounding": rounding}


ALL = {
    "randomness.json": randomness_vectors,
    "quantization.json": quantization_vectors,
    "staleness.json": staleness_vectors,
}


def as_text(vectors):
    """JSON with one vector a line."""
    sections = (f"{_json(name)}: {_section(value)}" for name, value in vectors.items())
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _section(value):
    return _json(value) if isinstance(value, str) else "[\n" + ",\n".join(map(_json, value)) + "\n]"


def _json(value):
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for file, make in ALL.items():
        (VECTORS / file).write_text(as_text(make()), encoding="utf-8")
