"""A share is what its dealer sealed for this holder under this name in this epoch; nothing else is kept."""

import msgspec
import numpy as np
import pytest
from parties import (
    USERS,
    all_refuse,
    answers,
    ask,
    certify,
    deal,
    holder_at,
    intercept,
    make_federation,
    one_round,
    refuse,
    request_for,
    reveals,
    unmasked_sum,
    weigh,
)

from basecagg.channels.identity import enrol
from basecagg.channels.sealing import make_sealer
from basecagg.channels.unprotected import NoVerifier
from basecagg.errors import (
    BadSignature,
    KnownMask,
    Malformed,
    MaskExpired,
    NotEnrolled,
    QuotaExceeded,
    Retired,
    WrongEpoch,
    WrongRecipient,
    WrongVersion,
)
from basecagg.protocol import holder, merkle
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import (
    Closing,
    Dealing,
    MaskName,
    Parcel,
    Receipt,
    sealing_context,
    signed,
)
from basecagg.storage.in_memory import MemoryStore

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])


def parcels_of(federation, name="ann"):
    """The true parcels of a dealing, on their way, caught by the cheating server."""
    federation.deal(name)
    shipment = federation.network.in_flight.pop()
    federation.network.deliver(shipment.to, [shipment])
    letters = [letter.message for letter in federation.network.in_flight]
    federation.network.in_flight.clear()
    caught = [message for message in letters if isinstance(message, Parcel)]
    assert [parcel.holder for parcel in caught] == list(range(7))
    return caught


def dealt(federation, share, *, dealer="mallory", expires=5, credential=None, index=0, seal=None):
    """A parcel that a malicious dealer makes: everything is true but what is sealed."""
    agreement, identity = federation.agreement, federation.identity(dealer)
    mask = MaskName(dealer, np.random.default_rng().bytes(16), expires)
    context = seal or sealing_context(agreement.id, (mask,), index)
    sealer = make_sealer(agreement.epoch.suite)
    keys = [each.sealing_key for each in agreement.epoch.holders]
    locks = sealer.locks(keys, [context] * len(keys))
    envelopes = [sealer.seal(lock, context, share) for lock in locks]
    levels = merkle.tree([merkle.leaf(i, envelope) for i, envelope in enumerate(envelopes)])
    credential = credential or enrol(
        federation.identity("enrolment"), agreement.id, dealer, identity.public_key
    )
    root = merkle.root_of(levels[0], merkle.sender_of(envelopes[0], agreement.epoch.suite))
    dealing = Dealing(agreement.id, (mask,), root, credential)
    proof = merkle.proof(levels, index, root)
    return Parcel(signed(dealing, identity), index, proof, envelopes[index])


def share_of(federation, fill=1):
    return np.full(federation.agreement.parameters.share_size, fill, "<u4").tobytes()


@pytest.fixture
def federation():
    return make_federation()


def test_a_good_one_is_kept_and_confirmed(federation):
    """The negative of every test below."""
    (receipt,) = ask(federation, "user-0", dealt(federation, share_of(federation)))
    assert isinstance(receipt, Receipt)
    for parcel, name in zip(parcels_of(federation), USERS, strict=True):
        (receipt,) = ask(federation, name, parcel)
        assert receipt.masks == parcel.dealing.masks


# --- the server forges ------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["masks", "root"])
def test_a_dealing_that_was_changed(federation, field):
    parcel = parcels_of(federation)[0]
    change = {"masks": (MaskName("ann", bytes(16), 7),), "root": bytes(32)}[field]
    forged = msgspec.structs.replace(parcel.dealing, **{field: change})
    error = WrongRecipient if field == "root" else BadSignature
    refuse(federation, "user-0", msgspec.structs.replace(parcel, dealing=forged), error)


def test_a_dealing_signed_by_the_server(federation):
    parcel = parcels_of(federation)[0]
    forged = signed(parcel.dealing, federation.identity("server"))
    refuse(federation, "user-0", msgspec.structs.replace(parcel, dealing=forged), BadSignature)


def sealed_by_the_server(federation, parcel):
    """A share of the server's choice, in an envelope that opens at the holder."""
    sealer, to = make_sealer("x25519"), federation.agreement.epoch.holders[0].sealing_key
    context = sealing_context(federation.agreement.id, parcel.dealing.masks, 0)
    (lock,) = sealer.locks([to], [context])
    return sealer.seal(lock, context, share_of(federation))


