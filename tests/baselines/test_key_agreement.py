"""Both sides agree, nobody else does, and an envelope opens only where it belongs."""

from __future__ import annotations

import copy

import oracle_secagg as oracle
import pytest

from basecagg.channels.key_agreement import AgreementKey, seal, unseal
from basecagg.errors import ChannelError, LocalProtocolError

ALICE, BOB, EVE = (AgreementKey(bytes([n]) * 32) for n in (1, 2, 3))


def test_both_sides_agree_and_purposes_differ() -> None:
    secret = ALICE.agree(BOB.public_key, b"mask")
    assert secret == BOB.agree(ALICE.public_key, b"mask")
    assert secret != ALICE.agree(BOB.public_key, b"other")
    assert secret != EVE.agree(ALICE.public_key, b"mask")


def test_the_oracle_agrees() -> None:
    assert oracle.public_key(ALICE.secret_bytes()) == ALICE.public_key
    seed = oracle.pairwise_seed(ALICE.secret_bytes(), BOB.public_key, b"r" * 16)
    assert seed == ALICE.agree(BOB.public_key, b"mask" + b"r" * 16)


@pytest.mark.parametrize("peer", [bytes(32), b"short", bytes([1]) + bytes(31)])
def test_weak_and_malformed_keys_are_refused(peer: bytes) -> None:
    with pytest.raises(ChannelError):
        ALICE.agree(peer, b"mask")


def test_an_envelope_opens_only_with_its_key_and_context() -> None:
    sealed = seal(b"k" * 32, b"to bob", b"share")
    assert unseal(b"k" * 32, b"to bob", sealed) == b"share"
    for key, context, body in (
        (b"x" * 32, b"to bob", sealed),
        (b"k" * 32, b"to eve", sealed),
        (b"k" * 32, b"to bob", sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (b"k" * 32, b"to bob", b"short"),
    ):
        with pytest.raises(ChannelError):
            unseal(key, context, body)


def test_keys_do_not_print_or_copy() -> None:
    assert ALICE.secret_bytes().hex() not in repr(ALICE)
    with pytest.raises(LocalProtocolError):
        copy.copy(ALICE)
    with pytest.raises(ChannelError, match="32 secret bytes"):
        AgreementKey(b"short")
