"""Masks that grow from keys, through the real machines: what opens is Σ (x̄ + e), and nothing else changes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from parties import (
    USERS,
    abandoned,
    at,
    exact_sum,
    fresh_update,
    make_federation,
    one_round,
    parameters,
    released,
    submit,
)
from private import bounded, private
from scipy.stats import binom, chi2

from basecagg.errors import Malformed, ParameterError
from basecagg.maths.approved_rings import ERROR_REACH, KEY_SIZE
from basecagg.maths.key_masks import key_of, mask_of_sum
from basecagg.maths.packing import pack, unpack
from basecagg.maths.quantization import signed as with_sign
from basecagg.protocol import contributor as contributor_module
from basecagg.protocol import recomputation
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import Answer, signed
from lying import lie
from reproduction.bench import AT_SERVER, Address

MODES = ["certified", "honest-server"]


NARROW, WIDE = 16760833, 2**32 - 12287


def keyed(**changes):
    return make_federation(masks="keys", **changes)


@pytest.mark.parametrize("consistency", MODES)
@pytest.mark.parametrize("size", [1, 50, 2048, 2049])
def test_a_sum_is_that_of_the_updates_and_their_errors(consistency, size):
    federation = keyed(consistency=consistency, model_size=size)
    p, updates = federation.agreement.parameters, [fresh_update(size=size) for _ in range(3)]
    submitted = [submit(federation, *each) for each in zip(USERS[:3], updates, strict=True)]
    federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, p)
    rounded = 1 + ERROR_REACH
    assert np.abs(news.weighted_sum - sum(updates)).max() <= 3 * rounded / p.update_levels
    assert (p.modulus, p.share_size * p.submasks >= KEY_SIZE + 2) == (NARROW, True)


def test_a_share_is_as_long_as_the_key_asks_however_long_the_model_is():
    short, long = (parameters(masks="keys", model_size=size) for size in (10, 10**8))
    assert short.share_size == long.share_size == 684  # (2048 + 2) / 3
    assert long.padded_size == 10**8 + 3  # ((32·3 + 1)/q)³ < 2⁻⁴⁰


@pytest.mark.parametrize(
    ("sums", "modulus", "size"),
    [
        (60, NARROW, 50),
        (60, WIDE, 50),
        pytest.param(700, NARROW, 2500, marks=pytest.mark.soak),
        pytest.param(400, WIDE, 50, marks=pytest.mark.soak),
    ],
)
def test_hundreds_of_sums_with_liars_dropouts_and_restarts(sums, modulus, size):
    """U + T of the holders that stay are right. One lies in every third sum, one is away in every other.

    In every fifth sum contributors and server are built again from their stores while uploads are on their way.
    """
    federation = keyed(max_burns=0, modulus=modulus, model_size=size)
    p, dice = federation.agreement.parameters, np.random.default_rng(3)
    for turn in range(sums):
        liar = federation.holder("user-0") if turn % 3 == 0 else None
        if liar is not None:
            liar.__class__ = Lying
        if turn % 2:
            federation.stop(Address("holder", "user-5"))
        names = [USERS[index] for index in dice.permutation(len(USERS))[:3]]
        submitted = [submit(federation, name) for name in names]
        if turn % 5 == 4:
            for address in [*map(at, names), AT_SERVER]:
                federation.start(address)
        federation.network.run()
        while not (news := released(federation)):
            federation.network.perform(AT_SERVER, federation.server.deadline())
            federation.network.run()
        assert exact_sum(news[0], submitted, p), turn
        assert news[0].inconsistent_holders == ((0,) if liar is not None else ())
        if liar is not None:
            liar.__class__ = Holder
        if turn % 2:
            federation.start(Address("holder", "user-5"))
            federation.network.run()


class Lying(Holder):
    """One number of its answer is wrong."""

    def _answer(self, request, digest, certificate=None):
        effects = super()._answer(request, digest, certificate)
        for index, effect in enumerate(effects):
            message = getattr(effect, "message", None)
            if isinstance(message, Answer):
                q = self._parameters.field_size
                words = unpack(message.words, q).copy()
                words[7] = (int(words[7]) + 1) % q
                packed = pack(words, q).tobytes()
                forged = msgspec.structs.replace(message, words=packed, signature=b"")
                effects[index] = msgspec.structs.replace(
                    effect, message=signed(forged, self._signer)
                )
        return effects


# --- the errors -----------------------------------------------------------------------------------


def errors_of_sums(rounds: int, size: int) -> np.ndarray:
    """What opened sums have on top of updates of whole steps: Σ e, in steps."""
    federation = keyed(model_size=size, cryptography=False)
    levels, found = federation.agreement.parameters.update_levels, []
    for turn in range(rounds):
        for index, name in enumerate(USERS[:3]):
            submit(federation, name, np.full(size, (3 * turn + index) / levels))
        federation.network.run()
        (news,) = released(federation)
        found.append(news.weighted_sum * levels - 3 * (3 * turn + 1))
    return np.concatenate(found)


def fits(errors: np.ndarray, coins: int) -> float:
    """How likely so large a χ² is, if an error is the ones among so many coins, less half of them."""
    ones = (errors + coins // 2).astype(int)
    middle = np.arange(coins // 2 - 15, coins // 2 + 16)
    expected = binom.pmf(middle, coins, 0.5) * errors.size
    seen = np.array([(ones == count).sum() for count in middle])
    rest = errors.size - seen.sum(), errors.size - expected.sum()
    square = ((seen - expected) ** 2 / expected).sum() + (rest[0] - rest[1]) ** 2 / rest[1]
    return float(chi2.sf(square, len(middle)))


def test_errors_are_those_of_three_times_32_coins():
    assert fits(errors_of_sums(4, 10**4), 96) > 1e-6


def test_half_the_error_would_be_noticed(monkeypatch):
    real = contributor_module.mask_of

    def halved(seed, fresh, epoch, p):
        """Errors of 16 coins: the others are taken off again."""
        mask = real(seed, fresh, epoch, p)
        draw, known = mask._errors.draw, np.uint32(0xFFFF0000)

        def one_half(n, out=None):
            words = draw(n, out)
            words &= np.uint32(0x0000FFFF)
            words |= known & np.uint32(0x00FF0000)
            return words

        mask._errors.draw = one_half
        return mask

    monkeypatch.setattr(contributor_module, "mask_of", halved)
    assert fits(errors_of_sums(4, 10**4), 96) < 1e-9


def test_errors_of_one_seed_would_be_noticed(monkeypatch):
    """All members add the same errors: the sum has three times each, and no others."""
    real = contributor_module.mask_of
    monkeypatch.setattr(
        contributor_module, "mask_of", lambda seed, fresh, *rest: real(seed, bytes([1]) * 32, *rest)
    )
    errors = errors_of_sums(1, 10**4)
    assert not (errors % 3).any()
    assert fits(errors, 96) < 1e-9


def test_the_seed_of_the_errors_is_stored_nowhere(monkeypatch):
    drawn, real = [], contributor_module.mask_of

    def noting(seed, fresh, *rest):
        drawn.append(fresh)
        return real(seed, fresh, *rest)

    monkeypatch.setattr(contributor_module, "mask_of", noting)
    federation = keyed()
    submit(federation, "ann", fresh_update())
    stored = repr(federation.network.nodes[at("ann")].store.snapshot())
    (fresh,) = drawn
    assert len(fresh) == 32
    assert repr(fresh)[2:-1] not in stored


def test_an_update_that_is_hidden_again_has_other_errors():
    """They follow from nothing that is stored, so not from the mask's seed: the same update, hidden twice."""
    federation = keyed()
    p, ann = federation.agreement.parameters, federation.contributor("ann")
    update, seed = fresh_update(), bytes(range(32))
    first, second = (ann._hide(update, seed, 0)[0].astype(np.int64) for _ in range(2))
    apart = with_sign(((first - second) % p.field_size).astype(np.uint32), p.field_size)
    assert 0 < np.abs(apart).max() <= 2 * ERROR_REACH


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": "field"}, "tells the keys"),
        ({"modulus": 2**31 - 1}, "approved are n = 2048"),
        ({"modulus": 2**32 - 17}, "approved are n = 2048"),
        ({"model_size": 2**30}, "2³⁰"),
    ],
)
def test_keys_that_would_not_be_safe_are_refused(changes, words):
    with pytest.raises(ParameterError, match=words):
        parameters(masks="keys", **changes)
    parameters(**{name: value for name, value in changes.items() if name != "modulus"})


