"""A server that calls a sum burned may have opened it: of one version it gets 1 + `max_burns` sums at most.

Users who train again from the same model give almost the same update. Four sums of three out of four such users
are four equations for four updates.
"""

from itertools import combinations

import numpy as np
import pytest
from parties import (
    USERS,
    answers,
    at,
    certify,
    fresh_update,
    head_at,
    holder_at,
    intercept,
    make_federation,
    refuse,
    request_for,
    unmasked_sum,
)

from basecagg.errors import LocalProtocolError, SlotTaken
from basecagg.maths.quantization import signed as with_sign
from basecagg.protocol.messages import Closing, Verdict, signed

FOUR = USERS[:4]
NOISE = 1e-3
"""How much two trainings of one user from one model differ."""


def ask_for_all(federation, base, attempts=(0, 1, 2, 3)):
    """Each three of the four, with updates trained anew; who was in which sum, and the sums themselves."""
    p, rng = federation.agreement.parameters, np.random.default_rng(1)
    members_of, sums = [], []
    for attempt, names in zip(attempts, combinations(FOUR, 3), strict=True):
        try:
            members = [
                intercept(federation, name, base[name] + rng.normal(scale=NOISE, size=p.model_size))
                for name in names
            ]
        except (
            LocalProtocolError
        ):  # burned as often as the epoch says: it waits for a newer version
            break
        question = certify(federation, request_for(federation, members, attempt=attempt))
        shares = answers(federation, question)
        if len(shares) >= p.recovery_threshold:
            total = unmasked_sum(federation, question.request, members, shares)
            numbers = with_sign(total.astype(np.uint32), p.modulus)[: p.model_size]
            sums.append(numbers / p.update_levels)
            members_of.append([name in names for name in FOUR])
        say_burned(federation, members)
    return np.array(members_of, float), np.array(sums)


def say_burned(federation, members):
    """The server's word, after which a contributor trains again."""
    masks = tuple(member.ticket.mask for member in members)
    closing = Closing(federation.agreement.id, 0, masks, "burned")
    closing = signed(closing, federation.identity("server"))
    for mask in masks:
        verdict = Verdict(federation.agreement.id, mask, "burned", "so it says")
        contributor = federation.contributor(mask.contributor)
        for word in (closing, verdict):
            federation.network.perform(at(mask.contributor), contributor.receive(word))
    federation.network.in_flight.clear()


def updates():
    return {name: fresh_update() for name in FOUR}


@pytest.mark.parametrize("max_burns", [0, 1, 2])
def test_as_many_as_the_epoch_says(max_burns):
    members_of, sums = ask_for_all(make_federation(max_burns=max_burns), updates())
    assert len(sums) == 1 + max_burns
    assert np.linalg.matrix_rank(members_of) < len(FOUR)


def test_a_slot_is_given_away_once():
    """Asking for another sum under the same number does not help."""
    federation = make_federation()
    _, sums = ask_for_all(federation, updates(), attempts=(0, 0, 0, 0))
    assert len(sums) == 1
    members = [intercept(federation, name) for name in USERS[4:7]]
    for name in USERS:
        refuse(federation, name, request_for(federation, members, attempt=0), SlotTaken)
    beyond = federation.agreement.epoch.max_burns + 1
    for name in USERS:
        refuse(federation, name, request_for(federation, members, attempt=beyond), SlotTaken)


def test_the_slots_are_remembered():
    federation = make_federation()
    ask_for_all(federation, updates(), attempts=(0, 0, 0, 0))
    for name in USERS:
        federation.start(holder_at(name))
    federation.network.in_flight.clear()
    members = [intercept(federation, name) for name in USERS[4:7]]
    for name in USERS:
        refuse(federation, name, request_for(federation, members, attempt=0), SlotTaken)


def test_a_version_that_moved_on_has_slots_of_its_own():
    federation = make_federation(max_burns=0)
    first = request_for(federation, [intercept(federation, name) for name in USERS[:3]])
    certified = certify(federation, first)
    answers(federation, certified)
    head = head_at(federation, 1)
    members = [intercept(federation, name, base=1, head=head) for name in USERS[3:6]]
    later = request_for(federation, members, 1, certified.certificate, attempt=0)
    assert len(answers(federation, certify(federation, later))) == 7


def test_control_with_as_many_as_it_likes_every_update_is_read():
    base = updates()
    members_of, sums = ask_for_all(make_federation(max_burns=20), base)
    read = np.linalg.solve(members_of, sums)
    errors = [np.abs(read[at] - base[name]).max() for at, name in enumerate(FOUR)]
    assert max(errors) < 10 * NOISE
