"""A node as the server sees it: whether it is there, what it does, how it failed, how long it is left alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from basecagg.flower.visits import NodeReport, Task, bounded
from basecagg.protocol.messages import HolderKey, MaskName, Parcel, Receipt
from basecagg.protocol.messages import Message as Letter

_LOG = logging.getLogger("flwr")
FIRST_REST, LONGEST_REST = 1.0, 60.0
"""Seconds that a node is left alone after a failure: twice as long each time."""
_EARLY = 0.8
"""The fraction of the last training's time after which a node is asked whether the present one is over."""
_VISIT_BYTES = 32 * 2**20
"""Letters in one visit, about; the rest go with the next."""
_ENVELOPE = 512
"""Bytes that a letter takes besides what is sealed in it, about."""


@dataclass
class NodeView:
    """A node as the server sees it."""

    node_id: int
    name: str
    """The name of its machines: the node id that it had when it first joined."""
    present: bool = False
    task: Task = ""
    """What it is to do next."""
    doing: Task = ""
    """What it was told to do and has not finished."""
    failures: int = 0
    """In a row: visits that came to nothing."""
    rest_until: float = 0.0
    lapses: int = 0
    """In a row: trainings that came to nothing, even if visits went well meanwhile; as a holder it goes on."""
    dropped: int = 0
    """Visits and trainings that came to nothing in this run."""
    train_after: float = 0.0
    problem: str = ""
    """What its last failure was."""
    letters: list[Letter] = field(default_factory=list)
    """What waits for its next visit."""
    receipts: list[Receipt] = field(default_factory=list)
    """What waits until it trains: a node counts the receipts of one visit together, or not at all."""
    confirmed: dict[MaskName, set[int]] = field(default_factory=dict)
    """The holders of each of its masks, by these receipts."""
    resume: bool = False
    """Whether messages may have been lost since it was last heard."""
    epoch: str = ""
    signing_key: bytes = b""
    holder_key: HolderKey | None = None
    ready: bool = False
    spent: bool = False
    """Whether its budget of privacy is used up: it trains no more, and holds shares as before."""
    dealt: set[MaskName] = field(default_factory=set)
    """Masks that it has dealt and not used."""
    collect_at: float | None = None
    began: float | None = None
    """When the training began that goes on beside its messages."""
    lasted: float = 0.0
    """How long the one before took, as far as was seen."""
    visited_at: float = float("-inf")

    @property
    def trains(self) -> bool:
        """Whether it counts among the C that train."""
        return bool(self.task or self.doing)

    def is_hopeless(self, most: int) -> bool:
        """Whether it has failed so often in a row that it is not worth another training."""
        return max(self.failures, self.lapses) >= most

    def reconnect(self) -> None:
        """It was away and is back: what was wrong may be over."""
        self.failures = self.lapses = 0
        self.rest_until = self.train_after = 0.0

    def fail(self, now: float, problem: str) -> None:
        """A visit came to nothing: let it rest, and take nothing for delivered."""
        if self.doing and self.began is None:  # the work that it was sent came to nothing too
            self._count_lapse(now)
        self.rest_until = now + _rest(self.failures)
        self.failures += 1
        self._drop(problem)
        self.lose()

    def lapse(self, now: float, problem: str) -> None:
        """Its app failed: do not let it train for a while."""
        self._count_lapse(now)
        self._drop(problem)
        self.task = self.doing = ""
        self.began = None

    def _count_lapse(self, now: float) -> None:
        self.train_after = now + _rest(self.lapses)
        self.lapses += 1

    def _drop(self, problem: str) -> None:
        self.dropped += 1
        self.problem = bounded(problem)
        _LOG.warning("node %d: %s", self.node_id, self.problem)

    def goes_on(self, now: float, interval: float) -> None:
        """It trains still: look again when it may have ended, for each look costs a message."""
        self.doing = "train"
        self.began = now if self.began is None else self.began
        self.collect_at = max(now + interval, self.began + _EARLY * self.lasted)

    def finish(self, now: float) -> None:
        """It has trained as it was told: only that ends a row of trainings that came to nothing."""
        self.doing, self.lapses = "", 0
        if self.began is not None:
            self.lasted, self.began = now - self.began, None

    def note_activity(
        self, report: NodeReport, now: float, interval: float, patience: float
    ) -> None:
        """Note what became of its work. A training that takes too long must not take up a place."""
        if report.activity == "running":
            if self.began is not None and now - self.began > 2 * patience:
                self.lapse(now, f"it has been training for {now - self.began:.0f} s")
            else:
                self.goes_on(now, interval)
        elif report.activity == "failed":
            self.lapse(now, f"its app failed with {report.problem}")
        elif report.activity == "no mask":  # receipts were lost: have it ask for them again
            self.doing, self.resume = "", True
        elif report.activity == "idle":  # it was visited for something else, or has not joined yet
            self.doing, self.began = "", None
        elif self.doing == "evaluate":
            self.doing, self.task = "", "train"
        else:
            self.finish(now)

    def take_letters(self) -> list[Letter]:
        """As many letters from the front as fit into one visit, at least one."""
        taken, total = 0, 0
        while taken < len(self.letters) and (not taken or total < _VISIT_BYTES):
            letter = self.letters[taken]
            total += _ENVELOPE + (len(letter.sealed) if isinstance(letter, Parcel) else 0)
            taken += 1
        front, self.letters = self.letters[:taken], self.letters[taken:]
        return front

    def has_mask(self, holders_needed: int) -> bool:
        """Whether enough holders have confirmed a mask that it can hide an update with."""
        return self.ready or any(len(held) >= holders_needed for held in self.confirmed.values())

    def put_receipt(self, receipt: Receipt) -> None:
        """Keep a receipt until the node trains."""
        self.receipts.append(receipt)
        for mask in receipt.masks:
            if mask.contributor == self.name:
                self.confirmed.setdefault(mask, set()).add(receipt.holder)

    def take_receipts(self) -> list[Receipt]:
        """All of them, for a visit."""
        receipts, self.receipts, self.confirmed = self.receipts, [], {}
        return receipts

    def lose(self) -> None:
        """It cannot be reached, or what it did is not known: everything begins again when it comes back."""
        self.task = self.doing = ""
        self.collect_at = self.began = None
        self.letters.clear()
        self.take_receipts()
        self.resume = True


def _rest(failures: int) -> float:
    return float(min(LONGEST_REST, FIRST_REST * 2 ** min(failures, 16)))
