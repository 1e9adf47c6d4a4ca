"""Signatures say who and what; keys never leave by accident."""

import copy
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from basecagg.channels.identity import Ed25519Verifier, Identity, RememberingVerifier, enrol
from basecagg.errors import ChannelError, LocalProtocolError
from basecagg.protocol.messages import statement

VERIFIERS = [Ed25519Verifier, lambda: RememberingVerifier(Ed25519Verifier())]


@pytest.fixture(params=VERIFIERS, ids=["plain", "remembering"])
def verifier(request):
    return request.param()


@pytest.fixture
def identity():
    return Identity.create()


def test_a_true_signature_verifies_again_and_again(verifier, identity):
    signature = identity.sign(b"statement")
    for _ in range(3):
        assert verifier.verify(identity.public_key, b"statement", signature)


def test_rfc_8032_vector(verifier):
    """Test 2 of RFC 8032, section 7.1."""
    identity = Identity.from_secret(
        bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    )
    assert identity.public_key.hex() == (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    )
    signature = identity.sign(b"\x72")
    assert signature.hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert verifier.verify(identity.public_key, b"\x72", signature)


def test_another_statement_signature_or_key_does_not(verifier, identity):
    signature = identity.sign(b"statement")
    assert verifier.verify(identity.public_key, b"statement", signature)
    other = Identity.create()
    flipped = bytes([signature[0] ^ 1]) + signature[1:]
    assert not verifier.verify(identity.public_key, b"statements", signature)
    assert not verifier.verify(identity.public_key, b"statement", flipped)
    assert not verifier.verify(other.public_key, b"statement", signature)


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_bytes_that_are_no_signature_are_no_exception(verifier, identity, signature):
    assert not verifier.verify(identity.public_key, b"statement", signature)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), b"\xff" * 32])
def test_bytes_that_are_no_key_are_no_exception(verifier, identity, key):
    assert not verifier.verify(key, b"statement", identity.sign(b"statement"))


def test_a_key_for_which_anybody_can_sign_is_refused(verifier):
    """The neutral point as key and half a signature verifies for any statement. The control: OpenSSL."""
    neutral = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), b"anything")
    assert not verifier.verify(neutral, b"anything", neutral + bytes(32))


@pytest.mark.parametrize("shift", [1, 4, 32, -1, -5])
def test_bytes_moved_between_signature_and_statement_do_not_verify(verifier, identity, shift):
    """What is remembered is the three parts, not their concatenation."""
    signature = identity.sign(b"statement")
    assert verifier.verify(identity.public_key, b"statement", signature)
    joined = signature + b"statement"
    assert not verifier.verify(identity.public_key, joined[64 - shift :], joined[: 64 - shift])


def test_a_remembering_verifier_does_not_remember_the_bad(identity):
    class Counting(Ed25519Verifier):
        calls = 0

        def verify(self, *parts):
            self.calls += 1
            return super().verify(*parts)

    counting = Counting()
    verifier = RememberingVerifier(counting)
    for _ in range(3):
        assert not verifier.verify(identity.public_key, b"statement", bytes(64))
    assert counting.calls == 3
    for _ in range(3):
        assert verifier.verify(identity.public_key, b"statement", identity.sign(b"statement"))
    assert counting.calls == 4


def test_a_remembering_verifier_forgets_the_oldest(identity, monkeypatch):
    monkeypatch.setattr("basecagg.channels.identity._REMEMBERED", 2)
    verifier = RememberingVerifier(Ed25519Verifier())
    signatures = {said: identity.sign(said) for said in (b"a", b"b", b"c")}
    for said in (b"a", b"b", b"c", b"c", b"b"):
        assert verifier.verify(identity.public_key, said, signatures[said])
    assert verifier.remembered == 2
    assert verifier.verify(identity.public_key, b"a", signatures[b"a"])
    assert verifier.remembered == 2


def test_the_secret_comes_back_only_when_asked_for(identity):
    secret = identity.secret_bytes()
    assert Identity.from_secret(secret).public_key == identity.public_key
    for text in (repr(identity), str(identity), f"{identity}", repr([identity])):
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_is_not_copied_by_accident(identity, copier):
    with pytest.raises(LocalProtocolError):
        copier(identity)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(64)])
def test_a_secret_of_another_length_is_a_typed_error(secret):
    with pytest.raises(ChannelError, match="32 secret bytes"):
        Identity.from_secret(secret)


def test_a_credential_is_signed_by_the_enrolment_key_alone(verifier, identity):
    operator = Identity.create()
    credential = enrol(operator, bytes(32), "ann", identity.public_key)
    assert verifier.verify(operator.public_key, statement(credential), credential.signature)
    assert not verifier.verify(identity.public_key, statement(credential), credential.signature)
