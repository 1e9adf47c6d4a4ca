"""The operator on Flower is the operator's machine: one counter, keys and an end that are signed once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.errors import BadSignature
from basecagg.flower.enrolment import OwnOperator
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.epoch import first_link
from basecagg.protocol.messages import HolderKey, signed, statement
from basecagg.protocol.step_rule import PAPER_STEP
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.server_store import ServerStore

FOUR = ProtocolParameters(
    num_holders=4,
    recovery_threshold=2,
    max_colluders=1,
    max_dropouts=0,
    buffer_size=3,
    model_size=5,
)
CONTRACT = bytes(range(32))
FIRST = first_link(np.zeros(5, np.float32))


def holder(
    operator: OwnOperator, name: str, signer: Identity | None = None
) -> tuple[bytes, HolderKey]:
    me = Identity.create()
    sealing = SealingSecret.create().public_key
    key = HolderKey(operator.federation, name, "x25519", sealing, 0)
    return me.public_key, signed(key, signer or me)


def test_an_epoch_and_its_end_outlive_the_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    store = ServerStore(url, "operator")
    operator = OwnOperator(store)
    assert operator.agreement is None
    agreement = operator.sign_epoch(
        FOUR, [holder(operator, n) for n in "1234"], CONTRACT, FIRST, PAPER_STEP
    )
    assert (agreement.epoch.number, agreement.epoch.contract) == (1, CONTRACT)
    store.close()
    store = ServerStore(url, "operator")
    again = OwnOperator(store)
    assert again.agreement is not None
    assert again.agreement.id == agreement.id
    end = again.end(7, bytes(32))
    assert Ed25519Verifier().verify(operator.operator_key, statement(end), end.signature)
    assert (end.epoch, end.last_version) == (agreement.id, 7)
    store.close()
    store = ServerStore(url, "operator")
    assert OwnOperator(store).end(9, bytes(32)) == end
    store.close()


def test_a_key_that_its_node_did_not_sign_founds_nothing() -> None:
    store = MemoryStore()
    operator = OwnOperator(store)
    holders = [holder(operator, n) for n in "123"] + [holder(operator, "4", Identity.create())]
    before = store.snapshot()
    with pytest.raises(BadSignature):
        operator.sign_epoch(FOUR, holders, CONTRACT, FIRST, PAPER_STEP)
    assert store.snapshot() == before
    fewer = replace(FOUR, num_holders=3)
    assert operator.sign_epoch(fewer, holders[:3], CONTRACT, FIRST, PAPER_STEP).epoch.number == 1
