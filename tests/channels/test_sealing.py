"""Envelopes: only the recipient opens one, only in its own context, and nothing about them prints."""

import copy
import pickle
import sys
from types import SimpleNamespace

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from rich.pretty import pretty_repr

from basecagg.channels.sealing import OVERHEAD, SECRET_BYTES, SealingSecret, make_sealer
from basecagg.errors import ChannelError, LocalProtocolError

SUITES = ["x25519", "mlkem768-x25519"]
SHARE = bytes(range(200))


def seal(sealer, recipient_key, context, content):
    return sealer.seal(lock_for(sealer, recipient_key, context), context, content)


def lock_for(sealer, recipient_key, context):
    return sealer.locks([recipient_key], [context])[0]


@pytest.fixture(params=SUITES)
def suite(request):
    return request.param


@pytest.fixture
def secret(suite):
    return SealingSecret.create(suite)


def test_what_is_sealed_opens(suite, secret):
    for content in (b"", b"x", SHARE, SHARE * 1000):
        sealed = seal(make_sealer(suite), secret.public_key, b"context", content)
        assert secret.open(b"context", sealed) == content
        assert content not in sealed or content in (b"", b"x")


def test_it_opens_after_the_key_was_read_from_a_file(suite, secret):
    sealed = seal(make_sealer(suite), secret.public_key, b"context", SHARE)
    assert SealingSecret(suite, secret.secret_bytes()).open(b"context", sealed) == SHARE


def test_nobody_else_opens_it(suite, secret):
    sealed = seal(make_sealer(suite), secret.public_key, b"context", SHARE)
    with pytest.raises(ChannelError):
        SealingSecret.create(suite).open(b"context", sealed)


@pytest.mark.parametrize("context", [b"", b"contex", b"context ", b"CONTEXT"])
def test_it_does_not_open_in_another_context(suite, secret, context):
    sealed = seal(make_sealer(suite), secret.public_key, b"context", SHARE)
    with pytest.raises(ChannelError):
        secret.open(context, sealed)


def test_every_flipped_byte_is_noticed(suite, secret):
    sealed = seal(make_sealer(suite), secret.public_key, b"context", b"eight by")
    for index in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[index] ^= 1
        with pytest.raises(ChannelError):
            secret.open(b"context", bytes(damaged))


def test_every_truncation_is_noticed(suite, secret):
    sealed = seal(make_sealer(suite), secret.public_key, b"context", SHARE)
    for length in range(0, len(sealed), 7):
        with pytest.raises(ChannelError):
            secret.open(b"context", sealed[:length])
    with pytest.raises(ChannelError):
        secret.open(b"context", sealed + b"\0")


def test_no_two_envelopes_are_alike(suite, secret):
    sealer = make_sealer(suite)
    sealed = [seal(sealer, secret.public_key, b"context", SHARE) for _ in range(20)]
    assert len(set(sealed)) == 20
    assert all(secret.open(b"context", each) == SHARE for each in sealed)


def test_a_lock_closes_the_same_envelope_again(suite, secret):
    lock = lock_for(make_sealer(suite), secret.public_key, b"context")
    first, again = (make_sealer(suite).seal(lock, b"context", SHARE) for _ in range(2))
    assert first == again
    assert secret.open(b"context", again) == SHARE


def test_every_recipient_has_a_key_of_its_own(suite):
    secrets = [SealingSecret.create(suite) for _ in range(3)]
    sealer, contexts = make_sealer(suite), [b"a", b"b", b"c"]
    for _ in range(20):
        locks = sealer.locks([each.public_key for each in secrets], contexts)
        assert len({lock.key for lock in locks}) == 3
        for secret, context, lock in zip(secrets, contexts, locks, strict=True):
            assert secret.open(context, sealer.seal(lock, context, SHARE)) == SHARE


def test_no_key_serves_two_masks():
    secret, sealer = SealingSecret.create(), make_sealer("x25519")
    locks = [lock_for(sealer, secret.public_key, b"context") for _ in range(100)]
    assert len({lock.key for lock in locks}) == 100


def test_who_takes_a_sealers_memory_opens_nothing_that_it_sealed():
    """Every key is gone when it is used, and so is what it was made of. The control: later ones are there."""
    secret, sealer = SealingSecret.create(), make_sealer("x25519")
    before = [seal(sealer, secret.public_key, b"context", SHARE) for _ in range(3)]
    taken = [key for step in sealer._steps for key in step]
    assert set(vars(sealer)) == {"_recipients", "_public_key", "_steps"}
    later = seal(sealer, secret.public_key, b"context", SHARE)
    assert not any(opens(key, sealed) for key in taken for sealed in before)
    assert any(opens(key, later) for key in taken)


def opens(key, sealed):
    try:
        return AESGCM(key).decrypt(sealed[33:45], sealed[45:], b"context") == SHARE
    except InvalidTag:
        return False


def test_two_recipients_with_the_same_key_never_share_key_and_nonce(suite, secret):
    """A holder that claims another's key as its own; GCM would give both shares away."""
    sealer = make_sealer(suite)
    for _ in range(20):
        locks = sealer.locks([secret.public_key] * 2, [b"one", b"other"])
        assert locks[0].head[-12:] != locks[1].head[-12:]
        for lock, context in zip(locks, (b"one", b"other"), strict=True):
            assert secret.open(context, sealer.seal(lock, context, SHARE)) == SHARE


