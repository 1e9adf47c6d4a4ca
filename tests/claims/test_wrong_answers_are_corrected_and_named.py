"""A sum opens when U + T answers agree: wrong ones are corrected and named, or the buffer burns."""

import msgspec
import numpy as np
import pytest
from parties import (
    USERS,
    abandoned,
    deal,
    exact_sum,
    holder_at,
    make_federation,
    nothing_changes,
    one_hop,
    one_round,
    released,
    server_refuses,
    submit,
)

from basecagg.errors import BadSignature, Malformed, NotEnrolled
from basecagg.maths.mds_code import MaskCode
from basecagg.protocol.effects import Abandoned, MaskEnded
from basecagg.protocol.messages import Answer, signed
from reproduction.bench import AT_SERVER, Letter

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])


def lie(federation, liars, columns=slice(None)):
    """From now on these holders answer with wrong numbers under a true signature."""
    p, network = federation.agreement.parameters, federation.network
    deliver = network.post

    def post(letter):
        answer = letter.message
        if isinstance(answer, Answer) and letter.sender in liars:
            words = np.frombuffer(answer.words, "<u4").copy()
            words[columns] = (words[columns].astype(object) + 12345) % p.modulus
            changed = Answer(
                answer.epoch, answer.version, answer.digest, answer.holder, words.tobytes()
            )
            letter = Letter(
                letter.sender, letter.to, signed(changed, federation.identity(letter.sender))
            )
        deliver(letter)

    network.post = post


@MODES
@pytest.mark.parametrize("liar", range(7))
def test_one_liar_among_seven(consistency, liar):
    federation = make_federation(consistency=consistency, correctness="agreed")
    lie(federation, [USERS[liar]])
    submitted = one_round(federation)
    federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)
    assert set(news.inconsistent_holders) == {liar} & set(
        range(5)
    )  # the sixth and seventh came too late


def test_it_is_named():
    federation = make_federation(correctness="agreed")
    lie(federation, ["user-4"])
    one_round(federation)
    (news,) = released(federation)
    assert news.inconsistent_holders == (4,)


@pytest.mark.parametrize("column", [0, 7, -1])
def test_a_lie_in_one_number_only(column):
    """Whether or not it touches the pad."""
    federation = make_federation(correctness="agreed")
    lie(federation, ["user-2"], columns=column)
    submitted = one_round(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)
    assert news.inconsistent_holders == (2,)


def test_with_a_liar_and_a_holder_gone():
    """N − D ≥ U + T + E: six answers, one of them wrong."""
    federation = make_federation(liars=1, max_dropouts=1)
    submitted = [submit(federation, name) for name in USERS[:3]]
    federation.stop(holder_at("user-6"))
    lie(federation, ["user-1"])
    federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)
    assert news.inconsistent_holders == (1,)


@MODES
def test_more_liars_than_can_be_corrected_burn_the_buffer(consistency):
    federation = make_federation(consistency=consistency, correctness="agreed")
    model = federation.server.model.copy()
    lie(federation, ["user-0", "user-3"])
    one_round(federation)
    news = federation.take_news()
    assert [each.version for each in news if isinstance(each, Abandoned)] == [0]
    told = {each.mask.contributor for each in news if isinstance(each, MaskEnded)}
    assert told == set(USERS[:3])
    assert federation.server.version == 0
    assert (federation.server.model == model).all()


def test_training_goes_on_afterwards():
    federation = make_federation(correctness="agreed")
    lie(federation, ["user-0", "user-3"])
    one_round(federation)
    federation.network.post = type(federation.network).post.__get__(federation.network)
    federation.take_news()
    submitted = one_round(federation, USERS[2:5])
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


