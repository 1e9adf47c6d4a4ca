from __future__ import annotations

import torch

from basecagg.learning import derive_seed, seeded


def test_equal_keys_give_equal_seeds_and_others_do_not() -> None:
    seeds = {
        derive_seed(root, user, t) for root in range(3) for user in range(20) for t in range(20)
    }
    assert len(seeds) == 3 * 20 * 20
    assert derive_seed(1, 2, 3) == derive_seed(1, 2, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_in_every_release() -> None:
    """Runs are resumed by later processes: a changed derivation would silently change their results."""
    assert derive_seed(7, 1, 2) == 5274635825266628681


def test_seeded_leaves_the_outer_randomness_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with seeded(99):
        inside = torch.rand(4)
    assert torch.equal(torch.rand(4), expected)
    with seeded(99):
        assert torch.equal(torch.rand(4), inside)
