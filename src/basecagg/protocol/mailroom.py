"""The server's part in dealing and uploading: it stores and relays what it cannot read.

Sealed shares wait here until their holders confirm them, masked updates until their sum is opened and checked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

from basecagg.errors import (
    KnownMask,
    Malformed,
    MaskExpired,
    NotEnrolled,
    QuotaExceeded,
    StorageError,
    UnknownMask,
)
from basecagg.protocol import life, merkle
from basecagg.protocol.effects import Effect, Forget, Persist, Send
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import Dealing, MaskName, Message, Parcel, Receipt, Shipment
from basecagg.protocol.ports import Records
from basecagg.protocol.stored import Kept, Relay, RelayedMask, load, parse, require, write

_SEALING_OVERHEAD = 2048
"""The most that any suite adds to a sealed share."""
_LIVE = ("dealt", "parked", "buffered", "requested")
_OVER = ("opened", "burned", "refused")
"""The third kind is 'returned': nothing of it is kept but its name, and the same update may come again."""
_NAMES = 4
"""Names of one contributor that are kept, for each version that a mask lives. Without a limit, dealing and
giving up again and again would fill the stores of server and holders with names."""
_FEW_NAMES = 256
"""A receipt may always have this many names: a parcel that was delivered twice stands in it twice."""


class Overwritten:
    """Stored bulk of one kind that is over, oldest first. Each goes when more of its kind comes.

    So the store writes the new over the old. Deleted by itself it would be written twice: as zeros now, and as
    what comes next in its place.
    """

    def __init__(self, over: Iterable[str]) -> None:
        self._over = dict.fromkeys(over)

    def add(self, keys: Iterable[str]) -> None:
        """Note that these are over."""
        self._over |= dict.fromkeys(keys)

    def discard(self, key: str) -> None:
        """This one is deleted by itself."""
        self._over.pop(key, None)

    def give_way(self) -> list[str]:
        """The key to delete when another value comes: one for one, so that each finds a place of its size."""
        if not self._over:
            return []
        oldest = next(iter(self._over))
        del self._over[oldest]
        return [oldest]


class Uploads:
    """The masked updates that the server stores, by the names of their masks: those that wait or are kept.

    A name hides another update only when the one before is gone.
    """

    def __init__(self, records: Records, needed: Iterable[MaskName]) -> None:
        """Those not needed are outdated: the last process ended before they were overwritten."""
        self._records = records
        self._stored = set(records.keys("upload"))
        self._outdated = Overwritten(sorted(self._stored.difference(name.key for name in needed)))

    def __contains__(self, name: MaskName) -> bool:
        return name.key in self._stored

    def read(self, name: MaskName) -> bytes:
        """The update that this mask hides."""
        return require(self._records, "upload", name.key)

    def store(self, name: MaskName, words: bytes) -> list[Effect]:
        """Store an update that waits; one that is outdated makes room."""
        self._stored.add(name.key)
        gone = self._outdated.give_way()
        self._stored.difference_update(gone)
        return [Persist("upload", name.key, words), *(Forget("upload", key) for key in gone)]

    def outdate(self, names: Iterable[MaskName]) -> None:
        """Nobody may ask for these any more. They are deleted when others come."""
        self._outdated.add(name.key for name in names if name in self)

    def forget(self, name: MaskName) -> Effect:
        """Delete an update now."""
        self._stored.discard(name.key)
        return Forget("upload", name.key)


class Confirmations:
    """The holders that confirmed each live dealing: one value for each receipt that said something new."""

    def __init__(self, records: Records, live: Iterable[str]) -> None:
        self._holders: dict[str, set[int]] = {dealing: set() for dealing in live}
        self._records_of: defaultdict[str, list[str]] = defaultdict(list)
        self._still_needed: Counter[str] = Counter()
        self._next = 0
        for key, kept in load(records, "kept", Kept).items():
            self._note(key, kept.holder, [each for each in kept.dealings if each in self._holders])
            self._next = int(key) + 1

    def _note(self, key: str, holder: int, dealings: list[str]) -> None:
        self._still_needed[key] = len(dealings)
        for dealing in dealings:
            self._holders[dealing].add(holder)
            self._records_of[dealing].append(key)

    def begin(self, dealing: str) -> None:
        """Add a new dealing, which nobody has confirmed."""
        self._holders[dealing] = set()

    def of(self, dealing: str) -> set[int]:
        """The holders that confirmed a live dealing."""
        return self._holders[dealing]

    def lacks(self, holder: int, dealing: str) -> bool:
        """Whether the dealing lives and the holder has not confirmed it."""
        return holder not in self._holders.get(dealing, {holder})

    def lacked_by(self, holder: int) -> list[str]:
        """The live dealings that a holder has not confirmed, in order."""
        return sorted(each for each, holders in self._holders.items() if holder not in holders)

    def add(self, holder: int, dealings: Iterable[str]) -> list[Effect]:
        """A holder confirms live dealings. Those that it confirmed before are not stored again."""
        new = [dealing for dealing in dealings if self.lacks(holder, dealing)]
        if not new:
            return []
        key = f"{self._next:016d}"
        self._next += 1
        self._note(key, holder, new)
        return [write("kept", key, Kept(holder=holder, dealings=tuple(new)))]

    def end(self, dealing: str) -> list[Effect]:
        """Forget a dealing that is over."""
        del self._holders[dealing]
        keys = self._records_of.pop(dealing, [])
        self._still_needed.subtract(keys)
        over = [key for key in keys if not self._still_needed[key]]
        for key in over:
            del self._still_needed[key]
        return [Forget("kept", key) for key in over]


class Mailroom:
    """All masks that the server knows of, with the shipments that not all holders have confirmed yet."""

    def __init__(self, agreement: Agreement, records: Records) -> None:
        self.agreement = agreement
        self._records = records
        self._masks = load(records, "relayed", RelayedMask)
        live = self.live()
        self._live = Counter(mask.name.contributor for mask in live)
        self._named = Counter(mask.name.contributor for mask in self._masks.values())
        self._live_of_dealing = Counter(mask.dealing for mask in live)
        self._confirmations = Confirmations(records, self._live_of_dealing)
        stored = records.keys("shipment")
        for dealing in stored:
            if dealing not in self._live_of_dealing:
                raise StorageError(f"envelopes of {dealing} are stored, but none of its masks")
        self._delivered = Overwritten(filter(self._is_delivered, stored))
        self._told: defaultdict[str, set[int]] = defaultdict(set)
        """The holders whose receipts the dealer has got since it last shipped the dealing."""

    @property
    def dealers(self) -> frozenset[str]:
        """The contributors that may come with updates: they have live masks, or had masks of late.

        Of late, where each mask is dealt with its update: it is live only while the update waits.
        """
        known = self._named if self.agreement.parameters.one_visit else self._live
        return frozenset(name for name, count in known.items() if count)

    def find(self, name: MaskName) -> RelayedMask | None:
        """The mask of this name, if it has not expired."""
        return self._masks.get(name.key)

    def holders_of(self, name: MaskName) -> set[int]:
        """The holders that confirmed a share of a live mask."""
        return self._confirmations.of(self._masks[name.key].dealing)

    def common_holders(self, names: Iterable[MaskName]) -> set[int]:
        """The holders that confirmed a share of every one of these masks."""
        everybody = set(range(self.agreement.parameters.num_holders))
        return everybody.intersection(*map(self.holders_of, names))

    def relay(self, sender: str, shipment: Shipment, version: int) -> list[Effect]:
        """Store a dealing and send each holder its parcel; when it comes again, only send.

        The dealer repeats a shipment that lacks receipts. They may have been lost on their way to it, so those
        who keep their share confirm it once more.
        """
        dealing = shipment.dealing
        self.require_genuine(sender, dealing)
        self._require_new_or_same(dealing)
        self._require_room(sender, shipment, version)
        new = dealing.key not in self._live_of_dealing
        self._told.pop(dealing.key, None)
        return [*(self._store(shipment, "shipment") if new else []), *self._deliver(shipment)]

    def park(self, shipment: Shipment, version: int) -> list[Effect]:
        """Store a dealing that came with its update, and send each holder its parcel.

        `require_genuine` has looked at it. It may have been returned before.
        """
        self._require_room(shipment.dealing.masks[0].contributor, shipment, version)
        return [*self._store(shipment, "contribute"), *self._deliver(shipment)]

    def remind(self, dealing: Dealing) -> list[Effect]:
        """A parked update has come again: holders that have not confirmed get their parcel again.

        As it was stored when it came first: of what comes again nobody has looked at the envelopes.
        """
        names, key = self.agreement.holder_names, self._masks[dealing.masks[0].key].dealing
        lacking = [index for index in range(len(names)) if self.lacks(index, key)]
        return [Send(names[i], parcel) for i in lacking for parcel in self.parcels(key, only=i)]

    def may_refuse(self, dealing: Dealing, version: int) -> bool:
        """Whether there is room for its name, and the name would be kept until nobody can use it any more."""
        return self._is_timely(dealing, version) and self._names_with(dealing) <= self._most_names

    def refuse(self, dealing: Dealing) -> list[Effect]:
        """Keep the name of a mask that is refused with its update, before any holder has heard of it."""
        (name,) = dealing.masks
        mask = self._masks[name.key] = _relayed(name, dealing, "unknown", "refuse")
        self._named[name.contributor] += 1
        return [write("relayed", name.key, mask)]

    def _deliver(self, shipment: Shipment) -> list[Effect]:
        names = self.agreement.holder_names
        return [
            Send(names[i], _parcel(shipment.dealing, shipment.leaves, i, sealed))
            for i, sealed in enumerate(shipment.sealed)
        ]

    def _store(self, shipment: Shipment, event: str) -> list[Effect]:
        dealing = shipment.dealing
        known = {name.key: self._masks.get(name.key) for name in dealing.masks}
        masks = {
            name.key: _relayed(name, dealing, before.state if before else "unknown", event)
            for name, before in zip(dealing.masks, known.values(), strict=True)
        }
        self._masks |= masks
        self._confirmations.begin(dealing.key)
        self._live[dealing.credential.contributor] += len(masks)
        self._named[dealing.credential.contributor] += list(known.values()).count(None)
        self._live_of_dealing[dealing.key] = len(masks)
        sizes = tuple(map(len, shipment.sealed))
        relay = Relay(dealing=dealing, leaves=shipment.leaves, sizes=sizes)
        return [
            *(write("relayed", key, mask) for key, mask in masks.items()),
            write("relay", dealing.key, relay),
            Persist("shipment", dealing.key, b"".join(shipment.sealed)),
            *(Forget("shipment", key) for key in self._delivered.give_way()),
        ]

    def confirm(self, sender: str, receipt: Receipt) -> list[Effect]:
        """Note that a holder keeps its shares, and let the dealers know that wait for that.

        Every such dealer gets the whole receipt. So the server passes on no receipt with an unknown mask, and
        none twice unless the dealer has asked again. A dealer that sent its update along does not wait.
        """
        self.agreement.require_id(receipt.epoch)
        self.agreement.require_holder(receipt.holder, sender)
        self.agreement.require_signed_by_holder(receipt, receipt.holder, receipt.signature)
        live = [mask for mask in self._masks_in(receipt, sender) if mask.state in _LIVE]
        dealers = {mask.dealing: mask.name.contributor for mask in live}
        noted = self._confirmations.add(receipt.holder, dealers)
        self._delivered.add(filter(self._is_delivered, dealers if noted else ()))
        if self.agreement.parameters.one_visit:
            return noted
        untold = [dealing for dealing in dealers if receipt.holder not in self._told[dealing]]
        for dealing in untold:
            self._told[dealing].add(receipt.holder)
        news = dict.fromkeys(dealers[dealing] for dealing in untold)
        return [*noted, *(Send(dealer, receipt) for dealer in news)]

    def _is_delivered(self, dealing: str) -> bool:
        return len(self._confirmations.of(dealing)) == self.agreement.parameters.num_holders

    def _masks_in(self, receipt: Receipt, sender: str) -> list[RelayedMask]:
        most = max(len(self._masks), _FEW_NAMES)
        if len(receipt.masks) > most:
            raise Malformed(
                f"a receipt of {len(receipt.masks)} names has some twice: there are {len(self._masks)} masks"
            )
        for name in receipt.masks:
            if name.key not in self._masks:
                raise UnknownMask(f"mask {name.key} was not dealt here, or is over")
        return [self._masks[name.key] for name in receipt.masks]

    def live(self) -> list[RelayedMask]:
        """The masks that may still hide an update, or do."""
        return [mask for mask in self._masks.values() if mask.state in _LIVE]

    def over(self) -> list[RelayedMask]:
        """The masks that are over: only their names are kept, and holders need no share of them any more."""
        return [mask for mask in self._masks.values() if mask.state in _OVER]

    def undelivered(self, holder: int) -> list[Message]:
        """The parcels that a holder has not confirmed."""
        lacked = self._confirmations.lacked_by(holder)
        return [parcel for dealing in lacked for parcel in self.parcels(dealing, only=holder)]

    def lacks(self, holder: int, dealing: str) -> bool:
        """Whether the dealing lives and the holder has not confirmed it: then its parcel is stored here."""
        return self._confirmations.lacks(holder, dealing)

    def parcels(self, dealing: str, *, only: int | None = None) -> list[Parcel]:
        """The parcels of a stored shipment, for all holders or for one."""
        relay = parse(require(self._records, "relay", dealing), Relay)
        envelopes, ends = require(self._records, "shipment", dealing), [*accumulate(relay.sizes)]
        wanted = range(len(relay.sizes)) if only is None else [only]
        return [
            _parcel(relay.dealing, relay.leaves, i, envelopes[ends[i] - relay.sizes[i] : ends[i]])
            for i in wanted
        ]

    def move(self, name: MaskName, event: str) -> list[Effect]:
        """Move a mask on in its life."""
        mask = self._masks[name.key]
        mask.state = life.after(life.SERVER, mask.state, event)
        return [write("relayed", name.key, mask)]

    def end(self, name: MaskName, event: str) -> list[Effect]:
        """Note the outcome of a mask that is over; the last of a dealing takes what was not delivered along."""
        mask = self._masks[name.key]
        undelivered = self._bury(mask) if mask.state in _LIVE else []
        return [*self.move(name, event), *undelivered]

    def expire(self, version: int) -> list[Effect]:
        """Delete masks whose last version has passed.

        Even the names of those that are over: a late copy of the shipment is refused by its signed expiry.
        """
        effects: list[Effect] = []
        for key, mask in list(self._masks.items()):
            if mask.name.expires < version and life.allows(life.SERVER, mask.state, "expire"):
                del self._masks[key]
                self._named[mask.name.contributor] -= 1
                effects += [
                    Forget("relayed", key),
                    *(self._bury(mask) if mask.state in _LIVE else []),
                ]
        return effects

    def _bury(self, mask: RelayedMask) -> list[Effect]:
        """Count a mask as over. With the last one of a dealing, delete what was not delivered."""
        self._live[mask.name.contributor] -= 1
        self._live_of_dealing[mask.dealing] -= 1
        if self._live_of_dealing[mask.dealing]:
            return []
        del self._live_of_dealing[mask.dealing]
        self._told.pop(mask.dealing, None)
        self._delivered.discard(mask.dealing)
        gone = [Forget(kind, mask.dealing) for kind in ("relay", "shipment")]
        return [*gone, *self._confirmations.end(mask.dealing)]

    def require_genuine(self, sender: str, dealing: Dealing) -> None:
        """Refuse a dealing that is not the sender's word on masks of its own."""
        self.agreement.require_id(dealing.epoch)
        if sender != dealing.masks[0].contributor:
            raise NotEnrolled(f"mask {dealing.masks[0].key} is not the sender's")
        self.agreement.require_dealt(dealing)

    def _require_room(self, sender: str, shipment: Shipment, version: int) -> None:
        """Refuse what expires at a wrong time, too many masks, or envelopes that are not all there."""
        dealing, parameters = shipment.dealing, self.agreement.parameters
        known = dealing.masks[0].key in self._masks
        if not self._is_timely(dealing, version):
            raise MaskExpired(
                f"mask {dealing.masks[0].key} is to expire at version {dealing.expires}, not within"
                f" mask_lifetime = {parameters.mask_lifetime} of {version}"
            )
        live = self._live[sender] + len(dealing.masks)
        is_live = dealing.key in self._live_of_dealing
        if not is_live and live > self.agreement.masks_per_contributor:
            raise QuotaExceeded(f"{self._live[sender]} masks are live already")
        if not known and self._names_with(dealing) > self._most_names:
            raise QuotaExceeded(
                f"{self._named[sender]} masks of yours have come and gone within mask_lifetime ="
                f" {parameters.mask_lifetime} versions: wait for newer ones"
            )
        self._require_complete(shipment)

    def _is_timely(self, dealing: Dealing, version: int) -> bool:
        return version <= dealing.expires <= version + self.agreement.parameters.mask_lifetime

    def _names_with(self, dealing: Dealing) -> int:
        return self._named[dealing.masks[0].contributor] + len(dealing.masks)

    @property
    def _most_names(self) -> int:
        return _NAMES * self.agreement.parameters.mask_lifetime

    def _require_new_or_same(self, dealing: Dealing) -> None:
        """A name is used once, so a dealing that is known in part is refused."""
        known = [mask for name in dealing.masks if (mask := self._masks.get(name.key))]
        for mask in known:
            if mask.dealing != dealing.key or mask.state != "dealt":
                raise KnownMask(f"mask {mask.name.key} is {mask.state}; a name is used once")

    def _require_complete(self, shipment: Shipment) -> None:
        parameters = self.agreement.parameters
        share = parameters.word_bytes * parameters.share_size
        most = share * len(shipment.dealing.masks) + _SEALING_OVERHEAD
        counts = {len(shipment.leaves), len(shipment.sealed)}
        if counts != {parameters.num_holders} or max(map(len, shipment.sealed)) > most:
            raise Malformed(
                f"a shipment has {parameters.num_holders} envelopes of {most} bytes at most"
            )
        sender = merkle.sender_of(shipment.sealed[0], self.agreement.epoch.suite)
        if merkle.root_of(shipment.leaves, sender) != shipment.dealing.root:
            raise Malformed("the envelopes do not lead to the signed root")


def _relayed(name: MaskName, dealing: Dealing, state: str, event: str) -> RelayedMask:
    """The note on a mask after an event."""
    return RelayedMask(
        name=name,
        dealing=dealing.key,
        dealer_key=dealing.credential.signing_key,
        state=life.after(life.SERVER, state, event),
    )


def _parcel(dealing: Dealing, leaves: tuple[bytes, ...], holder: int, sealed: bytes) -> Parcel:
    return Parcel(dealing, holder, merkle.proof(_levels(leaves), holder, dealing.root), sealed)


@lru_cache(maxsize=64)
def _levels(leaves: tuple[bytes, ...]) -> list[list[bytes]]:
    """Kept for the next holders, who need the same tree."""
    return merkle.tree(leaves)
