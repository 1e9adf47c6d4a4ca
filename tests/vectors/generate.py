"""Write the vectors: of the field and the code, made by the oracle in tests/maths alone; and of the messages.

`python tests/vectors/generate.py` writes them; tests compare the committed files with what it makes.
Numbers are drawn from SHA-256, so that the files are the same everywhere. The messages' bytes are golden: they
change with the version of the protocol, and not otherwise.
"""

import hashlib
import sys
from itertools import count
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / room) for room in ("maths", "protocol")]

import oracle  # noqa: E402
from samples import described, make_samples, signed_kinds  # noqa: E402
from vectors_rounding import as_text  # noqa: E402

from basecagg.channels.wire import MAGIC, pack  # noqa: E402
from basecagg.protocol.messages import statement  # noqa: E402

Q = oracle.PAPER_MODULUS
PRIMES = (5, 7, 97, 2**31 - 1, Q)


def numbers(label, size, q):
    """`size` numbers below q that look random and depend on the label alone."""
    blocks = (hashlib.sha256(f"{label}/{i}".encode()).digest() for i in count())
    words = (int.from_bytes(block[:8], "little") % q for block in blocks)
    return [next(words) for _ in range(size)]


def field_vectors():
    return {
        "about": "F_q: differences, and weighted sums of rows",
        "sub": [_differences(q) for q in (2, 3, *PRIMES)],
        "weighted_sum": [
            _weighted("small weights", Q, 3, 5, [1, 2, 64]),
            _weighted("nine rows", Q, 9, 4, range(1, 10)),
            _weighted("weights add up to 2^32 - 1", Q, 2, 4, [2**31, 2**31 - 1]),
            _weighted("weights add up to 2^32", Q, 2, 4, [2**31, 2**31]),
            _weighted("largest weights", Q, 20, 3, [Q - 1] * 20),
            _weighted("weight zero", Q, 3, 3, [0, 5, 0]),
            *(_weighted(f"q = {q}", q, 4, 6, numbers("weights", 4, q)) for q in (2, *PRIMES)),
        ],
        "bad": [
            _bad("modulus 1", "new", "ParameterError", "q = 1 ", modulus=1),
            _bad("modulus even", "new", "ParameterError", "prime", modulus=2**31),
            _bad("modulus too large", "new", "ParameterError", "2³²", modulus=2**32 + 15),
            _bad("no thread", "new", "ParameterError", "threads = 0", modulus=7, threads=0),
            *(
                _bad(f"sub, {case}", "sub", "DataError", text, modulus=7, **arguments)
                for case, text, arguments in (
                    ("value q in a", "a holds a value", {"a": [7, 0], "b": [0, 0]}),
                    ("value q in b", "b holds a value", {"a": [0, 0], "b": [0, 7]}),
                    ("lengths", "b has shape", {"a": [1, 2], "b": [1]}),
                    ("signed", "a is int64", {"a": [1], "b": [1], "dtype": "int64"}),
                    ("float", "a is float32", {"a": [1], "b": [1], "dtype": "float32"}),
                    ("big-endian", "a is >u4", {"a": [1], "b": [1], "dtype": ">u4"}),
                    ("list", "not list", {"a": [1], "b": [1], "dtype": None}),
                )
            ),
            *(
                _bad(
                    f"weighted sum, {case}",
                    "weighted_sum",
                    "DataError",
                    text,
                    modulus=7,
                    **arguments,
                )
                for case, text, arguments in (
                    (
                        "value q",
                        "row 1 holds a value",
                        {"rows": [[1, 2], [7, 0]], "weights": [1, 1]},
                    ),
                    ("lengths", "row 1 has shape", {"rows": [[1, 2], [1]], "weights": [1, 1]}),
                    ("no rows", "no rows", {"rows": [], "weights": []}),
                    ("nested rows", "rows are vectors", {"rows": [[[1, 2]]], "weights": [1]}),
                    ("too few weights", "1 weights for 2", {"rows": [[1], [2]], "weights": [1]}),
                    ("weight q", "0…q−1", {"rows": [[1]], "weights": [7]}),
                    ("weight negative", "0…q−1", {"rows": [[1]], "weights": [-1]}),
                    ("weight not whole", "whole", {"rows": [[1]], "weights": [1.5]}),
                    ("dtype", "uint64", {"rows": [[1]], "weights": [1], "dtype": "uint64"}),
                )
            ),
        ],
    }


