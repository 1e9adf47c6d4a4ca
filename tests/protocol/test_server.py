"""The server's machine: who may deal and upload, what becomes of it, and what a restart keeps."""

from hashlib import sha256

import msgspec
import numpy as np
import pytest
from parties import (
    SIZE,
    USERS,
    colluding_answer,
    deal,
    exact_sum,
    fresh_update,
    holder_at,
    intercept,
    make_federation,
    nothing_changes,
    one_hop,
    one_round,
    released,
    server_refuses,
    submit,
)

from basecagg.errors import (
    AlreadyBuffered,
    BadSignature,
    KnownMask,
    Malformed,
    MaskExpired,
    NotEnrolled,
    UnknownMask,
    WrongEpoch,
)
from basecagg.maths.staleness import constant, polynomial
from basecagg.protocol import merkle
from basecagg.protocol.effects import Forget, MaskEnded, Send, sends_of, writes_of
from basecagg.protocol.global_model import model_hash
from basecagg.protocol.mailroom import Mailroom
from basecagg.protocol.messages import (
    Answer,
    Closing,
    Endorsement,
    MaskName,
    Parcel,
    PlainUpdate,
    Receipt,
    RecoveryRequest,
    Refusal,
    ShortRequest,
    Ticket,
    Upload,
    Verdict,
    content_hash,
    encode,
    signed,
)
from basecagg.protocol.opening import PlainOpening
from basecagg.protocol.server import Server, ServerSettings
from basecagg.protocol.weighing import Weighing
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import AT_SERVER, Letter

replace = msgspec.structs.replace


def verdicts(federation):
    """What contributors were told, by name."""
    told = [news for news in federation.take_news() if isinstance(news, MaskEnded)]
    return {news.mask.contributor: (news.state, news.reason) for news in told}


def resigned(federation, name, ticket, **changes):
    return signed(replace(ticket, **changes), federation.identity(name))


# --- shipments --------------------------------------------------------------------------------


@pytest.fixture
def shipment(federation):
    federation.deal("ann")
    return federation.network.in_flight.pop().message


def test_a_shipment_is_written_before_it_is_relayed(federation, shipment):
    effects = federation.server.receive("ann", shipment)
    assert len(writes_of(effects)) == 3  # two notes, and all envelopes together
    sent = {send.recipient: send.message for send in sends_of(effects)}
    assert sorted(sent) == sorted(USERS)
    root = shipment.dealing.root
    for index, name in enumerate(USERS):
        parcel = sent[name]
        assert merkle.root_by(parcel.path, index, 7, parcel.sealed, "x25519") == root
        assert parcel.holder == index


def test_of_another_sender(federation, shipment):
    for sender in ("bob", "user-0", "server", ""):
        server_refuses(federation, sender, shipment, NotEnrolled)


def test_not_signed_by_the_dealer(federation, shipment):
    for signer in ("bob", "server", "enrolment"):
        dealing = signed(shipment.dealing, federation.identity(signer))
        server_refuses(federation, "ann", replace(shipment, dealing=dealing), BadSignature)


def test_of_a_dealer_who_is_not_enrolled(federation, shipment):
    dealing = shipment.dealing
    forged = signed(dealing.credential, federation.identity("ann"))
    dealing = resigned(federation, "ann", dealing, credential=forged)
    server_refuses(federation, "ann", replace(shipment, dealing=dealing), NotEnrolled)


def test_with_too_few_or_too_many_shares(federation, shipment):
    for count in (2, 6, 8):
        leaves = (shipment.leaves * 2)[:count]
        root = merkle.root_of(leaves, shipment.sealed[0][:32])
        dealing = resigned(federation, "ann", shipment.dealing, root=root)
        cut = replace(
            shipment, dealing=dealing, leaves=leaves, sealed=(shipment.sealed * 2)[:count]
        )
        server_refuses(federation, "ann", cut, Malformed)
    server_refuses(federation, "ann", replace(shipment, sealed=shipment.sealed[:6]), Malformed)


