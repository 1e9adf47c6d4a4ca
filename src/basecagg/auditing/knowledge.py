"""What a server view says about a group of masks: linear equations over F_q, solved exactly.

Per position of a piece there are, for every mask, T unknown padding rows and, for every update Δ under it,
U − T unknown pieces. An upload y = Δ + z is known, so the sub-masks z are y − Δ: no unknowns of their own,
unless the mask hides nothing yet. A holder's share of a mask is Σ_u row_u·β^u (Eq. encoding), an answer the
weighted sum of shares. What follows about the updates alone is the row space of all that, restricted to
combinations without padding and without z.

All positions of a piece obey the same equations, so one position stands for all: one *dimension* is one number
for each of them, 1/(U − T) of an update's size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.auditing.transcript import RequestLine, Transcript, contributor_of
from basecagg.errors import DataError
from basecagg.maths.interpolation import vandermonde

Matrix: TypeAlias = npt.NDArray[np.uint64]
_LARGEST_MATRIX = 2**26
"""Words in the equations of one group: half a gigabyte, and elimination needs a few times as much."""


class RowSpace(NamedTuple):
    """A row space by its reduced row echelon form: unit vectors in the pivot columns, no zero rows."""

    rows: Matrix
    pivots: npt.NDArray[np.intp]


def row_space(matrix: Matrix, modulus: int) -> RowSpace:
    """Reduce a matrix of words below the prime `modulus` < 2³²."""
    rows, pivots = matrix.copy(), list[int]()
    for column in range(matrix.shape[1]):
        rank = len(pivots)
        below = np.flatnonzero(rows[rank:, column])
        if not below.size:
            continue
        rows[[rank, rank + below[0]]] = rows[[rank + below[0], rank]]
        # Make the pivot one and everything else in its column zero. Left of it the pivot's row is zero.
        inverse = np.uint64(pow(int(rows[rank, column]), -1, modulus))
        head = rows[rank, column:] = _mod(rows[rank, column:] * inverse, modulus)
        others = np.flatnonzero(rows[:, column])
        others = others[others != rank]
        factors = np.uint64(modulus) - rows[others, column]
        # Fits: (q − 1)·(q − 1) + (q − 1) < q² < 2⁶⁴.
        rows[others, column:] = _mod(rows[others, column:] + np.outer(factors, head), modulus)
        pivots.append(column)
    return RowSpace(rows[: len(pivots)], np.array(pivots, dtype=np.intp))


def _mod(values: Matrix, modulus: int) -> Matrix:
    """values % modulus; NumPy divides by a constant much faster than it takes a remainder."""
    q = np.uint64(modulus)
    return values - values // q * q


class View:
    """A transcript, and what those who work with the server add to it."""

    def __init__(
        self, transcript: Transcript, colluders: Iterable[int] = (), insiders: Iterable[str] = ()
    ) -> None:
        """Add holders that show the server their shares of all masks, and contributors that hide nothing."""
        everyone = set(colluders)
        self.insiders = frozenset(insiders)
        """Contributors that show the server all that is theirs: updates, masks and padding."""
        # A name that was mistyped must not make the server look more ignorant than it is.
        for holder in everyone:
            transcript.require_holder(holder)
        strangers = self.insiders - {contributor_of(mask) for mask in transcript.uploads}
        if strangers:
            raise DataError(f"no update of {', '.join(sorted(strangers))} is in the transcript")
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
        """Row j, column u: β_j^u, and 0⁰ = 1."""
        epoch, points = self.epoch, np.array(self.epoch.points, np.uint64)
        return vandermonde(points, epoch.recovery_threshold, epoch.modulus).astype(np.uint64)

    def outcome(self, request: RequestLine) -> str:
        """What the server said became of a request: opened, burned or unknown."""
        return self._outcomes.get(request.masks, "unknown")

    def is_known(self, mask: str) -> bool:
        """Whether the mask is an insider's, so that nothing about it is unknown."""
        return contributor_of(mask) in self.insiders


