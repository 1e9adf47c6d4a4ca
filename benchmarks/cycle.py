"""One full cycle of the protocol against the bare cost of its primitives, and durable stores against memory.

N = 100, U = 70, T = 8, K = 10, d = 10⁶, in one process: ten deals delivered to a hundred holders, ten uploads,
one certified recovery; everything sealed and signed. Times are CPU seconds of the process; for the disk, wall.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from rich.console import Console
from rich.table import Table

from basecagg import ProtocolParameters
from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.unprotected import NoVerifier
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.randomness import FieldStream, WordStream
from basecagg.protocol.effects import Store
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.share_keeper import ShareKeeper
from basecagg.simulation.federation import Federation
from basecagg.simulation.loopback import AT_SERVER, Address
from basecagg.storage.participant import ParticipantStore
from basecagg.storage.server import ServerStore
from benchmarks import machine
from benchmarks.bars import Result

RESULTS = Path(__file__).parent / "results" / "cycle.json"
PARAMETERS = ProtocolParameters(
    num_users=100,
    recovery_threshold=70,
    max_colluders=8,
    max_dropouts=30,
    buffer_size=10,
    model_size=10**6,
)
REPEATS = 3


class CountingVerifier(Ed25519Verifier):
    """Counts the checks of a cycle."""

    def __init__(self) -> None:
        """Start at none."""
        self.checks = 0

    def verify(self, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """Count, then check."""
        self.checks += 1
        return super().verify(public_key, statement, signature)


class CountingIdentity(Identity):
    """Counts the signatures of a cycle, all parties together."""

    signatures = 0

    def sign(self, statement: bytes) -> bytes:
        """Count, then sign."""
        CountingIdentity.signatures += 1
        return super().sign(statement)


class SilentIdentity(Identity):
    """Does not sign, for the cycle without signatures."""

    def sign(self, statement: bytes) -> bytes:
        """Nothing."""
        return b""


class BenchFederation(Federation):
    """A federation whose parties sign with a given kind of identity, and check everything themselves."""

    identity_type: type[Identity] = Identity

    def identity(self, name: str) -> Identity:
        """The identity of a role or participant."""
        identity = self._identities.setdefault(name, self.identity_type.create())
        assert isinstance(identity, Identity)
        return identity

    def _build_keeper(self, name: str, store: Store) -> ShareKeeper:
        """A holder of its own: it shares no note of checked signatures with the others."""
        own = Agreement(self.agreement.epoch, self.agreement.verifier)
        index = own.holder_names.index(name)
        return ShareKeeper(own, index, self.identity(name), self._secret(name), store)


class CountingFederation(BenchFederation):
    """Counts signatures."""

    identity_type = CountingIdentity


class UnsignedFederation(BenchFederation):
    """Signs nothing."""

    identity_type = SilentIdentity


def run_cycle(federation: Federation, updates: np.ndarray) -> None:
    """Ten users deal, train (here: have an update), mask and upload; the sum opens."""
    server = federation.server
    names = federation.agreement.holder_names[: len(updates)]
    before, digest = server.version, server.model_hash
    for name in names:
        federation.deal(name)
    federation.network.run()
    for name, update in zip(names, updates, strict=True):
        federation.submit(name, update, before, digest)
        federation.network.run()
    if server.version != before + 1:
        raise SystemExit(f"the sum did not open: {federation.network.refusals[:3]}")


def best_cycle(make: Callable[[], Federation], updates: np.ndarray, repeats: int) -> float:
    """CPU seconds of the best of some cycles, each of one federation with fresh updates."""
    federation, times = make(), []
    for repeat in range(repeats):
        started = time.process_time()
        run_cycle(federation, updates + np.float32(repeat * 1e-3))
        times.append(time.process_time() - started)
    return min(times)


def best_wall(make: Callable[[], Federation], updates: np.ndarray, repeats: int) -> float:
    """Wall seconds of the best of some cycles."""
    federation, times = make(), []
    for repeat in range(repeats):
        started = time.perf_counter()
        run_cycle(federation, updates + np.float32(repeat * 1e-3))
        times.append(time.perf_counter() - started)
    return min(times)


def bare_costs(signatures: int, checks: int) -> dict[str, float]:
    """CPU seconds of the primitives of one cycle, called in a row with nothing around them."""
    p = PARAMETERS
    code = MaskCode(p.num_users, p.recovery_threshold, p.max_colluders, modulus=p.modulus)
    field, seed = PrimeField(p.modulus), bytes(range(32))
    mask = FieldStream(seed, p.modulus).draw(p.padded_size)
    noise = mask[: p.max_colluders * p.share_size].reshape(p.max_colluders, p.share_size)
    shares = code.encode(mask, noise)
    sealed = AESGCM(seed).encrypt(bytes(12), shares[0].tobytes(), b"")
    identity, verifier, statement = Identity.create(), Ed25519Verifier(), bytes(300)
    signature = identity.sign(statement)
    weights = [p.weight_levels] * p.buffer_size
    plain = shares[0].tobytes()
    answers = {holder: shares[holder] for holder in range(p.recovery_threshold)}

    def draw() -> None:
        """A mask twice (dealt, then used), its noise, and the coins of rounding."""
        stream = FieldStream(seed, p.modulus)
        stream.draw(p.padded_size)
        stream.draw(p.padded_size)
        stream.draw(noise.size)
        WordStream(seed).draw(p.padded_size)

    parts: dict[str, tuple[int, Callable[[], object]]] = {
        "PRG": (p.buffer_size, draw),
        "encode": (p.buffer_size, lambda: code.encode(mask, noise)),
        "AES-GCM, seal": (
            p.buffer_size * p.num_users,
            lambda: AESGCM(seed).encrypt(bytes(12), plain, b""),
        ),
        "AES-GCM, open": (
            p.buffer_size * p.num_users,
            lambda: AESGCM(seed).decrypt(bytes(12), sealed, b""),
        ),
        "holders' sums": (
            p.num_users,
            lambda: field.weighted_sum(shares[: p.buffer_size], weights),
        ),
        "server's sum": (1, lambda: field.weighted_sum([mask] * p.buffer_size, weights)),
        "decode": (1, lambda: code.decode(answers)),
        "sign": (signatures, lambda: identity.sign(statement)),
        "verify": (checks, lambda: verifier.verify(identity.public_key, statement, signature)),
    }
    return {name: _cpu(count, call) for name, (count, call) in parts.items()}


def _cpu(count: int, call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(count):
            call()
        best = min(best, time.process_time() - started)
    return best


@contextmanager
def durable_stores() -> Iterator[Callable[[Address], Store]]:
    """SQLite files for everyone, each participant with its anchor, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        root, opened = Path(folder), []

        def make(address: Address) -> Store:
            store: ServerStore | ParticipantStore
            if address == AT_SERVER:
                store = ServerStore(f"sqlite:///{root / 'server.db'}")
            else:
                name = f"{address.role}-{address.name}"
                store = ParticipantStore(
                    root / f"{name}.db", address.role, anchor_folder=root / "anchors"
                )
            opened.append(store)
            return store

        try:
            yield make
        finally:
            for store in opened:
                store.close()


