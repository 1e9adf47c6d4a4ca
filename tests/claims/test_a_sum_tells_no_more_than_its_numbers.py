"""By default an opened sum tells no more of a member than the same sum of real numbers.

The server opens whole numbers. If members weigh differently in the field, remainders say whose number is which
(`reproduction.residues` computes what the best attacker makes of it). With own weights they weigh alike in the
field, and the rules see to how much each counts: m members of a base version, all of one tier, and one upload
of each contributor from a version. Each attack here succeeds when its rule is taken away.
"""

import numpy as np
import pytest
from parties import (
    USERS,
    all_refuse,
    fresh_update,
    intercept,
    make_federation,
    request_for,
)

from basecagg.errors import LocalProtocolError, WrongMembers
from basecagg.protocol.holder import Holder
from basecagg.protocol.weighing import Weighing
from reproduction import residues
from reproduction.bench import AT_SERVER, Letter
from reproduction.residues import FAINT, Group, best_guesses, groups_of, on_grid

LENGTH = 4000
CHANCE = 0.06
"""By how much a correlation over so many numbers may differ from its mean: four standard deviations."""
SIX = USERS[:6]
PHONES = [f"phone-{index}" for index in range(6)]
"""They make the versions pass."""


def correlation(guess, update):
    return float(np.corrcoef(guess, update)[0, 1])


def draw(name, scale=1e-3, size=LENGTH):
    return np.random.default_rng([*name.encode()]).normal(scale=scale, size=size)


def federation_of_six(**changes):
    return make_federation(model_size=LENGTH, buffer_size=6, **changes)


def pass_versions(federation, count):
    for _ in range(count):
        for name in PHONES:
            federation.contribute(name, fresh_update(size=LENGTH))
        assert len(federation.run()) == 1


def bring(federation, uploads):
    """The server gets what was on its way; the sums that open."""
    for each in uploads:
        name = each.ticket.mask.contributor
        federation.network.in_flight.append(Letter(name, AT_SERVER, each.upload))
    return federation.run()


def require_refused(federation, uploads):
    """Neither does the server's buffer choose these members, nor does a holder endorse them."""
    version, previous = federation.server.version, federation.server.opening._past.opened
    all_refuse(federation, request_for(federation, uploads, version, previous), WrongMembers)
    assert bring(federation, uploads) == []
    assert not federation.server.is_opening


# --- remainders of whole weights ------------------------------------------------------------------


def guesses(by):
    opening = residues.open_one(by, 2e-5, LENGTH)
    return opening.weights, residues.guess_members(opening, by, 2e-5)


def test_nothing_is_read_from_remainders():
    weights, told = guesses("own")
    assert weights == (1, 1, 1, 0.5, 0.5, 0.5)
    for found, guess in told:
        assert found < guess.real_valued + CHANCE


def test_control_whole_weights_in_the_field_tell_of_the_late_members():
    """Weights 64, 64, 64, and three times 21 or 22: mod 64 the sum is that of the last three alone."""
    weights, told = guesses("field")
    assert weights[:3] == (64, 64, 64)
    assert set(weights[3:]) <= {21, 22}
    for found, guess in told[3:]:
        assert found > guess.real_valued + 0.15
        assert abs(found - guess.correlation) < CHANCE


@pytest.mark.parametrize("steps", [0.1, 0.5, 1, 3, 10, 100, 1000])
@pytest.mark.parametrize(
    "weights", [(1,) * 10, (1, 1, 1, 0.5, 0.5, 0.5), (1,) * 3 + (0.5,) * 3 + (0.125,) * 4]
)
def test_whatever_the_size_of_updates(weights, steps):
    for guess in best_guesses(groups_of(weights, "own", steps)):
        assert guess.correlation < guess.real_valued + FAINT


def test_control_the_same_guess_reads_a_member_alone_with_its_weight():
    alone = best_guesses(groups_of((64, 64, 64, 22, 21, 21), "field", 1.3))[1]
    assert alone.real_valued < 0.2
    assert alone.correlation > 0.75


# --- values on a grid -----------------------------------------------------------------------------

START = 0.04
"""The parameters from which the model moves by a few units in the last place."""


def from_float16(moves):
    before = np.full(LENGTH, START, np.float16)
    return before - (before.view(np.int16) + moves.astype(np.int16)).view(np.float16)