def test_with_leaves_that_do_not_lead_to_the_root(federation, shipment):
    server_refuses(federation, "ann", replace(shipment, leaves=shipment.leaves[::-1]), Malformed)


def test_with_a_share_that_is_far_too_large(federation, shipment):
    sealed = (*shipment.sealed[:6], bytes(10_000))
    server_refuses(federation, "ann", replace(shipment, sealed=sealed), Malformed)


@pytest.mark.parametrize("expires", [101, 2**61])
def test_that_would_be_kept_for_longer_than_a_lifetime(federation, shipment, expires):
    """Tombstones are kept until they expire: nobody may make them eternal."""
    masks = tuple(replace(mask, expires=expires) for mask in shipment.dealing.masks)
    dealing = resigned(federation, "ann", shipment.dealing, masks=masks)
    server_refuses(federation, "ann", replace(shipment, dealing=dealing), MaskExpired)


def test_that_has_expired(federation, shipment):
    masks = tuple(replace(mask, expires=0) for mask in shipment.dealing.masks)
    dealing = resigned(federation, "ann", shipment.dealing, masks=masks)
    one_round(federation)
    server_refuses(federation, "ann", replace(shipment, dealing=dealing), MaskExpired)


def test_other_shares_under_a_known_name(federation, shipment):
    federation.server.receive("ann", shipment)
    leaves = shipment.leaves[::-1]
    root = merkle.root_of(leaves, shipment.sealed[0][:32])
    dealing = resigned(federation, "ann", shipment.dealing, root=root)
    other = replace(shipment, dealing=dealing, leaves=leaves)
    server_refuses(federation, "ann", other, KnownMask)


def test_a_mask_that_is_over_is_not_begun_again(federation, shipment):
    federation.network.post(Letter("ann", AT_SERVER, shipment))
    federation.network.run()
    one_round(federation, ["ann", "bob", "cat"])
    assert federation.server.version == 1
    server_refuses(federation, "ann", shipment, KnownMask)


def test_of_another_epoch(federation, shipment):
    server_refuses(make_federation(), "ann", shipment, WrongEpoch)


def test_an_unconfirmed_parcel_can_be_sent_again_as_it_was(federation, shipment):
    federation.network.post(Letter("ann", AT_SERVER, shipment))
    one_hop(federation)
    sent = {letter.to.name: letter.message for letter in federation.network.in_flight}
    store = federation.network.nodes[AT_SERVER].store
    (dealing,) = store.keys("shipment")
    mailroom = Mailroom(federation.agreement, store)
    assert mailroom.parcels(dealing) == [sent[f"user-{index}"] for index in range(7)]
    assert mailroom.undelivered(3) == [sent["user-3"]]
    assert mailroom.lacks(3, dealing)
    federation.network.run()
    for known in (federation.server.opening.mailroom, Mailroom(federation.agreement, store)):
        assert known.undelivered(3) == []
        assert not known.lacks(3, dealing)


# --- receipts ---------------------------------------------------------------------------------


def test_a_receipt_counts_for_its_holder_only(federation, shipment):
    federation.network.post(Letter("ann", AT_SERVER, shipment))
    one_hop(federation)
    receipts = [each for each in one_hop(federation) if isinstance(each.message, Receipt)]
    first = receipts[0].message
    server_refuses(federation, "user-1", first, NotEnrolled)
    server_refuses(federation, "ann", first, NotEnrolled)
    forged = signed(replace(first, holder=1), federation.identity("user-0"))
    server_refuses(federation, "user-1", forged, BadSignature)
    server_refuses(federation, "user-0", replace(first, epoch=bytes(32)), WrongEpoch)


