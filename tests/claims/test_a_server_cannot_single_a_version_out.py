"""Every version in a sum has m members: nobody is alone with a model, and nobody waits for ever for others.

Pasquini et al. (2022): a server that gives the others a model whose units are all dead gets zero from them, and
the sum with one user's update is that update. Each version has another model, so a version of one's own is
enough.
"""

import numpy as np
from parties import (
    USERS,
    all_refuse,
    answers,
    certify,
    intercept,
    make_federation,
    one_round,
    request_for,
    submit,
    unmasked_sum,
    weigh,
)

from basecagg.errors import WrongMembers
from basecagg.maths.quantization import signed as with_sign
from basecagg.protocol.buffer import Buffer

UNITS, INPUTS = 8, 4
SIZE = UNITS * INPUTS + 2 * UNITS
VICTIM, OTHERS = USERS[0], USERS[1:3]
EXAMPLES = {
    user: [(rng.normal(size=INPUTS), rng.normal()) for _ in range(20)]
    for user in USERS
    for rng in [np.random.default_rng(USERS.index(user))]
}
MODEL = np.random.default_rng(5).normal(scale=0.7, size=SIZE)
DEAD = np.concatenate([np.zeros(UNITS * INPUTS), np.full(UNITS, -100.0), MODEL[-UNITS:]])


def trained(model, user):
    """Honest SGD on v·max(0, W·x + b); with every unit dead nothing moves."""
    now = model.copy()
    for x, y in EXAMPLES[user]:
        weights, bias, out = np.split(now, [UNITS * INPUTS, UNITS * INPUTS + UNITS])
        before = weights.reshape(UNITS, INPUTS) @ x + bias
        hidden = np.maximum(before, 0)
        error = out @ hidden - y
        slope = error * out * (before > 0)
        now -= 0.05 * np.concatenate([np.outer(slope, x).ravel(), slope, error * hidden])
    return model - now


def trap(federation):
    """Two sums in peace; then the victim has version 2 to itself, and the others a dead version 1."""
    previous = None
    for version in (0, 1):
        members = [
            intercept(federation, name, base=version, update=noise)
            for name in USERS[3:6]
            for noise in [np.random.default_rng((version, USERS.index(name))).normal(size=SIZE)]
        ]
        question = certify(federation, request_for(federation, members, version, previous))
        answers(federation, question)
        previous = question.certificate
    members = [
        intercept(
            federation,
            VICTIM,
            trained(MODEL, VICTIM),
            base=2,
        )
    ]
    members += [intercept(federation, name, trained(DEAD, name), base=1) for name in OTHERS]
    return members, request_for(federation, members, 2, previous)


def test_with_the_default_no_holder_endorses_a_version_of_one():
    federation = make_federation(model_size=SIZE)
    assert federation.agreement.parameters.least_per_version == 3
    _, request = trap(federation)
    all_refuse(federation, request, WrongMembers)


def test_control_with_one_member_of_a_version_its_update_is_read():
    federation = make_federation(model_size=SIZE, min_per_version=1, repeated_versions=True)
    p = federation.agreement.parameters
    members, request = trap(federation)
    collected = answers(federation, certify(federation, request))
    total = unmasked_sum(federation, request, members, collected).astype(np.uint32)
    weight = weigh(federation, members[0].ticket, 2)
    read = with_sign(total, p.modulus)[:SIZE] / weight / p.update_levels
    assert np.abs(read - trained(MODEL, VICTIM)).max() < 1e-4


# --- and nobody waits for ever ----------------------------------------------------------------


def stagger(federation):
    """Five users have trained from five versions, and nobody else is left; they come one after the other."""
    downloads = []
    for turn in range(5):
        downloads.append((federation.server.version, federation.server.head))
        if turn < 4:
            one_round(federation, [f"early-{turn}-{index}" for index in range(3)])
    for name, (base, digest) in zip(USERS, downloads, strict=False):
        submit(federation, name, base=base, head=digest)
        federation.network.run()


def train_on(federation):
    """What drivers do: who has an update waiting rests, everybody else trains from the newest model."""
    for name in USERS[:5]:
        if "uploaded" not in federation.contributor(name).states().values():
            submit(federation, name)
            federation.network.run()


def test_five_users_of_five_versions_go_on():
    federation = make_federation()
    stagger(federation)
    before = federation.server.version
    for _ in range(3):
        train_on(federation)
        assert len(federation.server.buffer.waiting) < 3
    assert federation.server.version >= before + 2


def test_control_without_giving_way_all_of_them_rest(monkeypatch):
    monkeypatch.setattr(Buffer, "evict_lonely", lambda self, at_work: [])
    federation = make_federation()
    stagger(federation)
    before = federation.server.version
    for _ in range(3):
        train_on(federation)
    assert federation.server.version == before
    assert len(federation.server.buffer.waiting) == 5
