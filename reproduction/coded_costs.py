"""LightSecAgg and BASecAgg measured: whole federations at full size, honest-server mode, sealed and signed.

One user does all that a user does, and represents the others. These stand in: their masks have the same seed as
the first one's, so what their holders would answer is known from one encoding, and nobody needs N shares of N
masks. They upload real updates, for the server has to admit and sum those.

No cell is scaled from a smaller N or d: costs of small cells differ by milliseconds, which noise hides and
hundreds multiply; so scaled, opening a sum became cheaper as d grew. What is multiplied is work of the same
size: relaying one user's shares by N, and of BASecAgg one sum of K updates by (N − D)/K.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from basecagg.channels.identity import Ed25519Verifier, enrol
from basecagg.channels.sealing import X25519Sealer
from basecagg.channels.unprotected import NoVerifier
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol import merkle
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, Released, Send, Store
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.holder import Holder
from basecagg.protocol.masking import shares_of
from basecagg.protocol.messages import (
    Answer,
    MaskName,
    Message,
    Parcel,
    Receipt,
    Shipment,
    ShortRequest,
    Upload,
    signed,
)
from basecagg.protocol.ports import Lock
from basecagg.protocol.short_letters import QUESTIONS
from basecagg.protocol.stored import Locks
from basecagg.simulation.metering import Meter
from basecagg.simulation.protections import IN_ROUNDS
from reproduction.bench import Address, Federation, Letter, Loopback
from reproduction.costs import Cell, Once, PhaseCost, Row, Setting, measured

FIRST = "user-0"
"""Who does all the work of a user."""
_LEVELS = 2**16
_BY_AGE: Mapping[str, Any] = {
    "staleness": polynomial(1.0),
    "weights": "field",
    "weight_levels": 64,
    "masks": "long",
    "max_staleness": 10,
}


def measure_coded(cell: Cell) -> Row:
    """The row of a LightSecAgg or BASecAgg cell."""
    return measured(cell, Setting(cell.survivors, cell.colluders, cell.users - 1), aggregate)


def aggregate(cell: Cell) -> Once:
    """N users deal, N − D upload, and these are summed at once or K at a time: one such sum is opened."""
    federation = Rehearsal(cell)
    dealt, delivered = federation.deal_first(), federation.deal_others()
    opened, exact = federation.open_sum()
    n, members = cell.users, cell.members
    others, sums = members - 1, cell.sums
    return Once(
        {
            "offline": PhaseCost(
                dealt.seconds("contributor") + n * delivered.seconds("holder") / others,
                n
                * (
                    dealt.seconds("server", Shipment)
                    + delivered.seconds("server", Receipt) / others
                ),
                dealt.size(Shipment),
                n * dealt.size(Parcel),
            ),
            "upload": PhaseCost(
                opened.seconds("contributor") / members,
                sums * opened.seconds("server", Upload),
                opened.size(Upload),
            ),
            "recovery": PhaseCost(
                sums * opened.seconds("holder"),
                sums * opened.seconds("server", Answer),
                sums * opened.size(Answer),
                sums * opened.size(ShortRequest),
            ),
        },
        exact,
    )


# --- accounts -----------------------------------------------------------------------------------


class Spent(NamedTuple):
    """CPU seconds of a stage by role and kind of message, and the messages of that stage."""

    cpu: Mapping[tuple[str, type[Message]], float]
    meter: Meter

    def seconds(self, role: str, kind: type[Message] | None = None) -> float:
        """Of one role: with this kind of message, or with all."""
        return sum(
            spent for (who, what), spent in self.cpu.items() if who == role and kind in (None, what)
        )

    def size(self, kind: type[Message]) -> float:
        """Bytes of one message."""
        return self.meter.bytes_sent[kind.__name__] / self.meter.messages[kind.__name__]


class CountingLoopback(Loopback):
    """A loopback that charges CPU seconds to a role, by the kind of message handled; stand-ins are free."""

    def __init__(self) -> None:
        """Start at nothing."""
        super().__init__()
        self.meter = Meter()
        self.deaf: set[str] = set()
        """Holders that do not hear requests."""
        self.observers.append(lambda letter: self.meter.weigh(letter.message))
        self._cpu: defaultdict[tuple[str, type[Message]], float] = defaultdict(float)

    def take(self) -> Spent:
        """What was spent since the last time."""
        spent = Spent(self._cpu, self.meter)
        self._cpu, self.meter = defaultdict(float), Meter()
        return spent

    def deliver(self, address: Address, mail: Iterable[Letter]) -> None:
        """As the loopback does, but holders in `deaf` do not hear requests."""
        deaf = address.role == "holder" and address.name in self.deaf
        heard = (each for each in mail if not (deaf and isinstance(each.message, QUESTIONS)))
        super().deliver(address, heard)

    def _handle(self, address: Address, letters: Iterable[Letter]) -> None:
        letters = list(letters)
        with self.charged(address, type(letters[0].message)):
            super()._handle(address, letters)

    @contextmanager
    def charged(self, address: Address, kind: type[Message]) -> Iterator[None]:
        """Charge the block to whoever is at this address."""
        started = time.process_time()
        yield
        if not isinstance(self.nodes[address].machine, StandIn):
            self._cpu[address.role, kind] += time.process_time() - started


# --- those who stand in -------------------------------------------------------------------------


class StandIn(Holder):
    """Confirms every share unseen, and says what it was told to say when it is asked."""

    answer = b""
    """The words of its answer."""
    _confirmed: tuple[MaskName, ...] = ()

    def receive(self, message: Message) -> list[Effect]:
        """No rule is checked: nothing here is measured."""
        if isinstance(message, Parcel):
            self._confirmed += message.dealing.masks
        if not isinstance(message, ShortRequest):
            return []
        id_, version, digest = self.agreement.id, message.version, message.digest
        answer = Answer(id_, version, digest, self.index, self.answer)
        return [Send(SERVER, signed(answer, self._signer))]

    def acknowledge(self) -> list[Effect]:
        """One receipt for all parcels since the last one, as holders do."""
        if not self._confirmed:
            return []
        receipt = Receipt(self.agreement.id, self.index, self._confirmed)
        self._confirmed = ()
        return [Send(SERVER, signed(receipt, self._signer))]


class OneLock(X25519Sealer):
    """Agrees on a key with the first holder alone."""

    def locks(self, recipient_keys: Sequence[bytes], contexts: Sequence[bytes]) -> list[Lock]:
        """The same for all."""
        return super().locks(recipient_keys[:1], contexts[:1]) * len(contexts)


class LightDealer(Contributor):
    """Seals nothing but the share of the one holder that opens envelopes."""

    share = b""

    def _seal(
        self, seeds: Sequence[bytes], locks: Locks, contexts: Sequence[bytes]
    ) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        opened = self._sealer.seal(locks.of_holders[0], contexts[0], self.share)
        sealed = (opened, *(b"" for _ in contexts[1:]))
        return tuple(merkle.leaf(*each) for each in enumerate(sealed)), sealed


class Rehearsal(Federation):
    """A federation of full size in which one contributor and one holder, both `FIRST`, do all their work."""

    def __init__(self, cell: Cell) -> None:
        """Start everybody; those who drop out will not hear the request."""
        self._loopback = CountingLoopback()
        self._parameters = coded_parameters(cell)
        super().__init__(self._parameters, network=self._loopback)
        self._loopback.deaf = {f"user-{index}" for index in range(cell.survivors, cell.users)}
        self._names = [f"user-{index}" for index in range(cell.members)]

    def deal_first(self) -> Spent:
        """The mask that is measured: all of it is encoded, sealed, relayed and confirmed."""
        return self._deal([FIRST])

    def deal_others(self) -> Spent:
        """All other masks. What is measured is that the first holder keeps its shares, and the receipts."""
        own, answers = self._foresee()
        for name in self._names[1:]:
            dealer = self.contributor(name)
            assert isinstance(dealer, LightDealer)
            dealer.share = own
        for index, words in answers.items():
            holder = self.holder(f"user-{index}")
            assert isinstance(holder, StandIn)
            holder.answer = words
        return self._deal(self._names[1:])

    def _deal(self, names: Sequence[str]) -> Spent:
        self._loopback.take()
        for name in names:
            self.contributor(name)
            with self._loopback.charged(Address("contributor", name), Shipment):
                self.deal(name)
        self._loopback.run()
        return self._loopback.take()

    def _foresee(self) -> tuple[bytes, dict[int, bytes]]:
        """The first holder's share of each mask, and the others' answers: all masks and weights are alike."""
        p = self._parameters
        shares = shares_of(_alike(32), self.agreement.code, p)
        weight = p.buffer_size * p.field_levels
        total = self.agreement.code.field.weighted_sum
        answers = {
            index: total([shares[index]], [weight]).tobytes()
            for index in range(1, p.recovery_threshold)
        }
        return shares[0].tobytes(), answers

    def open_sum(self) -> tuple[Spent, bool]:
        """Everybody uploads, and the sum is opened; whether that is exact."""
        self._loopback.take()
        server, updates = self.server, self._updates()
        total = np.zeros(self._parameters.model_size, np.int64)
        for name, (levels, values) in zip(self._names, cycle(updates), strict=False):
            total += levels
            with self._loopback.charged(Address("contributor", name), Upload):
                self.submit(name, values, server.version, server.head)
        self._loopback.run()
        return self._loopback.take(), self._is_exact(total)

    def _updates(self) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]:
        """Two, in levels and as they are: whole multiples of 1/c_l, so that the sum must be exact."""
        drawn = np.random.default_rng(1).normal(0, 0.02 * _LEVELS, (2, self._parameters.model_size))
        levels = np.rint(drawn).astype(np.int32)
        return list(zip(levels, (levels / _LEVELS).astype(np.float32), strict=True))

    def _is_exact(self, total: npt.NDArray[np.int64]) -> bool:
        """Whether one sum was opened, and is the plain one bit for bit. Nothing is stale: weights are c_g."""
        news = [each for each in self.take_news() if isinstance(each, Released)]
        weight = self._parameters.field_levels
        return len(news) == 1 and np.array_equal(news[0].weighted_sum * _LEVELS, weight * total)

    def _build_holder(self, name: str, store: Store) -> Holder:
        index = self.agreement.holder_names.index(name)
        if name != FIRST:
            return StandIn(self.agreement, index, self.identity(name), self._secret(name), store)
        # Its own agreement: what the server has checked this holder has to check, too.
        own = Agreement(self.agreement.epoch, Ed25519Verifier())
        return Holder(own, index, self.identity(name), self._secret(name), store)

    def _build_contributor(self, name: str, store: Store) -> Contributor:
        identity, agreement = self.identity(name), self.agreement
        credential = enrol(self.identity("enrolment"), agreement.id, name, identity.public_key)
        if name == FIRST:
            sealer = X25519Sealer()
            return Contributor(agreement, credential, identity, sealer, store, entropy=_alike)
        # It believes every receipt.
        light = Agreement(agreement.epoch, NoVerifier())
        return LightDealer(light, credential, identity, OneLock(), store, entropy=_alike)


def _alike(count: int) -> bytes:
    """The secret of everybody's mask."""
    return bytes(range(count))


def coded_parameters(cell: Cell) -> ProtocolParameters:
    """Honest-server mode; U = N − D, T = N/2 or the largest possible; K the survivors or the paper's."""
    return ProtocolParameters(
        num_holders=cell.users,
        recovery_threshold=cell.survivors,
        max_colluders=cell.colluders,
        max_dropouts=cell.dropouts,
        buffer_size=cell.members,
        model_size=cell.model_size,
        consistency="honest-server",
        **(IN_ROUNDS if cell.protocol == "lightsecagg" else _BY_AGE),
    )
