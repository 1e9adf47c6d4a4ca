"""The server's part in dealing: relays sealed shares it cannot read, and counts who confirmed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from basecagg.errors import KnownMask, Malformed, MaskExpired, NotEnrolled, QuotaExceeded
from basecagg.protocol import life, merkle
from basecagg.protocol.effects import Effect, Forget, Persist, Send
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import MaskName, Message, Parcel, Receipt, Shipment
from basecagg.protocol.ports import Records
from basecagg.protocol.records import Relay, RelayedMask, load, parse, require, write

_SEALING_OVERHEAD = 2048
"""The most that any suite adds to a sealed share."""
_LIVE = ("dealt", "buffered", "requested")


class Mailroom:
    """All masks that the server knows of, with the parcels that are not confirmed yet."""

    def __init__(self, agreement: Agreement, records: Records) -> None:
        """Start with what was relayed before a restart."""
        self.agreement = agreement
        self._records = records
        self._masks = load(records, "relayed", RelayedMask)
        self._live = Counter(m.name.contributor for m in self._masks.values() if m.state in _LIVE)
        self._holders = self._who_confirmed()

    def _who_confirmed(self) -> dict[str, set[int]]:
        """Of every live mask all holders but those whose parcels still lie here: confirming one deletes it."""
        everyone = range(self.agreement.parameters.num_users)
        confirmed = {key: set(everyone) for key, m in self._masks.items() if m.state in _LIVE}
        for holder in everyone:
            for key in self._records.keys(pending(holder)):
                confirmed[key].discard(holder)
        return confirmed

    def find(self, name: MaskName) -> RelayedMask | None:
        """The mask of this name, if it has not expired."""
        return self._masks.get(name.key)

    def holders_of(self, name: MaskName) -> set[int]:
        """The holders that confirmed a share of a live mask."""
        return self._holders[name.key]

    def common_holders(self, names: Iterable[MaskName]) -> set[int]:
        """The holders that confirmed a share of every one of these masks."""
        sets = [self._holders[name.key] for name in names]
        return set.intersection(*sets) if sets else set(range(self.agreement.parameters.num_users))

    def relay(self, sender: str, shipment: Shipment, version: int) -> list[Effect]:
        """Store a dealing and send each holder its parcel; when it comes again, only send.

        The dealer repeats a shipment that lacks receipts. They may have been lost on their way to it, so those
        who keep their share confirm it once more.
        """
        self._check(sender, shipment, version)
        names = self.agreement.holder_names
        sends = [Send(names[parcel.holder], parcel) for parcel in _parcels(shipment)]
        new = shipment.dealing.mask.key not in self._masks
        return [*self._store(shipment), *sends] if new else [*sends]

    def _store(self, shipment: Shipment) -> list[Effect]:
        dealing = shipment.dealing
        name = dealing.mask
        mask = RelayedMask(
            name=name,
            dealer_key=dealing.credential.signing_key,
            root=dealing.root,
            expires=dealing.expires,
            state=life.after(life.SERVER, "unknown", "shipment"),
        )
        self._masks[name.key] = mask
        self._holders[name.key] = set()
        self._live[name.contributor] += 1
        relay = Relay(dealing=dealing, leaves=shipment.leaves)
        sealed = enumerate(shipment.sealed)
        return [
            write("relayed", name.key, mask),
            write("relay", name.key, relay),
            *(Persist(pending(holder), name.key, envelope) for holder, envelope in sealed),
        ]

    def confirm(self, sender: str, receipt: Receipt) -> list[Effect]:
        """A holder keeps its shares: note it, and let the dealers know."""
        self.agreement.require_id(receipt.epoch)
        if self.agreement.holder_index(sender) != receipt.holder:
            raise NotEnrolled(f"holder {receipt.holder} is somebody else", peer=sender)
        self.agreement.require_signed_by_holder(receipt, receipt.holder, receipt.signature)
        masks = [mask for name in receipt.masks if (mask := self._masks.get(name.key))]
        live = [mask for mask in masks if mask.state in _LIVE]
        for mask in live:
            self._holders[mask.name.key].add(receipt.holder)
        parcels = [Forget(pending(receipt.holder), mask.name.key) for mask in live]
        dealers = dict.fromkeys(mask.name.contributor for mask in live)
        return [*parcels, *(Send(dealer, receipt) for dealer in dealers)]

    def over(self) -> list[RelayedMask]:
        """The masks whose names alone are kept."""
        return [mask for mask in self._masks.values() if mask.state not in _LIVE]

    def undelivered(self, holder: int) -> list[Message]:
        """The parcels that a holder has not confirmed."""
        kept = self._records.scan(pending(holder))
        return [_parcel(self._records, holder, key, sealed) for key, sealed in kept]

    def move(self, name: MaskName, event: str) -> list[Effect]:
        """One step in the life of a mask."""
        mask = self._masks[name.key]
        mask.state = life.after(life.SERVER, mask.state, event)
        return [write("relayed", name.key, mask)]

    def end(self, name: MaskName, event: str) -> list[Effect]:
        """A mask is over: its outcome is noted, what was not delivered is deleted."""
        mask = self._masks[name.key]
        undelivered = self._forget_parcels(mask)
        return [*self.move(name, event), *undelivered]

    def expire(self, version: int) -> list[Effect]:
        """Delete masks, and the names of those that are over, whose last version has passed."""
        old = [m for m in self._masks.values() if m.expires < version]
        return [
            effect
            for mask in old
            if life.allows(life.SERVER, mask.state, "expire")
            for effect in self._delete(mask)
        ]

    def _delete(self, mask: RelayedMask) -> list[Effect]:
        """Even the name: a late copy of the shipment is refused by its signed expiry."""
        del self._masks[mask.name.key]
        parcels = self._forget_parcels(mask) if mask.state in _LIVE else []
        return [Forget("relayed", mask.name.key), *parcels]

    def _forget_parcels(self, mask: RelayedMask) -> list[Effect]:
        """The mask does not live any more: what was not delivered never will be."""
        key = mask.name.key
        self._live[mask.name.contributor] -= 1
        missing = set(range(self.agreement.parameters.num_users)) - self._holders.pop(key)
        return [Forget("relay", key), *(Forget(pending(index), key) for index in sorted(missing))]

    def _check(self, sender: str, shipment: Shipment, version: int) -> None:
        dealing, parameters = shipment.dealing, self.agreement.parameters
        name = dealing.mask
        self.agreement.require_id(dealing.epoch)
        if sender != name.contributor:
            raise NotEnrolled(f"mask {name.key} is not the sender's", peer=sender)
        self.agreement.require_enrolled(dealing.credential, name.contributor)
        self.agreement.require_signed(dealing, dealing.credential.signing_key, dealing.signature)
        known = self._masks.get(name.key)
        if known is not None and (known.root, known.state) != (dealing.root, "dealt"):
            raise KnownMask(f"mask {name.key} is {known.state}; a name is used once", peer=sender)
        if not version <= dealing.expires <= version + parameters.mask_lifetime:
            raise MaskExpired(
                f"mask {name.key} is to expire at version {dealing.expires}, not within"
                f" mask_lifetime = {parameters.mask_lifetime} of {version}",
                peer=sender,
            )
        if known is None and self._live[sender] >= self.agreement.masks_per_contributor:
            raise QuotaExceeded(f"{self._live[sender]} masks are live already", peer=sender)
        self._require_complete(shipment)

    def _require_complete(self, shipment: Shipment) -> None:
        parameters = self.agreement.parameters
        most = 4 * parameters.share_size + _SEALING_OVERHEAD
        counts = {len(shipment.leaves), len(shipment.sealed)}
        if counts != {parameters.num_users} or max(map(len, shipment.sealed)) > most:
            raise Malformed(
                f"a shipment has {parameters.num_users} sealed shares of {most} bytes at most"
            )
        if _levels(shipment.leaves)[-1][0] != shipment.dealing.root:
            raise Malformed("the sealed shares do not lead to the signed root")


def _parcels(shipment: Shipment) -> list[Parcel]:
    levels = _levels(shipment.leaves)
    return [
        Parcel(shipment.dealing, index, merkle.path(levels, index), sealed)
        for index, sealed in enumerate(shipment.sealed)
    ]


def stored_parcel(records: Records, holder: int, mask: str) -> Parcel | None:
    """A parcel that the holder has not confirmed; None if it has, or if the mask is over."""
    sealed = records.read(pending(holder), mask)
    return None if sealed is None else _parcel(records, holder, mask, sealed)


def _parcel(records: Records, holder: int, mask: str, sealed: bytes) -> Parcel:
    relay = parse(require(records, "relay", mask), Relay)
    path = merkle.path(_levels(relay.leaves), holder)
    return Parcel(relay.dealing, holder, path, sealed)


@lru_cache(maxsize=64)
def _levels(leaves: tuple[bytes, ...]) -> list[list[bytes]]:
    """The same for all holders of a mask, who come one after the other."""
    return merkle.tree(leaves)


def pending(holder: int) -> str:
    """The kind of record that holds the undelivered sealed shares of one holder."""
    return f"parcel:{holder}"