def from_bfloat16(moves):
    """The upper half of a float32."""
    before = np.full(LENGTH, START, np.float32).view(np.int32) >> 16
    after = before + moves.astype(np.int32)
    return (before << 16).view(np.float32) - (after << 16).view(np.float32)


def ternary(moves):
    return -moves * 2.0**-10


GRIDS = {
    "float16": (from_float16, 2.0**-15, 1.0),
    "bfloat16": (from_bfloat16, 2.0**-12, 0.7),
    "ternary": (ternary, 2.0**-10, 0.7),
}
"""What makes an update of whole moves, how far one move is, and how many are usual."""


def moves_of(name, usual):
    reach = 1 if usual < 1 else 4
    values = np.arange(-reach, reach + 1)
    chances = np.exp(-(values**2) / 2 / usual**2)
    chances /= chances.sum()
    random = np.random.default_rng([*name.encode()])
    return random.choice(values, p=chances, size=LENGTH), chances


def open_with_late(kind, late, **changes):
    """`late` members from version 0 are weighed by ⅛, the others are new; the guesses and the true moves."""
    make, move, usual = GRIDS[kind]
    # Exact sums: errors of masks from keys would only blur them.
    federation = federation_of_six(update_levels=2**20, masks="long", **changes)
    p, base, head = federation.agreement.parameters, 0, federation.server.head
    moves = {name: moves_of(name, usual) for name in SIX}
    chances = moves[SIX[0]][1]
    updates = {name: np.asarray(make(each), np.float32) for name, (each, _) in moves.items()}
    for name, (each, _) in moves.items():
        assert (updates[name] == -each * move).all()
    pass_versions(federation, 8)
    new, old = SIX[: 6 - late], SIX[6 - late :]
    for name in new:
        federation.contribute(name, updates[name])
    for name in old:
        federation.deal(name)
        federation.network.run()
        federation.submit(name, updates[name], base, head)
    (opened,) = federation.run()
    assert sorted(opened.weights) == [0.125] * late + [1.0] * (6 - late)
    eighths = np.rint(opened.weighted_sum * 8 / move).astype(np.int64)
    assert np.abs(eighths - opened.weighted_sum * 8 / move).max() < 1e-6
    assert p.clip > 8 * move
    groups = [Group(len(new), 8, on_grid(chances)), Group(len(old), 1, on_grid(chances))]
    tables = best_guesses(groups)
    guess = {name: tables[name in old] for name in SIX}
    return {name: (guess[name], guess[name].of(eighths), -moves[name][0]) for name in SIX}, old


@pytest.mark.parametrize("kind", GRIDS)
def test_on_a_grid_at_most_the_sum_of_a_version_is_told(kind):
    told, old = open_with_late(kind, late=3)
    for _, guess, update in told.values():
        assert correlation(guess, update) < 1 / np.sqrt(3) + CHANCE
    # The sum of the three late ones is told indeed: it is not that the attacker is weak.
    found = sum(told[name][1] for name in old), sum(told[name][2] for name in old)
    assert correlation(*found) > 0.8


@pytest.mark.parametrize("kind", GRIDS)
def test_control_alone_with_a_version_a_member_is_read_from_the_grid(kind):
    told, (alone,) = open_with_late(kind, late=1, min_per_version=1, repeated_versions=True)
    guess, found, update = told[alone]
    assert guess.real_valued < 0.1
    assert correlation(found, update) > 0.95


def test_float32_hides_versions_from_each_other():
    """Its grid is too fine: at a parameter of 1 and the planner's c_l updates of 10⁻⁵ are 84 units wide."""
    values = np.arange(-800, 801)
    wide = on_grid(np.exp(-(values**2) / 2 / 84**2))
    for guess in best_guesses([Group(3, 8, wide), Group(3, 1, wide)]):
        assert guess.correlation < guess.real_valued + FAINT


# --- a server that delays others ------------------------------------------------------------------


def hold_back(federation):
    """The first of six uploads from version 0 lies there until the other five weigh one eighth."""
    target = intercept(federation, SIX[0], draw(SIX[0]))
    pass_versions(federation, 10)
    return [target, *(intercept(federation, name, draw(name), base=0) for name in SIX[1:])]


def test_members_of_one_version_have_one_weight():
    federation = federation_of_six()
    uploads = hold_back(federation)
    assert [each.ticket.staleness for each in uploads] == [0, 10, 10, 10, 10, 10]
    require_refused(federation, uploads)


