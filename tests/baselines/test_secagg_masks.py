"""Adding streams: against plain integers, at the edges of 64 bits, and across the pieces of a vector."""

from __future__ import annotations

import numpy as np
import oracle_secagg as oracle
import pytest

from basecagg.baselines.secagg import add_masks
from basecagg.maths.kernels.modular_sums import add_row, reduce_totals, subtract_row

Q = 2**32 - 5


def seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.mark.parametrize("size", [1, 5, (1 << 15) - 1, (1 << 15) + 1])
def test_streams_are_added_and_subtracted_exactly(size: int) -> None:
    vector = np.random.default_rng(size).integers(0, Q, size, dtype=np.uint32)
    found = add_masks(vector, [seed(1), seed(2)], [seed(3)])
    shown = min(size, 40)
    plus, more, minus = (oracle.prg(seed(n), shown) for n in (1, 2, 3))
    wanted = [
        (int(v) + a + b - c) % Q
        for v, a, b, c in zip(vector[:shown], plus, more, minus, strict=True)
    ]
    assert found[:shown].tolist() == wanted
    assert add_masks(found, [seed(3)], [seed(1), seed(2)]).tolist() == vector.tolist()


def test_no_stream_leaves_the_vector_as_it_is() -> None:
    vector = np.array([0, 1, Q - 1], np.uint32)
    found = add_masks(vector, [], [])
    assert found.tolist() == vector.tolist()
    assert found is not vector


@pytest.mark.parametrize("modulus", [Q, 65537, 2**31 - 1])
def test_totals_are_reduced_at_the_edges(modulus: int) -> None:
    edges = [0, 1, modulus - 1, modulus, modulus + 1, 2**32 - 1, 2**32, 5 * 2**32, 2**63, 2**64 - 1]
    total, out = np.array(edges, np.uint64), np.empty(len(edges), np.uint32)
    reduce_totals(total, np.uint32(modulus), out)
    assert out.tolist() == [edge % modulus for edge in edges]


def test_a_row_subtracted_from_itself_is_zero() -> None:
    row = np.array([0, 1, Q - 1], np.uint32)
    total, out = np.zeros(3, np.uint64), np.empty(3, np.uint32)
    add_row(total, row)
    subtract_row(total, row, np.uint32(Q))
    reduce_totals(total, np.uint32(Q), out)
    assert out.tolist() == [0, 0, 0]
