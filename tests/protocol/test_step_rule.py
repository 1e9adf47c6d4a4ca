"""The server's step: exact against plain Python, the same with any threads, and the same after a restart."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import closing, nullcontext
from fractions import Fraction
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from harness import Disk, World, small

from basecagg.errors import ParameterError, StorageError
from basecagg.maths.staleness import polynomial
from basecagg.protocol import server as server_module
from basecagg.protocol import step_rule
from basecagg.protocol.effects import perform
from basecagg.protocol.global_model import model_bytes
from basecagg.protocol.messages import MaskName, PlainUpdate, encode
from basecagg.protocol.opening import PlainOpening
from basecagg.protocol.server import Server, ServerSettings
from basecagg.protocol.step_rule import (
    StepRule,
    state_bytes,
    state_from,
    state_hash,
)
from basecagg.protocol.weighing import Weighing
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.server_store import ServerStore
from reproduction.bench import AT_SERVER

RULES = {
    "sgd": StepRule(rate=0.3),
    "momentum": StepRule("momentum", rate=0.3, momentum=0.8),
    "adam": StepRule("adam", rate=0.02, momentum=0.9, second_momentum=0.95, epsilon=1e-3),
}
EVERY = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
DTYPES = pytest.mark.parametrize("dtype", ["<f4", "<f8"])


def exactly(value: float | Fraction) -> float:
    """One correctly rounded operation: a Fraction is exact, float() of it rounds once."""
    return float(value)


def reference(rule, dtype, x, state, weighted_sum, weight):
    """One number's step in Fractions, rounded to double after every operation, and once into the dtype."""

    def times(a, b):
        return exactly(Fraction(a) * Fraction(b))

    def plus(a, b):
        return exactly(Fraction(a) + Fraction(b))

    def over(a, b):
        return exactly(Fraction(a) / Fraction(b))

    if rule.optimiser == "sgd":
        way, after = times(weighted_sum, over(rule.rate, weight)), ()
    elif rule.optimiser == "momentum":
        m = plus(times(rule.momentum, state[0]), over(weighted_sum, weight))
        way, after = times(rule.rate, m), (m,)
    else:
        mean = over(weighted_sum, weight)
        m = plus(times(rule.momentum, state[0]), times(exactly(1 - Fraction(rule.momentum)), mean))
        rest = exactly(1 - Fraction(rule.second_momentum))
        v = plus(times(rule.second_momentum, state[1]), times(rest, times(mean, mean)))
        way = over(times(rule.rate, m), plus(math.sqrt(v), rule.epsilon))
        after = (m, v)
    rounded = np.dtype(dtype).type
    return float(rounded(plus(x, -way))), tuple(float(rounded(each)) for each in after)


def some_sums(size: int, steps: int, seed: int = 7) -> list[tuple[np.ndarray, float]]:
    draw = np.random.default_rng(seed)
    return [
        (draw.normal(0, 3, size) * 10.0 ** draw.integers(-6, 2, size), float(weight))
        for weight in draw.integers(1, 600, steps)
    ]


@EVERY
@DTYPES
def test_every_number_steps_as_in_exact_arithmetic(rule, dtype):
    model = np.linspace(-1, 1, 17).astype(dtype)
    state = rule.fresh_state(model)
    for weighted_sum, weight in some_sums(17, 6):
        expected = [
            reference(
                rule, dtype, float(model[i]), [float(s[i]) for s in state], weighted_sum[i], weight
            )
            for i in range(17)
        ]
        model, state = rule.step(model, state, weighted_sum, weight)
        assert model.dtype == np.dtype(dtype)
        assert model.tolist() == [x for x, _ in expected]
        for kept, wanted in zip(state, zip(*(s for _, s in expected), strict=True), strict=False):
            assert kept.dtype == np.dtype(dtype)
            assert kept.tolist() == list(wanted)


@DTYPES
def test_sgd_is_the_step_that_was_there_before(dtype):
    model = np.linspace(-1, 1, 1000).astype(dtype)
    for weighted_sum, weight in some_sums(1000, 5):
        rate = 0.3 / weight
        before = np.empty_like(model)
        before[:] = model - weighted_sum * rate
        model, state = RULES["sgd"].step(model, (), weighted_sum, weight)
        assert model.tobytes() == before.tobytes()
        assert state == ()