def test_a_receipt_for_masks_that_nobody_dealt_is_refused(federation):
    """A holder cannot make the server write to a crowd of strangers, nor send junk to a dealer."""
    deal(federation, "ann")
    (mask,) = federation.contributor("ann").ready
    strangers = tuple(MaskName(f"stranger-{index}", bytes(16)) for index in range(50))
    receipt = Receipt(federation.agreement.id, 0, (mask, *strangers))
    signer = federation.identity("user-0")
    server_refuses(federation, "user-0", signed(receipt, signer), UnknownMask)


# --- uploads ----------------------------------------------------------------------------------


def test_an_upload_is_admitted_and_said_so(federation):
    submitted = submit(federation, "ann")
    effects = federation.server.receive("ann", submitted.upload)
    assert Send("ann", Verdict(federation.agreement.id, submitted.ticket.mask, "admitted")) in (
        effects
    )
    assert [write.kind for write in writes_of(effects)] == [
        "upload",
        "buffered",
        "model-state",
        "relayed",
    ]


def test_the_same_upload_again_gets_the_same_verdict(federation):
    submitted = submit(federation, "ann")
    federation.network.run()
    with nothing_changes(federation, AT_SERVER):
        effects = federation.server.receive("ann", submitted.upload)
    verdict = Verdict(federation.agreement.id, submitted.ticket.mask, "admitted")
    assert effects == [Send("ann", verdict)]


@pytest.mark.parametrize("outcome", ["opened", "refused"])
def test_the_same_upload_after_its_end_gets_its_last_verdict(federation, outcome):
    if outcome == "opened":
        submitted = one_round(federation)[0]
    else:
        submitted = submit(federation, "user-0", base=9)
        federation.network.run()
    with nothing_changes(federation, AT_SERVER):
        *closing, verdict = federation.server.receive("user-0", submitted.upload)
    assert verdict.message.outcome == outcome
    assert [send.message.outcome for send in closing] == (
        ["burned"] if outcome == "refused" else []
    )


def test_two_uploads_for_one_mask(federation):
    """Both signed by the dealer: the first one counts."""
    first = submit(federation, "ann")
    federation.network.run()
    words = bytes(len(first.upload.words))
    ticket = resigned(federation, "ann", first.ticket, upload_hash=content_hash(words))
    server_refuses(federation, "ann", Upload(ticket, words), AlreadyBuffered)
    assert [each.name for each in federation.server.buffer.waiting] == [first.ticket.mask]


def test_the_ticket_of_somebody_else(federation):
    upload = intercept(federation, "ann").upload
    server_refuses(federation, "bob", upload, NotEnrolled)
    forged = signed(upload.ticket, federation.identity("bob"))
    server_refuses(federation, "ann", replace(upload, ticket=forged), BadSignature)


def test_a_mask_of_somebody_else(federation):
    """Mallory takes ann's mask and signs for it with a key that is enrolled, too."""
    upload = intercept(federation, "ann").upload
    deal(federation, "mallory")
    forged = signed(upload.ticket, federation.identity("mallory"))
    server_refuses(federation, "mallory", replace(upload, ticket=forged), NotEnrolled)


def test_a_mask_that_nobody_dealt(federation):
    upload = intercept(federation, "ann").upload
    ticket = resigned(federation, "ann", upload.ticket, mask=MaskName("ann", bytes(16)))
    server_refuses(federation, "ann", replace(upload, ticket=ticket), UnknownMask)


@pytest.mark.parametrize("words", ["empty", "short", "long", "not below q", "other bytes"])
def test_words_that_are_none(federation, words):
    upload = intercept(federation, "ann").upload
    changed = {
        "empty": b"",
        "short": upload.words[4:],
        "long": upload.words + bytes(4),
        "not below q": b"\xfb\xff\xff\xff" + upload.words[4:],
        "other bytes": bytes(len(upload.words)),
    }[words]
    digest = content_hash(changed)
    if words == "other bytes":
        digest = upload.ticket.upload_hash
    ticket = resigned(federation, "ann", upload.ticket, upload_hash=digest)
    server_refuses(federation, "ann", Upload(ticket, changed), Malformed)


