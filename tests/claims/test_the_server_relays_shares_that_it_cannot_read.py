"""Nothing that passes the server or lies in its store holds a byte of a share, a mask or an update in clear."""

import numpy as np
import pytest
from parties import USERS, fresh_update, make_federation, one_hop, share_bytes_in, submit

from basecagg.maths.randomness import FieldStream, derive_seed
from basecagg.protocol.messages import Shipment, Upload, encode
from reproduction.bench import AT_SERVER


def run(federation):
    """Deal, upload, and stop before the holders answer; return the secrets and all that was sent."""
    letters, secrets, p = [], [], federation.agreement.parameters
    federation.network.observers.append(lambda letter: letters.append(letter.message))
    for name in USERS[:3]:
        federation.deal(name)
    federation.network.run()
    for name in USERS[:3]:
        (mask,) = federation.contributor(name)._masks.values()
        stream = FieldStream(derive_seed(mask.seed, "mask"), p.modulus)
        secrets += [mask.seed, stream.draw(p.padded_size).tobytes()]
        update = fresh_update()
        submitted = submit(federation, name, update)
        plain = submitted.quantized % p.modulus
        secrets += [update.tobytes(), plain.astype("<u4").tobytes()]
    one_hop(federation)
    return secrets, letters


def pieces(secret):
    return [secret[start : start + 8] for start in range(0, len(secret) - 7, 8)]


@pytest.mark.parametrize("suite", ["x25519", "mlkem768-x25519"])
def test_not_in_messages_and_not_in_its_store(suite):
    federation = make_federation(suite=suite)
    secrets, letters = run(federation)
    assert not share_bytes_in(federation, letters)
    records = federation.network.nodes[AT_SERVER].store.snapshot()
    seen = b"".join(encode(letter) for letter in letters)
    seen += b"".join(value for kind in records.values() for value in kind.values())
    for secret in secrets:
        assert not any(piece in seen for piece in pieces(secret) if len(set(piece)) > 4)


def test_control_without_sealing_it_could_read_them():
    """The same search finds the shares when nothing is sealed: then the mask of anybody can be decoded."""
    federation = make_federation(cryptography=False)
    _, letters = run(federation)
    assert share_bytes_in(federation, letters)
    shipment = next(each for each in letters if isinstance(each, Shipment))
    bodies = [envelope[32:] for envelope in shipment.sealed]  # behind the sender's key
    shares = {index: np.frombuffer(each, "<u4") for index, each in enumerate(bodies)}
    mask = federation.agreement.code.decode({index: shares[index] for index in range(4)})
    upload = next(
        each
        for each in letters
        if isinstance(each, Upload) and each.ticket.mask == shipment.dealing.masks[0]
    )
    words = np.frombuffer(upload.words, "<u4").astype(object)
    p = federation.agreement.parameters
    update = (words - mask + p.modulus // 2) % p.modulus - p.modulus // 2
    assert np.abs(update.astype(float)).max() <= p.update_levels * p.clip + 1
