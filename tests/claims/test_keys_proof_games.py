"""The games of steps 5 and 6 of the proof in docs/explanation/keys-proof.md, played with whole numbers.

Uploads are numbered from 0 here, so game k changes the first k of them.
"""

from itertools import pairwise, product

import numpy as np

UPLOADS = 9
ADVERSARIES = range(200)


class Played:
    """One adversary's vectors, as single numbers, and what its uploads join."""

    def __init__(self, seed):
        dice = np.random.default_rng(seed)
        self.old, self.new = dice.integers(-3, 4, (2, UPLOADS))
        self.groups_before = []  # of each upload: the groups that are there when it comes
        self.joined = []  # and those that it joins
        groups = []
        for upload in range(UPLOADS):
            chosen = [group for group in groups if dice.random() < 0.4]
            self.groups_before.append(groups)
            self.joined.append(chosen)
            rest = [group for group in groups if group not in chosen]
            groups = [*rest, frozenset({upload}.union(*chosen))]
        self.groups = groups
        self._complete(dice)

    def _complete(self, dice):
        """Most groups agree in their sums, as the rules ask of those that are in a set."""
        for group in self.groups:
            if dice.random() < 0.7:
                self.new[max(group)] -= self.moved(group)

    def moved(self, uploads):
        """Σ δ"""
        return sum(int(self.new[each] - self.old[each]) for each in uploads)

    def sent(self, k, making_up=True):
        """What is sent in game k."""
        found = []
        for upload in range(UPLOADS):
            if upload < k:
                found.append(int(self.new[upload]))
                continue
            first_of = [group for group in self.joined[upload] if max(group) < k]
            owed = sum(map(self.moved, first_of)) if making_up else 0
            found.append(int(self.old[upload]) - owed)
        return np.array(found)

    def after(self, upload):
        """All that is in its group when it has come, and the next that joins them."""
        group = frozenset({upload}.union(*self.joined[upload]))
        later = range(upload + 1, UPLOADS)
        return group, next((each for each in later if group in self.joined[each]), None)


def test_the_first_and_the_last_game_are_the_two_worlds():
    for played in map(Played, ADVERSARIES):
        assert np.array_equal(played.sent(0), played.old)
        assert np.array_equal(played.sent(UPLOADS), played.new)


def test_from_game_to_game_one_difference_moves_from_an_upload_to_the_next_of_its_group():
    for played in map(Played, ADVERSARIES):
        for upload in range(UPLOADS):
            group, following = played.after(upload)
            expected = np.zeros(UPLOADS, int)
            expected[upload] = played.moved(group)
            if following is not None:
                expected[following] = -played.moved(group)
            step = played.sent(upload + 1) - played.sent(upload)
            assert np.array_equal(step, expected)
            if following is None and played.moved(group):
                assert group in played.groups  # it never agrees, so it is in no set


def test_in_every_game_groups_that_agree_have_the_same_sums():
    for played in map(Played, ADVERSARIES):
        agreeing = [sorted(group) for group in played.groups if not played.moved(group)]
        for k, group in product(range(UPLOADS + 1), agreeing):
            assert played.sent(k)[group].sum() == played.old[group].sum()


def test_control_without_making_up_a_sum_would_tell_the_game():
    told = 0
    for played in map(Played, ADVERSARIES):
        for k, group in product(range(UPLOADS + 1), map(sorted, played.groups)):
            same = played.sent(k, making_up=False)[group].sum() == played.old[group].sum()
            told += not played.moved(group) and not same
    assert told > 100


# --- sets that are chosen late --------------------------------------------------------------------


NO_SET = 4


class Late:
    """Sets that nobody announced: they agree, and each is asked for when its last member has come.

    Uploads whose number is `NO_SET` are in none, and differ as they like.
    """

    def __init__(self, seed, uploads=UPLOADS):
        dice = np.random.default_rng(seed)
        self.number_of_set = dice.integers(0, NO_SET + 1, uploads)
        self.old, self.new = dice.integers(-3, 4, (2, uploads))
        self.sets = [np.flatnonzero(self.number_of_set == each) for each in range(NO_SET)]
        for each in filter(len, self.sets):
            self.new[each[-1]] -= (self.new[each] - self.old[each]).sum()
        self.uploads = uploads

    def heir(self, upload, k):
        """The first upload from k on in the set of an earlier one."""
        later = (each for each in range(k, self.uploads) if self._together(each, upload))
        return next(later, None)

    def _together(self, one, other):
        number = self.number_of_set[one]
        return one == other or (number != NO_SET and number == self.number_of_set[other])

    def waiting(self, k):
        """Of the first k, those whose set is not complete: nobody else has an heir."""
        return [each for each in range(k) if self.heir(each, k) is not None]

    def sent(self, k, heirs):
        """Game k, by a guess of heirs."""
        found = np.where(np.arange(self.uploads) < k, self.new, self.old)
        for upload, heir in heirs.items():
            if heir is not None:
                found[heir] -= self.new[upload] - self.old[upload]
        return found


def test_whoever_guesses_the_heirs_of_those_that_wait_plays_the_same_games():
    for late in map(Late, ADVERSARIES):
        games = [
            late.sent(k, {each: late.heir(each, k) for each in late.waiting(k)})
            for k in range(UPLOADS + 1)
        ]
        assert np.array_equal(games[0], late.old)
        assert np.array_equal(games[-1], late.new)
        for k, (before, after) in enumerate(pairwise(games)):
            with_it = [each for each in range(k + 1) if late._together(each, k)]
            moved = (late.new - late.old)[with_it].sum()
            expected = np.zeros(UPLOADS, int)
            expected[k] = moved
            heir = late.heir(k, k + 1)
            if heir is None:
                assert moved == 0 or late.number_of_set[k] == NO_SET  # then k is free
            else:
                expected[heir] = -moved
            assert np.array_equal(after - before, expected)
            for each in late.sets:
                assert before[each].sum() == late.old[each].sum()


def test_there_are_no_more_guesses_than_counted():
    """Of all partitions of six uploads into at most four sets, seen from the third upload: ≤ (w + 2)^W."""
    come, later = 3, 3
    seen = set()
    for numbers in product(range(NO_SET), repeat=come + later):
        late = Late(0, come + later)
        late.number_of_set = np.array(numbers)
        own = come - 1
        seen.add(
            tuple(
                "with it" if each != own and late._together(each, own) else late.heir(each, come)
                for each in range(come)
            )
        )
    assert len(seen) <= (later + 2) ** come
    assert len(seen) > (later + 1) ** (come - 1)
