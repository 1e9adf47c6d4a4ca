"""A server that keeps serving one model while versions advance gets one sum of each user's updates from it.

Users who train again from one model give almost the same update, so four sums of three out of four users are
four equations for four updates. Staleness allows a sum of an old model at each of τ_max + 1 versions, and a
version that stands still allows as many as uploads that are refused and trained again. So a contributor uploads
once from a version, and holders count as well.
"""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from msgspec.structs import replace
from participants import PARAMETERS, Ann, Town
from parties import (
    SIZE,
    USERS,
    answers,
    asked_by,
    at,
    certify,
    deal,
    endorse,
    fresh_update,
    head_at,
    holder_at,
    intercept,
    make_federation,
    one_hop,
    one_round,
    request_for,
    submit,
    unmasked_sum,
    weigh,
)
from private import bounded

from basecagg.channels.identity import Ed25519Verifier
from basecagg.errors import BadSignature, LocalProtocolError, VersionTaken, WrongModel
from basecagg.maths.quantization import signed as with_sign
from basecagg.protocol import contributor as contributor_module
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import MaskEnded
from basecagg.protocol.epoch import Agreement, first_link
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Closing, Link, Upload, Verdict, signed
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.once_per_version import OncePerVersion
from basecagg.protocol.opening import Burned
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import AT_SERVER

FOUR = USERS[:4]
NOISE = 1e-3
"""How much two trainings of one user from one model differ."""


def frozen_base(federation):
    """Sums of each three of four users, all from version 0, one at each version: equations and results."""
    p, rng, head = federation.agreement.parameters, np.random.default_rng(1), head_at(federation, 0)
    base = {name: fresh_update() for name in FOUR}
    rows, sums, previous = [], [], None
    for version, names in enumerate(combinations(FOUR, 3)):
        try:
            members = [
                intercept(
                    federation,
                    name,
                    base[name] + rng.normal(scale=NOISE, size=p.model_size),
                    base=0,
                    head=head,
                )
                for name in names
            ]
        except LocalProtocolError:
            break
        question = certify(
            federation, request_for(federation, members, version, previous, attempt=0)
        )
        if len(question.certificate.signatures) < p.quorum:
            break
        shares, previous = answers(federation, question), question.certificate
        total = unmasked_sum(federation, question.request, members, shares)
        sums.append(with_sign(total.astype(np.uint32), p.modulus)[: p.model_size] / p.update_levels)
        weights = {m.ticket.mask.contributor: weigh(federation, m.ticket, version) for m in members}
        rows.append([weights.get(name, 0) for name in FOUR])
        say_opened(federation, members)
    return base, np.array(rows, float), np.array(sums)


def trains_again(monkeypatch):
    """A contributor that does not count."""
    monkeypatch.setattr(Contributor, "may_train_from", lambda self, version: True)


def say_opened(federation, members):
    for member in members:
        mask = member.ticket.mask
        verdict = Verdict(federation.agreement.id, mask, "opened")
        contributor = federation.contributor(mask.contributor)
        federation.network.perform(at(mask.contributor), contributor.receive(verdict))
    federation.network.in_flight.clear()


def test_a_model_that_is_served_again_and_again_gives_one_sum():
    _, rows, _ = frozen_base(make_federation(max_burns=0))
    assert len(rows) == 1


def test_holders_count_as_well(monkeypatch):
    """A contributor that is restored from a copy, or another program, may upload twice from one version."""
    trains_again(monkeypatch)
    _, rows, _ = frozen_base(make_federation(max_burns=0))
    assert len(rows) == 1


def test_control_without_the_rule_every_update_is_read(monkeypatch):
    trains_again(monkeypatch)
    monkeypatch.setattr(OncePerVersion, "require_free", lambda self, *member: None)
    base, rows, sums = frozen_base(make_federation(max_burns=0))
    read = np.linalg.solve(rows, sums)
    assert max(np.abs(read[at] - base[name]).max() for at, name in enumerate(FOUR)) < 20 * NOISE


