"""Who may wait, and which K go next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.errors import AlreadyBuffered, QuotaExceeded, StaleUpdate, WrongVersion
from basecagg.maths.staleness import constant
from basecagg.protocol.buffer import Buffer
from basecagg.protocol.messages import MaskName
from basecagg.protocol.stored import BufferedUpdate
from basecagg.protocol.weighing import Weighing

WEIGHING = Weighing(max_staleness=3, staleness=constant(), by="field", weight_levels=64)


def update(name, version=0):
    return BufferedUpdate(
        name=MaskName(name, bytes(16)),
        base_version=version,
        head=bytes(32),
        content_hash=bytes(32),
    )


def filled(*updates, size=3, minimum=1):
    return Buffer(size, WEIGHING, minimum, updates)


def names(updates):
    return None if updates is None else [each.name.contributor for each in updates]


def take(buffer):
    return names(buffer.take(list))


def test_the_first_k_in_order_of_arrival():
    buffer = filled(*(update(name) for name in "dabce"))
    assert take(buffer) == ["d", "a", "b"]
    assert names(buffer.waiting) == ["c", "e"]
    assert take(buffer) is None
    assert names(buffer.waiting) == ["c", "e"]


def test_arrival_counts_not_age():
    buffer = filled(
        *(update(name, version) for name, version in zip("abcd", (2, 1, 2, 0), strict=True))
    )
    assert take(buffer) == ["a", "b", "c"]


def test_it_goes_on_with_what_waited_before_a_restart():
    before = filled(update("a"), update("b"))
    after = filled(*before.waiting)
    after.waiting.append(update("c"))
    assert take(after) == ["a", "b", "c"]


# --- admission --------------------------------------------------------------------------------


def admissible(buffer, each, version, *, opening=False):
    return buffer.require_admissible(each, version, opening=opening)


def test_when_its_turn_comes():
    buffer = filled()
    assert admissible(buffer, update("a", 5), 5) == 5
    assert admissible(buffer, update("a", 5), 5, opening=True) == 6
    for index in range(7):
        buffer.waiting.append(update(f"x{index}", 5))
    assert admissible(buffer, update("a", 5), 5) == 7
    assert admissible(buffer, update("a", 5), 5, opening=True) == 8


def test_by_when_its_turn_comes_if_it_has_to_wait_for_its_like():
    """Its mask must live until then."""
    assert admissible(filled(minimum=2), update("a", 5), 6) == 8


@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_fresh_enough_up_to_tau_max(version):
    assert admissible(filled(), update("a", 5), version) == version


def test_too_old_now_or_when_its_turn_comes():
    with pytest.raises(StaleUpdate, match="download"):
        admissible(filled(), update("a", 5), 9)
    with pytest.raises(StaleUpdate):
        admissible(filled(), update("a", 5), 8, opening=True)
    with pytest.raises(StaleUpdate):
        admissible(filled(*(update(f"x{i}") for i in range(3))), update("a", 5), 8)


def test_newer_than_the_model():
    """Also when it would not be by the time it is summed."""
    with pytest.raises(WrongVersion):
        admissible(filled(), update("a", 6), 5, opening=True)


def test_one_update_of_each_contributor():
    with pytest.raises(AlreadyBuffered):
        admissible(filled(update("a")), update("a"), 0)


def test_not_too_many():
    weighing = Weighing(max_staleness=100, staleness=constant(), by="field", weight_levels=64)
    waiting = [update(f"x{index}") for index in range(3 * 8)]
    with pytest.raises(QuotaExceeded):
        Buffer(3, weighing, 1, waiting).require_admissible(update("a"), 0, opening=False)
    with pytest.raises(QuotaExceeded):  # more than ever were admitted, by an older version
        Buffer(2, weighing, 1, waiting).require_admissible(update("a"), 0, opening=False)
    Buffer(3, weighing, 1, waiting[1:]).require_admissible(update("a"), 0, opening=False)


def test_what_is_too_old_is_taken_out():
    buffer = filled(update("a", 0), update("b", 1), update("c", 2))
    assert names(buffer.evict_stale(4)) == ["a"]
    assert names(buffer.waiting) == ["b", "c"]
    assert buffer.evict_stale(4) == []


def test_the_oldest_gives_way_only_when_k_wait():
    buffer = filled(update("a", 2), update("b", 1))
    assert buffer.evict_oldest() == []
    buffer.waiting.append(update("c", 1))
    assert names(buffer.evict_oldest()) == ["b"]
    assert names(buffer.waiting) == ["a", "c"]


# --- what can be opened together --------------------------------------------------------------


def not_with_x(updates):
    """x can be opened with nobody else."""
    if updates and updates[0].name.contributor == "x":
        return list(updates[:1])
    return [each for each in updates if each.name.contributor != "x"]


@pytest.mark.parametrize("arrivals", ["xabc", "axbc", "abxc", "abcx"])
def test_one_that_fits_with_none_does_not_stop_the_others(arrivals):
    buffer = filled(*(update(name) for name in arrivals))
    assert names(buffer.take(not_with_x)) == ["a", "b", "c"]
    assert names(buffer.waiting) == ["x"]


def test_they_wait_while_too_few_fit():
    buffer = filled(*(update(name) for name in "xab"))
    assert buffer.take(not_with_x) is None
    assert names(buffer.waiting) == ["x", "a", "b"]


# --- min_per_version --------------------------------------------------------------------------


def test_no_version_with_too_few():
    buffer = filled(update("a", 0), update("b", 1), update("c", 1), size=3, minimum=2)
    assert take(buffer) is None
    buffer.waiting.append(update("d", 1))
    assert take(buffer) == ["b", "c", "d"]
    assert names(buffer.waiting) == ["a"]


def test_older_versions_go_first():
    old, new = [update(f"o{i}", 0) for i in range(3)], [update(f"n{i}", 1) for i in range(5)]
    assert take(filled(*new, *old, size=5, minimum=2)) == ["o0", "o1", "o2", "n0", "n1"]


def test_a_version_gives_members_up_so_that_the_rest_fits():
    """4 + 1 is not allowed with a minimum of 2, 3 + 2 is."""
    updates = [update(f"o{i}", 0) for i in range(4)] + [update(f"n{i}", 1) for i in range(2)]
    assert take(filled(*updates, size=5, minimum=2)) == ["o0", "o1", "o2", "n0", "n1"]


@given(
    versions=st.lists(st.integers(0, 4), max_size=12),
    size=st.integers(2, 6),
    minimum=st.integers(1, 6),
)
def test_whatever_is_taken_keeps_the_rule_and_nothing_is_missed(versions, size, minimum):
    minimum = min(minimum, size)
    updates = [update(f"u{index}", version) for index, version in enumerate(versions)]
    buffer = Buffer(size, WEIGHING, minimum, updates)
    chosen = buffer.take(list)
    counts = [versions.count(version) for version in set(versions)]
    assert (chosen is not None) == can_fill(counts, size, minimum)
    if chosen is not None:
        taken = [each.base_version for each in chosen]
        assert len(chosen) == size
        assert all(taken.count(version) >= minimum for version in taken)
        assert sorted(names(chosen) + names(buffer.waiting)) == sorted(names(updates))


def test_no_k_that_fit_no_k_that_wait():
    buffer = filled(*(update(name, version) for version, name in enumerate("abcd")), minimum=3)
    assert names(buffer.evict_lonely(())) == ["a", "b"]
    assert names(buffer.waiting) == ["c", "d"]
    assert buffer.evict_lonely(()) == []


def test_who_can_still_have_company_waits():
    """Two of version 0, from which one trains at present, and one of version 1, whom nobody can join."""
    buffer = filled(update("a", 0), update("b", 0), update("c", 1), minimum=3)
    assert names(buffer.evict_lonely({0, 2})) == ["c"]
    assert buffer.evict_lonely({0, 2}) == []
    buffer = filled(update("a", 0), update("b", 0), update("c", 1), minimum=3)
    assert names(buffer.evict_lonely({2})) == ["a", "b", "c"]
    assert buffer.waiting == []


def test_enough_of_a_kind_wait_while_somebody_trains():
    """Three of one version and three of another make no five, but others may come."""
    few = [update(name, 0) for name in "abc"] + [update(name, 1) for name in "def"]
    buffer = filled(*few, size=7, minimum=3)
    buffer.size = 5
    buffer._min_per_version = 3
    assert buffer.take(list) is None
    # Where K < 2m a sum is of one version: three of five are too few if nobody joins them.
    assert names(buffer.evict_lonely({1})) == ["a", "b", "c"]
    buffer = Buffer(8, WEIGHING, 3, [*few, update("g", 2), update("h", 2)])
    assert buffer.take(list) is None
    assert names(buffer.evict_lonely({3})) == ["g", "h"]


def test_whoever_could_be_summed_does_not_give_way():
    """Perhaps a receipt is still missing: that is no matter of versions."""
    buffer = filled(update("a", 0), *(update(name, 1) for name in "bcd"), minimum=3)
    assert buffer.evict_lonely(()) == []


# --- several sums for one version -------------------------------------------------------------


@given(versions=st.lists(st.integers(0, 3), max_size=16), bucket=st.integers(2, 3))
def test_each_version_comes_in_multiples_of_b_and_nothing_is_missed(versions, bucket):
    updates = [update(f"u{index}", version) for index, version in enumerate(versions)]
    chosen = Buffer(3 * bucket, WEIGHING, 2, updates, bucket).take(list)
    whole = sum(versions.count(version) // bucket for version in set(versions))
    assert (chosen is not None) == (whole >= 3)
    taken = [each.base_version for each in chosen or []]
    assert all(taken.count(version) % bucket == 0 for version in taken)


def test_fewer_than_b_go_if_nobody_can_join_them():
    few = [update(name, 0) for name in "ab"] + [update(name, 1) for name in "cdef"]
    buffer = Buffer(6, WEIGHING, 2, few, 3)
    assert names(buffer.evict_lonely({0})) == []
    assert names(buffer.evict_lonely({1})) == ["a", "b"]


@given(
    versions=st.lists(st.integers(0, 4), max_size=12),
    size=st.integers(2, 6),
    minimum=st.integers(1, 6),
)
def test_only_the_oldest_give_way_and_only_while_k_wait_in_vain(versions, size, minimum):
    updates = [update(f"u{index}", version) for index, version in enumerate(versions)]
    buffer = Buffer(size, WEIGHING, min(minimum, size), updates)
    gone = buffer.evict_lonely(())
    assert not gone or len(buffer.waiting) == size - 1
    assert len(buffer.waiting) < size or buffer._choose(buffer.waiting) is not None
    kept = min((each.base_version for each in buffer.waiting), default=9)
    assert all(each.base_version <= kept for each in gone)


def can_fill(counts, size, minimum):
    """By brute force: is `size` a sum of numbers, each 0 or between the minimum and what is there?"""
    sums = {0}
    for count in counts:
        sums |= {total + n for total in sums for n in range(minimum, count + 1)}
    return size in sums
