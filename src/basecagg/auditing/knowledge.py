"""What a server view says about a group of masks, as linear equations over F_q, solved exactly.

Per position of a piece there are, for every mask, T unknown rows of noise and, for every update Δ under it,
U − T unknown pieces. An upload y = Δ + z is known, so the sub-masks z are y − Δ: no unknowns of their own,
unless the mask hides nothing yet. A holder's share of a mask is Σ_u row_u·β^u (Eq. encoding), an answer the
weighted sum of shares. What follows about the updates alone is the row space of all that, cut with "no noise,
no z".

All positions of a piece obey the same equations, so one position stands for all: one *dimension* is one number
for each of them, 1/(U − T) of an update's size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from basecagg.auditing.elimination import Matrix, RowSpace, rank, row_space
from basecagg.auditing.transcript import RequestLine, Transcript, contributor_of
from basecagg.errors import DataError
from basecagg.maths.interpolation import vandermonde

_LARGEST_MATRIX = 2**26
"""Words in the equations of one group: half a gigabyte, of which elimination needs a few."""


class View:
    """A transcript with those who work with the server, ready to be asked."""

    def __init__(
        self,
        transcript: Transcript,
        colluders: Iterable[int] = (),
        insiders: Iterable[str] = (),
    ) -> None:
        """Add holders that show the server their shares of all masks, and contributors that hide nothing."""
        everyone = set(colluders)
        self.insiders = frozenset(insiders)
        """Contributors that show the server all that is theirs: updates, masks and noise."""
        _require_present(transcript, everyone, self.insiders)
        self.epoch = transcript.epoch
        self.uploads = {mask: tuple(updates) for mask, updates in transcript.uploads.items()}
        """The updates under each mask; more than one means that the mask was reused."""
        self.requests, self.answers = transcript.requests, transcript.answers
        self._outcomes = transcript.outcomes
        asked = {mask for request in transcript.requests.values() for mask in request.masks}
        masks = sorted(asked.union(transcript.uploads, transcript.shares))
        self.shares = {mask: transcript.shares.get(mask, set()) | everyone for mask in masks}
        """The holders that work with the server, for every mask that was ever named."""

    @cached_property
    def powers(self) -> Matrix:
        """Row u, column j: β_j^u, and 0⁰ = 1."""
        epoch, points = self.epoch, np.array(self.epoch.points, np.uint64)
        return vandermonde(points, epoch.recovery_threshold, epoch.modulus).T.astype(np.uint64)

    def outcome(self, request: RequestLine) -> str:
        """What the server said became of a request: opened, burned or unknown."""
        return self._outcomes.get(request.masks, "unknown")

    def is_known(self, mask: str) -> bool:
        """Whether the mask is an insider's, so that nothing about it is unknown."""
        return contributor_of(mask) in self.insiders


def _require_present(transcript: Transcript, colluders: set[int], insiders: frozenset[str]) -> None:
    """A name that was mistyped must not make the server look more ignorant than it is."""
    for holder in colluders:
        transcript.require_holder(holder)
    strangers = insiders - {contributor_of(mask) for mask in transcript.uploads}
    if strangers:
        raise DataError(f"no update of {', '.join(sorted(strangers))} is in the transcript")


