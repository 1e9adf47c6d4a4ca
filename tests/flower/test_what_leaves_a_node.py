"""Nothing but masked updates, sealed shares, answers and a short report leaves a node: all is examined."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fake_grid import FakeGrid, make_grid
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from small_app import initial_arrays, make_app

from basecagg.channels.wire import unpack
from basecagg.flower import BufferedSecAgg, basecagg_mod
from basecagg.flower.visits import LETTERS, REPORT, unpack_letters
from basecagg.maths.packing import unpack as unpack_words
from basecagg.maths.randomness import FieldStream
from basecagg.protocol.messages import (
    Answer,
    Contribution,
    Endorsement,
    HolderKey,
    Receipt,
    Refusal,
    Shipment,
    Upload,
)

SPOKEN = (Contribution, Shipment, Receipt, Upload, Endorsement, Answer, Refusal)
FACTS = {
    "name": str,
    "epoch": str,
    "ready": bool,
    "activity": str,
    "problem": str,
    "spent": bool,
    "signing_key": bytes,
    "holder_key": bytes,
}
"""All that a node says in clear. docs/how-to/flower.md lists the same."""
ACTIVITIES = {"idle", "running", "done", "failed", "no mask"}
SENT = (Upload, Contribution)
Q = {Upload: 2**32 - 5, Contribution: 2**24 - 16383}
FORMS = {"two messages": ("long", Upload), "one visit": ("keys", Contribution)}


def complaints(reply: Message) -> list[str]:
    """Everything in a reply that should not be there."""
    found = [f"record {key}" for key in reply.content if key not in (REPORT, LETTERS)]
    report = reply.content.get(REPORT)
    if not isinstance(report, ConfigRecord):
        return [*found, "no report"]
    found += [f"fact {key}" for key, value in report.items() if not _is_fact(key, value)]
    letters = reply.content.get(LETTERS)
    if letters is None:
        return found
    assert isinstance(letters, ArrayRecord)
    kinds = {key: array.dtype for key, array in letters.items()}
    found += [] if kinds == {"bytes": "uint8", "lengths": "uint32"} else [f"arrays {kinds}"]
    for frame in unpack_letters(reply.content):
        letter = unpack(frame, len(frame))
        found += _look_into(letter) if isinstance(letter, SPOKEN) else [f"a {type(letter)}"]
    return found


def _is_fact(key: str, value: Any) -> bool:
    if key == "holder_key" and value:
        return isinstance(unpack(value, 300), HolderKey)
    short = len(str(value)) <= 150  # a signing key is 32 bytes
    known = value in ACTIVITIES if key == "activity" else True
    return type(value) is FACTS.get(key) and short and known


def _look_into(letter: Any) -> list[str]:
    """A masked update is uniform below q: one in clear has small numbers of either sign, near 0 and q."""
    if not isinstance(letter, SENT):
        return []
    q = Q[type(letter)]
    words = unpack_words(letter.words, q)
    near = (words < q // 64) | (words > q - q // 64)
    return ["an update in clear"] if near.mean() > 0.5 else []


def run(grid: FakeGrid, form: str = "one visit", **options: Any) -> list[str]:
    """Train for two versions; what the inspection of every reply found."""
    masks, sent = FORMS[form]
    replies: list[Message] = []
    grid.after.append(lambda _, reply: replies.append(reply))
    settings = {"buffer_size": 3, "concurrency": 4, "poll_interval": 0.0, "min_available_nodes": 6}
    strategy = BufferedSecAgg(
        training="attached",
        masks=masks,
        weights="own",
        **(settings | {"train_metrics": {"loss": 99.0}} | options),
    )
    strategy.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=2)
    assert any(isinstance(letter, sent) for reply in replies for letter in letters_of(reply))
    return [complaint for reply in replies for complaint in complaints(reply)]


def letters_of(reply: Message) -> list[Any]:
    return [unpack(frame, len(frame)) for frame in unpack_letters(reply.content)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("consistency", ["honest-server", "certified"])
def test_nothing_else_leaves_a_node(tmp_path: Path, consistency: Any, form: str) -> None:
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    assert not run(grid, form, consistency=consistency)


def test_nothing_else_leaves_a_node_that_evaluates(tmp_path: Path) -> None:
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    limits = {"mse": 200.0}
    assert not run(grid, fraction_evaluate=1.0, evaluate_metrics=limits)


# --- controls: the inspection finds what should not be there ---


def test_metrics_that_a_mod_lets_through_are_found(tmp_path: Path) -> None:
    """The mod with its filter off: the app's own metrics go with the reply."""

    def leaky_mod(message: Message, context: Any, call_next: Any) -> Message:
        seen: list[MetricRecord] = []

        def listen(inner: Message, inner_context: Any) -> Message:
            answer = call_next(inner, inner_context)
            seen.extend(answer.content.metric_records.values())
            return answer

        reply = basecagg_mod(message, context, listen)
        content = RecordDict(dict(reply.content) | {f"metrics-{i}": r for i, r in enumerate(seen)})
        return Message(content, reply_to=message)

    found = run(make_grid(6, make_app([leaky_mod]), tmp_path))
    assert set(found) == {"record metrics-0"}


def test_a_loss_in_the_report_is_found(tmp_path: Path) -> None:
    def chatty_mod(message: Message, context: Any, call_next: Any) -> Message:
        reply = basecagg_mod(message, context, call_next)
        report = ConfigRecord(dict(reply.content[REPORT]) | {"activity": "0.37"})
        return Message(RecordDict(dict(reply.content) | {REPORT: report}), reply_to=message)

    assert "fact activity" in run(make_grid(6, make_app([chatty_mod]), tmp_path))


@pytest.mark.parametrize("form", FORMS)
def test_updates_without_masks_are_found(tmp_path: Path, form: str) -> None:
    def zeros(stream: FieldStream, count: int, out: Any = None) -> Any:
        out = np.empty(count, np.uint32) if out is None else out
        out[:] = 0
        return out

    with patch.object(FieldStream, "draw", zeros):
        found = run(make_grid(6, make_app([basecagg_mod]), tmp_path), form)
    assert "an update in clear" in found
