"""What is made again is what the server made, to the bit: every optimiser, precision, store, thread setting."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from cheats import account_of, operator_key
from parties import USERS, at, deal, holder_at, parameters, submit

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import pack, unpack_file
from basecagg.errors import LocalProtocolError
from basecagg.maths.prime_field import PrimeField
from basecagg.protocol.epoch import accept
from basecagg.protocol.global_model import model_bytes
from basecagg.protocol.recomputation import TOGETHER, recompute, weighted_sum
from basecagg.protocol.step_rule import StepRule, state_bytes
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.server_store import ServerStore
from reproduction.bench import AT_SERVER, Federation

STEPS = {
    "sgd": StepRule(rate=0.7),
    "momentum": StepRule("momentum", 0.3, momentum=0.81),
    "adam": StepRule("adam", 0.05),
    "adam, averages apart": StepRule("adam", 0.05, averaged=((3, 8), (20, 50))),
}


def make(step: StepRule, dtype=np.float32, store=None, **changes) -> Federation:
    p = parameters(min_per_version=1, repeated_versions=True, **changes)
    start = np.random.default_rng(p.model_size).normal(size=p.model_size).astype(dtype)
    server = store if store is not None else MemoryStore()
    stores = {AT_SERVER: server}
    return Federation(
        p, start, step=step, make_store=lambda address: stores.get(address) or MemoryStore()
    )


def again(federation: Federation) -> tuple[bytes, bytes]:
    """What a stranger with the file and the operator's key makes of it."""
    account = unpack_file(pack(account_of(federation)))
    agreement = accept(account.epoch, operator_key(federation), Ed25519Verifier())
    model, state = recompute(agreement, account.parts)
    return model_bytes(model), state_bytes(state)


def made(federation: Federation) -> tuple[bytes, bytes]:
    server = federation.server
    return model_bytes(server.model), state_bytes(server.optimiser_state)


def random_round(federation: Federation, chance: np.random.Generator) -> None:
    """Three of seven, from any recent version, while up to two holders are away; with restarts."""
    away = [holder_at(name) for name in chance.choice(USERS, chance.integers(0, 2), replace=False)]
    names = [str(name) for name in chance.permutation(USERS)[:3]]
    deal(federation, *names)
    for name in names:
        oldest = max(0, federation.server.version - 3)
        base = int(chance.integers(oldest, federation.server.version + 1))
        size = federation.agreement.parameters.model_size
        submit(federation, name, chance.normal(scale=0.5, size=size), base=base)
    nodes = {address: federation.network.nodes.pop(address) for address in away}
    federation.network.run()
    federation.network.nodes.update(nodes)
    if chance.random() < 0.3:
        federation.start(AT_SERVER)
    for address in away:
        federation.start(address)
    federation.network.run()
    assert at(names[0]) in federation.network.nodes


def check_run(federation: Federation, chance: np.random.Generator, rounds: int) -> int:
    """How many versions were made, all of them equal."""
    equal, version = 0, 0
    for _ in range(rounds):
        random_round(federation, chance)
        if federation.server.version > version:
            version = federation.server.version
            assert again(federation) == made(federation)
            equal += 1
    return equal


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("step", STEPS)
def test_honest_versions_are_made_again_to_the_bit(step, dtype):
    chance = np.random.default_rng(7)
    assert check_run(make(STEPS[step], dtype), chance, 5) >= 4


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("step", STEPS)
def test_honest_versions_are_made_again_to_the_bit_in_long_runs(step, seed):
    chance = np.random.default_rng(seed)
    assert check_run(make(STEPS[step], chance.choice([np.float32, np.float64])), chance, 40) >= 30


@pytest.mark.parametrize("step", STEPS)
def test_both_stores_give_the_same_parts_back(step, tmp_path):
    with ServerStore(f"sqlite:///{tmp_path / 'server.db'}") as store:
        assert check_run(make(STEPS[step], store=store), np.random.default_rng(3), 3) >= 2


_ELSEWHERE = """
import hashlib, sys
from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import unpack_file
from basecagg.protocol.epoch import accept
from basecagg.protocol.global_model import model_bytes
from basecagg.protocol.recomputation import recompute
from basecagg.protocol.step_rule import state_bytes
for key, path in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    account = unpack_file(open(path, "rb").read())
    agreement = accept(account.epoch, bytes.fromhex(key), Ed25519Verifier())
    model, state = recompute(agreement, account.parts)
    print(hashlib.sha256(model_bytes(model) + state_bytes(state)).hexdigest())
"""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def test_processes_with_other_thread_settings_come_to_the_same_bits(tmp_path):
    """The model is long enough that threads share it."""
    arguments, expected = [], []
    federations = [make(step, model_size=100_003) for step in list(STEPS.values())[:3]]
    for index, federation in enumerate(federations):
        for _ in range(2):
            random_round(federation, np.random.default_rng(index))
        account = account_of(federation)
        path = tmp_path / f"{index}.parts"
        path.write_bytes(pack(account))
        expected.append(hashlib.sha256(b"".join(made(federation))).hexdigest())
        arguments += [operator_key(federation).hex(), str(path)]
    one = dict.fromkeys(THREADS, "1")
    many = dict.fromkeys(THREADS, str(min(2, os.cpu_count() or 1)))
    for settings in (one, many):
        command, env = [sys.executable, "-c", _ELSEWHERE, *arguments], os.environ | settings
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected


def test_a_process_that_flushes_small_numbers_takes_no_step():
    """It would come to another model, and accuse an honest server or be accused."""
    torch = pytest.importorskip("torch")
    model, step = np.full(3, 1e-40, np.float32), StepRule()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        with pytest.raises(LocalProtocolError, match="small numbers"):
            step.step(model, (), np.zeros(3), 1.0)
    finally:
        torch.set_flush_denormal(False)
    assert (step.step(model, (), np.zeros(3), 1.0)[0] == model).all()


@pytest.mark.parametrize("count", [1, TOGETHER, TOGETHER + 1, 3 * TOGETHER - 5])
def test_uploads_are_summed_some_at_a_time(count):
    field, rng = PrimeField(2**31 - 1), np.random.default_rng(count)
    rows = rng.integers(0, field.modulus, (count, 40), dtype=np.uint32)
    weights = [int(each) for each in rng.integers(0, 2**16, count)]
    there = set[int]()

    class Upload(bytes):
        def __del__(self) -> None:
            there.discard(id(self))

    def read():
        for row in rows:
            upload = Upload(row.astype("<u4").tobytes())
            there.add(id(upload))
            assert len(there) <= TOGETHER + 1
            yield upload
            del upload

    total = weighted_sum(field, read(), weights)
    exact = [sum(w * int(n) for w, n in zip(weights, column, strict=True)) for column in rows.T]
    assert total.tolist() == [n % field.modulus for n in exact]
