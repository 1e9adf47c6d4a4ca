"""Honest users are there and willing: no version stands still because of what happened before."""

import pytest
from parties import (
    USERS,
    abandoned,
    at,
    deal,
    fresh_update,
    intercept,
    make_federation,
    one_round,
    submit,
)

from basecagg.protocol import contributor as contributor_module
from basecagg.storage.in_memory import MemoryStore
from lying import lie
from reproduction.bench import AT_SERVER


@pytest.mark.parametrize("idle", [89, 91, 100])
def test_whoever_was_idle_for_long_deals_new_masks_first(idle):
    """A mask that ends before its update could be too old is refused: it would wait for its like so long."""
    federation = make_federation(max_burns=0, cryptography=False)
    (late, *others), cat = USERS[:4], federation.contributor(USERS[0])
    federation.network.perform(at(late), cat.deal_ahead(0, 2))
    federation.network.run()
    for _ in range(idle):
        one_round(federation, others)
    version = federation.server.version
    for name in others[:2]:
        submit(federation, name)
    federation.network.run()
    federation.network.perform(at(late), cat.deal_ahead(version, 2))
    federation.network.run()
    federation.submit(late, fresh_update(), version, federation.server.head)
    federation.network.run()
    assert federation.server.version == version + 1


def test_members_of_a_sum_that_was_spoiled_are_left_out_for_a_while_only(monkeypatch):
    """Others have dealt masks and are gone: nobody but those who were in the sum can make another."""
    federation, (ann, bob, liar, dan, *gone) = make_federation(), USERS[:7]
    deal(federation, *gone, count=2)
    for name in (ann, bob):
        submit(federation, name)
    with monkeypatch.context() as lying:
        lying.setattr(contributor_module, "hide", lie)
        submit(federation, liar)
    federation.network.run()
    assert len(abandoned(federation)) == 1
    for name in (ann, bob, dan):
        submit(federation, name)
    federation.network.run()
    assert federation.server.version == 0  # others may still come
    for seconds in (0.0, 31.0):
        federation.network.perform(AT_SERVER, federation.server.tick(seconds, 30.0))
    federation.network.run()
    assert federation.server.version == 1


def spoiled(federation, monkeypatch, *honest):
    """Two honest members and a liar make a sum that cannot be opened."""
    for name in honest:
        submit(federation, name)
    with monkeypatch.context() as lying:
        lying.setattr(contributor_module, "hide", lie)
        submit(federation, "mallory")
    federation.network.run()
    assert len(abandoned(federation)) == 1


def test_nobody_is_left_out_for_those_who_have_left(monkeypatch):
    federation, (ann, bob, cem, *gone) = make_federation(cryptography=False), USERS[:6]
    deal(federation, *gone)
    federation.server.opening.gone = frozenset(gone)
    spoiled(federation, monkeypatch, ann, bob)
    for name in (ann, bob, cem):
        submit(federation, name)
    federation.network.run()
    assert federation.server.version == 1


@pytest.mark.parametrize("evicts", [False, True])
@pytest.mark.parametrize("count", [6, 20])
def test_a_second_upload_throws_out_nobody_else(count, evicts, monkeypatch):
    """While the members of a spoiled sum are left out, one contributor uploads again and again.

    Without it (the control) the version comes; with it, it must come too.
    """
    federation = make_federation(max_burns=1, cryptography=False)
    honest = [f"h{number:02}" for number in range(count)]
    deal(federation, *honest, count=2)  # as agents do, who keep two masks ready
    mallory = federation.contributor("mallory")
    monkeypatch.setattr(mallory, "may_train_from", lambda version: True)  # its program is its own
    buffer, waiting = federation.server.buffer, lambda: len(federation.server.buffer.waiting)
    spoiled(federation, monkeypatch, *honest[:2])
    now = 0.0
    for name in [*honest[:2], *honest]:
        contributor = federation.contributor(name)
        if federation.server.version:
            break
        if contributor.is_waiting or not contributor.may_train_from(0):
            continue
        submit(federation, name)
        federation.network.run()
        for _ in range(3 * evicts):
            if federation.server.version == 0 and not federation.server.is_opening:
                before = {each.name for each in buffer.waiting}
                submit(federation, "mallory")
                federation.network.run()
                left = {each.name for each in buffer.waiting}
                assert federation.server.version or before <= left  # not even its own gives way
        now += 1.0
        federation.network.perform(AT_SERVER, federation.server.tick(now, 30.0))
        federation.network.run()
    federation.network.perform(AT_SERVER, federation.server.tick(now + 31.0, 30.0))
    federation.network.run()
    assert federation.server.version >= 1, waiting()


