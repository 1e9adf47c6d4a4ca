"""The hash tree over sealed shares: a path proves one content at one place, and nothing else."""

import hashlib

import pytest

from basecagg.protocol import merkle

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 100]


def leaves(count):
    return [merkle.leaf(index, b"share %d" % index) for index in range(count)]


@pytest.mark.parametrize("count", SIZES)
def test_every_path_leads_to_the_root(count):
    nodes = leaves(count)
    levels = merkle.tree(nodes)
    root = levels[-1][0]
    for index in range(count):
        assert merkle.root_from(index, count, nodes[index], merkle.path(levels, index)) == root


@pytest.mark.parametrize("count", SIZES[1:])
def test_no_path_leads_there_from_another_place(count):
    nodes = leaves(count)
    levels = merkle.tree(nodes)
    root = levels[-1][0]
    for index in range(count):
        for other in range(count):
            if other != index:
                path = merkle.path(levels, index)
                assert merkle.root_from(other, count, nodes[index], path) != root
                moved = merkle.leaf(other, b"share %d" % index)
                assert merkle.root_from(other, count, moved, merkle.path(levels, other)) != root


@pytest.mark.parametrize("count", SIZES)
def test_a_path_of_another_length_leads_nowhere(count):
    nodes = leaves(count)
    levels = merkle.tree(nodes)
    for index in range(count):
        path = merkle.path(levels, index)
        assert merkle.root_from(index, count, nodes[index], (*path, bytes(32))) is None
        if path:
            assert merkle.root_from(index, count, nodes[index], path[:-1]) is None


def test_a_path_is_short():
    levels = merkle.tree(leaves(100))
    assert max(len(merkle.path(levels, index)) for index in range(100)) == 10


def test_leaves_and_inner_nodes_cannot_be_mistaken_for_each_other():
    """Contents that look like two children do not hash to their parent."""
    left, right = leaves(2)
    root = merkle.tree([left, right])[-1][0]
    assert root == hashlib.sha256(b"\x01" + left + right).digest()
    assert merkle.leaf(0, left + right) != root
    assert merkle.leaf(0, b"") != hashlib.sha256(b"\x01\0\0\0\0").digest()


def test_head_tail_and_size_of_a_long_envelope_decide():
    """The tag at the end and the key at the front stand for the body, which only the tag's key can fit."""
    envelope = bytes(range(256)) * 20
    known = merkle.leaf(0, envelope)
    assert merkle.leaf(0, b"?" + envelope[1:]) != known
    assert merkle.leaf(0, envelope[:-1] + b"?") != known
    assert merkle.leaf(0, envelope + b"?") != known
    body = envelope[: merkle.HEAD] + b"?" + envelope[merkle.HEAD + 1 :]
    assert merkle.leaf(0, body) == known


def test_trees_of_different_sizes_differ():
    """An odd node moves up unpaired; no other tree has the same root because of that."""
    roots = {merkle.tree(leaves(count))[-1][0] for count in range(1, 40)}
    assert len(roots) == 39


def test_a_known_tree():
    """Six leaves, by hand: ((a b c d) (e f)). A fifth alone moves up as it is."""
    a, b, c, d, e, f = leaves(6)
    size = (7).to_bytes(8, "big")
    assert a == hashlib.sha256(b"\x00\x00\x00\x00\x00" + size + b"share 0").digest()
    four = hashlib.sha256(b"\x01" + a + b + c + d).digest()
    two = hashlib.sha256(b"\x01" + e + f).digest()
    levels = merkle.tree([a, b, c, d, e, f])
    assert levels[-1][0] == hashlib.sha256(b"\x01" + four + two).digest()
    assert merkle.path(levels, 5) == (e, four)
    assert merkle.path(levels, 2) == (a, b, d, two)
    five = merkle.tree([a, b, c, d, e])
    assert five[-1][0] == hashlib.sha256(b"\x01" + four + e).digest()
    assert merkle.path(five, 4) == (four,)


def test_an_envelope_that_proves_its_sender_needs_the_top_only():
    envelopes = [b"s" * 32 + b"share %d" % index for index in range(7)]
    nodes = [merkle.leaf(*each) for each in enumerate(envelopes)]
    levels, root = merkle.tree(nodes), merkle.root_of(nodes, b"s" * 32)
    for index, envelope in enumerate(envelopes):
        proof = merkle.proof(levels, index, root)
        assert proof == (levels[-1][0],)
        assert merkle.root_by(proof, index, 7, envelope, "x25519") == root
        assert merkle.root_by(proof, index, 7, b"t" + envelope[1:], "x25519") != root
        assert merkle.root_by((*proof, bytes(32)), index, 7, envelope, "x25519") is None
        assert merkle.root_by((), index, 7, envelope, "x25519") is None


def test_an_envelope_that_anybody_can_seal_needs_its_path():
    envelopes = [b"share %d" % index * 9 for index in range(7)]
    nodes = [merkle.leaf(*each) for each in enumerate(envelopes)]
    suite = "mlkem768-x25519"
    sender = merkle.sender_of(envelopes[0], suite)
    levels, root = merkle.tree(nodes), merkle.root_of(nodes, sender)
    assert (sender, root) == (b"", levels[-1][0])
    for index, envelope in enumerate(envelopes):
        proof = merkle.proof(levels, index, root)
        assert proof == merkle.path(levels, index)
        assert merkle.root_by(proof, index, 7, envelope, suite) == root
        assert merkle.root_by(proof, index, 7, b"?" + envelope[1:], suite) != root
        assert merkle.root_by((root,), index, 7, envelope, suite) != root
