"""SecAgg and SecAgg+: exact within their bounds, silent beyond them, and never two shares of one user."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import msgspec
import numpy as np
import oracle_secagg as oracle
import pytest

from basecagg.baselines.secagg import (
    Delivery,
    MaskedInput,
    Roster,
    SecAggParameters,
    Unmasking,
    UnmaskRequest,
    add_masks,
    mask_purpose,
)
from basecagg.baselines.secagg_graph import random_regular
from basecagg.baselines.secagg_server import RoundFailed, SumOpened
from basecagg.baselines.shamir import SHARE_BYTES, SecretSharing
from basecagg.channels.key_agreement import AgreementKey
from basecagg.errors import (
    DataError,
    LocalProtocolError,
    Malformed,
    MaskTaken,
    ParameterError,
    WrongMembers,
    WrongRecipient,
)
from basecagg.maths.randomness import Words
from basecagg.simulation.secagg_round import PHASES, Phase, SecAggRound, reply_of

Q = 2**32 - 5
D = 40


def inputs_of(users: int, size: int = D) -> dict[int, Words]:
    generator = np.random.default_rng(users)
    return {u: generator.integers(0, Q, size, dtype=np.uint32) for u in range(users)}


def plain_sum(inputs: Mapping[int, Words], users: tuple[int, ...]) -> list[int]:
    return oracle.plain_sum([inputs[user].tolist() for user in users])


def parameters(users: int, threshold: int, degree: int = 0, size: int = D) -> SecAggParameters:
    graph = random_regular(users, degree) if degree else ()
    return SecAggParameters(num_holders=users, threshold=threshold, vector_size=size, graph=graph)


# --- exact within the bound ---------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_every_dropout_pattern_up_to_the_bound_gives_the_plain_sum(
    phase: Phase, count: int
) -> None:
    """N = 5, t = 3: all sets of at most 2 users, gone before each phase."""
    inputs = inputs_of(5)
    for gone in combinations(range(5), count):
        outcome = SecAggRound(parameters(5, 3)).run(inputs, {phase: set(gone)})
        assert isinstance(outcome, SumOpened)
        heard = tuple(sorted(set(inputs) - set(gone))) if phase != "unmasking" else tuple(range(5))
        assert outcome.survivors == heard
        assert outcome.total.tolist() == plain_sum(inputs, heard)


def test_users_may_drop_out_in_every_phase_of_one_round() -> None:
    inputs = inputs_of(10)
    gone: dict[Phase, set[int]] = {"keys": {0}, "shares": {3}, "inputs": {5, 9}, "unmasking": {6}}
    outcome = SecAggRound(parameters(10, 5)).run(inputs, gone)
    assert isinstance(outcome, SumOpened)
    assert outcome.survivors == (1, 2, 4, 6, 7, 8)
    assert outcome.total.tolist() == plain_sum(inputs, outcome.survivors)


@pytest.mark.parametrize("seed", range(6))
def test_secagg_plus_gives_the_plain_sum_on_a_sparse_graph(seed: int) -> None:
    """k = 8, t = 4: any 5 of the 9 shares of each secret may be lost."""
    inputs = inputs_of(24)
    gone = set(np.random.default_rng(seed).choice(24, 4, replace=False).tolist())
    late = {int(max(set(range(24)) - gone))}
    outcome = SecAggRound(parameters(24, 4, degree=8)).run(
        inputs, {"inputs": gone, "unmasking": late}
    )
    assert isinstance(outcome, SumOpened)
    assert outcome.survivors == tuple(sorted(set(inputs) - gone))
    assert outcome.total.tolist() == plain_sum(inputs, outcome.survivors)


def test_a_vector_longer_than_one_piece_is_exact() -> None:
    inputs = inputs_of(3, size=(1 << 15) + 7)
    outcome = SecAggRound(parameters(3, 2, size=(1 << 15) + 7)).run(inputs, {"inputs": {1}})
    assert isinstance(outcome, SumOpened)
    assert outcome.total.tolist() == plain_sum(inputs, (0, 2))


# --- against the oracle -------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [0, 4])
def test_every_masked_input_is_what_the_oracle_says(degree: int) -> None:
    p, inputs = parameters(6, 3, degree=degree), inputs_of(6)
    secrets = {u: [bytes([u, n]) * 16 for n in range(4)] for u in range(6)}
    round_ = SecAggRound(p, entropy=lambda user: lambda count: secrets[user].pop(0))
    keys = {u: bytes([u, 0]) * 16 for u in range(6)}
    sent: dict[int, MaskedInput] = {}
    receive = round_.server.receive

    def spy(message: object) -> None:
        if isinstance(message, MaskedInput):
            sent[message.user] = message
        receive(message)  # type: ignore[arg-type]

    round_.server.receive = spy  # type: ignore[method-assign]
    outcome = round_.run(inputs, {"inputs": {4}})
    for user, message in sent.items():
        wanted = oracle.masked_input(
            user, inputs[user].tolist(), bytes([user, 2]) * 16, keys, p.graph[user], message.round
        )
        assert np.frombuffer(message.words, "<u4").tolist() == wanted
    assert isinstance(outcome, SumOpened)
    assert outcome.total.tolist() == plain_sum(inputs, (0, 1, 2, 3, 5))


# --- silent beyond the bound --------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_one_dropout_too_many_ends_the_round_with_nothing_opened(phase: Phase) -> None:
    for gone in combinations(range(5), 3):
        round_ = SecAggRound(parameters(5, 3))
        outcome = round_.run(inputs_of(5), {phase: set(gone)})
        assert isinstance(outcome, RoundFailed)
        assert "t = 3" in outcome.reason
        assert round_.server.phase == "failed"
        with pytest.raises(LocalProtocolError):
            round_.server.advance()


def test_a_round_that_fails_before_unmasking_reveals_no_share() -> None:
    for phase in PHASES[:3]:
        round_ = SecAggRound(parameters(5, 3))
        round_.run(inputs_of(5), {phase: {0, 1, 2}})
        assert not any(client.state == "revealed" for client in round_.clients.values())


def test_secagg_plus_fails_cleanly_when_a_neighbourhood_empties() -> None:
    p = parameters(20, 4, degree=4)
    gone = set(p.graph[0][:3])
    outcome = SecAggRound(p).run(inputs_of(20), {"inputs": gone})
    assert isinstance(outcome, RoundFailed)


def test_t_minus_1_shares_and_the_upload_do_not_give_the_input() -> None:
    """What a server with t − 1 answers can compute is still masked; with t it opens (the control)."""
    inputs = inputs_of(5)
    assert isinstance(
        SecAggRound(parameters(5, 3)).run(inputs, {"unmasking": {0, 1, 2}}), RoundFailed
    )
    assert isinstance(SecAggRound(parameters(5, 3)).run(inputs, {"unmasking": {0, 1}}), SumOpened)


def test_no_upload_tells_its_input() -> None:
    round_, p = masked_round()
    same = np.zeros(D, np.uint32)
    first = round_.clients[0].mask(round_.mail[0], same)
    words = np.frombuffer(first.words, "<u4")
    assert np.count_nonzero(words) > D - 3
    assert p.vector_size == words.size


# --- never both shares --------------------------------------------------------------------------


class Paused(SecAggRound):
    """A round that stops when the deliveries, or later the unmask requests, are on their way."""

    mail: dict[int, Delivery]


def masked_round(users: int = 5, threshold: int = 3) -> tuple[Paused, SecAggParameters]:
    """Everyone has shared; the deliveries wait in `mail`."""
    p = parameters(users, threshold)
    round_ = Paused(p)
    mail: Mapping[int, object] = dict.fromkeys(round_.clients)
    for _ in range(2):
        for user, message in mail.items():
            round_.server.receive(reply_of(round_.clients[user], message, None))  # type: ignore[arg-type]
        outcome = round_.server.advance()
        assert isinstance(outcome, dict)
        mail = outcome
    round_.mail = dict(mail)  # type: ignore[arg-type]
    return round_, p


def survivor(users: int = 5, threshold: int = 3) -> Paused:
    round_, _ = masked_round(users, threshold)
    for user, client in round_.clients.items():
        round_.server.receive(client.mask(round_.mail[user], np.zeros(D, np.uint32)))
    return round_


def test_a_user_never_reveals_both_shares_of_one_peer() -> None:
    round_ = survivor()
    client, round_id = round_.clients[0], round_.mail[0].round
    alive = client.unmask(UnmaskRequest(round_id, (0, 1, 2, 3, 4)))
    assert {u for u, _ in alive.seed_shares} == {0, 1, 2, 3, 4}
    assert alive.key_shares == ()
    with pytest.raises(MaskTaken, match="both shares"):
        client.unmask(UnmaskRequest(round_id, (0, 1, 2, 3)))
    assert client.unmask(UnmaskRequest(round_id, (0, 1, 2, 3, 4))) == alive


def test_with_both_shares_a_server_would_read_one_input() -> None:
    """The attack that the rule prevents: three forgetful clients, and one input lies open."""
    round_, p = masked_round()
    secret = np.arange(D, dtype=np.uint32)
    uploads = {
        user: client.mask(round_.mail[user], secret) for user, client in round_.clients.items()
    }
    victim, seeds, keys = 4, dict[int, Words](), dict[int, Words]()
    for user in (0, 1, 2):
        client = round_.clients[user]
        held = dict(client._held)
        for survivors, kept in (((0, 1, 2, 3, 4), seeds), ((0, 1, 2, 3), keys)):
            client._held, client._answered, client.state = dict(held), None, "masked"
            answer = client.unmask(UnmaskRequest(uploads[user].round, survivors))
            shares = dict(answer.seed_shares + answer.key_shares)
            kept[user] = np.frombuffer(shares[victim], np.uint32)
    sharing = SecretSharing(p.num_holders, p.threshold)
    [private_seed], [key] = sharing.recover(seeds), sharing.recover(keys)
    peers = [round_.clients[user]._masking_key.public_key for user in range(4)]
    pairwise = [AgreementKey(key).agree(peer, mask_purpose(uploads[0].round)) for peer in peers]
    masked = np.frombuffer(uploads[victim].words, np.uint32)
    # Its number is the highest, so it subtracted every pairwise mask.
    assert add_masks(masked, pairwise, [private_seed]).tolist() == secret.tolist()


@pytest.mark.parametrize("survivors", [(), (0, 1), (1, 2, 3), (0, 1, 99), (0,)], ids=str)
def test_a_request_with_too_few_or_strange_survivors_is_refused(survivors: tuple[int, ...]) -> None:
    client = survivor().clients[0]
    with pytest.raises(WrongMembers):
        client.unmask(UnmaskRequest(client.round_id, survivors))
    assert client.state == "masked"
    assert isinstance(client.unmask(UnmaskRequest(client.round_id, (0, 1, 2))), Unmasking)


# --- what a user refuses ------------------------------------------------------------------------


def test_a_user_refuses_a_roster_that_is_too_small_strange_or_doubled() -> None:
    round_ = SecAggRound(parameters(6, 3, degree=4))
    for client in round_.clients.values():
        round_.server.receive(client.advertise())
    outcome = round_.server.advance()
    assert isinstance(outcome, dict)
    client, roster = round_.clients[0], outcome[0]
    assert isinstance(roster, Roster)
    first, second, *_ = roster.keys
    stranger = msgspec.structs.replace(first, user=99)
    twin = msgspec.structs.replace(second, masking_key=first.masking_key)
    for bad, error in (
        (roster.keys[:1], WrongMembers),
        ((*roster.keys, stranger), WrongMembers),
        ((first, twin), Malformed),
    ):
        with pytest.raises(error):
            client.share(Roster(roster.round, bad))
    with pytest.raises(Malformed):
        client.share(Roster(bytes(16), roster.keys))
    assert client.state == "advertised"
    client.share(roster)


def test_a_user_refuses_forged_exchanged_and_missing_envelopes() -> None:
    round_, _ = masked_round()
    client, delivery, values = round_.clients[0], round_.mail[0], np.zeros(D, np.uint32)
    (a, sealed_a), (b, sealed_b), *rest = delivery.envelopes
    flipped = sealed_a[:-1] + bytes([sealed_a[-1] ^ 1])
    for envelopes, error in (
        (((a, sealed_b), (b, sealed_a), *rest), WrongRecipient),
        (((a, flipped), (b, sealed_b), *rest), WrongRecipient),
        (((a, sealed_a),), WrongMembers),
    ):
        with pytest.raises(error):
            client.mask(Delivery(delivery.round, envelopes), values)
    other = round_.mail[1]
    with pytest.raises((WrongRecipient, WrongMembers)):
        client.mask(other, values)
    assert client.state == "shared"
    client.mask(delivery, values)
    with pytest.raises(LocalProtocolError):
        client.mask(delivery, values)


@pytest.mark.parametrize(
    "values",
    [np.zeros(D), np.zeros(D - 1, np.uint32), np.full(D, Q, np.uint32)],
    ids=["float", "short", "too large"],
)
def test_an_input_outside_the_field_is_refused(values: Words) -> None:
    round_, _ = masked_round()
    with pytest.raises(DataError):
        round_.clients[0].mask(round_.mail[0], values)


# --- what the server refuses --------------------------------------------------------------------


def test_the_server_refuses_late_doubled_and_malformed_messages() -> None:
    round_, _ = masked_round()
    good = round_.clients[0].mask(round_.mail[0], np.zeros(D, np.uint32))
    replace = msgspec.structs.replace
    for bad, error in (
        (replace(good, words=good.words[:-4]), Malformed),
        (replace(good, words=b"\xff" * 4 * D), Malformed),
        (replace(good, round=bytes(16)), Malformed),
        (replace(good, user=99), WrongMembers),
        (UnmaskRequest(good.round, ()), Malformed),
    ):
        with pytest.raises((error, AttributeError)):
            round_.server.receive(bad)
    round_.server.receive(good)
    with pytest.raises(Malformed, match="second"):
        round_.server.receive(good)


def test_the_server_refuses_shares_that_it_did_not_ask_for() -> None:
    round_ = survivor()
    outcome = round_.server.advance()
    assert isinstance(outcome, dict)
    request = outcome[0]
    assert isinstance(request, UnmaskRequest)
    good = round_.clients[0].unmask(request)
    short = tuple((u, share[:-4]) for u, share in good.seed_shares)
    large = tuple((u, b"\xff" * SHARE_BYTES) for u, _ in good.seed_shares)
    for shares in (good.seed_shares[1:], (*good.seed_shares, good.seed_shares[0]), short, large):
        with pytest.raises(Malformed):
            round_.server.receive(msgspec.structs.replace(good, seed_shares=shares))
    round_.server.receive(good)


def test_a_wrong_share_of_a_key_is_noticed_when_it_is_recovered() -> None:
    """The recovered key must be the one that was advertised."""
    round_, _ = masked_round()
    for user in range(4):
        round_.server.receive(round_.clients[user].mask(round_.mail[user], np.zeros(D, np.uint32)))
    outcome = round_.server.advance()
    assert isinstance(outcome, dict)
    for user, request in outcome.items():
        assert isinstance(request, UnmaskRequest)
        answer = round_.clients[user].unmask(request)
        if user == 0:
            wrong = tuple((u, bytes(SHARE_BYTES)) for u, _ in answer.key_shares)
            answer = msgspec.structs.replace(answer, key_shares=wrong)
        round_.server.receive(answer)
    assert isinstance(round_.server.advance(), RoundFailed)


# --- parameters and secrets ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "threshold", "size"), [(1, 2, 4), (5, 1, 4), (5, 6, 4), (5, 3, 0)]
)
def test_bad_parameters_name_their_rule(users: int, threshold: int, size: int) -> None:
    with pytest.raises(ParameterError):
        SecAggParameters(num_holders=users, threshold=threshold, vector_size=size)


def test_secrets_do_not_print() -> None:
    round_ = survivor()
    client = round_.clients[0]
    shown = repr(client) + repr(client._held) + repr(client._masking_key)
    assert client._private_seed.hex() not in shown
    assert "…" in repr(client.unmask(UnmaskRequest(client.round_id, (0, 1, 2, 3, 4))))
