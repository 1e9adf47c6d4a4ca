"""The server of SecAgg: relays envelopes it cannot read, sums masked inputs, and takes the masks off the sum.

`receive` takes a user's message; `advance` closes the phase and says what to send, or how the round ended.
Users that sent nothing by then have dropped out. With too few users the round ends and nothing is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from basecagg.baselines import secagg
from basecagg.baselines.secagg_graph import neighbourhood
from basecagg.baselines.shamir import ELEMENTS, SHARE_BYTES, SecretSharing
from basecagg.channels.key_agreement import AgreementKey
from basecagg.errors import DecodingError, LocalProtocolError, Malformed, WrongMembers
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import Words

_EXPECTED: dict[str, type[secagg.FromUser]] = {
    "keys": secagg.Keys,
    "shares": secagg.SealedShares,
    "inputs": secagg.MaskedInput,
    "unmasking": secagg.Unmasking,
}
_PHASES = list(_EXPECTED)


@dataclass(frozen=True, eq=False)
class SumOpened:
    """Σ x_i mod q over the survivors, U3."""

    total: Words
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class RoundFailed:
    """Too many users were gone; nothing was opened."""

    reason: str


PhaseEnd: TypeAlias = dict[int, secagg.ToUser] | SumOpened | RoundFailed
"""What to send to whom, or how the round ended."""


class SecAggServer:
    """One round, seen by the server."""

    def __init__(self, parameters: secagg.SecAggParameters, round_id: bytes) -> None:
        """Wait for keys."""
        self.phase = "keys"
        self._parameters = parameters
        self._round = round_id
        self._received: dict[str, dict[int, Any]] = {phase: {} for phase in _EXPECTED}
        self._keys: dict[int, secagg.Keys] = self._received["keys"]
        self._graph = parameters.graph

    def receive(self, message: secagg.FromUser) -> None:
        """Take a user's message of the present phase, or refuse it."""
        peer = f"user {message.user}"
        if message.round != self._round or type(message) is not _EXPECTED.get(self.phase):
            raise Malformed(f"not a message of phase '{self.phase}' of this round", peer=peer)
        if message.user not in self._expected_users():
            raise WrongMembers("the user dropped out of this round before", peer=peer)
        if message.user in self._received[self.phase]:
            raise Malformed("a second message in one phase", peer=peer)
        self._check(message)
        self._received[self.phase][message.user] = message

    def advance(self) -> PhaseEnd:
        """Close the phase."""
        if self.phase not in _EXPECTED:
            raise LocalProtocolError(f"the round is {self.phase}")
        if lonely := self._lonely():
            self.phase = "failed"
            return RoundFailed(lonely)
        match self.phase:
            case "keys":
                return self._send_rosters()
            case "shares":
                return self._send_envelopes()
            case "inputs":
                self.phase = "unmasking"
                return dict.fromkeys(
                    self.survivors, secagg.UnmaskRequest(self._round, self.survivors)
                )
        return self._open()

    # --- closing a phase ----------------------------------------------------------------------

    def _send_rosters(self) -> PhaseEnd:
        self.phase, keys = "shares", self._keys
        return {
            user: secagg.Roster(self._round, tuple(keys[v] for v in self._graph[user] if v in keys))
            for user in keys
        }

    def _send_envelopes(self) -> PhaseEnd:
        self.phase = "inputs"
        envelopes: dict[int, list[tuple[int, bytes]]] = {u: [] for u in self._received["shares"]}
        for user, said in sorted(self._received["shares"].items()):
            for recipient, sealed in said.envelopes:
                if recipient in envelopes:
                    envelopes[recipient].append((user, sealed))
        return {
            user: secagg.Delivery(self._round, tuple(found)) for user, found in envelopes.items()
        }

    def _open(self) -> PhaseEnd:
        try:
            seeds = self._recover("seed_shares", self.survivors)
            keys = self._recover("key_shares", self.dropped)
            added, subtracted = self._masks_left(keys)
        except DecodingError as error:
            self.phase = "failed"
            return RoundFailed(str(error))
        self.phase = "opened"
        total = secagg.add_masks(self._sum_of_inputs(), added, [*subtracted, *seeds.values()])
        return SumOpened(total, self.survivors)

    def _lonely(self) -> str:
        """Why the round cannot go on: a user has fewer than t neighbours left, itself included."""
        present, least = set(self._received[self.phase]), self._parameters.threshold
        if len(present) < 2:
            return f"{len(present)} users are left in phase '{self.phase}'"
        needed = present if self.phase != "unmasking" else {*self.survivors, *self.dropped}
        for user in sorted(needed):
            left = len(present & set(neighbourhood(self._graph, user)))
            if left < least:
                return (
                    f"user {user} has {left} users of its neighbourhood left in phase"
                    f" '{self.phase}', below t = {least}"
                )
        return ""

    # --- opening ------------------------------------------------------------------------------

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3: users whose inputs came."""
        return tuple(sorted(self._received["inputs"]))

    @property
    def dropped(self) -> tuple[int, ...]:
        """U2 without U3: their pairwise masks are in the survivors' inputs, and nothing cancels them."""
        return tuple(sorted(set(self._received["shares"]) - set(self._received["inputs"])))

    def _recover(self, kind: str, owners: Sequence[int]) -> dict[int, bytes]:
        """The owners' secrets. Owners whose shares the same users hold are recovered together."""
        shares: dict[int, dict[int, bytes]] = {owner: {} for owner in owners}
        for user, message in self._received["unmasking"].items():
            for owner, share in getattr(message, kind):
                shares[owner][user] = share
        groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for owner in owners:
            seats = neighbourhood(self._graph, owner)
            groups.setdefault((seats, tuple(sorted(shares[owner]))), []).append(owner)
        found: dict[int, bytes] = {}
        for (seats, holders), together in groups.items():
            rows = {
                seats.index(holder): np.concatenate(
                    [np.frombuffer(shares[owner][holder], "<u4") for owner in together]
                ).astype(np.uint32)
                for holder in holders
            }
            sharing = SecretSharing(len(seats), self._parameters.threshold)
            found |= zip(together, sharing.recover(rows), strict=True)
        return found

    def _masks_left(self, keys: Mapping[int, bytes]) -> tuple[list[bytes], list[bytes]]:
        """Seeds to add to and subtract from the sum: those that a dropped user i shares with a survivor.

        The second of the paper's equations adds, for every i in D, Σ_{i<j} PRG(a_ij) − Σ_{i>j} PRG(a_ji).
        """
        added: list[bytes] = []
        subtracted: list[bytes] = []
        for user, secret in keys.items():
            key = AgreementKey(secret)
            if key.public_key != self._keys[user].masking_key:
                raise DecodingError(
                    f"the shares of user {user} give another key than it advertised"
                )
            for peer in set(self._graph[user]) & set(self.survivors):
                seed = key.agree(self._keys[peer].masking_key, secagg.mask_purpose(self._round))
                (added if user < peer else subtracted).append(seed)
        return added, subtracted

    def _sum_of_inputs(self) -> Words:
        inputs = self._received["inputs"].values()
        rows = [np.frombuffer(each.words, "<u4").astype(np.uint32, copy=False) for each in inputs]
        return PrimeField(PAPER_MODULUS).weighted_sum(rows, [1] * len(rows))

    # --- checks -------------------------------------------------------------------------------

    def _expected_users(self) -> Collection[int]:
        before = _PHASES.index(self.phase) - 1
        if before < 0:
            return range(self._parameters.num_holders)
        return self._received[_PHASES[before]]

    def _check(self, message: secagg.FromUser) -> None:
        peer, neighbours = f"user {message.user}", set(self._graph[message.user])
        match message:
            case secagg.SealedShares():
                if {user for user, _ in message.envelopes} != neighbours & set(self._keys):
                    raise Malformed(
                        "an envelope for each neighbour on the roster, no other", peer=peer
                    )
            case secagg.MaskedInput():
                if len(message.words) != 4 * self._parameters.vector_size:
                    raise Malformed(f"an input is {self._parameters.vector_size} words", peer=peer)
                _require_elements(message.words, "an input holds words", peer)
            case secagg.Unmasking():
                around = neighbours | {message.user}
                self._check_shares(message.seed_shares, around & set(self.survivors), peer)
                self._check_shares(message.key_shares, around & set(self.dropped), peer)

    def _check_shares(
        self, shares: Sequence[tuple[int, bytes]], owners: set[int], peer: str
    ) -> None:
        if {owner for owner, _ in shares} != owners or len(shares) != len(owners):
            raise Malformed("not one share of each neighbour that was asked for", peer=peer)
        if any(len(share) != SHARE_BYTES for _, share in shares):
            raise Malformed(f"a share is not {ELEMENTS} elements of the field", peer=peer)
        _require_elements(b"".join(share for _, share in shares), "shares hold words", peer)


def _require_elements(words: bytes, what: str, peer: str) -> None:
    if words and np.frombuffer(words, "<u4").max() >= PAPER_MODULUS:
        raise Malformed(f"{what} ≥ q = {PAPER_MODULUS}", peer=peer)