def test_an_upload_of_another_epoch(federation):
    upload = intercept(make_federation(), "ann").upload
    server_refuses(federation, "ann", upload, WrongEpoch)


def test_an_update_in_clear_is_not_taken(federation):
    plain = PlainUpdate.unsigned(MaskName("ann", bytes(16)), 0, bytes(32), bytes(8 * SIZE))
    server_refuses(federation, "ann", plain, Malformed)


def test_messages_that_are_not_for_a_server(federation):
    for message in (Refusal("Malformed", ""), federation.agreement.epoch):
        server_refuses(federation, "user-0", message, Malformed)


# --- turned away: the mask is over, the contributor knows, the holders delete ------------------


def turned_away(federation, name, **changes):
    federation.take_news()
    submitted = submit(federation, name, **changes)
    federation.network.run()
    state, reason = verdicts(federation)[name]
    assert state == "refused"
    for holder in USERS:
        assert federation.holder(holder).states()[submitted.ticket.mask.key] == "closed"
        store = federation.network.nodes[holder_at(holder)].store
        assert store.read("share", submitted.ticket.mask.key) is None
    assert submitted.ticket.mask not in [each.name for each in federation.server.buffer.waiting]
    return reason


def test_a_base_version_that_is_too_new(federation):
    assert "not published yet" in turned_away(federation, "ann", base=1)


def test_a_base_version_that_is_too_old():
    federation = make_federation(max_staleness=1)
    old = {"base": 0, "head": federation.server.head}
    for turn in range(2):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    assert "download the model again" in turned_away(federation, "ann", **old)


def test_another_model(federation):
    reason = turned_away(federation, "ann", head=bytes(32))
    assert "was another model" in reason


def test_a_second_update_while_one_waits():
    federation = make_federation(repeated_versions=True)
    submit(federation, "ann")
    federation.network.run()
    assert "is waiting" in turned_away(federation, "ann")
    assert len(federation.server.buffer.waiting) == 1


def test_a_mask_that_too_few_holders_keep():
    """Its own receipts say five, but the server has heard of three only."""
    federation = make_federation()
    deal(federation, "ann")
    mailroom, (mask,) = federation.server.opening.mailroom, federation.contributor("ann").ready
    mailroom.holders_of(mask).difference_update(range(3, 7))
    assert "3 holders keep a share" in turned_away(federation, "ann")


def test_more_updates_than_may_wait(monkeypatch):
    monkeypatch.setattr("basecagg.protocol.buffer.MAX_WAITING_BUFFERS", 1)
    federation = make_federation()
    names = [f"phone-{index}" for index in range(7)]
    deal(federation, *names)
    for name in names:
        submit(federation, name, base=0)
    one_hop(federation)
    assert len(federation.server.buffer.waiting) == 3
    federation.network.run()
    refused = [n for n, (state, _) in verdicts(federation).items() if state == "refused"]
    assert refused == ["phone-6"]
    assert federation.server.version == 2


@pytest.mark.parametrize(("last", "reached", "left"), [(None, 2, 0), (2, 2, 0), (1, 1, 3)])
def test_no_sum_is_opened_beyond_the_last_version(last, reached, left):
    """Six updates wait, and three make a version."""
    federation = make_federation()
    names = [f"phone-{index}" for index in range(6)]
    deal(federation, *names)
    federation.server.last_version = last
    for name in names:
        submit(federation, name, base=0)
    federation.network.run()
    assert federation.server.version == reached
    assert len(federation.server.buffer.waiting) == left
    assert not federation.server.is_opening


# --- the sum ----------------------------------------------------------------------------------