def test_an_envelope_that_the_server_sealed_itself(federation):
    """With it in all places the server would know this mask's shares, and open the sum of the others."""
    parcel = parcels_of(federation)[0]
    sealed = sealed_by_the_server(federation, parcel)
    refuse(federation, "user-0", msgspec.structs.replace(parcel, sealed=sealed), WrongRecipient)
    under_her_key = parcel.sealed[:32] + sealed[32:]
    forged = msgspec.structs.replace(parcel, sealed=under_her_key)
    refuse(federation, "user-0", forged, WrongRecipient)


def test_control_where_the_senders_key_is_not_signed_it_would_be_taken(federation, monkeypatch):
    monkeypatch.setattr(merkle, "_bound", lambda sender, top: top)
    parcel = parcels_of(federation)[0]
    (dealing, sealed) = parcel.dealing, sealed_by_the_server(federation, parcel)
    top = Parcel(dealing, 0, (dealing.root,), sealed)
    (receipt,) = ask(federation, "user-0", top)
    assert isinstance(receipt, Receipt)


def test_a_dealer_whom_nobody_enrolled(federation):
    """The server makes up a user and signs its credential itself."""
    sybil, agreement = federation.identity("sybil"), federation.agreement
    credential = enrol(federation.identity("server"), agreement.id, "sybil", sybil.public_key)
    parcel = dealt(federation, share_of(federation), dealer="sybil", credential=credential)
    refuse(federation, "user-0", parcel, NotEnrolled)


def test_a_dealer_with_the_credential_of_somebody_else(federation):
    true = enrol(
        federation.identity("enrolment"),
        federation.agreement.id,
        "ann",
        federation.identity("ann").public_key,
    )
    parcel = dealt(federation, share_of(federation), dealer="mallory", credential=true)
    refuse(federation, "user-0", parcel, NotEnrolled)


def test_a_credential_for_another_epoch(federation):
    other, mallory = make_federation(), federation.identity("mallory")
    old = enrol(federation.identity("enrolment"), other.agreement.id, "mallory", mallory.public_key)
    refuse(
        federation,
        "user-0",
        dealt(federation, share_of(federation), credential=old),
        NotEnrolled,
    )


def test_delivered_to_the_wrong_holder(federation):
    parcels = parcels_of(federation)
    for index, name in enumerate(USERS):
        wrong = parcels[(index + 1) % 7]
        refuse(federation, name, wrong, WrongRecipient)
        refuse(federation, name, msgspec.structs.replace(wrong, holder=index), WrongRecipient)


def test_sealed_shares_in_another_order(federation):
    """The path proves which share is whose."""
    parcels = parcels_of(federation)
    for index, name in enumerate(USERS):
        other = parcels[(index + 3) % 7].sealed
        swapped = msgspec.structs.replace(parcels[index], sealed=other)
        refuse(federation, name, swapped, WrongRecipient)


def test_of_another_mask_of_the_same_dealer(federation):
    first, second = parcels_of(federation), parcels_of(federation)
    for index, name in enumerate(USERS):
        swapped = msgspec.structs.replace(first[index], sealed=second[index].sealed)
        refuse(federation, name, swapped, WrongRecipient)
        swapped = msgspec.structs.replace(swapped, path=second[index].path)
        refuse(federation, name, swapped, WrongRecipient)


@pytest.mark.parametrize("suite", ["x25519", "mlkem768-x25519"])
@pytest.mark.parametrize("damage", ["shorter", "longer", "none", "flipped", "changed"])
def test_a_path_that_was_damaged(suite, damage):
    """With X25519 it is only the top of the tree."""
    federation = make_federation(suite=suite)
    parcel = parcels_of(federation)[2]
    assert (len(parcel.path) == 1) == (suite == "x25519")
    path = {
        "shorter": parcel.path[:-1],
        "longer": (*parcel.path, bytes(32)),
        "none": (),
        "flipped": parcel.path[::-1] if len(parcel.path) > 1 else (parcel.path[0][::-1],),
        "changed": (bytes(32), *parcel.path[1:]),
    }[damage]
    damaged = msgspec.structs.replace(parcel, path=path)
    refuse(federation, "user-2", damaged, WrongRecipient)


def test_of_another_epoch(federation):
    parcels = parcels_of(make_federation())
    for name, parcel in zip(USERS, parcels, strict=True):
        refuse(federation, name, parcel, WrongEpoch)


# --- a malicious dealer -----------------------------------------------------------------------