def main() -> None:
    """Print the breakdown and the bars, and write them as JSON."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    console, p = Console(), PARAMETERS
    model = np.zeros(p.model_size, np.float32)
    updates = np.random.default_rng(1).normal(0, 0.02, (p.buffer_size, p.model_size))
    updates = updates.astype(np.float32)
    console.print("counting signatures …")
    verifier = CountingVerifier()
    counting = CountingFederation(p, model, verifier=verifier)
    run_cycle(counting, updates)  # the first version needs no certificate of the one before
    verifier.checks, CountingIdentity.signatures = 0, 0
    run_cycle(counting, updates + np.float32(0.5e-3))
    counts = Counter(signatures=CountingIdentity.signatures, checks=verifier.checks)
    console.print("bare primitives …")
    bare = bare_costs(counts["signatures"], counts["checks"])
    unsigned_bare = sum(bare.values()) - bare["sign"] - bare["verify"]
    console.print("cycles, signed, unsigned and durable …")
    full = best_cycle(lambda: BenchFederation(p, model), updates, REPEATS)
    unsigned = best_cycle(
        lambda: UnsignedFederation(p, model, verifier=NoVerifier()), updates, REPEATS
    )
    wall = best_wall(lambda: BenchFederation(p, model), updates, REPEATS)
    with durable_stores() as make_store:
        durable = best_wall(
            lambda: BenchFederation(p, model, make_store=make_store), updates, REPEATS
        )
    table = Table("part of one cycle", "CPU s", title="One cycle: N=100 U=70 T=8 K=10 d=10⁶")
    for name, seconds in bare.items():
        table.add_row(name, f"{seconds:.3f}")
    table.add_row("primitives together", f"{sum(bare.values()):.3f}")
    table.add_row("full cycle", f"{full:.3f}")
    table.add_row("cycle without signatures", f"{unsigned:.3f}")
    table.add_row("cycle in memory (wall)", f"{wall:.3f}")
    table.add_row("cycle with durable stores (wall)", f"{durable:.3f}")
    console.print(table)
    bars = [
        _bar("full cycle / its primitives", 2, full / sum(bare.values())),
        _bar("the same without signatures", 3, unsigned / unsigned_bare),
        _bar("durable stores / memory, wall", 3, durable / wall),
    ]
    for bar in bars:
        console.print(f"{bar.ratio} · {bar.bar} · {bar.reached:.2f} · {'ok' if bar.ok else 'no'}")
    record = {
        "machine": machine.describe(),
        "bars": [bar._asdict() for bar in bars],
        "primitives": bare,
        "cycle": {"full": full, "unsigned": unsigned, "memory wall": wall, "durable wall": durable},
        "counts": counts,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


def _bar(ratio: str, most: float, reached: float) -> Result:
    return Result(ratio, f"≤ {most:g}", reached, reached <= most)


if __name__ == "__main__":
    main()