def code_vectors():
    small = {"num_holders": 4, "recovery_threshold": 3, "max_colluders": 1, "modulus": 7}
    shares = [[1, 2], [3, 4], [5, 6], [0, 1]]
    good = {str(h): share for h, share in enumerate(shares)}
    three = {h: good[h] for h in "012"}
    return {
        "about": "share j = sum of row u times point j to the power u: sub-masks, then noise",
        "code": [
            _code("smallest", 5, 2, 2, 1, 1, [0, 1]),
            _code("every nonzero point", 5, 4, 3, 1, 2, [0, 2, 3]),
            _code("two colluders", 7, 6, 4, 2, 3, [5, 2, 1, 3]),
            _code("odd prime", 97, 12, 7, 3, 2, range(5, 12)),
            _code("31 bits", 2**31 - 1, 9, 5, 2, 2, [8, 0, 7, 1, 3]),
            _code("paper's field, no whole coset", Q, 4, 3, 1, 3, [3, 1, 0]),
            _code("paper's field, one coset", Q, 10, 7, 3, 2, range(3, 10)),
            _code("paper's field, cosets in part", Q, 23, 11, 4, 2, range(12, 23)),
            _code("paper's field, long sums", Q, 26, 26, 3, 1, range(26)),
        ],
        "points": [
            {"num_holders": n, "modulus": q, "points": oracle.points(n, q)}
            for n, q in ((4, 5), (6, 7), (10, Q), (299, Q), (300, Q), (401, Q))
        ],
        "corrected": [
            _corrected("nothing wrong", Q, 9, 3, 1, range(9), {}),
            _corrected("one wrong", Q, 9, 3, 1, range(9), {4: [0, 1]}),
            _corrected("three wrong", Q, 9, 3, 1, range(9), {0: [0, 1], 4: [1], 8: [0]}),
            _corrected("every wrong one in another column", Q, 12, 4, 2, range(12), {1: [0], 5: [1]}),
            _corrected("no spare answer", Q, 9, 3, 1, [1, 2, 8], {}),
            _corrected("one spare answer", Q, 9, 3, 1, [1, 2, 8, 0], {}),
            _corrected("smallest field", 5, 4, 2, 1, range(4), {2: [0]}),
            _corrected("small field", 7, 6, 2, 1, range(6), {0: [0], 5: [1]}),
        ],
        "uncorrectable": [
            _uncorrectable("one wrong, one spare answer", Q, 9, 3, 1, range(4), {2: [1]}),
            _uncorrectable("two wrong, three spare answers", Q, 9, 3, 1, range(6), {0: [0], 4: [1]}),
            _uncorrectable("all wrong", Q, 9, 3, 1, range(9), {h: [0, 1] for h in range(9)}),
        ],
        "bad": [
            *(
                _bad(f"new, {case}", "new", "ParameterError", text, **{**small, **change})
                for case, text, change in (
                    ("one holder", "N = 1,", {"num_holders": 1}),
                    ("more holders than points", "N = 7,", {"num_holders": 7}),
                    ("T = 0", "T = 0 ", {"max_colluders": 0}),
                    ("U = T", "U = 1,", {"recovery_threshold": 1}),
                    ("U > N", "U = 5,", {"recovery_threshold": 5}),
                    ("fraction", "N = 4.0,", {"num_holders": 4.0}),
                    ("truth", "T = True ", {"max_colluders": True}),
                    ("not prime", "prime", {"modulus": 9}),
                )
            ),
            *(
                _bad(f"encode, {case}", "encode", "DataError", text, **small, **arguments)
                for case, text, arguments in (
                    ("mask too short", "(3,)", {"mask": [1, 2, 3], "noise": [[1]]}),
                    ("mask empty", "(0,)", {"mask": [], "noise": [[]]}),
                    ("mask a matrix", "(1, 2)", {"mask": [[1, 2]], "noise": [[1]]}),
                    ("mask value q", "mask holds a value", {"mask": [1, 7], "noise": [[1]]}),
                    ("noise value q", "noise holds a value", {"mask": [1, 2], "noise": [[8]]}),
                    ("noise rows", "noise has shape", {"mask": [1, 2], "noise": [[1], [1]]}),
                    ("noise columns", "noise has shape", {"mask": [1, 2], "noise": [[1, 1]]}),
                    ("dtype", "int32", {"mask": [1, 2], "noise": [[1]], "dtype": "int32"}),
                )
            ),
            *(
                _bad(f"{op}, {case}", op, error, text, **small, **arguments)
                for op in ("decode", "correct")
                for case, error, text, arguments in (
                    ("none", "DecodingError", "0 shares", {"shares": {}}),
                    ("too few", "DecodingError", "2 shares", {"shares": {"0": [1], "1": [1]}}),
                    ("unknown holder", "DataError", "holder 4", {"shares": {**three, "4": [1, 2]}}),
                    ("negative holder", "DataError", "holder -1", {"shares": {**three, "-1": [1, 2]}}),
                    ("lengths", "DataError", "holder 2 has", {"shares": {**three, "2": [5]}}),
                    ("a matrix", "DataError", "holder 0 has", {"shares": {**three, "0": [[1, 2]]}}),
                    ("empty", "DataError", "empty", {"shares": {"0": [], "1": [], "2": []}}),
                    ("value q", "DataError", "holder 1 holds a value", {"shares": {**three, "1": [7, 0]}}),
                    ("dtype", "DataError", "uint64", {"shares": three, "dtype": "uint64"}),
                    ("list", "DataError", "not list", {"shares": three, "dtype": None}),
                )
            ),
            _bad("correct, value q beyond U", "correct", "DataError", "holder 3 holds a value",
                 **small, shares={**three, "3": [9, 0]}),
        ],
    }  # fmt: skip


