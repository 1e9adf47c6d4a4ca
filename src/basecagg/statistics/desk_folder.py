"""A centre's desk on its own machine: a folder with the mapping file, and what was approved and answered.

Programs open it for a moment each: the agent to answer, people to approve. Federations may share it, so that
two studies know of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from basecagg.errors import DataError, QuestionRefused
from basecagg.protocol.effects import Forget
from basecagg.protocol.messages import encode
from basecagg.protocol.questions import StudyTerms, read
from basecagg.protocol.stored import Stored, load, recall, write
from basecagg.statistics.desk import LEAST_CENTRES, Desk, Given
from basecagg.statistics.mapping import findings, read_mapping
from basecagg.statistics.protocol_file import StudyProtocol, parse
from basecagg.statistics.recipe import files_digest
from basecagg.storage.disk import write_private
from basecagg.storage.lease import acquire_within
from basecagg.storage.participant_store import ParticipantStore

_PATIENCE = 10.0
"""Seconds to open a store that another program has open for a moment."""
_STUDIES = "studies"
_OLD = "this desk's store is an older copy of itself: what it has answered since is not known"


class Approved(Stored):
    """What people at the centre agreed to."""

    by: str
    files: str
    """The hash of the files that compute: with others it has to be approved again."""


class Waiting(NamedTuple):
    """A study that came from a server."""

    terms: StudyTerms
    protocol: StudyProtocol
    approved: Approved | None

    @property
    def is_open(self) -> bool:
        """Whether its questions are answered."""
        return self.approved is not None and self.approved.files == files_digest()


class DeskFolder:
    """The folder of a desk. Nothing is written there but what was approved and answered."""

    def __init__(self, folder: Path, anchors: Path | None = None) -> None:
        self.folder = folder
        self._anchors = anchors

    @contextmanager
    def _store(self) -> Iterator[ParticipantStore]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "desk.db"
        store = acquire_within(
            _PATIENCE, lambda: ParticipantStore(path, "desk", anchor_folder=self._anchors)
        )
        try:
            yield store
        finally:
            store.close()

    # --- for people -----------------------------------------------------------------------------

    def studies(self) -> list[Waiting]:
        """Every study that has come, in the order of their hashes."""
        paths = sorted((self.folder / _STUDIES).glob("*.terms"))
        with self._store() as store:
            approved = load(store, "approved", Approved)
        found = list[Waiting]()
        for path in paths:
            terms = read(path.read_bytes(), StudyTerms)
            said = approved.get(terms.contract.hex())
            found.append(Waiting(terms, parse(terms.text), said))
        return found

    def study(self, beginning: str) -> Waiting:
        """The one study whose hash begins like this."""
        hits = [w for w in self.studies() if w.terms.contract.hex().startswith(beginning)]
        if len(hits) != 1:
            raise DataError(f"{len(hits)} studies have a hash that begins with {beginning!r}")
        return hits[0]

    def findings(self, protocol: StudyProtocol) -> list[str]:
        """What people should know of their own records before they approve."""
        return findings(read_mapping(self.folder), protocol.columns, protocol.most)

    def approve(self, study: Waiting, by: str) -> None:
        """From now on this study's questions are answered. Not if units differ, or the floor is too low."""
        if bad := [each for each in self.findings(study.protocol) if each.startswith("UNIT")]:
            raise DataError(f"{bad[0]}: convert it in the mapping file (`times`, `unit`)")
        if study.protocol.least < LEAST_CENTRES:
            raise DataError(
                f"sums of {study.protocol.least} centres: a desk answers in sums of {LEAST_CENTRES} or more"
            )
        with self._store() as store:
            if store.rolled_back:
                raise DataError(f"{_OLD}; nothing is approved")
            approved = Approved(by=by, files=files_digest())
            store.commit(
                [write("approved", study.terms.contract.hex(), approved, irreversible=True)]
            )

    def withdraw(self, study: Waiting) -> None:
        """From now on its questions are refused. What was answered is not undone."""
        with self._store() as store:
            store.commit([Forget("approved", study.terms.contract.hex())])

    def answered(self) -> list[tuple[str, Given]]:
        """Everything that was answered."""
        with self._store() as store:
            return list(load(store, "answer", Given).items())

    # --- for the agent ----------------------------------------------------------------------------

    def receive(self, terms: StudyTerms) -> None:
        """Keep the terms of a study, for people to look at."""
        path = self.folder / _STUDIES / f"{terms.contract.hex()}.terms"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_private(path, encode(terms))

    def is_approved(self, terms: StudyTerms) -> bool:
        """Whether people here approved these very terms, for these files."""
        with self._store() as store:
            found = recall(store, "approved", Approved, terms.contract.hex())
        return found is not None and found.files == files_digest()

    @contextmanager
    def open(self, name: str, terms: StudyTerms, operator_key: bytes) -> Iterator[Desk]:
        """The desk for a study that was approved, with this centre's records."""
        protocol, contract = parse(terms.text), terms.contract.hex()
        columns = read_mapping(self.folder).read(list(protocol.columns))
        with self._store() as store:
            approved = recall(store, "approved", Approved, contract)
            if approved is None or approved.files != files_digest():
                raise QuestionRefused(f"{name} has not approved these terms")
            desk = Desk(
                name,
                columns,
                store,
                centres=protocol.members,
                most=protocol.most,
                least=max(protocol.least, LEAST_CENTRES),
                budget=protocol.budget,
                only=protocol.answered,
                vouched_by=operator_key,
            )
            for asked in protocol.analyses:
                for each in asked.sums:
                    desk.approve(each)
            yield desk