@pytest.mark.parametrize("max_burns", [0, 1, 3])
def test_holders_allow_as_many_sums_as_may_be_burned_and_no_more(monkeypatch, max_burns):
    """The same three from version 0 again and again, each time as another attempt of version 0."""
    trains_again(monkeypatch)
    federation, endorsed = make_federation(max_burns=max_burns), 0
    for attempt in range(max_burns + 3):
        members = [intercept(federation, name, base=0) for name in USERS[:3]]
        request = request_for(federation, members, 0, attempt=attempt)
        endorsed += len(endorse(federation, request)) == len(USERS)
        say_opened(federation, members)
    assert endorsed == 1 + max_burns


def test_burns_of_several_versions_add_up(monkeypatch):
    """Ann's updates from version 0 are in a sum of each version that is given up, and others are opened."""
    trains_again(monkeypatch)
    federation, previous = make_federation(max_burns=1), None
    head, endorsed = head_at(federation, 0), []
    for version in range(3):
        given_up = [intercept(federation, name, base=0, head=head) for name in USERS[:3]]
        request = request_for(federation, given_up, version, previous, attempt=0)
        endorsed.append(len(endorse(federation, request)) == len(USERS))
        say_opened(federation, given_up)
        now = head_at(federation, version)
        members = [intercept(federation, name, base=version, head=now) for name in USERS[3:6]]
        question = certify(
            federation, request_for(federation, members, version, previous, attempt=1)
        )
        answers(federation, question)
        previous = question.certificate
        say_opened(federation, members)
    assert endorsed == [True, True, False]


def test_what_was_summed_is_remembered_for_as_long_as_it_is_fresh():
    federation = make_federation(max_staleness=2)
    first = [submitted.ticket.mask.contributor for submitted in one_round(federation)]
    for name in USERS:
        federation.start(holder_at(name))
    holder = federation.holder(USERS[0])
    opened = federation.server.history.opened
    for name in first:
        with pytest.raises(VersionTaken):
            holder._once.require_free(name, 0, opened)
    assert holder._once.require_free(USERS[6], 0, opened) is None
    for _ in range(4):
        one_round(federation)
    store = federation.network.nodes[holder_at(USERS[0])].store
    assert len(store.keys("summed")) == 1 + 2
    assert len(federation.network.nodes[AT_SERVER].store.keys("summed")) == 1 + 2


def test_the_server_refuses_what_holders_would_refuse(monkeypatch):
    """Else one contributor that does not count would have every sum refused."""
    trains_again(monkeypatch)
    federation = make_federation()
    one_round(federation)
    submit(federation, USERS[0], base=0)
    federation.network.run()
    ended = [news for news in federation.take_news() if isinstance(news, MaskEnded)]
    assert ("refused", "train from a newer version") in [
        (each.state, each.reason[-26:]) for each in ended
    ]
    one_round(federation, USERS[1:4])
    assert federation.server.version == 2


def test_only_a_signed_burn_allows_another():
    federation = make_federation(max_burns=1)
    agreement, ann = federation.agreement, federation.contributor("ann")
    mask = intercept(federation, "ann").ticket.mask
    burned = Closing(agreement.id, 0, (mask,), "burned")
    for forged in (burned, signed(burned, federation.identity("user-1"))):
        with pytest.raises(BadSignature):
            ann.receive(forged)
    other = replace(mask, serial=bytes(16))
    for useless in (replace(burned, outcome="opened"), replace(burned, masks=(other,))):
        assert ann.receive(signed(useless, federation.identity("server"))) == []
    verdict = Verdict(agreement.id, mask, "burned", "so it says")
    federation.network.perform(at("ann"), ann.receive(verdict))
    assert not ann.may_train_from(0)
    effects = ann.receive(signed(burned, federation.identity("server")))
    federation.network.perform(at("ann"), effects)
    federation.start(at("ann"))
    ann = federation.contributor("ann")
    assert ann.may_train_from(0)
    second = intercept(federation, "ann").ticket.mask
    again = signed(replace(burned, masks=(second,)), federation.identity("server"))
    federation.network.perform(at("ann"), ann.receive(again))
    assert not ann.may_train_from(0)  # as often as max_burns says
    assert ann.may_train_from(1)