@pytest.mark.parametrize(("modulus", "width"), [(NARROW, 3), (WIDE, 4)])
def test_words_are_as_narrow_as_the_ring(modulus, width):
    """Shares, uploads and answers; whoever sends four bytes a word where three are agreed is refused."""
    federation = keyed(modulus=modulus)
    p, agreement = federation.agreement.parameters, federation.agreement
    submitted = submit(federation, USERS[0], fresh_update())
    assert len(submitted.upload.words) == width * p.padded_size
    one_round(federation, USERS[1:3])
    assert federation.server.version == 1
    full = bytes(width * p.padded_size)
    agreement.require_words(full, p.padded_size, "an upload")
    for wrong in (bytes((7 - width) * p.padded_size), full[:-1], full + bytes(width)):
        with pytest.raises(Malformed, match=f"{p.padded_size} words of {width} bytes"):
            agreement.require_words(wrong, p.padded_size, "an upload")
    for place in (0, p.padded_size - 1):
        words = np.zeros(p.padded_size, np.uint32)
        words[place] = modulus - 1
        agreement.require_words(pack(words, modulus).tobytes(), p.padded_size, "an upload")
        whole = bytearray(full)
        whole[width * place : width * (place + 1)] = modulus.to_bytes(width, "little")
        with pytest.raises(Malformed, match="not below q"):
            agreement.require_words(bytes(whole), p.padded_size, "an upload")


