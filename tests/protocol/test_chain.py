"""A hash chain, by hand: every entry, its place and the purpose decide the head."""

import hashlib

from basecagg.protocol.messages import Chain

BEGIN = hashlib.sha256(b"basecagg/chain/test").digest()


def test_a_known_chain():
    first = hashlib.sha256(BEGIN + b"a").digest()
    second = hashlib.sha256(first + b"b").digest()
    assert Chain.begin("test") == Chain(BEGIN, 0)
    assert Chain.begin("test").after(b"a").after(b"b") == Chain(second, 2)


def test_its_end_says_purpose_length_and_head():
    said = b"basecagg/chain/test/end/" + (7).to_bytes(8, "big") + BEGIN
    assert Chain(BEGIN, 7).statement("test") == said


def test_what_was_said_does_not_change():
    assert Chain.__struct_config__.frozen