@MODES
def test_a_bad_dealer_burns_the_buffer(monkeypatch, consistency):
    """Shares that lie on no code word: honest holders look wrong, nobody can be blamed, the model stays."""
    federation = make_federation(consistency=consistency, correctness="agreed")
    encode = MaskCode.encode

    def inconsistent(self, mask, noise):
        shares = encode(self, mask, noise).copy()
        shares[:3, 0] = (
            shares[:3, 0].astype(np.uint64) + 77
        ) % federation.agreement.parameters.modulus
        return shares

    with monkeypatch.context() as patched:
        patched.setattr(MaskCode, "encode", inconsistent)
        bad = submit(federation, USERS[0])
    one_round(federation, USERS[1:3])
    assert bad.ticket.mask.contributor == USERS[0]
    (news,) = abandoned(federation)
    assert news.version == federation.server.version == 0
    assert not federation.server.model.any()
    one_round(federation, USERS[3:6])
    assert federation.server.version == 1


def test_a_mask_that_is_not_the_one_that_was_dealt_burns_the_buffer():
    """The upload hides Δ under another mask: the pad of the sum is not zero."""
    federation = make_federation()
    contributor = federation.contributor("mallory")
    federation.deal("mallory")
    federation.network.run()
    contributor._masks[contributor.ready[0].key].seed = bytes(32)
    federation.submit("mallory", np.ones(50), 0, federation.server.head)
    one_round(federation, USERS[:2])
    (news,) = abandoned(federation)
    assert "pad" in news.reason
    assert not federation.server.model.any()
    assert federation.contributor("user-0").states() == {}


# --- what is no answer at all -----------------------------------------------------------------


@pytest.fixture
def opening():
    """A federation that waits for answers, and one of them, caught on its way."""
    federation = make_federation(consistency="honest-server")
    deal(federation, *USERS[:3])
    for name in USERS[:3]:
        submit(federation, name)
    one_hop(federation)
    caught = [each for each in one_hop(federation) if isinstance(each.message, Answer)]
    assert len(caught) == 7
    return federation, caught[2].message


def changed(federation, answer, signer="user-2", **fields):
    return signed(msgspec.structs.replace(answer, **fields), federation.identity(signer))


@pytest.mark.parametrize("change", ["empty", "short", "long", "odd"])
def test_of_the_wrong_length(opening, change):
    federation, answer = opening
    words = {
        "empty": b"",
        "short": answer.words[4:],
        "long": answer.words + bytes(4),
        "odd": answer.words + b"\0",
    }
    wrong = changed(federation, answer, words=words[change])
    server_refuses(federation, "user-2", wrong, Malformed)


def test_with_a_word_that_is_not_below_q(opening):
    federation, answer = opening
    for word in (2**32 - 5, 2**32 - 1):
        words = word.to_bytes(4, "little") + answer.words[4:]
        server_refuses(federation, "user-2", changed(federation, answer, words=words), Malformed)


def test_in_the_name_of_another_holder(opening):
    federation, answer = opening
    server_refuses(federation, "user-3", answer, NotEnrolled)
    server_refuses(federation, "mallory", answer, NotEnrolled)
    forged = changed(federation, answer, holder=3)
    server_refuses(federation, "user-3", forged, BadSignature)


def test_unsigned_or_changed_on_its_way(opening):
    federation, answer = opening
    for fields in ({"signature": b""}, {"words": bytes(len(answer.words))}):
        forged = msgspec.structs.replace(answer, **fields)
        server_refuses(federation, "user-2", forged, BadSignature)


def test_twice_and_differently(opening):
    federation, answer = opening
    federation.server.receive("user-2", answer)
    assert federation.server.receive("user-2", answer) == []
    other = changed(federation, answer, words=bytes(len(answer.words)))
    server_refuses(federation, "user-2", other, Malformed)


def test_about_something_else_is_passed_over(opening):
    federation, answer = opening
    late = changed(federation, answer, digest=bytes(32))
    with nothing_changes(federation, AT_SERVER):
        assert federation.server.receive("user-2", late) == []


# --- the same with the protection removed -----------------------------------------------------


def test_control_without_correction_a_lie_changes_the_model(monkeypatch):
    """Decoding from the first U answers alone believes whoever comes first."""
    monkeypatch.setattr(MaskCode, "correct", lambda self, shares, _: (self.decode(shares), ()))
    federation = make_federation(correctness="agreed")
    lie(federation, ["user-0"], columns=0)
    submitted = one_round(federation)
    news = released(federation)
    assert not news or not exact_sum(news[0], submitted, federation.agreement.parameters)
