"""What a participant knows of the chain of models: one head per version, each from the server's own word.

Whatever the server signs about its models is compared with what it signed before. Two words that contradict
each other are kept together: they convict the server before anybody who has the operator's key.

A word is forgotten when this participant itself has used a later version: when it trained from it, or answered
a question about it. That the server speaks of a later version makes nobody forget anything.
"""

from __future__ import annotations

import hmac

from basecagg.errors import LocalProtocolError, WrongModel
from basecagg.protocol.effects import Effect, Forget, Persist
from basecagg.protocol.epoch import SERVER, Agreement
from basecagg.protocol.global_model import Model, model_hash
from basecagg.protocol.messages import Parts, RecoveryRequest, Release
from basecagg.protocol.ports import Records
from basecagg.protocol.proofs import Caught, Word, contradiction
from basecagg.protocol.recomputation import recompute
from basecagg.protocol.stored import load, version_key, write

_LASTING = 1
"""Versions that the server's word is kept for after the next one was used."""
_MOST = 64
"""Words that are kept at a time, whatever a server signs about versions that nobody uses."""


class ModelWatch:
    """The chain of one epoch's models, as far as this participant has heard of it."""

    def __init__(self, agreement: Agreement, records: Records, share: float = 0.0) -> None:
        """Go on with what was heard before a restart; make this share of the versions again."""
        self._agreement = agreement
        self._share = share
        self._coin = records.read("coin", "") or b""
        self._checked = {int(version): head for version, head in records.scan("checked") if head}
        """The heads of the versions that were made again here. 0.2.0 kept no heads: made again once more."""
        self._words: dict[str, Word] = {
            **load(records, "released", Release),
            **load(records, "asked", RecoveryRequest),
        }
        heard = (word.history.last for word in self._words.values())
        self.newest = max(agreement.epoch.first_version, *heard, 0)
        """The newest version that the server has signed something about."""
        self._begun: int | None = None
        self._used = 0
        """The highest version that was used here since the start."""

    def hear(self, word: Word) -> list[Effect]:
        """Remember what the server signed, unless it contradicts what it signed before."""
        self.require_consistent(word)
        return self.remember(word)

    def require_consistent(self, word: Word) -> None:
        """Refuse what the server did not sign; it is `Caught` if that contradicts what it signed before."""
        self._agreement.require_from_server(word)
        self._agreement.require_history(word.history)
        for known in self._words.values():
            proof = contradiction(known, word)
            if proof is not None:
                raise Caught(proof)

    def remember(self, word: Word) -> list[Effect]:
        """Keep what is consistent, to be compared with what comes. A request is kept once it was answered."""
        kind, key = _place(word)
        self.newest = max(self.newest, word.history.last)
        if isinstance(word, RecoveryRequest):
            self._used = max(self._used, word.version)
        if key in self._words:
            return []
        self._words[key] = word
        places = [_place(each) for each in self._outdated(word)]
        for _, outdated in places:
            del self._words[outdated]
        return [write(kind, key, word), *(Forget(*place) for place in places)]

    def _outdated(self, newest: Word) -> list[Word]:
        """What is older than the versions in use; and of too many words some in the middle.

        So a server that speaks of ever more versions, later or earlier ones, loses neither the words on those
        that were used nor on the newest. The word on a version that was made again stays in any case.
        """
        oldest = self._used - _LASTING
        old = [word for word in self._words.values() if word.history.last < oldest]
        others = [w for w in self._words.values() if w.history.last >= oldest and w is not newest]
        loose = [word for word in others if word.history.last not in self._checked]
        loose.sort(key=lambda word: word.history.last)
        surplus = min(max(0, len(others) + 1 - _MOST), len(loose))
        start = (len(loose) - surplus) // 2
        return old + loose[start : start + surplus]

    def is_due(self, version: int, head: bytes = b"") -> bool:
        """Whether a version has to be made again before it is used. Asking again does not change the answer.

        `head` is what the chain has come to by a word that is not kept yet; else the kept words tell. A version
        that was made again is due once more if the server now means another model by its number.
        """
        if version == self._agreement.epoch.first_version:
            return False
        words = self._words.values()
        told = {word.history.head for word in words if word.history.last == version}
        if version in self._checked and told | {head} <= {self._checked[version], b""}:
            return False
        drawn = hmac.digest(self._coin, f"verify/{version}".encode(), "sha256")
        return int.from_bytes(drawn[:8]) < self._share * 2**64

    def check(self, parts: Parts) -> list[Effect]:
        """Make a version again, and remember that it is the one that was released; `Caught` if it is not."""
        self.require_consistent(parts.release)
        recompute(self._agreement, parts)
        version, head = parts.release.history.last, parts.release.history.head
        old = {each for each in self._checked if each < version - _LASTING}
        kept = {each: head for each, head in self._checked.items() if each not in old}
        self._checked = {**kept, version: head}
        return [
            *self.remember(parts.release),
            Persist("checked", version_key(version), head),
            *(Forget("checked", version_key(each)) for each in sorted(old)),
        ]

    def begin(self) -> None:
        """A model is asked for now: versions that are signed while it is on its way do not make it old."""
        self._begun = self.newest

    def head_of(self, version: int, model: Model) -> bytes:
        """The head that a ticket names, if these are the numbers that the server released.

        A version that was not the newest any more when it was asked for is not trained from: a server that
        keeps serving one model would get many sums of it. Asking for a head counts as use of the version: words
        on older ones are forgotten when the next one comes.
        """
        self._require_newest(version)
        first, told = self._agreement.epoch.first, model_hash(version, model)
        if version == first.version:
            if first.model_hash != told:
                raise WrongModel("this is not the model that the epoch begins with", peer=SERVER)
            return self._agreement.beginning.root
        if self.is_due(version):
            raise LocalProtocolError(f"version {version} has to be made again first")
        releases = (word for word in self._words.values() if isinstance(word, Release))
        release = next((r for r in releases if r.history.last == version), None)
        if release is None:
            raise LocalProtocolError(f"the server has not said yet what version {version} is")
        if release.history.links[-1].model_hash != told:
            raise WrongModel(f"this is not the model that was released as {version}", peer=SERVER)
        self._used = max(self._used, version)
        return release.history.head

    def model_hash_of(self, version: int) -> bytes:
        """The hash of a version's model, by what the server has signed; nothing if that is forgotten."""
        links = (link for word in self._words.values() for link in word.history.links)
        return next((link.model_hash for link in links if link.version == version), b"")

    def _require_newest(self, version: int) -> None:
        least = self.newest if self._begun is None else self._begun
        if self._agreement.parameters.once_per_version and version < least:
            raise WrongModel(
                f"the server sends version {version}, though the newest that it has signed is {least}",
                peer=SERVER,
            )


def _place(word: Word) -> tuple[str, str]:
    """Kind and key of the record."""
    if isinstance(word, Release):
        return "released", version_key(word.history.last)
    return "asked", f"{version_key(word.version)}/{word.attempt}"
