"""A participant's sealing keys: announced for an epoch, joined to one, destroyed with what they opened.

A key is born in the store and never leaves it, so no copy of it survives where the memory of what it answered
did not.
"""

from __future__ import annotations

from basecagg.errors import WrongEpoch
from basecagg.protocol import life
from basecagg.protocol.effects import Effect, Forget
from basecagg.protocol.ports import Records, SealingKey, SealingSuite
from basecagg.protocol.stored import StoredSealingKey, load, write

_MOST_KEYS = 8
"""Announced ones at a time."""


class KeyRing:
    """All sealing keys of one participant that are not destroyed, by their public halves."""

    def __init__(self, suite: SealingSuite, records: Records) -> None:
        self._suite = suite
        self._keys = load(records, "sealing", StoredSealingKey)

    def states(self) -> dict[str, str]:
        """The state of every key."""
        return {key: record.state for key, record in self._keys.items()}

    def announced(self) -> list[bytes]:
        """Keys that no epoch is known to use, the newest last."""
        keys = [k for k, r in self._in_order() if r.state == "announced"]
        return [bytes.fromhex(key) for key in keys]

    def create(self) -> list[Effect]:
        """One key more to announce. If there are too many the oldest goes."""
        gone = self.announced()[: 1 - _MOST_KEYS]
        key = self._suite.create()
        record = StoredSealingKey(
            secret=key.secret_bytes(),
            state=life.after(life.SEALING_KEY, "new", "announce"),
            born=1 + max((r.born for r in self._keys.values()), default=0),
        )
        self._keys[key.public_key.hex()] = record
        return [*self._destroy([k.hex() for k in gone]), self._write(key.public_key.hex())]

    def has(self, public_key: bytes) -> bool:
        """Whether this key can join an epoch; one that has joined another is refused."""
        record = self._keys.get(public_key.hex())
        if record is not None and not life.allows(life.SEALING_KEY, record.state, "join"):
            raise WrongEpoch("it lists a sealing key with which I joined another epoch")
        return record is not None

    def join(self, public_key: bytes | None) -> list[Effect]:
        """This key, or none, serves the next epoch: that of the last one and all older ones are destroyed."""
        key = public_key.hex() if public_key else ""
        born = self._keys[key].born if key else 0
        old = [k for k, r in self._in_order() if r.born < born or r.state == "joined"]
        effects = self._destroy(old)
        if key:
            record = self._keys[key]
            record.state = life.after(life.SEALING_KEY, record.state, "join")
            effects.append(self._write(key))
        return effects

    def joined(self) -> SealingKey | None:
        """The key of the present epoch."""
        secrets = [record.secret for record in self._keys.values() if record.state == "joined"]
        return self._suite.load(secrets[0]) if secrets else None

    def leave(self) -> list[Effect]:
        """The epoch is over: destroy its key. Those announced for the next one stay."""
        return self._destroy([key for key, r in self._in_order() if r.state == "joined"])

    def destroy_all(self) -> list[Effect]:
        """Something may have been forgotten that one of these has opened."""
        return self._destroy(list(self._keys))

    def _destroy(self, keys: list[str]) -> list[Effect]:
        for key in keys:
            life.after(life.SEALING_KEY, self._keys.pop(key).state, "destroy")
        return [Forget("sealing", key) for key in keys]

    def _write(self, key: str) -> Effect:
        return write("sealing", key, self._keys[key], irreversible=True)

    def _in_order(self) -> list[tuple[str, StoredSealingKey]]:
        return sorted(self._keys.items(), key=lambda item: item[1].born)