def _differences(q):
    edges = [0, q - 1, 1, q - 1, 0, q - 1]
    a = [*edges, *numbers("a", 6, q)]
    b = [*reversed(edges), *numbers("b", 6, q)]
    return {
        "modulus": q,
        "a": a,
        "b": b,
        "difference": [(x - y) % q for x, y in zip(a, b, strict=True)],
    }


def _weighted(name, q, number, size, weights):
    rows = [[*numbers(f"{name}/{i}", size - 1, q), q - 1] for i in range(number)]
    weights = list(weights)
    return {
        "name": name,
        "modulus": q,
        "rows": rows,
        "weights": weights,
        "sum": oracle.weighted_sum(rows, weights, q),
    }


def _code(name, q, N, U, T, m, holders):
    mask = [*numbers(f"{name}/mask", m * (U - T) - 1, q), q - 1]
    noise = [numbers(f"{name}/noise/{t}", m, q) for t in range(T)]
    where = oracle.points(N, q)
    shares = oracle.encode(mask, noise, where, U - T, q)
    chosen = {h: shares[h] for h in holders}
    assert oracle.decode(chosen, where, U, U - T, q) == mask
    return {
        "name": name,
        "num_holders": N,
        "recovery_threshold": U,
        "max_colluders": T,
        "modulus": q,
        "mask": mask,
        "noise": noise,
        "shares": shares,
        "holders": list(holders),
    }


def _spoiled(name, q, N, U, T, holders, errors):
    """A vector of answers, two columns each, in which holders err in the columns listed."""
    vector = _code(name, q, N, U, T, 2, list(range(U)))
    answers = {h: list(vector["shares"][h]) for h in holders}
    for holder, columns in errors.items():
        for c in columns:
            error = 1 + numbers(f"{name}/{holder}/{c}", 1, q - 1)[0]
            answers[holder][c] = (answers[holder][c] + error) % q
    keep = ("name", "num_holders", "recovery_threshold", "max_colluders", "modulus")
    found = oracle.correct(answers, oracle.points(N, q), U, U - T, q)
    return {**{k: vector[k] for k in keep}, "shares": answers}, vector["mask"], found


def _corrected(name, q, N, U, T, holders, errors):
    vector, mask, found = _spoiled(name, q, N, U, T, holders, errors)
    assert found == (mask, sorted(errors)), name
    return {**vector, "mask": mask, "wrong": sorted(errors)}


def _uncorrectable(name, q, N, U, T, holders, errors):
    vector, _, found = _spoiled(name, q, N, U, T, holders, errors)
    assert found is None, name
    return vector


def _bad(name, call, error, text, **arguments):
    return {"name": name, "call": call, "error": error, "text": text, **arguments}


def statement_vectors():
    return {
        "about": "one message of every kind: what its fields may hold, its frame, and what is signed",
        "magic": MAGIC.hex(),
        "messages": [_message(message) for message in make_samples().values()],
    }


def _message(message):
    kind = type(message)
    return {
        "tag": kind.__struct_config__.tag,
        "fields": described(kind),
        "frame": pack(message).hex(),
        "statement": statement(message).hex() if kind in signed_kinds() else None,
    }


ALL = {
    "prime_field.json": field_vectors,
    "mask_code.json": code_vectors,
    "statements.json": statement_vectors,
}


if __name__ == "__main__":
    for file, make in ALL.items():
        (HERE / file).write_text(as_text(make()), encoding="utf-8")