class Knowledge:
    """What follows from the view about the updates under some masks that requests tie together."""

    def __init__(self, view: View, masks: Sequence[str], requests: Sequence[RequestLine]) -> None:
        self._view = view
        self._q = np.uint64(view.epoch.modulus)
        self._pieces = view.epoch.pieces
        self._lay_out([mask for mask in masks if not view.is_known(mask)])
        solved = row_space(self._equations(requests), view.epoch.modulus)
        about_updates = solved.pivots >= self._hidden
        self.revealed = RowSpace(
            solved.rows[about_updates, self._hidden :], solved.pivots[about_updates] - self._hidden
        )

    @property
    def updates(self) -> list[tuple[str, str]]:
        """The unknown updates, by mask and name."""
        return list(self._updates)

    def dimensions_of_sum(self, request: RequestLine) -> int:
        """How much of the request's weighted sum is known: U − T is all of it."""
        the_sum = self._sums([request])
        both = self._rank(the_sum) + self.revealed.rank
        return both - self._rank(np.concatenate([the_sum, self.revealed.rows]))

    def dimensions_beyond(self, requests: Iterable[RequestLine]) -> int:
        """How much is known that does not follow from the weighted sums of these requests."""
        sums = self._sums(requests)
        return self._rank(np.concatenate([sums, self.revealed.rows])) - self._rank(sums)

    def dimensions_of_update(self, mask: str, update: str) -> int:
        """How much is known about one update alone: U − T determines it.

        A known combination that touches no other update is made of rows whose pivots are its own: any other
        row would put its own pivot in.
        """
        own = self._columns_of(mask, update)
        pivots = self.revealed.pivots
        rows = self.revealed.rows[(pivots >= own.start) & (pivots < own.stop)]
        return len(rows) - self._rank(np.delete(rows, own, axis=1))

    def _rank(self, matrix: Matrix) -> int:
        return rank(matrix, self._view.epoch.modulus)

    # --- the unknowns: first what hides (noise, and z of masks without an update), then the updates ------

    def _lay_out(self, masks: Sequence[str]) -> None:
        """Give every unknown its column."""
        self._hiding: dict[str, int] = {}
        self._updates: dict[tuple[str, str], int] = {}
        self._hidden = 0
        for mask in masks:
            self._hiding[mask] = self._hidden
            unused = mask not in self._view.uploads
            self._hidden += self._view.epoch.max_colluders + unused * self._pieces
        for mask in masks:
            for update in self._view.uploads.get(mask, ()):
                self._updates[mask, update] = len(self._updates) * self._pieces

    def _columns_of(self, mask: str, update: str) -> slice:
        """The pieces of an update, counted among all updates."""
        start = self._updates[mask, update]
        return slice(start, start + self._pieces)

    # --- the equations ------------------------------------------------------------------------

    def _equations(self, requests: Sequence[RequestLine]) -> Matrix:
        view, masks = self._view, list(self._hiding)
        answered = [
            ({member.mask: member.weight for member in each.members}, view.answers[each.digest])
            for each in requests
        ]
        shared = [({mask: 1}, view.shares[mask]) for mask in masks]
        reused = [mask for mask in masks if len(view.uploads.get(mask, ())) > 1]
        evaluations = sum(len(holders) for _, holders in (*answered, *shared))
        differences = sum(len(view.uploads[mask]) - 1 for mask in reused)
        self._require_room(evaluations + differences * self._pieces)
        blocks = [self._evaluations(*each) for each in (*answered, *shared)]
        blocks += [self._differences(mask) for mask in reused]
        return np.concatenate([self._zeros(0), *blocks])

    def _evaluations(self, weights: Mapping[str, int], holders: Collection[int]) -> Matrix:
        """One row for each holder: Σ over masks of weight·share."""
        powers = self._view.powers[:, sorted(holders)].T
        rows = self._zeros(len(holders))
        for mask, weight in weights.items():
            if mask in self._hiding:
                share = powers * np.uint64(weight) % self._q
                self._place(rows, mask, share[:, : self._pieces], share[:, self._pieces :])
        return rows

    def _place(self, rows: Matrix, mask: str, submasks: Matrix, noise: Matrix) -> None:
        """Put a mask's part of some shares into its columns."""
        start = self._hiding[mask]
        rows[:, start : start + noise.shape[1]] = noise
        updates = self._view.uploads.get(mask)
        if updates:  # z = y − Δ, and y is known
            first = self._hidden + self._updates[mask, updates[0]]
            rows[:, first : first + self._pieces] = (self._q - submasks) % self._q
        else:
            start += noise.shape[1]
            rows[:, start : start + self._pieces] = submasks

    def _differences(self, mask: str) -> Matrix:
        """A mask that hides two updates: y₁ − y₂ = Δ₁ − Δ₂."""
        first, *others = self._view.uploads[mask]
        rows = self._zeros(len(others) * self._pieces)
        for index, other in enumerate(others):
            block = rows[index * self._pieces :][: self._pieces, self._hidden :]
            np.fill_diagonal(block[:, self._columns_of(mask, first)], 1)
            np.fill_diagonal(block[:, self._columns_of(mask, other)], self._q - np.uint64(1))
        return rows

    def _sums(self, requests: Iterable[RequestLine]) -> Matrix:
        """The weighted sums themselves: U − T rows for each request."""
        sums = [self._sum(request) for request in requests]
        return np.concatenate([self._zeros(0)[:, self._hidden :], *sums])

    def _sum(self, request: RequestLine) -> Matrix:
        rows = self._zeros(self._pieces)[:, self._hidden :]
        for member in request.members:
            if (member.mask, member.update) in self._updates:
                own = self._columns_of(member.mask, member.update)
                np.fill_diagonal(rows[:, own], member.weight)
        return rows

    def _zeros(self, rows: int) -> Matrix:
        return np.zeros((rows, self._hidden + len(self._updates) * self._pieces), np.uint64)

    def _require_room(self, rows: int) -> None:
        columns = self._zeros(0).shape[1]
        if rows * columns > _LARGEST_MATRIX:
            raise DataError(
                f"{len(self._hiding)} masks are tied together by requests: {rows} equations in {columns}"
                " unknowns are too many to solve here"
            )
