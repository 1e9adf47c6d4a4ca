"""One full cycle of the protocol against the bare cost of its primitives, and durable stores against memory.

N = 100, U = 70, T = 8, K = 10, d = 10⁶, in one process: ten deals delivered to a hundred holders, ten uploads,
one certified recovery; everything sealed and signed. Times are CPU seconds of the process; for the disk, wall.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from basecagg import ProtocolParameters
from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.unprotected import NoVerifier
from basecagg.protocol.effects import Store
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.holder import Holder
from basecagg.storage.participant_store import ParticipantStore
from basecagg.storage.server_store import ServerStore
from benchmarks.bare import BareCycle
from benchmarks.bars import at_most
from reproduction import machine, report
from reproduction.bench import AT_SERVER, Address, Federation
from reproduction.cycle import run_cycle

RESULTS = Path(__file__).parent / "results" / "cycle.json"
PARAMETERS = ProtocolParameters(
    num_holders=100,
    recovery_threshold=62,
    max_colluders=8,
    max_dropouts=30,
    buffer_size=10,
    model_size=10**6,
    masks="long",
)
REPEATS = 6


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

    def _build_holder(self, name: str, store: Store) -> Holder:
        """A holder of its own: it shares no note of checked signatures with the others."""
        own = Agreement(self.agreement.epoch, self.agreement.verifier)
        index = own.holder_names.index(name)
        return Holder(own, index, self.identity(name), self._secret(name), store)


class CountingFederation(BenchFederation):
    """Counts signatures."""

    identity_type = CountingIdentity


class UnsignedFederation(BenchFederation):
    """Signs nothing."""

    identity_type = SilentIdentity


class Rival:
    """One kind of cycle, run again and again; the best time counts."""

    def __init__(self, federation: Federation, updates: np.ndarray, clock: Callable[[], float]):
        """Time cycles of this federation by this clock."""
        self._federation, self._updates, self._clock = federation, updates, clock
        self._runs, self.best = 0, float("inf")

    def run(self) -> None:
        """One more cycle. Its updates are fresh, for the same are refused; making them is not timed."""
        updates = self._updates + np.float32(self._runs * 1e-3)
        started = self._clock()
        run_cycle(self._federation, updates)
        self.best = min(self.best, self._clock() - started)
        self._runs += 1


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
    drawn = np.random.default_rng(1).normal(0, 0.02, (p.buffer_size, p.model_size))
    updates = drawn.astype(np.float32)
    console.print("counting signatures …")
    verifier = CountingVerifier()
    counting = CountingFederation(p, model, verifier=verifier)
    run_cycle(counting, updates)  # the first version needs no certificate of the one before
    verifier.checks, CountingIdentity.signatures = 0, 0
    run_cycle(counting, updates + np.float32(0.5e-3))
    counts = Counter(signatures=CountingIdentity.signatures, checks=verifier.checks)
    primitives = BareCycle(p, counts["signatures"], counts["checks"])
    bare = primitives.seconds()
    signed = Rival(BenchFederation(p, model), updates, time.process_time)
    silent = UnsignedFederation(p, model, verifier=NoVerifier())
    unsigned = Rival(silent, updates, time.process_time)
    memory = Rival(BenchFederation(p, model), updates, time.perf_counter)
    with durable_stores() as make_store:
        stored = BenchFederation(p, model, make_store=make_store)
        durable = Rival(stored, updates, time.perf_counter)
        # In turn: what is compared meets the same machine.
        for _ in track(range(REPEATS), "primitives and cycles in turn …", console=console):
            bare = {name: min(bare[name], now) for name, now in primitives.seconds().items()}
            for rival in (signed, unsigned, memory, durable):
                rival.run()
    together = sum(bare.values())
    unsigned_bare = together - bare["sign"] - bare["verify"]
    parts = {
        **bare,
        "primitives together": together,
        "full cycle": signed.best,
        "cycle without signatures": unsigned.best,
        "cycle in memory (wall)": memory.best,
        "cycle with durable stores (wall)": durable.best,
    }
    shown = [{"part of one cycle": name, "CPU s": seconds} for name, seconds in parts.items()]
    report.show_table(console, "One cycle: N=100 U=70 T=8 K=10 d=10⁶", shown)
    bars = [
        at_most("full cycle / its primitives", 2, signed.best / together),
        at_most("the same without signatures", 3, unsigned.best / unsigned_bare),
        at_most("durable stores / memory, wall", 3, durable.best / memory.best),
    ]
    lines = [bar._asdict() for bar in bars]
    report.show_table(console, "Bars", lines)
    record = {
        "machine": machine.describe(),
        "bars": lines,
        "primitives": bare,
        "cycle": {
            "full": signed.best,
            "unsigned": unsigned.best,
            "memory wall": memory.best,
            "durable wall": durable.best,
        },
        "counts": counts,
    }
    report.write_json(RESULTS, record)


if __name__ == "__main__":
    main()