def test_a_bad_recipient_spoils_nothing():
    secret, sealer = SealingSecret.create(), make_sealer("x25519")
    seal(sealer, secret.public_key, b"context", SHARE)
    for _ in range(2):
        with pytest.raises(ChannelError):
            sealer.locks([secret.public_key, bytes(32)], [b"context"] * 2)
    assert secret.open(b"context", seal(sealer, secret.public_key, b"context", SHARE)) == SHARE


def test_other_recipients_get_another_sender_key():
    first, second = (SealingSecret.create() for _ in range(2))
    sealer = make_sealer("x25519")
    keys = {seal(sealer, each.public_key, b"context", SHARE)[:32] for each in (first, second)}
    assert len(keys) == 2


def test_the_key_is_the_one_that_the_librarys_hkdf_derives():
    holder, sealer = X25519PrivateKey.generate(), make_sealer("x25519")
    recipient = holder.public_key().public_bytes_raw()
    for turn in range(20):
        sealed = seal(sealer, recipient, b"context", b"share")
        sender, step, nonce, body = sealed[:32], sealed[32:33], sealed[33:45], sealed[45:]
        assert step[0] == turn % 4
        salt = b"basecagg/seal/x25519/v2" + sender + recipient
        secret = holder.exchange(X25519PublicKey.from_public_bytes(sender))
        keys = HKDF(SHA256(), 4 * 32, salt=salt, info=None).derive(secret)
        key = keys[32 * step[0] :][:32]
        assert AESGCM(key).decrypt(nonce, body, b"context") == b"share"


def test_overhead_is_what_is_said():
    secret = SealingSecret.create()
    sealed = seal(make_sealer("x25519"), secret.public_key, b"context", SHARE)
    assert len(sealed) == len(SHARE) + OVERHEAD


BAD_KEYS = {
    "empty": b"",
    "31 bytes": bytes(31),
    "33 bytes": bytes(33),
    "zeros": bytes(32),
    "hybrid zeros": bytes(1216),
    "hybrid ones": b"\xff" * 1216,
}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_key_that_is_none_is_a_typed_error(suite, key):
    """Also the all-zero key, with which X25519 gives everyone the same secret."""
    with pytest.raises(ChannelError):
        seal(make_sealer(suite), key, b"context", SHARE)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_secret_of_another_length_is_a_typed_error(suite, change):
    with pytest.raises(ChannelError, match="secret bytes"):
        SealingSecret(suite, bytes(SECRET_BYTES[suite] + change))


def test_a_sender_key_of_low_order_is_refused():
    """With it anybody would know the shared secret."""
    secret = SealingSecret.create()
    for weak in (bytes(32), (1).to_bytes(32, "little")):
        with pytest.raises(ChannelError):
            secret.open(b"context", weak + bytes(1 + 12 + 16))


def test_nothing_secret_prints(suite, secret):
    sealer = make_sealer(suite)
    seal(sealer, secret.public_key, b"context", SHARE)
    raw = secret.secret_bytes()
    lock = lock_for(sealer, secret.public_key, b"context")
    for thing in (secret, secret._opener, sealer, lock):
        for text in (repr(thing), str(thing), f"{[thing]}", pretty_repr(thing)):
            assert lock.key.hex() not in text
            assert repr(lock.key)[2:-1] not in text
            assert raw.hex() not in text
            assert raw[:8].hex() not in text
            assert repr(raw)[2:-1] not in text
            assert len(text) < 120


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_secret_is_not_copied_by_accident(secret, copier):
    with pytest.raises(LocalProtocolError):
        copier(secret)


def test_what_does_print(suite, secret):
    assert repr(secret) == f"SealingSecret({suite}, …)"


def test_which_part_was_wrong_is_not_told(suite, secret):
    sealed = seal(make_sealer(suite), secret.public_key, b"context", SHARE)
    damaged = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in (0, 40, -1)]
    told = [refusal(secret, b"other", sealed)]
    told += [refusal(SealingSecret.create(suite), b"context", sealed)]
    told += [refusal(secret, b"context", each) for each in damaged]
    assert set(told) == {"the envelope does not open with this key and context"}


def refusal(secret, context, sealed):
    with pytest.raises(ChannelError) as caught:
        secret.open(context, sealed)
    return str(caught.value)


def test_an_older_library_has_no_hybrid_suite(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.hpke", None)
    monkeypatch.delattr("cryptography.hazmat.primitives.hpke", raising=False)
    with pytest.raises(ChannelError, match="cryptography 48 or newer"):
        SealingSecret.create("mlkem768-x25519")


def test_a_build_without_mlkem_has_no_hybrid_suite(monkeypatch):
    hpke = pytest.importorskip("cryptography.hazmat.primitives.hpke")
    monkeypatch.setattr(hpke, "KEM", SimpleNamespace())
    with pytest.raises(ChannelError, match="this build"):
        SealingSecret.create("mlkem768-x25519")