def restored(dealt_before: bool):
    """A server goes back to a backup; an update that it had admitted since comes again."""
    federation, names = make_federation(cryptography=False, max_burns=1), USERS[:3]
    one_round(federation, names)
    if dealt_before:
        deal(federation, names[0])
    copy = MemoryStore(federation.network.nodes[AT_SERVER].store.snapshot())
    submit(federation, names[0])
    federation.network.run()
    copy.rolled_back = True
    federation.start(AT_SERVER, copy)
    for holder in federation.agreement.holder_names:
        federation.network.perform(AT_SERVER, federation.server.reconnect(holder))
    federation.network.perform(AT_SERVER, federation.server.start())
    federation.network.run()
    federation.network.perform(at(names[0]), federation.contributor(names[0]).reconnect())
    federation.network.run()
    return federation, names


@pytest.mark.parametrize("dealt_before", [True, False])
def test_an_update_that_a_restored_server_does_not_know_is_over_by_its_signed_word(dealt_before):
    federation, names = restored(dealt_before)
    version = federation.server.version
    for name in names:
        contributor = federation.contributor(name)
        if not contributor.is_waiting and contributor.may_train_from(version):
            submit(federation, name)
            federation.network.run()
    assert federation.server.version == version + 1


# --- an epoch from a model that was trained from --------------------------------------------------


def epoch_from(names, trained_from: bool):
    """An epoch, the first of a model, or of one from which all uploaded in an epoch before it."""
    federation = make_federation(max_burns=1, cryptography=False)
    if trained_from:
        before = make_federation(max_burns=1, cryptography=False)
        for name in names:
            intercept(before, name)
            kept = before.network.nodes[at(name)].store.snapshot()
            federation.start(at(name), MemoryStore({"based": kept["based"]}))
    return federation


def goes_on_or_tells(federation, names) -> bool:
    """Whoever may train does, and time passes: does a version come, or does the operator hear why not?"""
    for turn in range(5):
        for name in names:
            contributor = federation.contributor(name)
            if not contributor.is_waiting and contributor.may_train_from(0):
                submit(federation, name)
                federation.network.run()
        for seconds in (0.0, 31.0, 62.0):
            now = 1000.0 * turn + seconds
            federation.network.perform(AT_SERVER, federation.server.tick(now, 30.0))
        federation.network.run()
        if federation.server.version or federation.server.opening.trouble(0):
            return True
    return False


FRESH_OR_TRAINED_FROM = pytest.mark.parametrize("trained_from", [False, True])


@FRESH_OR_TRAINED_FROM
def test_one_spoiled_sum_of_a_model_that_was_trained_from(trained_from, monkeypatch):
    honest = USERS[:4]
    federation = epoch_from([*honest, "mallory"], trained_from)
    spoiled(federation, monkeypatch, *honest[:2])
    assert goes_on_or_tells(federation, honest)


@FRESH_OR_TRAINED_FROM
def test_one_update_of_a_model_that_was_trained_from_is_turned_away(trained_from):
    names = USERS[:3]
    federation = epoch_from(names, trained_from)
    deal(federation, names[0])
    mailroom, (mask,) = federation.server.opening.mailroom, federation.contributor(names[0]).ready
    mailroom.holders_of(mask).difference_update(range(3, 7))
    assert goes_on_or_tells(federation, names)


# --- what is still open ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "starts",
    [
        3,  # the control
        pytest.param(
            30,
            marks=pytest.mark.xfail(
                strict=True, reason="names of masks that were given up are freed by versions only"
            ),
        ),
    ],
)
def test_a_contributor_may_start_as_often_as_it_likes_while_its_version_waits_for_it(starts):
    """Each start gives up the masks that were dealt ahead, and others are dealt."""
    federation = make_federation(cryptography=False, mask_lifetime=12)
    (late, *others) = USERS[:3]
    for name in others:
        submit(federation, name)
    federation.network.run()
    for _ in range(starts):
        federation.start(at(late))
        contributor = federation.contributor(late)
        for effects in (contributor.start(), contributor.deal_ahead(0, 2)):
            federation.network.perform(at(late), effects)
            federation.network.run()
    assert contributor.ready
    federation.submit(late, fresh_update(), 0, federation.server.head)
    federation.network.run()
    assert federation.server.version == 1