def test_a_version_that_stands_still_gives_one_sum():
    """Uploads are parked, their contributors hear that they were refused: they do not train from it again."""
    federation = make_federation(max_burns=0)
    parked = [intercept(federation, name) for name in FOUR]
    for member in parked:
        mask = member.ticket.mask
        verdict = Verdict(federation.agreement.id, mask, "refused", "so it says")
        contributor = federation.contributor(mask.contributor)
        federation.network.perform(at(mask.contributor), contributor.receive(verdict))
    for name in FOUR:
        with pytest.raises(LocalProtocolError, match="newer version"):
            intercept(federation, name)


def test_nobody_begins_to_train_below_the_newest_version_that_the_server_signed():
    federation = make_federation()
    asked = asked_by(federation)
    for _ in range(3):
        one_round(federation)
    watch = ModelWatch(federation.agreement, MemoryStore())
    first = np.zeros(federation.agreement.parameters.model_size)
    assert watch.head_of(0, first) == federation.agreement.beginning.root
    for request in asked:
        watch.hear(request)
    with pytest.raises(WrongModel, match="newest"):
        watch.head_of(0, first)


# --- nobody is left who may upload ----------------------------------------------------------------


@pytest.mark.parametrize("max_burns", [1, 2])
def test_a_federation_of_k_users_goes_on_after_every_burn(monkeypatch, max_burns):
    """All of them have uploaded from this version; the server signs what it burns, so all may train again."""
    federation, names = make_federation(max_burns=max_burns), USERS[:3]
    opening = federation.server.opening
    for version in range(4):
        monkeypatch.setattr(opening, "_open", lambda: Burned("as it happens"))
        for _ in range(max_burns):
            one_round(federation, names)
            assert federation.server.version == version
        monkeypatch.undo()
        one_round(federation, names)
        assert federation.server.version == version + 1


def test_a_federation_of_k_users_goes_on_after_an_update_was_turned_away():
    """Its mask is kept by too few holders: another mask hides the next update from the same version."""
    federation, names = make_federation(), USERS[:3]
    deal(federation, names[0])
    mailroom, (mask,) = federation.server.opening.mailroom, federation.contributor(names[0]).ready
    mailroom.holders_of(mask).difference_update(range(3, 7))
    one_round(federation, names)
    assert federation.server.version == 0
    one_round(federation, names[:1])
    assert federation.server.version == 1


def test_a_lost_word_is_said_again():
    """The burn did not reach its contributor: it sends the same upload again and hears what became of it."""
    federation, names = make_federation(), USERS[:3]
    submitted = submit(federation, names[0], head=bytes(32))  # of another model: turned away
    one_hop(federation)
    federation.network.in_flight.clear()
    contributor = federation.contributor(names[0])
    assert not contributor.may_train_from(0)
    federation.network.perform(at(names[0]), contributor.reconnect())
    assert federation.network.in_flight[-1].message == submitted.upload
    federation.network.run()
    assert contributor.may_train_from(0)
    one_round(federation, names)
    assert federation.server.version == 1


# --- epochs that begin with one model -------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_burns", "lies_in", "expected"),
    [
        ((1, 1, 1), {1, 2, 3}, {1: 2, 2: 1, 3: 1}),
        ((1, 1, 1), {2, 3}, {1: 1, 2: 2, 3: 1}),
        ((1, 1, 1), {3}, {1: 1, 2: 1, 3: 2}),
        ((1, 1, 1), set(), {1: 1, 2: 1, 3: 1}),
        ((2, 0, 1), {1, 2, 3}, {1: 3, 2: 1, 3: 1}),
        ((0, 2, 1), {1, 2, 3}, {1: 1, 2: 3, 3: 1}),
    ],
)
def test_an_epoch_that_begins_with_the_same_model_gives_one_more_sum_of_it(
    max_burns, lies_in, expected, tmp_path
):
    """In some epochs the server calls sums burned that it opened; the operator rotates, as it is told to.

    However often that happens, the model gives one sum for each epoch, and the largest `max_burns` in all.
    """
    town, tried = Town(), Counter()
    ann = Ann(town, tmp_path / "ann")
    ann.floor = LocalFloor(max_burns=2)
    ann.restart()
    for number, most in enumerate(max_burns, 1):
        epoch = ann.join(number, max_burns=most)
        ann.ready_mask(epoch)
        while ann.machine.may_train:
            tried[number] += 1
            ann.submit(np.full(PARAMETERS.model_size, float(tried.total())))
            mask = [m for m in ann.sent if isinstance(m, Upload)][-1].ticket.mask
            burned = [town.closing(epoch, mask)] if number in lies_in else []
            ann.hear(*burned, Verdict(epoch.id, mask, "burned"))
            ann.restart()
            ann.ready_mask(epoch)
    assert tried == expected
    epoch = ann.join(4, max_burns=1, first=Link(0, b"m" * 32, bytes(32), bytes(32)))
    ann.ready_mask(epoch)
    assert ann.machine.may_train  # another model
    ann.store.close()


