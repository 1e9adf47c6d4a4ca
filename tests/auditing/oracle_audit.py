"""The audit's algebra a second time: every unknown has its column, every known number its row, all in Python.

The audit replaces z by y − Δ and reads everything off one reduced form. Here nothing is replaced: the
dimensions are differences of ranks, found by an elimination of its own.
"""

from __future__ import annotations

from basecagg.auditing.transcript import RequestLine, Transcript

Row = dict[tuple[str, ...], int]


class Oracle:
    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.q = transcript.epoch.modulus
        self.rows = [*self._uploads(), *self._answers(), *self._shares()]

    def beyond(self, requests: list[RequestLine]) -> int:
        """dim(R) − dim(R ∩ A), R what is known about updates alone and A the sums of the requests."""
        revealed = self.rank(self.rows) - self.rank(self.without("update"))
        sums = [row for request in requests for row in self._sum(request)]
        return revealed - self.rank(self.rows) - self.rank(sums) + self.rank([*self.rows, *sums])

    def of_sum(self, request: RequestLine) -> int:
        the_sum = self._sum(request)
        return self.rank(self.rows) + self.rank(the_sum) - self.rank([*self.rows, *the_sum])

    def of_update(self, mask: str, update: str) -> int:
        return self.rank(self.rows) - self.rank(self.without("update", mask, update))

    def without(self, *prefix: str) -> list[Row]:
        size = len(prefix)
        return [{k: v for k, v in row.items() if k[:size] != prefix} for row in self.rows]

    def rank(self, rows: list[Row]) -> int:
        reduced: dict[tuple[str, ...], Row] = {}
        for row in rows:
            left = {key: value % self.q for key, value in row.items() if value % self.q}
            while left:
                pivot = min(left)
                if pivot not in reduced:
                    reduced[pivot] = left
                    break
                other = reduced[pivot]
                factor = left[pivot] * pow(other[pivot], -1, self.q)
                merged = {
                    k: (left.get(k, 0) - factor * other.get(k, 0)) % self.q for k in {*left, *other}
                }
                left = {key: value for key, value in merged.items() if value}
        return len(reduced)

    # --- rows ---------------------------------------------------------------------------------

    @property
    def _pieces(self) -> range:
        return range(self.transcript.epoch.recovery_threshold - self.transcript.epoch.max_colluders)

    def _uploads(self) -> list[Row]:
        return [
            {("update", mask, update, f"{piece}"): 1, ("row", mask, f"{piece}"): 1}
            for mask, updates in self.transcript.uploads.items()
            for update in updates
            for piece in self._pieces
        ]

    def _share(self, mask: str, holder: int, weight: int) -> Row:
        point, threshold = (
            self.transcript.epoch.points[holder],
            range(self.transcript.epoch.recovery_threshold),
        )
        return {("row", mask, f"{u}"): weight * pow(point, u, self.q) for u in threshold}

    def _answers(self) -> list[Row]:
        rows = []
        for digest, holders in self.transcript.answers.items():
            for holder in holders:
                row: Row = {}
                for member in self.transcript.requests[digest].members:
                    row |= self._share(member.mask, holder, member.weight)
                rows.append(row)
        return rows

    def _shares(self) -> list[Row]:
        held = self.transcript.shares.items()
        return [self._share(mask, holder, 1) for mask, holders in held for holder in holders]

    def _sum(self, request: RequestLine) -> list[Row]:
        uploads = self.transcript.uploads
        there = [m for m in request.members if m.update in uploads.get(m.mask, {})]
        return [
            {("update", m.mask, m.update, f"{piece}"): m.weight for m in there}
            for piece in self._pieces
        ]
