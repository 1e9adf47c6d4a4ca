"""A user of SecAgg: four messages out, three in, and never both shares of one neighbour revealed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import numpy as np

from basecagg import errors
from basecagg.baselines import secagg
from basecagg.baselines.secagg_graph import neighbourhood
from basecagg.baselines.shamir import SHARE_BYTES, SecretSharing
from basecagg.channels.key_agreement import SECRET_BYTES, AgreementKey, seal, unseal
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import SEED_BYTES, Words, system_entropy

_SERVER = "server"
_NEXT = {"new": "advertised", "advertised": "shared", "shared": "masked", "masked": "revealed"}


class EntrustedShares(NamedTuple):
    """What a neighbour entrusted to us: shares of its b and of its masking key."""

    of_seed: bytes
    of_key: bytes

    @classmethod
    def of(cls, both: bytes) -> EntrustedShares:
        """The two shares of one envelope."""
        return cls(both[:SHARE_BYTES], both[SHARE_BYTES:])

    def __repr__(self) -> str:
        """Nothing of the shares."""
        return "EntrustedShares(…)"


@dataclass(eq=False, repr=False)
class SecAggClient:
    """One user in one round. A refused message changes nothing."""

    parameters: secagg.SecAggParameters
    round_id: bytes
    user: int
    _: KW_ONLY
    entropy: Callable[[int], bytes] = system_entropy
    """Only a simulation replaces it."""
    state: str = field(default="new", init=False)

    def __post_init__(self) -> None:
        """Draw both keys and the private seed b."""
        self._neighbourhood = neighbourhood(self.parameters.graph, self.user)
        self._masking_key = AgreementKey(self.entropy(SECRET_BYTES))
        self._sealing_key = AgreementKey(self.entropy(SECRET_BYTES))
        self._private_seed = self.entropy(SEED_BYTES)
        self._noise_seed = self.entropy(SEED_BYTES)
        self._roster: dict[int, secagg.Keys] = {}
        self._held: dict[int, EntrustedShares] = {}
        self._answered: tuple[secagg.UnmaskRequest, secagg.Unmasking] | None = None

    def __repr__(self) -> str:
        """Nothing of the secrets."""
        return f"SecAggClient({self.user}, {self.state})"

    # --- phase 1: keys ------------------------------------------------------------------------

    def advertise(self) -> secagg.Keys:
        """Both public keys."""
        self._move("new")
        keys = (self._masking_key.public_key, self._sealing_key.public_key)
        return secagg.Keys(self.round_id, self.user, *keys)

    # --- phase 2: shares ----------------------------------------------------------------------

    def share(self, roster: secagg.Roster) -> secagg.SealedShares:
        """Share b and the masking key among the neighbourhood, t of k + 1; keep one's own share."""
        peers = self._check_roster(roster)
        self._move("advertised")
        self._roster = peers
        sharing = SecretSharing(len(self._neighbourhood), self.parameters.threshold)
        secrets = [self._private_seed, self._masking_key.secret_bytes()]
        rows = sharing.share(secrets, self._noise_seed).astype("<u4", copy=False)
        parts = dict(zip(self._neighbourhood, (row.tobytes() for row in rows), strict=True))
        self._held[self.user] = EntrustedShares.of(parts.pop(self.user))
        envelopes = tuple((peer, self._seal(peer, parts[peer])) for peer in peers)
        return secagg.SealedShares(self.round_id, self.user, envelopes)

    def _check_roster(self, roster: secagg.Roster) -> dict[int, secagg.Keys]:
        self._require_round(roster.round)
        peers = {keys.user: keys for keys in roster.keys if keys.user != self.user}
        self._require_neighbours(peers)
        public = [key for keys in peers.values() for key in (keys.masking_key, keys.sealing_key)]
        if len(set(public)) != len(public):
            raise errors.Malformed("two users have the same key", peer=_SERVER)
        self._require_enough(peers)
        return peers

    def _seal(self, peer: int, share: bytes) -> bytes:
        context = secagg.envelope_context(self.round_id, self.user, peer)
        return seal(self._envelope_key(peer), context, share)

    def _envelope_key(self, peer: int) -> bytes:
        return self._sealing_key.agree(self._roster[peer].sealing_key, b"envelope" + self.round_id)

    # --- phase 3: inputs ----------------------------------------------------------------------

    def mask(self, delivery: secagg.Delivery, values: Words) -> secagg.MaskedInput:
        """y_i = x_i + PRG(b_i) + Σ_{i<j} PRG(a_ij) − Σ_{i>j} PRG(a_ji), Eq. (secagg_maskedmodel)."""
        if values.dtype != np.uint32 or values.shape != (self.parameters.vector_size,):
            raise errors.DataError(f"the input must be uint32[{self.parameters.vector_size}]")
        if values.max() >= PAPER_MODULUS:
            raise errors.DataError(f"the input holds numbers ≥ q = {PAPER_MODULUS}")
        held = self._open_envelopes(delivery)
        self._move("shared")
        self._held |= held
        agree, purpose = self._masking_key.agree, secagg.mask_purpose(self.round_id)
        seeds = {peer: agree(self._roster[peer].masking_key, purpose) for peer in held}  # a_ij
        added = [self._private_seed, *(seeds[peer] for peer in held if self.user < peer)]
        subtracted = [seeds[peer] for peer in held if self.user > peer]
        words = secagg.add_masks(values, added, subtracted).astype("<u4", copy=False).tobytes()
        return secagg.MaskedInput(self.round_id, self.user, words)

    def _open_envelopes(self, delivery: secagg.Delivery) -> dict[int, EntrustedShares]:
        self._require_round(delivery.round)
        envelopes = dict(delivery.envelopes)
        self._require_neighbours(envelopes)
        if not set(envelopes) <= set(self._roster):
            raise errors.WrongMembers(
                "shares came from a user that advertised no keys", peer=_SERVER
            )
        self._require_enough(envelopes)
        return {peer: self._unseal(peer, sealed) for peer, sealed in envelopes.items()}

    def _unseal(self, peer: int, sealed: bytes) -> EntrustedShares:
        context = secagg.envelope_context(self.round_id, peer, self.user)
        try:
            share = unseal(self._envelope_key(peer), context, sealed)
        except errors.ChannelError as error:
            raise errors.WrongRecipient(str(error), peer=f"user {peer}") from None
        if len(share) != 2 * SHARE_BYTES:
            raise errors.Malformed("the envelope does not hold two shares", peer=f"user {peer}")
        return EntrustedShares.of(share)

    # --- phase 4: unmasking -------------------------------------------------------------------

    def unmask(self, request: secagg.UnmaskRequest) -> secagg.Unmasking:
        """For each neighbour, one share: of its b if it survived, of its masking key if not. Never both.

        So a second request that names other survivors is refused; the same one is answered again alike.
        """
        if self._answered is not None:
            asked, answer = self._answered
            if request != asked:
                raise errors.MaskTaken(
                    "shares were revealed for other survivors already: both shares of one user would"
                    " unmask it alone",
                    peer=_SERVER,
                )
            return answer
        survivors = self._check_survivors(request)
        self._move("masked")
        seeds = tuple((u, held.of_seed) for u, held in self._held.items() if u in survivors)
        keys = tuple((u, held.of_key) for u, held in self._held.items() if u not in survivors)
        answer = secagg.Unmasking(self.round_id, self.user, seeds, keys)
        self._answered, self._held = (request, answer), {}
        return answer

    def _check_survivors(self, request: secagg.UnmaskRequest) -> set[int]:
        self._require_round(request.round)
        survivors = set(request.survivors)
        if self.user not in survivors or not survivors <= set(range(self.parameters.num_holders)):
            raise errors.WrongMembers(
                "the survivors are not users of this round, with me", peer=_SERVER
            )
        self._require_enough((survivors & set(self._held)) - {self.user})
        return survivors

    # --- rules --------------------------------------------------------------------------------

    def _move(self, expected: str) -> None:
        if self.state != expected:
            raise errors.LocalProtocolError(f"user {self.user} is {self.state}, not {expected}")
        self.state = _NEXT[expected]

    def _require_round(self, round_id: bytes) -> None:
        if round_id != self.round_id:
            raise errors.Malformed("the message belongs to another round", peer=_SERVER)

    def _require_neighbours(self, users: Iterable[int]) -> None:
        strangers = set(users) - set(self._neighbourhood)
        if strangers:
            raise errors.WrongMembers(f"users {sorted(strangers)} are no neighbours", peer=_SERVER)

    def _require_enough(self, others: Iterable[int]) -> None:
        """At least t with me: fewer could neither hide an input nor open the sum."""
        count = 1 + len(set(others))
        if count < self.parameters.threshold:
            raise errors.WrongMembers(
                f"only {count} users of my neighbourhood are left, below t ="
                f" {self.parameters.threshold}",
                peer=_SERVER,
            )
