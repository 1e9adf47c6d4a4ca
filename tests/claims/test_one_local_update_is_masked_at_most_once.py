"""The same Δ in two sums is their difference: nothing that a server says makes a contributor send it again."""

import numpy as np
import pytest
from parties import (
    USERS,
    answers,
    at,
    certify,
    deal,
    fresh_update,
    intercept,
    make_federation,
    request_for,
    reveals,
    submit,
    unmasked_sum,
    weigh,
)

from basecagg.errors import LocalProtocolError, Refused
from basecagg.protocol.effects import MaskEnded, Send, sends_of
from basecagg.protocol.ledger import SentUpdates
from basecagg.protocol.messages import (
    Receipt,
    RecoveryRequest,
    Refusal,
    Upload,
    Verdict,
    signed,
)


@pytest.fixture
def federation():
    """Whoever trains once from each version has no occasion to send an update twice from one."""
    return make_federation(repeated_versions=True)


def uploads_in(effects):
    return [send.message for send in sends_of(effects) if isinstance(send.message, Upload)]


@pytest.mark.parametrize("outcome", ["refused", "burned", "opened", "admitted"])
def test_whatever_became_of_it(federation, outcome):
    update = fresh_update()
    first = intercept(federation, "ann", update)
    ann = federation.contributor("ann")
    verdict = Verdict(federation.agreement.id, first.ticket.mask, outcome, "send it again, please")
    federation.network.perform(at("ann"), ann.receive(verdict))
    deal(federation, "ann")
    with pytest.raises(LocalProtocolError, match="masked before"):
        ann.submit(update, 0, federation.server.head, 0)
    assert len(ann.ready) == 1  # the new mask is not used up by the attempt


def test_after_a_restart(federation):
    update = fresh_update()
    intercept(federation, "ann", update)
    federation.start(at("ann"))
    deal(federation, "ann")
    with pytest.raises(LocalProtocolError, match="masked before"):
        federation.contributor("ann").submit(update, 0, federation.server.head, 0)


def test_for_another_version_of_the_model(federation):
    update = fresh_update()
    intercept(federation, "ann", update)
    deal(federation, "ann")
    with pytest.raises(LocalProtocolError, match="masked before"):
        federation.contributor("ann").submit(update, 1, bytes(32), 1)


@pytest.mark.parametrize(
    "disguise",
    [
        np.copy,
        lambda update: update.astype(np.float32),
        lambda update: np.repeat(update, 2)[::2],
        lambda update: np.where(update == 0, -0.0, update),
    ],
    ids=["copy", "other precision", "strided", "negative zero"],
)
def test_in_another_disguise(federation, disguise):
    """The same numbers are the same update, however they are stored."""
    update = fresh_update().astype(np.float32).astype(np.float64)
    update[3] = 0.0
    intercept(federation, "ann", update)
    deal(federation, "ann")
    with pytest.raises(LocalProtocolError, match="masked before"):
        federation.contributor("ann").submit(disguise(update), 0, federation.server.head, 0)


def test_an_update_that_was_refused_before_it_was_masked_may_be_tried_again(federation):
    ann = federation.contributor("ann")
    update = fresh_update()
    with pytest.raises(LocalProtocolError, match="no mask is ready"):
        ann.submit(update, 0, federation.server.head, 0)
    deal(federation, "ann")
    assert len(uploads_in(ann.submit(update, 0, federation.server.head, 0))) == 1


def test_a_retry_sends_identical_bytes(federation):
    first = intercept(federation, "ann")
    for _ in range(2):
        again = uploads_in(federation.contributor("ann").reconnect())
        assert again == [first.upload]
        federation.start(at("ann"))
        federation.network.in_flight.clear()


def test_no_message_makes_a_contributor_send_another_upload(federation):
    """Whatever a server says: at most the same upload again, never one under a new mask."""
    ann, agreement = federation.contributor("ann"), federation.agreement
    first = intercept(federation, "ann")
    deal(federation, "ann", "ann")
    names = [first.ticket.mask, *ann.ready]
    said = [
        Verdict(agreement.id, name, outcome)
        for name in names
        for outcome in ("admitted", "refused", "burned", "opened")
    ]
    for index, user in enumerate(USERS):
        receipt = Receipt(agreement.id, index, tuple(names))
        said.append(signed(receipt, federation.identity(user)))
    said += [
        Refusal("StaleUpdate", "again"),
        RecoveryRequest(agreement.id, 0, 0, agreement.beginning, (first.ticket,), None),
    ]
    said += [first.upload]
    sent = []
    for message in said * 2:
        try:
            sent += [effect for effect in ann.receive(message) if isinstance(effect, Send)]
        except Refused:
            continue
    assert sent == []


