"""What a newcomer is told: options that cannot work, by name; and what failed, in our words alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import make_grid
from flwr.app import ConfigRecord, Context, Message
from small_app import initial_arrays, make_app
from test_strategy import strategy

from basecagg.channels.wire import pack
from basecagg.errors import DataError, ParameterError
from basecagg.flower import BufferedSecAgg, basecagg_mod, node
from basecagg.flower.node_view import NodeView
from basecagg.flower.visits import (
    LETTERS,
    LONGEST,
    REPORT,
    AppFailedError,
    NodeReport,
    pack_letters,
    told_of,
)
from basecagg.protocol.messages import Refusal

# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"])
def test_a_function_that_would_never_be_called_is_refused(name: str) -> None:
    with pytest.raises(ParameterError, match=f"{name} .* protection='none'.*_metrics"):
        BufferedSecAgg(**{name: lambda records, key: None})  # type: ignore[arg-type]
    BufferedSecAgg(protection="none", **{name: lambda records, key: None})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop_after": 3}, "no option 'stop_after'.*num_rounds"),
        ({"bufer_size": 3}, "no option 'bufer_size': did you mean buffer_size"),
    ],
)
def test_an_option_that_is_not_there_is_named_with_what_to_do(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=f"BufferedSecAgg has {said}"):
        BufferedSecAgg(**options)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"buffer_size": "5"}, "a whole number or none"),
        ({"buffer_size": 5.0}, "a whole number or none"),
        ({"max_staleness": True}, "a whole number"),
        ({"clip": "4"}, "a number"),
        ({"fraction_train": None}, "a number"),
        ({"erase_state": "no"}, "true or false"),
        ({"holders": "3"}, "a whole number or Sequence or none"),
        ({"train_metrics": ["loss"]}, "Mapping or none"),
        ({"privacy": 3.0}, "Budget or none"),
        ({"staleness": "polynomial"}, "StalenessFunction or none"),
        ({"server_state": 3}, "text or Path or none"),
        ({"consistency": "sure"}, "one of certified, honest-server"),
        ({"train_metrics_aggr_fn": 3, "protection": "none"}, "Callable or none"),
    ],
)
def test_a_wrong_type_names_its_option(options: dict[str, Any], wanted: str) -> None:
    (name, value), *_ = options.items()
    with pytest.raises(ParameterError) as refused:
        BufferedSecAgg(**options)
    assert str(refused.value) == f"{name} = {value!r} must be {wanted}"


def test_numbers_of_numpy_are_numbers() -> None:
    made = BufferedSecAgg(buffer_size=np.int64(5), clip=np.float32(4), fraction_train=1)
    assert made.settings.chosen_buffer_size == 5


# --- rounds and versions --------------------------------------------------------------------------


@pytest.mark.parametrize("protection", ["basecagg", "none"])
def test_it_is_said_how_many_versions_equal_the_rounds_that_were_asked_for(
    protection: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr")
    app = make_app([basecagg_mod] if protection == "basecagg" else [])
    grid = make_grid(6, app, tmp_path)
    trained = strategy(
        protection=protection, buffer_size=3, concurrency=None, min_available_nodes=6
    )
    trained.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=3)
    assert caplog.text.count("K = 3: 6 versions equal your 3 rounds") == 1


# --- errors ---------------------------------------------------------------------------------------


def run_to_its_end(app: Any, folder: Path) -> tuple[str, set[str]]:
    """What the run ends with, and what nodes report as their problem."""
    grid, problems = make_grid(6, app, folder), set[str]()
    grid.after.append(lambda _, reply: problems.add(_problem(reply)))
    with pytest.raises(Exception) as ended:  # noqa: PT011 - which one is what is asked
        strategy(max_failures=1).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=3)
    return str(ended.value), problems - {""}


def _problem(reply: Any) -> str:
    return str(reply.content[REPORT].get("problem", "")) if reply.has_content() else ""


def test_our_own_words_reach_the_server(tmp_path: Path) -> None:
    """An app that returns no model: what to do about it is in our text, and nothing of the data."""

    def lose_the_model(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if "arrays" in reply.content:
            del reply.content["arrays"]
        return reply

    app = make_app([basecagg_mod, lose_the_model])
    said, problems = run_to_its_end(app, tmp_path)
    assert problems == {"DataError: training returned 0 ArrayRecords, not exactly one"}
    assert "training returned 0 ArrayRecords" in said


@pytest.mark.parametrize("kind", [ValueError, DataError])
def test_the_words_of_the_app_do_not_even_if_its_error_is_of_our_kind(
    kind: type[Exception], tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise kind("patient 17 has age 93")

    said, problems = run_to_its_end(make_app([basecagg_mod], watch=fail), tmp_path)
    assert problems == {kind.__name__}
    assert "patient" not in said


def test_words_are_bounded_and_have_no_control_characters() -> None:
    assert told_of(DataError("a\x1b[31mb\nc")) == r"DataError: a\x1b[31mb\nc"
    assert len(told_of(DataError("x" * 10_000))) <= LONGEST
    assert told_of(AppFailedError(DataError("secret"))) == "DataError"
    assert told_of(OSError("secret")) == "OSError"


def test_the_server_trusts_no_nodes_words(caplog: pytest.LogCaptureFixture) -> None:
    view = NodeView(7, "7")
    report = NodeReport(activity="failed", problem="\x1b]0;owned\x07" + "x" * 100_000)
    view.note_activity(report, now=1.0, interval=1.0, patience=1.0)
    assert len(view.problem) < 2 * LONGEST
    assert "\x1b" not in view.problem + caplog.text


ODD = "\x1b]0;owned\x07\n[forged line]" + "x" * 100_000


@pytest.mark.parametrize("way", ["declined", "refusal"])
def test_no_words_of_a_node_reach_the_log_as_they_are(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither why it declines an epoch nor what it refuses."""
    caplog.set_level(logging.INFO, "flwr")

    def odd_mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = basecagg_mod(message, context, call_next)
        report = dict(reply.content[REPORT])
        if context.node_id == odd and report.get("epoch"):
            if way == "refusal":
                reply.content[LETTERS] = pack_letters([Refusal("Malformed", ODD[:500])])
            else:
                report["declined"] = ODD
        reply.content[REPORT] = ConfigRecord(report)
        return reply

    grid = make_grid(4, make_app([odd_mod]), tmp_path)
    odd = next(iter(grid.nodes))
    strategy(buffer_size=2, min_available_nodes=4, max_failures=2).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=2
    )
    told = [record.getMessage() for record in caplog.records if "owned" in record.getMessage()]
    assert told
    assert not any("\x1b" in line or "\n" in line.strip() for line in told)
    assert max(map(len, told)) < 2 * LONGEST


def test_nor_words_of_the_server_the_log_of_a_node(caplog: pytest.LogCaptureFixture) -> None:
    assert node._parse(pack(Refusal("Malformed", ODD[:500]))) is None
    assert "owned" in caplog.text
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\x1b" not in line
    assert "\n" not in line
    assert len(line) < LONGEST + 100
