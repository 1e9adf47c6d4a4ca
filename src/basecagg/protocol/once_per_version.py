"""A contributor is in one sum with an update from a version, and in another only if that one was given up.

A contributor that trains twice from one model gives almost the same update twice, and a few sums of few
people's updates from one model are equations that can be solved. Holders and server count with the same code:
what one of them would refuse, the other does not ask for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from basecagg.errors import VersionTaken
from basecagg.protocol.effects import Effect, Forget
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import RecoveryRequest
from basecagg.protocol.ports import Records
from basecagg.protocol.stored import Summed, load, write

_KIND = "summed"


class OncePerVersion:
    """Who was in which sum with an update from which version, for as long as such updates are fresh."""

    def __init__(self, agreement: Agreement, records: Records) -> None:
        """Go on with what was written down before a restart."""
        self._rules = agreement.parameters.once_per_version
        self._max_burns = agreement.epoch.max_burns
        self._max_staleness = agreement.parameters.max_staleness
        self._sums: dict[str, Summed] = {}
        self._of_member: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        """The digests of the sums that each (contributor, base version) was in."""
        for digest, summed in load(records, _KIND, Summed).items():
            self._add(digest, summed)

    def require_free(
        self, contributor: str, base_version: int, opened: Collection[bytes], asked: bytes = b""
    ) -> None:
        """Refuse an update of whom a sum with one from this version was `opened`, or too many were burned.

        `asked` is the digest of the sum that it is to be in.
        """
        member = contributor, base_version
        if not self._rules or member not in self._of_member:
            return
        earlier = self._of_member[member] - {asked.hex()}
        if earlier.intersection(digest.hex() for digest in opened):
            raise VersionTaken(
                f"an update of {contributor} from version {base_version} was summed already: train from a"
                " newer version"
            )
        if len(earlier) > self._max_burns:
            raise VersionTaken(
                f"{len(earlier)} sums with {contributor}'s updates from version {base_version} were given up,"
                f" max_burns = {self._max_burns}: train from a newer version"
            )

    def note(self, request: RecoveryRequest) -> list[Effect]:
        """The sum is asked for, so it may be opened from now on."""
        digest = request.digest.hex()
        if not self._rules or digest in self._sums:
            return []
        members = tuple((t.mask.contributor, t.base_version) for t in request.tickets)
        summed = Summed(version=request.version, members=members)
        self._add(digest, summed)
        return [
            write(_KIND, digest, summed, irreversible=True),
            *self._forget_before(request.version),
        ]

    def _add(self, digest: str, summed: Summed) -> None:
        self._sums[digest] = summed
        for member in summed.members:
            self._of_member[member].add(digest)

    def _forget_before(self, version: int) -> list[Effect]:
        """Sums whose members' updates are too old for another one."""
        oldest = version - self._max_staleness
        outdated = [digest for digest, summed in self._sums.items() if summed.version < oldest]
        for digest in outdated:
            for member in self._sums.pop(digest).members:
                self._of_member[member].discard(digest)
                if not self._of_member[member]:
                    del self._of_member[member]
        return [Forget(_KIND, digest) for digest in outdated]
