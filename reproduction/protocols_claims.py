"""What the paper says of the recovery after dropouts, judged by the cells of `protocols`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, product

from reproduction.costs import (
    NAMES,
    Phases,
    Protocol,
    Row,
    Spread,
    recovery_seconds,
    server_seconds,
)
from reproduction.protocols_tables import CODED, PAIRWISE, model_name, percent, spread_in_words
from reproduction.report import SEEDS_NEEDED, Claim, Verdict, settled, shown

MUCH = 2.0
"""A factor that the paper's "significantly" and "much" are taken for."""
_MEASURED = "measured is the server's CPU in the recovery"


class Recoveries:
    """What the recovery takes the server at one N and d, by protocol and share of dropouts."""

    def __init__(self, rows: Iterable[Row], users: int, dropouts: Sequence[float]) -> None:
        """Rows of one model; those whose sum was wrong do not count."""
        self.users, self.dropouts = users, dropouts
        self._rows = {
            (row.cell.protocol, row.cell.dropout): row
            for row in rows
            if row.cell.users == users and row.exact
        }

    def repeats(self, protocols: Sequence[Protocol]) -> int:
        """The fewest of all cells that these protocols need: 0 while one is missing."""
        cells_of = [self._rows.get(cell) for cell in product(protocols, self.dropouts)]
        return min(len(row.repeats) if row else 0 for row in cells_of)

    def line(
        self, protocol: Protocol, read: Callable[[Phases], float] = recovery_seconds
    ) -> dict[float, Spread]:
        """The seconds that are measured, from the fewest dropouts to the most."""
        return {
            dropout: self._rows[protocol, dropout].spread(read)
            for dropout in self.dropouts
            if (protocol, dropout) in self._rows
        }

    def one_sum(self, protocol: Protocol) -> dict[float, Spread]:
        """The seconds of a single recovery: the more drop out, the fewer sums BASecAgg makes of the others."""
        return {
            dropout: Spread(*(each / self._rows[protocol, dropout].cell.sums for each in whole))
            for dropout, whole in self.line(protocol).items()
        }

    def gains(
        self, protocol: Protocol, read: Callable[[Phases], float] = recovery_seconds
    ) -> dict[float, Spread]:
        """How many times as long SecAgg takes."""
        ours, other = self.line(protocol, read), self.line("secagg", read)
        return {
            dropout: _ratio(other[dropout], ours[dropout]) for dropout in ours if dropout in other
        }


def _ratio(above: Spread, below: Spread) -> Spread:
    """Of the middle ones; at least and at most, whichever repeats are compared."""
    return Spread(above.middle / below.middle, above.least / below.most, above.most / below.least)


def grows(times: Sequence[Spread]) -> Verdict:
    """Whether every step takes longer than the last, whichever repeats are compared, and all much longer."""
    ratios = [_ratio(after, before) for before, after in pairwise(times)]
    if all(ratio.least > 1 for ratio in ratios) and _ratio(times[-1], times[0]).middle >= MUCH:
        return "reproduced"
    return "partly" if _ratio(times[-1], times[0]).least > 1 else "not reproduced"


def stays(lines: Iterable[Sequence[Spread]]) -> Verdict:
    """Whether no share of dropouts takes longer than the smallest, beyond what repeats differ by."""
    longer = [_ratio(after, first).least > 1 for first, *rest in lines for after in rest]
    if not any(longer):
        return "reproduced"
    return "not reproduced" if all(longer) else "partly"


def faster(gains: Sequence[Spread]) -> Verdict:
    """Whether all gains are large, whichever repeats are compared."""
    if all(gain.least >= MUCH for gain in gains):
        return "reproduced"
    return "partly" if any(gain.least > 1 for gain in gains) else "not reproduced"


def claims(rows: Sequence[Row], users: Sequence[int], dropouts: Sequence[float]) -> list[Claim]:
    """What the paper says of the recovery; rows of one model. The shortest form has no dropouts to compare."""
    if len(dropouts) < 2:
        return []
    every = [Recoveries(rows, n, dropouts) for n in users]
    model = model_name(rows[0].cell.model_size)
    return [
        _secagg_grows(every, model),
        _one_shot_stays(every, model),
        _one_shot_faster(every, model),
    ]