def test_a_request_is_written_before_it_is_sent(federation):
    deal(federation, *USERS[:3])
    uploads = [submit(federation, name).upload for name in USERS[:3]]
    for name, upload in zip(USERS, uploads, strict=False):
        effects = federation.server.receive(name, upload)
    stored = [write for write in writes_of(effects) if write.kind == "request"]
    asked = [s.message for s in sends_of(effects) if isinstance(s.message, ShortRequest)]
    assert len(stored) == 1
    assert len(asked) == 7
    assert len({request.digest for request in asked}) == 1
    assert [t.mask for t in asked[0].tickets] == sorted(upload.ticket.mask for upload in uploads)


def test_answers_before_the_certificate_open_nothing(certified):
    """Holders who answer an uncertified request do so for nothing: the next one must carry a certificate."""
    deal(certified, *USERS[:3])
    for name in USERS[:3]:
        submit(certified, name)
    one_hop(certified)
    request = certified.server.opening._request
    assert isinstance(request, RecoveryRequest)
    for name in USERS:
        ((index, words),) = colluding_answer(certified, name, request).items()
        early = Answer(certified.agreement.id, 0, request.digest, index, words.tobytes())
        with nothing_changes(certified, AT_SERVER):
            assert certified.server.receive(name, signed(early, certified.identity(name))) == []
    assert certified.server.version == 0


def test_endorsements_of_strangers_do_not_count(certified):
    deal(certified, *USERS[:3])
    for name in USERS[:3]:
        submit(certified, name)
    one_hop(certified)
    votes = [e.message for e in one_hop(certified) if isinstance(e.message, Endorsement)]
    assert len(votes) == 7
    certified.network.in_flight.clear()
    server_refuses(certified, "user-1", votes[0], NotEnrolled)
    server_refuses(certified, "mallory", votes[0], NotEnrolled)
    forged = signed(replace(votes[0], holder=1), certified.identity("user-0"))
    server_refuses(certified, "user-1", forged, BadSignature)
    server_refuses(certified, "user-0", replace(votes[0], signature=b""), BadSignature)
    other = signed(replace(votes[0], version=3), certified.identity("user-0"))
    server_refuses(certified, "user-0", other, Malformed)
    for _ in range(9):  # one holder many times is one holder
        assert certified.server.receive("user-0", votes[0]) == []


def test_the_holders_are_told_when_a_sum_is_open(federation):
    seen = []
    federation.network.observers.append(seen.append)
    submitted = one_round(federation)
    closings = [each for each in seen if isinstance(each.message, Closing)]
    assert {each.to.name for each in closings} == set(USERS)
    assert {mask for each in closings for mask in each.message.masks} == {
        each.ticket.mask for each in submitted
    }
    assert {each.message.outcome for each in closings} == {"opened"}
    assert set(verdicts(federation).values()) == {("opened", "")}


def test_the_model_and_its_hash_move_on(federation):
    before = federation.server.head
    one_round(federation)
    server = federation.server
    assert server.head_of(0) == before == federation.agreement.beginning.root
    (link,) = server.history.links
    assert (link.version, link.model_hash) == (1, model_hash(1, server.model))
    assert server.head == server.head_of(1) == sha256(before + encode(link)).digest()
    assert server.head_of(2) is None


def test_old_hashes_are_forgotten():
    federation = make_federation(max_staleness=2)
    for turn in range(5):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    known = [v for v in range(7) if federation.server.head_of(v) is not None]
    assert known == [3, 4, 5]


def test_a_holder_that_missed_a_closing_hears_of_it_when_it_is_back(federation):
    """Else it would keep shares of opened masks, and its room for their dealers, until they expire."""
    deal(federation, *USERS[:4])
    node = federation.network.nodes.pop(holder_at("user-6"))
    opened = {each.ticket.mask.key for each in one_round(federation)}
    refused = submit(federation, "user-3", base=9).ticket.mask.key
    federation.network.run()
    federation.network.nodes[holder_at("user-6")] = node
    assert set(federation.holder("user-6").states().values()) == {"held"}
    missed = federation.server.opening.unanswered("user-6", 1)
    told = {
        mask.key: each.outcome
        for each in missed
        if isinstance(each, Closing)
        for mask in each.masks
    }
    assert told == {**dict.fromkeys(opened, "opened"), refused: "burned"}
    federation.start(holder_at("user-6"))
    federation.network.run()
    assert federation.holder("user-6").states() == dict.fromkeys({*opened, refused}, "closed")
    assert node.store.scan("share") == []