def test_a_sum_without_room_in_the_narrow_ring_has_the_wide_one():
    narrow, wide = (parameters(masks="keys", update_levels=2**bits) for bits in (18, 22))
    assert (narrow.modulus, narrow.word_bytes) == (16760833, 3)
    assert (wide.modulus, wide.word_bytes) == (WIDE, 4)


def test_a_sum_with_an_update_that_is_none_is_not_opened(monkeypatch):
    with monkeypatch.context() as lying:
        federation = keyed()
        lying.setattr(contributor_module, "hide", lie)
        submit(federation, "user-0", fresh_update())
    one_round(federation, USERS[1:3])
    assert [news.reason for news in abandoned(federation)] == [
        "the sum is larger than clipped updates can make it"
    ]


def test_answers_that_open_another_key_are_noticed():
    """With honest holders any U answers open a sum: a wrong one makes another mask, which shows in the pad."""
    federation = keyed(correctness="honest-holders", consistency="honest-server", retries=0)
    for name in ("user-4", "user-5", "user-6"):
        federation.stop(Address("holder", name))
    federation.holder("user-3").__class__ = Lying
    one_round(federation)
    while not (given_up := abandoned(federation)):
        federation.network.perform(AT_SERVER, federation.server.deadline())
        federation.network.run()
    assert federation.server.version == 0
    assert "pad" in given_up[0].reason


def test_words_behind_the_key_must_be_zeros():
    federation = keyed()
    agreement, p = federation.agreement, federation.agreement.parameters
    shared = np.zeros(p.shared_size, np.uint32)
    shared[:KEY_SIZE] = key_of(bytes(32), p.field_size)
    total = mask_of_sum(shared[:KEY_SIZE], agreement.id, p.field_size).draw(p.padded_size)
    _, largest = recomputation._unmask(agreement, total.copy(), shared, None)
    assert largest == 0
    shared[KEY_SIZE + 1] = 1
    with pytest.raises(recomputation.NotOpenable, match="pad"):
        recomputation._unmask(agreement, total.copy(), shared, None)


# --- with noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [private(), bounded()], ids=["noise", "a bound alone"])
def test_noise_and_bounds_go_with_keys(chosen):
    federation = keyed(**chosen)
    p, updates = federation.agreement.parameters, [fresh_update(0.01) for _ in range(3)]
    long = parameters(**chosen).mechanism
    for each in zip(USERS[:3], updates, strict=True):
        submit(federation, *each)
    federation.network.run()
    (news,) = released(federation)
    assert news.applied
    off = (news.weighted_sum - sum(updates)) * p.update_levels
    assert off.std() == pytest.approx(np.sqrt(3 * (p.mechanism.variance + 8.5)), rel=0.5)
    # The errors widen the bound, and pay for nothing.
    assert p.mechanism.squared_sum_bound([0] * 3) > long.squared_sum_bound([0] * 3)
    assert p.mechanism.cost(0) == long.cost(0) if long.variance else True
