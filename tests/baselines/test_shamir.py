"""Any t shares give the secrets back, t − 1 fit every secret, and wrong ones are noticed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import oracle_secagg as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basecagg.baselines.shamir import ELEMENTS, SecretSharing
from basecagg.errors import DecodingError, ParameterError
from basecagg.maths.mds_code import MaskCode

SEED = bytes(range(32))
EDGES = [bytes(32), b"\xff" * 32, b"\x00\x00\x00\x80" * 8, bytes(range(32))]


@pytest.mark.parametrize("secret", EDGES)
def test_every_set_of_t_shares_gives_the_secret_back(secret: bytes) -> None:
    sharing = SecretSharing(5, 3)
    rows = sharing.share([secret], SEED)
    for holders in combinations(range(5), 3):
        assert sharing.recover({j: rows[j] for j in holders}) == [secret]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4), st.integers(2, 9))
def test_several_secrets_at_once(secrets: list[bytes], threshold: int) -> None:
    sharing = SecretSharing(9, threshold)
    rows = sharing.share(secrets, SEED)
    assert sharing.recover({j: rows[j] for j in range(9 - threshold, 9)}) == secrets


def test_shares_are_values_of_a_polynomial_whose_constant_is_the_secret() -> None:
    sharing, points = SecretSharing(6, 4), MaskCode(6, 4, 3).points
    secret = b"\x80\xff" * 16
    rows = sharing.share([secret], SEED)
    words = [int.from_bytes(secret[i : i + 4], "little") for i in range(0, 32, 4)]
    wanted = [word & (2**31 - 1) for word in words]
    wanted.append(sum((word >> 31) << i for i, word in enumerate(words)))
    for element in range(ELEMENTS):
        values = {int(points[j]): int(rows[j][element]) for j in (0, 2, 3, 5)}
        assert oracle.interpolate_at_zero(values) == wanted[element]


def test_one_share_less_fits_every_secret() -> None:
    """t − 1 shares and any secret lie on a polynomial: so they say nothing about it."""
    sharing, points = SecretSharing(4, 3), MaskCode(4, 3, 2).points
    rows = sharing.share([b"secret".ljust(32)], SEED)
    seen = {int(points[j]): int(rows[j][0]) for j in (0, 1)}
    others = {
        guess: oracle.interpolate_at_zero({int(points[3]): y, **seen})
        for y, guess in ((0, "a"), (1, "b"), (2, "c"))
    }
    assert len(set(others.values())) == 3
    with pytest.raises(DecodingError, match="t = 3"):
        sharing.recover({j: rows[j] for j in (0, 1)})


def test_shares_of_one_secret_differ_by_seed_and_holder() -> None:
    sharing = SecretSharing(4, 3)
    first, second = (sharing.share([bytes(32)], bytes([n]) * 32) for n in (1, 2))
    assert not np.array_equal(first, second)
    assert len({row.tobytes() for row in first}) == 4


def test_shares_that_do_not_belong_together_are_noticed() -> None:
    sharing = SecretSharing(4, 3)
    mine, other = (sharing.share([bytes(32)], bytes([n]) * 32) for n in (1, 2))
    with pytest.raises(DecodingError, match="belong together"):
        sharing.recover({0: mine[0], 1: mine[1], 2: other[2]})


@pytest.mark.parametrize("threshold", [0, 1, 5])
def test_thresholds_outside_2_to_n_are_refused(threshold: int) -> None:
    with pytest.raises(ParameterError, match="t = "):
        SecretSharing(4, threshold)


def test_only_32_bytes_are_a_secret() -> None:
    with pytest.raises(ParameterError, match="32 bytes"):
        SecretSharing(4, 3).share([b"short"], SEED)