# --- restarts ---------------------------------------------------------------------------------


def test_a_restart_at_every_hop_loses_nothing(federation):
    """The server is rebuilt from its records before every delivery, and asks again by its deadline."""
    deal(federation, *USERS[:3])
    submitted = [submit(federation, name) for name in USERS[:3]]
    for _ in range(20):
        federation.start(AT_SERVER)
        if not one_hop(federation):
            federation.start(AT_SERVER)
            federation.network.perform(AT_SERVER, federation.server.deadline())
        if federation.server.version:
            break
    # Answers that arrive one restart apart are forgotten: let them come together.
    if not federation.server.version:
        federation.network.perform(AT_SERVER, federation.server.deadline())
        federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def test_a_restart_keeps_the_model(federation):
    one_round(federation)
    before = federation.server.version, federation.server.model.tobytes()
    history = federation.server.history
    federation.start(AT_SERVER)
    assert (federation.server.version, federation.server.model.tobytes()) == before
    assert federation.server.history == history


def test_a_restart_keeps_who_waits_in_order(federation):
    for name in ("cat", "ann"):
        submit(federation, name)
        federation.network.run()
    federation.start(AT_SERVER)
    assert [u.name.contributor for u in federation.server.buffer.waiting] == ["cat", "ann"]


def test_a_holder_that_is_asked_hears_also_what_else_it_missed():
    federation = make_federation(consistency="honest-server")
    deal(federation, *USERS[:3])
    federation.network.nodes.pop(holder_at("user-6"))
    deal(federation, "ann")
    for name in USERS[:3]:
        submit(federation, name)
    while not federation.server.is_opening:
        one_hop(federation)
    kinds = [type(each) for each in federation.server.opening.unanswered("user-6", 0)]
    assert kinds == [Parcel, RecoveryRequest]


def test_nothing_is_left_of_a_sum_that_was_opened(federation):
    one_round(federation)
    left = federation.network.nodes[AT_SERVER].store.snapshot()
    kept = ("model", "model-state", "certificate", "past", "made", "part", "upload", "summed")
    assert {kind for kind in left if kind not in kept} == {
        "relayed"
    }  # the names, until they expire
    assert len(left.get("certificate", ())) <= 2
    server = federation.server
    assert not [*server._admitted, *server._members, *server.buffer.waiting]


def test_a_full_buffer_goes_on_opening_after_a_restart(federation, monkeypatch):
    """As if the power had failed before anybody was asked."""
    monkeypatch.setattr(federation.server, "_open_next", list)
    submitted = one_round(federation)
    assert not released(federation)
    federation.start(AT_SERVER)
    federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


# --- FedBuff: the same server without protection ----------------------------------------------


def plain_server(staleness):
    store, rule = MemoryStore(), Weighing(2, staleness, "field")
    opening = PlainOpening(SIZE, rule, store, "<f8")
    return Server(ServerSettings(3, rule), opening, store, np.zeros(SIZE)), store


def test_without_protection_it_is_fedbuff():
    server, store = plain_server(polynomial(1.0))
    store.commit(writes_of(server.start()))
    updates = [fresh_update() for _ in range(3)]
    for name, update in zip("abc", updates, strict=True):
        message = PlainUpdate.unsigned(
            MaskName(name, bytes(16)), 0, server.head, update.astype("<f8").tobytes()
        )
        store.commit(writes_of(server.receive(name, message)))
    assert server.version == 1
    assert np.allclose(server.model, -np.mean(updates, axis=0), rtol=0, atol=1e-15)