@EVERY
def test_segments_change_nothing(rule, monkeypatch):
    (weighted_sum, weight), model = some_sums(1000, 1)[0], np.linspace(-1, 1, 1000, dtype="<f4")
    parted = msgspec.structs.replace(rule, averaged=((100, 300), (990, 1000)))
    whole = parted.step(model, rule.fresh_state(model), weighted_sum, weight)
    monkeypatch.setattr(step_rule, "_SEGMENT", 64)
    pieces = parted.step(model, rule.fresh_state(model), weighted_sum, weight)
    assert whole[0].tobytes() == pieces[0].tobytes()
    assert state_bytes(whole[1]) == state_bytes(pieces[1])


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_averages_move_by_the_mean_alone(name):
    rule = msgspec.structs.replace(RULES[name], averaged=((2, 4), (4, 6)))
    model = np.ones(8, "<f8")
    before = rule.fresh_state(model)
    after, state = rule.step(model, before, np.full(8, 6.0), 4.0)
    after, state = rule.step(after, state, np.full(8, 6.0), 4.0)
    assert after[2:6].tolist() == [1 - 1.5 - 1.5] * 4
    for old, new in zip(before, state, strict=True):
        assert (old[2:6] == new[2:6]).all()
        assert (old[:2] != new[:2]).all()
    control, _ = RULES[name].step(model, before, np.full(8, 6.0), 4.0)
    assert (control[2:6] != 1 - 1.5).all()


def test_sgd_treats_averages_like_all_others():
    parted = msgspec.structs.replace(RULES["sgd"], averaged=((2, 6),))
    (weighted_sum, weight), model = some_sums(8, 1)[0], np.ones(8, "<f4")
    steps = [rule.step(model, (), weighted_sum, weight)[0] for rule in (RULES["sgd"], parted)]
    assert steps[0].tobytes() == steps[1].tobytes()


_PROCESS = """
import sys, hashlib, numpy as np
from basecagg.protocol.step_rule import *
size, digest = 300_000, hashlib.sha256()
for name, rate in (("sgd", 0.5), ("momentum", 0.1), ("adam", 0.01)):
    rule = StepRule(name, rate=rate, averaged=((1000, 5000),))
    draw = np.random.Generator(np.random.PCG64(3))
    model = draw.standard_normal(size).astype("<f4")
    state = rule.fresh_state(model)
    for version in range(4):
        sums = draw.standard_normal(size) * 100
        model, state = rule.step(model, state, sums, 64.0 * 10)
        digest.update(model.tobytes() + state_hash(version, state))
print(digest.hexdigest())
"""