@pytest.mark.parametrize("change", ["empty", "short", "long", "odd"])
def test_of_the_wrong_length(federation, change):
    share = share_of(federation)
    content = {"empty": b"", "short": share[:-4], "long": share + bytes(4), "odd": share[:-1]}
    refuse(federation, "user-0", dealt(federation, content[change]), Malformed)


@pytest.mark.parametrize("word", [2**32 - 5, 2**32 - 1])
def test_with_a_word_that_is_not_below_q(federation, word):
    refuse(federation, "user-0", dealt(federation, share_of(federation, word)), Malformed)


def test_sealed_for_another_context(federation):
    other = sealing_context(federation.agreement.id, (MaskName("mallory", bytes(16)),), 0)
    refuse(
        federation, "user-0", dealt(federation, share_of(federation), seal=other), WrongRecipient
    )


def test_sealed_bytes_that_are_no_envelope(federation, monkeypatch):
    class Scribble:
        def locks(self, recipient_keys, contexts):
            return [None] * len(recipient_keys)

        def seal(self, lock, context, plaintext):
            return b"x"

    monkeypatch.setattr(
        "test_a_holder_refuses_a_forged_or_misdelivered_share.make_sealer", lambda suite: Scribble()
    )
    refuse(federation, "user-0", dealt(federation, b""), WrongRecipient)


def test_that_expired(federation):
    for turn in range(2):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    late = dealt(federation, share_of(federation), expires=0)
    refuse(federation, "user-0", late, MaskExpired)


def farthest(federation, name="user-0"):
    """The last version that this holder believes in, for a mask dealt now."""
    lifetime = federation.agreement.parameters.mask_lifetime
    return federation.holder(name).version + lifetime + 10_000


@pytest.mark.parametrize("beyond", [1, 2**60])
def test_that_would_be_remembered_for_ever(federation, beyond):
    """Server and dealer work together: a name that is over stays until its mask expires."""
    one_round(federation)
    parcel = dealt(federation, share_of(federation), expires=farthest(federation) + beyond)
    refuse(federation, "user-0", parcel, WrongVersion)


def test_dealt_while_the_holder_was_away(federation):
    """It is many versions behind, and takes what is dealt at the present one."""
    parcel = dealt(federation, share_of(federation), expires=farthest(federation))
    (receipt,) = ask(federation, "user-0", parcel)
    assert isinstance(receipt, Receipt)


def test_control_without_the_bound_a_name_is_kept_for_ever(federation, monkeypatch):
    monkeypatch.setattr(holder, "MAX_LAG", 2**62)
    parcel = dealt(federation, share_of(federation), expires=2**60)
    ask(federation, "user-0", parcel)
    over = signed(
        Closing(federation.agreement.id, 0, parcel.dealing.masks, "burned"),
        federation.identity("server"),
    )
    ask(federation, "user-0", over)
    one_round(federation)
    assert federation.holder("user-0").states()[parcel.dealing.masks[0].key] == "closed"


def test_more_than_a_dealer_may_have(federation):
    for _ in range(100):
        replies = ask(federation, "user-0", dealt(federation, share_of(federation)))
        if not isinstance(replies[0], Receipt):
            break
    refuse(federation, "user-0", dealt(federation, share_of(federation)), QuotaExceeded)
    other = dealt(federation, share_of(federation), dealer="ann")
    assert isinstance(ask(federation, "user-0", other)[0], Receipt)


def test_another_share_under_a_known_name(federation):
    """Also by the true dealer: a name is used once."""
    parcel = parcels_of(federation)[0]
    ask(federation, "user-0", parcel)
    sealer, to = make_sealer("x25519"), federation.agreement.epoch.holders[0].sealing_key
    context = sealing_context(federation.agreement.id, parcel.dealing.masks, 0)
    (lock,) = sealer.locks([to], [context])
    sealed = sealer.seal(lock, context, share_of(federation))
    root = merkle.root_by(parcel.path, 0, 7, sealed, "x25519")
    dealing = signed(msgspec.structs.replace(parcel.dealing, root=root), federation.identity("ann"))
    again = Parcel(dealing, 0, parcel.path, sealed)
    refuse(federation, "user-0", again, KnownMask)


# --- replayed after deletion ------------------------------------------------------------------