def test_a_verdict_on_a_mask_that_hid_nothing_is_refused(federation):
    """A server cannot end masks that are still ready, nor make one ready that is not."""
    deal(federation, "ann")
    ann = federation.contributor("ann")
    (mask,) = ann.ready
    for outcome in ("admitted", "refused", "burned", "opened"):
        with pytest.raises(Refused):
            ann.receive(Verdict(federation.agreement.id, mask, outcome))
    assert ann.ready == [mask]


def test_the_mask_is_gone_from_the_store_when_the_upload_leaves(federation):
    deal(federation, "ann")
    ann, store = federation.contributor("ann"), federation.network.nodes[at("ann")].store
    seed = ann._masks[ann.ready[0].key].seed
    assert any(seed in value for value in store.snapshot()["mask"].values())
    intercept(federation, "ann")
    for records in store.snapshot().values():
        assert all(seed not in value for value in records.values())
    assert ann._masks[next(iter(ann.states()))].seed == b""


def test_an_older_copy_of_the_store_burns_its_masks(federation):
    """What was ready in the copy may have been used since."""
    deal(federation, "ann")
    store = federation.network.nodes[at("ann")].store
    store.rolled_back = True
    machine = federation._build(at("ann"), store)
    effects = machine.start()
    assert [e.state for e in effects if isinstance(e, MaskEnded)] == ["burned"]
    assert machine.ready == []
    assert sends_of(effects) == []


def test_control_a_contributor_that_sends_it_twice_gives_it_away(federation, monkeypatch):
    """Two sums with the same Δ; in one of them everyone else is a friend of the server's."""
    monkeypatch.setattr(SentUpdates, "require_fresh", lambda self, update: "")
    update = fresh_update()
    first = intercept(federation, "victim", update)
    second = intercept(federation, "victim", update)
    honest = [intercept(federation, name) for name in ("ann", "bob")]
    friends = [intercept(federation, name) for name in ("f1", "f2")]
    # The honest two hide the first one; in the second sum the victim stands alone among friends.
    sums = []
    for members in ([first, *honest], [second, *friends]):
        request = request_for(federation, members)
        collected = answers(federation, certify(federation, request))
        sums.append(unmasked_sum(federation, request, members, collected))
    known = sum(weigh(federation, each.ticket, 0) * each.quantized for each in friends)
    assert reveals(federation, sums[1] - known, 1, second)
    # What K ≥ colluders + 2 hides in one sum, the other one gives away: ann + bob, up to rounding.
    rest = (sums[0] - (sums[1] - known)) % federation.agreement.parameters.modulus
    pair = honest[0].quantized + honest[1].quantized
    off = (rest - pair) % federation.agreement.parameters.modulus
    assert all(min(value, federation.agreement.parameters.modulus - value) <= 1 for value in off)


def test_control_a_contributor_that_reuses_a_mask_gives_its_updates_away(federation, monkeypatch):
    """Under one mask the difference of two uploads is the difference of two updates, with no holder's help."""
    deal(federation, "ann")
    ann = federation.contributor("ann")
    mask = ann._masks[ann.ready[0].key]
    seed = mask.seed
    one, two = fresh_update(), fresh_update()
    first = submit(federation, "ann", one)
    mask.state, mask.seed = "ready", seed
    second = ann.submit(two, 0, federation.server.head, 0)
    words = [
        np.frombuffer(u.words, "<u4").astype(object) for u in (first.upload, *uploads_in(second))
    ]
    p = federation.agreement.parameters
    difference = (words[0] - words[1] + p.modulus // 2) % p.modulus - p.modulus // 2
    assert np.abs(difference[:50].astype(float) / p.update_levels - (one - two)).max() < 2**-14