def test_without_protection_one_update_may_be_the_only_one_of_its_version():
    server, store = plain_server(constant())
    heads = [server.head]
    for turn, bases in enumerate(([0, 0, 0], [0, 1, 1])):
        for name, base in zip("abc", bases, strict=True):
            mask, values = MaskName(name, bytes([turn] * 16)), fresh_update().tobytes()
            message = PlainUpdate.unsigned(mask, base, heads[base], values)
            store.commit(writes_of(server.receive(name, message)))
        heads.append(server.head)
    assert server.version == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"mask": MaskName("b", bytes(16))}, NotEnrolled),
        ({"values": bytes(8)}, Malformed),
        ({"values": np.full(SIZE, np.nan).tobytes()}, Malformed),
        ({"values": np.full(SIZE, np.inf).tobytes()}, Malformed),
    ],
)
def test_without_protection_nonsense_is_refused_too(change, error):
    server, _ = plain_server(constant())
    told = {"mask": MaskName("a", bytes(16)), "values": np.zeros(SIZE).tobytes()}
    said = told | change
    nonsense = PlainUpdate.unsigned(said["mask"], 0, server.head, said["values"])
    with pytest.raises(error):
        server.receive("a", nonsense)
    assert server.buffer.waiting == []


def test_without_protection_a_ticket_is_for_its_own_numbers():
    server, _ = plain_server(constant())
    values = np.zeros(SIZE).tobytes()
    true = PlainUpdate.unsigned(MaskName("a", bytes(16)), 0, server.head, values)
    with pytest.raises(Malformed, match="other bytes"):
        server.receive("a", replace(true, values=np.ones(SIZE).tobytes()))
    server.receive("a", true)
    assert len(server.buffer.waiting) == 1


def test_the_clock_of_an_opening(certified):
    """Silent holders are asked again when their time is over, and each stage has a time of its own."""
    server = certified.server
    assert server.tick(0.0, 5.0) == []
    for name in USERS[:3]:
        submit(certified, name)
    while not server.is_opening:
        letter = certified.network.in_flight.popleft()
        certified.network.deliver(letter.to, [letter])
    certified.network.in_flight.clear()
    assert server.tick(10.0, 5.0) == []  # the opening begins for the clock with its first look
    assert server.tick(15.0, 5.0) == []
    asked = server.tick(16.0, 5.0)
    assert {type(effect.message) for effect in asked} == {RecoveryRequest}
    assert server.tick(21.0, 5.0) == []
    certified.network.perform(AT_SERVER, asked)
    while server.opening.stage()[1] is False:
        letter = certified.network.in_flight.popleft()
        certified.network.deliver(letter.to, [letter])
    assert server.tick(22.0, 5.0) == []  # certified: the answers have the whole time before them
    certified.network.run()
    assert (server.version, server.tick(99.0, 5.0)) == (1, [])


def test_without_protection_a_masked_update_is_refused():
    server, _ = plain_server(polynomial(1.0))
    masked = Upload(Ticket(bytes(32), MaskName("a", bytes(16)), 0, bytes(32), bytes(32)), bytes(8))
    with pytest.raises(Malformed, match="in clear"):
        server.receive("a", masked)


def test_without_protection_what_is_over_is_remembered_until_it_would_be_too_old():
    name, store = MaskName("a", bytes(16)), MemoryStore()
    opening = PlainOpening(SIZE, Weighing(2, polynomial(1.0), "field"), store, "<f8")
    assert opening.last_verdict(name) is None
    for how, verdict in (("open", "opened"), ("refuse", "refused"), ("burn", "burned")):
        store.commit(writes_of(opening.end(5, [name], how)))
        restarted = PlainOpening(SIZE, opening._weighing, store, "<f8")
        assert restarted.last_verdict(name) == verdict
    assert opening.expire(7) == []
    assert opening.last_verdict(name) == "burned"
    assert opening.expire(8) == [Forget("ended", name.key)]
    assert opening.last_verdict(name) is None
