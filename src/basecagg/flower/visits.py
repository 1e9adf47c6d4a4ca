"""Messages between strategy and mod: an order to the node, a report back, letters of the protocol in both.

A visit is one Flower message and its reply. Small facts go as a ConfigRecord; letters, which may be large, as
one array of bytes with their lengths. `NodeReport` lists all that a node says in clear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from basecagg.channels.wire import pack
from basecagg.errors import BASecAggError, ChannelError, Malformed, printable
from basecagg.protocol.messages import Message

ORDER = "basecagg.order"
REPORT = "basecagg.report"
LETTERS = "basecagg.letters"
METRICS = "basecagg.metrics"
"""The contract, under the key "charge": what is averaged inside the sum, and what else the epoch binds."""
SLOTS = "basecagg.slots"
"""The numbers of the model's vector behind the app's own: they are part of its hash."""
OURS = (ORDER, LETTERS, METRICS, SLOTS)
"""Records that the app does not see."""

LONGEST = 300
"""Characters of a text that leaves a node, or that the server takes from one."""
_EMPTY = ("", b"")
Stage: TypeAlias = Literal["hello", "visit", "goodbye"]
Task: TypeAlias = Literal["", "train", "evaluate"]
Activity: TypeAlias = Literal["idle", "running", "done", "failed", "no mask"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """Server → node."""

    stage: Stage
    federation: str
    """The name of the node's folder: one for each federation, 32 hexadecimal digits."""
    operator_key: bytes = b""
    """The key that signs epochs; a node keeps the first one it is told (stage hello)."""
    version: int = 0
    """t: the model's version, and the one to train from."""
    resume: bool = False
    """Whether something may have been lost on either side: send again what has no outcome yet."""
    task: Task = ""
    detach: bool = False
    """Whether to train in a process of its own and reply at once."""
    patience: float = 3600.0
    """Seconds after which such a process is ended."""
    arrays_key: str = "arrays"
    config_key: str = "config"
    """Where the app's own records are in the same message."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """Node → server."""

    name: str = ""
    epoch: str = ""
    """The id of the epoch it takes part in."""
    ready: bool = False
    """Whether an update could be hidden now."""
    activity: Activity = "idle"
    """What became of training."""
    problem: str = ""
    """What ended training: the type of the app's error, whose text stays on the node, or our own error in our
    words. With privacy nothing of either is told."""
    declined: str = ""
    """The code of the refusal, if it did not take the epoch that it was offered."""
    spent: bool = False
    """Whether its budget of privacy allows no other upload."""
    signing_key: bytes = b""
    holder_key: bytes = b""
    """The frame of a `HolderKey`: what to seal to, signed (stage hello)."""


@contextmanager
def reading() -> Iterator[None]:
    """Take a reply apart. Anything that goes wrong is its sender's fault, so it is refused as malformed."""
    try:
        yield
    except Exception as error:
        raise Malformed(f"an odd reply: {type(error).__name__}: {str(error)!r:.200}") from error


def write(facts: Order | NodeReport) -> ConfigRecord:
    """The facts as a record. Empty ones are left out: Flower's message_size_mod cannot count them."""
    found = {each.name: getattr(facts, each.name) for each in fields(facts)}
    return ConfigRecord({name: value for name, value in found.items() if value not in _EMPTY})


def read_order(content: RecordDict) -> Order:
    """The order in a message."""
    return Order(**_known(content[ORDER], Order))


def read_report(content: RecordDict) -> NodeReport:
    """The report in a reply, or `ChannelError` when there is none: the app has no mod, or another one."""
    if REPORT not in content:
        raise ChannelError(
            "the reply carries no report: use ClientApp(mods=[basecagg_mod]) on every node"
        )
    report = NodeReport(**_known(content[REPORT], NodeReport))
    for each in fields(NodeReport):
        if type(getattr(report, each.name)) is not type(each.default):
            raise ChannelError(f"the report's {each.name} is a {type(getattr(report, each.name))}")
    return report


def _known(record: Any, kind: type[Order] | type[NodeReport]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    empty = {each.name: each.default for each in fields(kind) if each.default in _EMPTY}
    if not names - empty.keys() <= set(record) <= names:
        raise ChannelError(
            f"{kind.__name__} has the fields {sorted(record)}, not {sorted(names)}: do strategy and mod"
            " come from one version of basecagg?"
        )
    return empty | dict(record)


def pack_letters(messages: Sequence[Message]) -> ArrayRecord:
    """Messages of the protocol as two arrays, however many they are: Flower ships arrays one by one."""
    frames = [pack(message) for message in messages]
    return ArrayRecord(
        {
            "bytes": Array(np.frombuffer(b"".join(frames), np.uint8)),
            "lengths": Array(np.array([len(frame) for frame in frames], np.uint32)),
        }
    )


def unpack_letters(content: RecordDict) -> list[bytes]:
    """The frames in a message."""
    if LETTERS not in content:
        return []
    record: Any = content[LETTERS]
    data, lengths = record["bytes"].numpy().tobytes(), record["lengths"].numpy()
    if lengths.dtype != np.uint32 or lengths.ndim != 1:
        raise ChannelError(f"the letters' lengths are {lengths.dtype} of shape {lengths.shape}")
    ends = np.cumsum(lengths, dtype=np.int64)
    if lengths.size and int(ends[-1]) != len(data):
        raise ChannelError(f"the letters have {len(data)} bytes, not the {int(ends[-1])} announced")
    starts = ends - lengths
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def reply(report: NodeReport, messages: Sequence[Message]) -> RecordDict:
    """All that leaves a node: its report and its letters."""
    content = RecordDict({REPORT: write(report)})
    if messages:
        content[LETTERS] = pack_letters(messages)
    return content


# --- failures -------------------------------------------------------------------------------------


class AppFailedError(Exception):
    """The app's own function raised, or something beneath us did. The text can quote data: it stays here."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)


def told_of(error: BaseException) -> str:
    """What the server hears: the type of an error, and the text if it is ours, which quotes no data."""
    if isinstance(error, AppFailedError):
        return bounded(str(error))
    kind = type(error).__name__
    return bounded(f"{kind}: {error}" if isinstance(error, BASecAggError) else kind)


def bounded(text: str) -> str:
    """The beginning of a text, as much as a log can take, without what a terminal would act on."""
    return printable(text[:LONGEST])[:LONGEST]