class Knowledge:
    """What follows from the view about the updates under some masks that requests tie together.

    Unknowns are columns: first what hides (padding, and z of masks without an update), then the updates.
    """

    def __init__(self, view: View, masks: Sequence[str], requests: Sequence[RequestLine]) -> None:
        self._view = view
        self._q = np.uint64(view.epoch.modulus)
        self._pieces = view.epoch.pieces
        self._hiding: dict[str, int] = {}
        """The first column of what hides under a mask."""
        self.updates: dict[tuple[str, str], slice] = {}
        """The columns of each unknown update, by mask and name, counted among all updates."""
        self._hidden = 0
        for mask in masks:
            if not view.is_known(mask):
                self._hiding[mask] = self._hidden
                unused = mask not in view.uploads
                self._hidden += view.epoch.max_colluders + unused * self._pieces
                for update in view.uploads.get(mask, ()):
                    start = len(self.updates) * self._pieces
                    self.updates[mask, update] = slice(start, start + self._pieces)
        solved = row_space(self._equations(requests), view.epoch.modulus)
        about_updates = solved.pivots >= self._hidden
        self.revealed = RowSpace(
            solved.rows[about_updates, self._hidden :], solved.pivots[about_updates] - self._hidden
        )

    def dimensions_of_sum(self, request: RequestLine) -> int:
        """How much of the request's weighted sum is known: U − T is all of it."""
        sums, revealed = self._sums([request]), self.revealed.rows
        return self._rank(sums) + len(revealed) - self._rank(sums, revealed)

    def dimensions_beyond(self, requests: Sequence[RequestLine]) -> int:
        """How much is known that does not follow from the weighted sums of these requests."""
        sums = self._sums(requests)
        return self._rank(sums, self.revealed.rows) - self._rank(sums)

    def dimensions_of_update(self, mask: str, update: str) -> int:
        """How much is known about one update alone: U − T determines it.

        A known combination that touches no other update is made of rows whose pivots are its own: any other
        row would put its own pivot in.
        """
        own = self.updates[mask, update]
        pivots = self.revealed.pivots
        rows = self.revealed.rows[(pivots >= own.start) & (pivots < own.stop)]
        return len(rows) - self._rank(np.delete(rows, own, axis=1))

    def _rank(self, *matrices: Matrix) -> int:
        """The dimension of the space of all rows."""
        return len(row_space(np.concatenate(matrices), self._view.epoch.modulus).pivots)

    # --- the equations ------------------------------------------------------------------------

    def _equations(self, requests: Sequence[RequestLine]) -> Matrix:
        view = self._view
        answered = [
            ({member.mask: member.weight for member in each.members}, view.answers[each.digest])
            for each in requests
        ]
        shared = [({mask: 1}, view.shares[mask]) for mask in self._hiding]
        reused = [mask for mask in self._hiding if len(view.uploads.get(mask, ())) > 1]
        evaluations = sum(len(holders) for _, holders in (*answered, *shared))
        differences = sum(len(view.uploads[mask]) - 1 for mask in reused)
        rows, columns = evaluations + differences * self._pieces, self._zeros(0).shape[1]
        if rows * columns > _LARGEST_MATRIX:
            raise DataError(
                f"{len(self._hiding)} masks are tied together by requests: {rows} equations in {columns}"
                " unknowns are too many to solve here"
            )
        blocks = [self._evaluations(*each) for each in (*answered, *shared)]
        blocks += [self._differences(mask) for mask in reused]
        return np.concatenate([self._zeros(0), *blocks])

    def _evaluations(self, weights: Mapping[str, int], holders: Collection[int]) -> Matrix:
        """One row for each holder: Σ over masks of weight·share."""
        powers = self._view.powers[sorted(holders)]
        rows = self._zeros(len(holders))
        for mask, weight in weights.items():
            if mask not in self._hiding:
                continue
            share = powers * np.uint64(weight) % self._q
            submasks, padding = share[:, : self._pieces], share[:, self._pieces :]
            start = self._hiding[mask] + padding.shape[1]
            rows[:, self._hiding[mask] : start] = padding
            if updates := self._view.uploads.get(mask):  # z = y − Δ, and y is known
                block = rows[:, self._hidden :]
                block[:, self.updates[mask, updates[0]]] = (self._q - submasks) % self._q
            else:
                rows[:, start : start + self._pieces] = submasks
        return rows

    def _differences(self, mask: str) -> Matrix:
        """A mask that hides two updates: y₁ − y₂ = Δ₁ − Δ₂."""
        first, *others = self._view.uploads[mask]
        rows = self._zeros(len(others) * self._pieces)
        for index, other in enumerate(others):
            block = rows[index * self._pieces :][: self._pieces, self._hidden :]
            np.fill_diagonal(block[:, self.updates[mask, first]], 1)
            np.fill_diagonal(block[:, self.updates[mask, other]], self._q - np.uint64(1))
        return rows

    def _sums(self, requests: Sequence[RequestLine]) -> Matrix:
        """The weighted sums themselves: U − T rows for each request."""
        rows = self._zeros(len(requests) * self._pieces)[:, self._hidden :]
        for index, request in enumerate(requests):
            block = rows[index * self._pieces :][: self._pieces]
            for member in request.members:
                if own := self.updates.get((member.mask, member.update)):
                    np.fill_diagonal(block[:, own], member.weight)
        return rows

    def _zeros(self, rows: int) -> Matrix:
        return np.zeros((rows, self._hidden + len(self.updates) * self._pieces), np.uint64)