def _secagg_grows(every: Sequence[Recoveries], model: str) -> Claim:
    at, needed = every[-1], PAIRWISE[:1]
    return _claim(
        (
            "SecAgg's recovery grows with dropouts",
            "The running time of SecAgg's recovery increases significantly with the number of dropped users.",
        ),
        _found(every, needed, model, lambda at: _times(at, needed)),
        lambda: grows([*at.line("secagg").values()]),
        at.repeats(needed),
        f"{_MEASURED}; it must be longer at every larger share, whichever repeats are compared, and in the end"
        f" {MUCH:g} times as long. The server takes off D·(N − D) pairwise masks: their number is largest at"
        " 50 %",
    )


def _one_shot_stays(every: Sequence[Recoveries], model: str) -> Claim:
    at = every[-1]
    return _claim(
        (
            "One-shot recovery stays the same",
            "The running time of one-shot recovery (LightSecAgg, BASecAgg) does not increase with the number of"
            " dropped users.",
        ),
        _found(every, CODED, model, lambda at: _times(at, CODED)),
        lambda: stays([[*at.one_sum(protocol).values()] for protocol in CODED]),
        at.repeats(CODED),
        f"{_MEASURED}, of one sum; at no share may all repeats be longer than all at the smallest share, and"
        " partly means that at some they are. With T = N/2, a half dropped leaves U − T = 1, and every answer"
        " is as long as the model. The sentence is our reading: the paper says that LightSecAgg addresses"
        " SecAgg's growth",
    )


def _one_shot_faster(every: Sequence[Recoveries], model: str) -> Claim:
    at, needed = every[-1], (*PAIRWISE[:1], *CODED)
    return _claim(
        (
            "One-shot recovery is faster",
            "One-shot recovery (LightSecAgg, BASecAgg) is much faster for the server than SecAgg's.",
        ),
        _found(every, needed, model, _factors),
        lambda: faster([gain for protocol in CODED for gain in at.gains(protocol).values()]),
        at.repeats(needed),
        f"{_MEASURED}; SecAgg's must be {MUCH:g} times as long at every share, whichever repeats are compared."
        " The paper says it of training, of which recovery is a part: before it, the server relays the shares"
        " of coded masks, which are longer than SecAgg's",
    )


def _claim(
    said: tuple[str, str], found: str, verdict: Callable[[], Verdict], repeats: int, why: str
) -> Claim:
    """Undecided while cells are missing or have too few repeats."""
    decided = settled(verdict() if repeats else "undecided", repeats)
    if decided == "undecided":
        why = f"cells at the largest N are missing or have fewer than {SEEDS_NEEDED} repeats; {why}"
    return Claim(*said, found, decided, why, "protocols-recovery")


def _found(
    every: Sequence[Recoveries],
    needed: Sequence[Protocol],
    model: str,
    tell: Callable[[Recoveries], str],
) -> str:
    """At the largest N; while cells are missing there, also at the largest N that has them all."""
    told = every[-1:]
    if not every[-1].repeats(needed):
        told = [*told, *[at for at in every if at.repeats(needed)][-1:]]
    parts = " ".join(f"N = {at.users}: {tell(at)}." for at in told)
    return f"{model}, middle (least–most) of the repeats. {parts}"


def _times(at: Recoveries, protocols: Sequence[Protocol]) -> str:
    return "; ".join(
        f"{NAMES[each]} {_by_dropout(at, at.one_sum(each), ' s')}" for each in protocols
    )


def _factors(at: Recoveries) -> str:
    """Of the recovery with their spread, and of all phases."""
    parts = []
    for protocol in CODED:
        whole = at.gains(protocol, server_seconds).items()
        phases = ", ".join(f"{_in_factors(gain.middle)} at {percent(q)}" for q, gain in whole)
        parts.append(
            f"than {NAMES[protocol]}'s by a factor of {_by_dropout(at, at.gains(protocol), '')}"
            f" (over all phases SecAgg's server is {phases or 'not measured yet'})"
        )
    return f"SecAgg's is slower {'; '.join(parts)}"


def _in_factors(slower: float) -> str:
    return f"{shown(slower)} times slower" if slower >= 1 else f"{shown(1 / slower)} times faster"


def _by_dropout(at: Recoveries, found: Mapping[float, Spread], unit: str) -> str:
    return ", ".join(
        f"{spread_in_words(found[q])}{unit} at {percent(q)}"
        if q in found
        else f"not measured yet at {percent(q)}"
        for q in at.dropouts
    )