@MODES
def test_replayed_after_it_was_spent(consistency):
    federation = make_federation(consistency=consistency)
    caught = _deal_and_catch(federation)
    members = [intercept(federation, name) for name in USERS[:3]]
    request = request_for(federation, members)
    question = certify(federation, request) if consistency == "certified" else request
    assert len(answers(federation, question)) == 7
    _all_parcels_are_refused(federation, caught, KnownMask)
    for name in USERS:  # nor after a restart
        federation.start(holder_at(name))
    _all_parcels_are_refused(federation, caught, KnownMask)


@MODES
def test_replayed_after_it_was_closed(consistency):
    federation = make_federation(consistency=consistency)
    caught = _deal_and_catch(federation)
    masks = tuple({parcel.dealing.masks[0] for parcel in caught})
    closing = signed(
        Closing(federation.agreement.id, 0, masks, "burned"), federation.identity("server")
    )
    for name in USERS:
        assert ask(federation, name, closing) == []
    _all_parcels_are_refused(federation, caught, KnownMask)


@MODES
def test_replayed_after_it_was_opened_and_expired(consistency):
    federation = make_federation(consistency=consistency, max_staleness=1, mask_lifetime=2)
    caught = _deal_and_catch(federation)
    for turn in range(4):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    known = {key for name in USERS for key in federation.holder(name).states()}
    assert not known & {mask.key for parcel in caught for mask in parcel.dealing.masks}
    _all_parcels_are_refused(federation, caught, MaskExpired)


def test_replayed_to_a_holder_that_restarted_from_an_old_copy(federation):
    caught = _deal_and_catch(federation)
    copy = MemoryStore(federation.network.nodes[holder_at("user-0")].store.snapshot())
    copy.rolled_back = True
    federation.start(holder_at("user-0"), copy)
    _all_parcels_are_refused(federation, [p for p in caught if p.holder == 0], Retired)


def _deal_and_catch(federation):
    seen = []
    federation.network.observers.append(lambda letter: seen.append(letter.message))
    deal(federation, *USERS[:3])
    federation.network.observers.clear()
    return [message for message in seen if isinstance(message, Parcel)]


def _all_parcels_are_refused(federation, parcels, error):
    for parcel in parcels:
        refuse(federation, USERS[parcel.holder], parcel, error)


# --- what a refusal must not do ---------------------------------------------------------------


def test_a_closing_that_the_server_did_not_sign(federation):
    deal(federation, "ann")
    (mask,) = federation.contributor("ann").ready
    forged = Closing(federation.agreement.id, 0, (mask,), "burned")
    all_refuse(federation, forged, BadSignature)
    all_refuse(federation, signed(forged, federation.identity("ann")), BadSignature)


def test_messages_that_are_not_for_a_holder(federation):
    mask = intercept(federation, "ann").ticket.mask
    receipt = Receipt(federation.agreement.id, 1, (mask,))
    all_refuse(federation, signed(receipt, federation.identity("user-1")), Malformed)


# --- the same with the rule removed -----------------------------------------------------------


def test_control_without_tombstones_a_replayed_share_opens_twice(monkeypatch):
    """A holder that forgets names answers for one mask twice, and the server has the victim's update."""

    def forget(self, request):
        names = [mask.key for mask in request.masks]
        for key in names:
            self._held.pop(key, None)
        return []

    monkeypatch.setattr(Holder, "_advance", forget)
    federation = make_federation(consistency="honest-server")
    caught = _deal_and_catch(federation)
    victim, friend, pal = (intercept(federation, name) for name in USERS[:3])
    request = request_for(federation, [victim, friend, pal])
    answers(federation, request)
    for parcel in caught:
        if parcel.dealing.masks[0] == victim.ticket.mask:
            ask(federation, USERS[parcel.holder], parcel)
    others = [intercept(federation, name) for name in ("friend", "pal")]
    again = request_for(federation, [victim, *others], 1)
    total = unmasked_sum(federation, again, [victim, *others], answers(federation, again))
    known = sum(weigh(federation, each.ticket, 1) * each.quantized for each in others)
    assert reveals(federation, total - known, weigh(federation, victim.ticket, 1), victim)


def test_control_a_verifier_that_believes_everything_keeps_a_sybils_share(federation):
    sybil = federation.identity("sybil")
    credential = enrol(sybil, federation.agreement.id, "sybil", sybil.public_key)
    parcel = dealt(federation, share_of(federation), dealer="sybil", credential=credential)
    refuse(federation, "user-0", parcel, NotEnrolled)
    federation.agreement.verifier = NoVerifier()
    assert isinstance(ask(federation, "user-0", parcel)[0], Receipt)