@pytest.mark.parametrize(
    "versions",
    [
        (0, 0, 0),
        pytest.param(
            (0, 7, 9),
            marks=pytest.mark.xfail(
                strict=True, reason="a model is remembered by a hash that has its version in it"
            ),
        ),
    ],
)
def test_the_same_numbers_under_another_version_are_the_same_model(versions, tmp_path):
    """`start --model` goes on counting versions; the first case, where it does not, is the control."""
    town, tried = Town(), Counter()
    ann = Ann(town, tmp_path / "ann")
    model = np.ones(PARAMETERS.model_size, np.float32)

    def ready_mask():
        (shipment,) = ann.do(ann.machine.working().deal(version))
        ann.hear(*town.receipts(epoch, *shipment.dealing.masks))

    for number, version in enumerate(versions, 1):
        epoch = ann.join(number, max_burns=1, first=first_link(model, version))
        ready_mask()
        while ann.machine.may_train:
            tried[number] += 1
            head = ann.machine.watch.head_of(version, model)
            update = np.full(PARAMETERS.model_size, 1e-3 * tried.total())
            ann.do(ann.machine.submit(update, version, head))
            mask = [m for m in ann.sent if isinstance(m, Upload)][-1].ticket.mask
            ann.hear(town.closing(epoch, mask), Verdict(epoch.id, mask, "burned"))
            ready_mask()
    ann.store.close()
    assert tried == {1: 2, 2: 1, 3: 1}


def test_an_epoch_may_end_with_any_version_and_its_model_is_known_all_the_same():
    """By the hash that the server signed for it, whichever version the next epoch begins with."""
    federation = make_federation()
    ann, store = federation.contributor("ann"), federation.network.nodes[at("ann")].store
    deal(federation, "ann")
    head, later = head_at(federation, 1), b"v" * 32
    federation.network.perform(at("ann"), ann.submit(fresh_update(), 1, head, 1, later))
    first = replace(federation.agreement.epoch.first, version=1, model_hash=later)
    agreement = Agreement(replace(federation.agreement.epoch, first=first), Ed25519Verifier())
    records = MemoryStore({"based": store.snapshot()["based"]})
    again = Contributor(agreement, ann._credential, ann._signer, ann._sealer, records)
    assert (again._base.epochs, again._base.before) == (2, 1)


# --- what is still open ---------------------------------------------------------------------------


LIE = np.full(SIZE, 9.0)


@pytest.mark.xfail(
    strict=True, reason="a sum that is not applied makes a version of the same numbers"
)
def test_a_sum_that_is_not_applied_gives_no_second_sum_of_the_same_numbers(monkeypatch):
    """One contributor works with the server: its updates are too long, so the model stays as it is."""
    federation, honest, colluder = make_federation(max_burns=0, **bounded()), USERS[:3], USERS[3]
    truthful = contributor_module.hide_with_noise

    def hide(update, staleness, fresh, p, words):
        if not (update == LIE).all():
            return truthful(update, staleness, fresh, p, words)
        mask = words.draw(p.padded_size).astype(object)
        numbers = np.zeros(p.padded_size, object)
        numbers[:SIZE] = (LIE * p.update_levels).astype(int)
        return ((numbers + mask) % p.modulus).astype(np.uint32)

    monkeypatch.setattr(contributor_module, "hide_with_noise", hide)
    models = []
    for pair in combinations(honest, 2):
        for name in pair:
            submit(federation, name, fresh_update(0.05))
        monkeypatch.setattr(federation.contributor(colluder)._sent, "require_fresh", lambda u: "x")
        submit(federation, colluder, LIE)
        models.append(federation.server.model.copy())
        federation.network.run()
    assert len({model.tobytes() for model in models}) == len(models)