def test_nor_have_they_two_where_each_has_m_members():
    """On a grid the sums of both threes could be told apart."""
    federation = federation_of_six()
    uploads = [intercept(federation, name, draw(name)) for name in SIX[:3]]
    pass_versions(federation, 1)
    uploads += [intercept(federation, name, draw(name), base=0) for name in SIX[3:]]
    assert [each.ticket.staleness for each in uploads] == [0, 0, 0, 1, 1, 1]
    require_refused(federation, uploads)


def test_nobody_is_alone_with_a_version():
    federation = federation_of_six()
    uploads = [intercept(federation, SIX[0], draw(SIX[0]))]
    pass_versions(federation, 1)
    uploads += [intercept(federation, name, draw(name), base=1) for name in SIX[1:]]
    require_refused(federation, uploads)


def ignore_tiers(monkeypatch):
    def by_version(self, updates):
        return [(each.base_version, 0) for each in updates]

    monkeypatch.setattr(Weighing, "kinds", by_version)


def test_control_if_tiers_are_not_checked_the_others_vanish_beside_the_target(monkeypatch):
    ignore_tiers(monkeypatch)
    federation = federation_of_six()
    (opened,) = bring(federation, hold_back(federation))
    assert opened.weights.count(0.125) == 5
    assert correlation(opened.weighted_sum, draw(SIX[0])) > 0.93


def crowd(federation):
    """An insider and the target are fresh, one member counts half, and three an eighth."""
    uploads = [intercept(federation, name, draw(name)) for name in SIX[:2]]
    pass_versions(federation, 1)
    uploads.append(intercept(federation, SIX[2], draw(SIX[2]), base=0))
    pass_versions(federation, 9)
    return [*uploads, *(intercept(federation, name, draw(name), base=0) for name in SIX[3:])]


def test_a_crowd_of_halves_does_not_do():
    federation = federation_of_six()
    uploads = crowd(federation)
    assert [each.ticket.staleness for each in uploads] == [0, 0, 1, 10, 10, 10]
    require_refused(federation, uploads)


def test_control_with_a_rule_of_ratios_an_insider_reads_its_companion(monkeypatch):
    """'Everybody has m − 1 others in its version that count half as much at least.'"""
    asked = []

    def ratios(self, request):
        weights = [self._weighing.weight(0, ticket, b"") for ticket in request.tickets]
        least = self._parameters.least_per_version
        asked.append(weights)
        for one in weights:
            if sum(other >= one / 2 for other in weights) < least:
                raise WrongMembers("too few count half as much")

    monkeypatch.setattr(Holder, "_require_members", ratios)
    ignore_tiers(monkeypatch)
    federation = federation_of_six()
    (opened,) = bring(federation, crowd(federation))
    assert sorted(asked[-1]) == [0.125, 0.125, 0.125, 0.5, 1, 1]
    rest = opened.weighted_sum - draw(SIX[1])
    assert correlation(rest, draw(SIX[0])) > 0.8


# --- many sums of one version ---------------------------------------------------------------------


def park(federation, size):
    """Again and again five of six train from version 0; who was in which sum, and the sums."""
    members_of, sums = [], []
    for left_out in SIX:
        members = [name for name in SIX if name != left_out]
        uploads = []
        for name in members:
            again = draw(name, 0.1, size) + draw(f"{name} without {left_out}", 0.01, size)
            uploads.append(intercept(federation, name, again, base=0))
        for opened in bring(federation, uploads):
            assert set(opened.base_versions) == {0}
            members_of.append([name in members for name in SIX])
            sums.append(opened.weighted_sum / opened.weights[0])
    return np.array(members_of, float), np.array(sums)


def test_nobody_uploads_twice_from_a_version():
    federation = make_federation(model_size=500, buffer_size=5)
    with pytest.raises(LocalProtocolError, match="from version 0 was uploaded already"):
        park(federation, 500)
    assert federation.server.version == 1


def test_control_with_repeated_versions_six_sums_are_six_updates():
    federation = make_federation(model_size=500, buffer_size=5, repeated_versions=True)
    members_of, sums = park(federation, 500)
    read = np.linalg.solve(members_of, sums)
    for name, update in zip(SIX, read, strict=True):
        assert correlation(update, draw(name, 0.1, 500)) > 0.95