def test_the_step_is_the_same_with_any_number_of_threads():
    def run(threads: str, **more: str) -> str:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads) | more
        command = [sys.executable, "-c", _PROCESS]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    # The second also does without the processor's wider instructions, as another machine might.
    without = {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"} if _has_avx2() else {}
    one, many = run("1"), run("4", **without)
    assert len(one) == 65
    assert one == many


def _has_avx2() -> bool:
    try:
        from numpy._core._multiarray_umath import __cpu_baseline__, __cpu_features__
    except ImportError:  # another numpy
        return False
    return bool(__cpu_features__.get("AVX2")) and "AVX2" not in __cpu_baseline__


# --- a server that crashes ----------------------------------------------------------------------


class PowerFailure(Exception):  # noqa: N818 - the test's own
    pass


class Unreliable:
    """A store that fails once: before it has written its n-th transaction, or after."""

    def __init__(self, store, at=0, *, written=False):
        self._store, self._at, self._written, self.commits = store, at, written, 0
        self.read, self.scan = store.read, store.scan

    def commit(self, writes):
        self.commits += 1
        if self.commits == self._at and not self._written:
            raise PowerFailure
        self._store.commit(writes)
        if self.commits == self._at:
            raise PowerFailure


def make_server(rule, store, size=6):
    weighing = Weighing(2, polynomial(1.0), "field")
    opening = PlainOpening(size, weighing, store)
    settings = ServerSettings(2, weighing, step=rule)
    return Server(settings, opening, store, np.linspace(-1, 1, size, dtype="<f4"))


def play(rule, reliable, at=0, *, written=False):
    """Five versions of K = 2 updates; after a failure the machine is built anew and told again."""
    draw, store = np.random.default_rng(5), Unreliable(reliable, at, written=written)

    def carry_out(act):
        try:
            perform(store, act())
        except PowerFailure:
            return False
        return True

    server = make_server(rule, store)
    while not carry_out(server.start):
        server = make_server(rule, store)
    for number in range(10):
        name = MaskName(f"user-{number}", bytes(16))
        values, base = draw.normal(0, 1, 6).astype("<f4").tobytes(), number // 2
        message = PlainUpdate.unsigned(name, base, server.head_of(base), values)
        while not carry_out(lambda: server.receive(name.contributor, message)):  # noqa: B023
            server = make_server(rule, store)
            carry_out(server.start)
    assert server.version == 5
    return model_bytes(server.model), state_bytes(server.optimiser_state), store.commits


@EVERY
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_crash_anywhere_changes_no_model(rule, kind, tmp_path):
    def fresh(number):
        if kind == "memory":
            return nullcontext(MemoryStore())
        return closing(ServerStore(f"sqlite:///{tmp_path / str(number)}.db", "server"))

    with fresh(0) as store:
        model, state, commits = play(rule, store)
    assert commits > 10
    for at in range(1, commits + 1):
        for written in (False, True):
            with fresh(f"{at}-{written}") as store:
                assert play(rule, store, at, written=written)[:2] == (model, state)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_server_that_forgot_its_state_would_go_elsewhere(name, monkeypatch):
    """Negative control of the crashes."""
    rule = RULES[name]
    model, *_ = play(rule, MemoryStore())
    forget = lambda data, rule, dtype, size: rule.fresh_state(np.zeros(size, dtype))  # noqa: E731
    monkeypatch.setattr(server_module, "state_from", forget)
    assert play(rule, MemoryStore(), 6)[0] != model


def test_a_server_refuses_the_state_of_another_optimiser():
    for stored, rule in RULES.items():
        store = MemoryStore()
        play(rule, store)
        for name, other in RULES.items():
            if name != stored:
                with pytest.raises(StorageError, match=f"that of {name} for d = 6"):
                    make_server(other, store)


@EVERY
def test_masked_sums_are_stepped_and_resumed_alike(rule, tmp_path):
    """Sealed and signed, on SQLite; the server is killed after every version."""

    def train(stores, *, restarts):
        with stores:
            world = World(small("certified"), cryptography=True, stores=stores, step=rule)
            for until in (1, 2, 3):
                world.train([f"user-{index}" for index in range(4)], until)
                if restarts:
                    world.restart(AT_SERVER)
            return model_bytes(world.server.model), state_bytes(world.server.optimiser_state)

    whole = train(Disk(tmp_path / "whole"), restarts=False)
    assert train(Disk(tmp_path / "cut"), restarts=True) == whole


# --- the state as bytes -------------------------------------------------------------------------


@EVERY
def test_a_state_survives_as_bytes(rule):
    model = np.linspace(-1, 1, 9, dtype="<f4")
    state = rule.step(model, rule.fresh_state(model), *some_sums(9, 1)[0])[1]
    again = state_from(state_bytes(state), rule, "<f4", 9)
    assert [each.tolist() for each in again] == [each.tolist() for each in state]


def test_a_state_of_another_optimiser_is_not_taken():
    model = np.zeros(9, "<f4")
    states = {name: state_bytes(rule.fresh_state(model)) for name, rule in RULES.items()}
    for stored, kept in states.items():
        for name, rule in RULES.items():
            if name != stored:
                with pytest.raises(StorageError, match="go on with the optimiser that was stored"):
                    state_from(kept, rule, "<f4", 9)


def test_the_hash_of_a_state_knows_version_type_and_every_number():
    assert state_hash(3, ()) == bytes(32)
    m, v = np.zeros(4, "<f4"), np.ones(4, "<f4")
    other = v.copy()
    other[3] += 1
    hashes = [
        state_hash(3, (m, v)),
        state_hash(4, (m, v)),
        state_hash(3, (v, m)),
        state_hash(3, (m, other)),
        state_hash(3, (np.concatenate([m, v]),)),
        state_hash(3, (m.astype("<f8"), v.astype("<f8"))),
    ]
    assert len(set(hashes)) == len(hashes)
    assert state_hash(3, (m.astype(">f4"), v.astype(">f4"))) == hashes[0]


# --- the rule itself ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimiser", "adagrad"),
        ("rate", 0.0),
        ("rate", -1.0),
        ("rate", math.nan),
        ("rate", math.inf),
        ("rate", "fast"),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("momentum", math.nan),
        ("second_momentum", 1.0),
        ("second_momentum", math.nan),
        ("epsilon", 0.0),
        ("epsilon", math.nan),
        ("epsilon", math.inf),
        ("averaged", ((-1, 2),)),
        ("averaged", ((2, 2),)),
        ("averaged", ((3, 2),)),
        ("averaged", ((0, 3), (2, 4))),
        ("averaged", ((3, 4), (0, 1))),
    ],
)
def test_a_rule_out_of_range_is_refused_wherever_it_comes_from(name, value):
    with pytest.raises(ParameterError, match=name):
        StepRule(**{name: value})
    fields = list(msgspec.structs.astuple(StepRule()))
    fields[StepRule.__struct_fields__.index(name)] = value
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(["StepRule", *fields]), type=StepRule)


def test_whole_numbers_are_encoded_as_the_same_bytes():
    assert encode(StepRule(rate=1, momentum=0)) == encode(StepRule(rate=1.0, momentum=0.0))


def test_averages_beyond_the_model_are_refused():
    rule = StepRule("adam", averaged=((0, 5),))
    with pytest.raises(ParameterError, match="d = 4"):
        rule.fresh_state(np.zeros(4, "<f4"))
    with pytest.raises(ParameterError, match="d = 4"):
        rule.step(np.zeros(4, "<f4"), (), np.zeros(4), 1.0)


@EVERY
def test_each_optimiser_goes_downhill(rule):
    """Of x²/2, whose update from x is Δ = x/4."""
    model, state, sizes = np.array([2.0, -1.0]), (), [9.0]
    state = rule.fresh_state(model)
    for _ in range(300):
        model, state = rule.step(model, state, model / 4, 1.0)
        sizes.append(float(np.abs(model).max()))
    assert sizes[-1] < 0.05
    if rule.optimiser == "sgd":
        assert all(later < earlier for earlier, later in pairwise(sizes))
