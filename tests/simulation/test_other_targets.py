"""Targets that are no labels: real numbers, sequences, several labels at once; in simulation and report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_config, tiny_task
from torch import Tensor, nn
from torch.nn import functional

from basecagg import simulate
from basecagg.commands.report import report_on
from basecagg.errors import DataError
from basecagg.learning import Dataset, Task, evaluate, label_counts, partition

pytest.importorskip("matplotlib")
from rich.console import Console

USERS, EXAMPLES, LENGTH, WORDS = 8, 48, 5, 7


def nearness(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the distance: 0 is best, and no share of anything."""
    return -(outputs - targets).abs()


def all_labels_right(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).all(dim=1).float()


class Tagger(nn.Module):
    """One guess for each place of a sequence, as cross-entropy wants it: examples, words, places."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.head = nn.Linear(4, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens)).transpose(1, 2)


def own_task(model: Callable[[], nn.Module], x: Tensor, y: Tensor, **given: object) -> Task:
    data = Dataset(name="own", train_x=x, train_y=y, test_x=x[:20], test_y=y[:20])
    return Task(name="own", model=model, dataset=data, **given)  # type: ignore[arg-type]


def line() -> Task:
    """Regression: one real number for each example, without an axis of its own."""
    x = torch.linspace(-1, 1, EXAMPLES).unsqueeze(1)
    return own_task(
        lambda: nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)),
        x,
        3 * x.squeeze(1) + 1,
        loss=functional.mse_loss,
        score=nearness,
    )


def plane() -> Task:
    """Regression: several real numbers for each example."""
    x = torch.linspace(-1, 1, EXAMPLES).unsqueeze(1)
    y = torch.cat([x, 2 * x], dim=1)
    return own_task(lambda: nn.Linear(1, 2), x, y, loss=functional.mse_loss, score=nearness)


def sequences() -> Task:
    """One token for each place, by cross-entropy and accuracy as they are; -100 is no token."""
    x = torch.arange(EXAMPLES * LENGTH).reshape(EXAMPLES, LENGTH) % WORDS
    y = (x + 1) % WORDS
    y[:, -1] = -100
    return own_task(Tagger, x, y)


def several_labels(kind: torch.dtype) -> Task:
    x = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(1))
    return own_task(
        lambda: nn.Linear(3, 3),
        x,
        (x > 0).to(kind),
        loss=lambda outputs, targets: functional.binary_cross_entropy_with_logits(
            outputs, targets.float()
        ),
        score=all_labels_right,
    )


TASKS: dict[str, Callable[[], Task]] = {
    "line": line,
    "plane": plane,
    "sequences": sequences,
    "several labels": lambda: several_labels(torch.int64),
    "several labels, float": lambda: several_labels(torch.float32),
    "several labels, bool": lambda: several_labels(torch.bool),
}


def text_of(page: Path) -> str:
    words: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            words.append(data)

    Reader().feed(page.read_text())
    return " ".join(words)


def reported(capsys: pytest.CaptureFixture[str], out: Path, *folders: Path) -> tuple[str, str]:
    """What stands in the terminal, and on the page."""
    report_on(Console(width=200, markup=False), folders, out)
    return capsys.readouterr().out, text_of(out / "report.html")


@pytest.mark.parametrize("kind", TASKS)
def test_any_targets_are_trained_on_and_reported(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = TASKS[kind]()
    config = tiny_config("basecagg", versions=8, local_rate=0.1)
    result = simulate(config, task=task, folder=tmp_path / "run")
    first, last = result.versions[0], result.versions[-1]
    assert first.loss is not None
    assert last.loss is not None
    assert last.loss < first.loss
    assert result.score > float(first.score or 0) or result.score == 1
    said, page = reported(capsys, tmp_path / "report", tmp_path / "run")
    assert "own" in page
    assert "Examples of each label" not in page
    assert not (tmp_path / "report" / "plots" / "partition.svg").exists()
    if task.score is nearness:
        assert f"{result.score:.4g}" in said
        assert "nearness" in said
        assert "accuracy" not in said + page
        assert "Accuracy" not in page


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("how", ["dirichlet", "shards"])
def test_a_partition_by_label_says_that_it_needs_labels(
    kind: str, how: str, tmp_path: Path
) -> None:
    config = tiny_config(partition=how)
    with pytest.raises(DataError) as refused:
        simulate(config, task=TASKS[kind](), folder=tmp_path / "run")
    said = str(refused.value)
    assert f"'{how}'" in said
    assert "one whole number for each example" in said
    assert "'iid'" in said  # what to do
    assert not (tmp_path / "run").exists()


def test_whole_numbers_that_are_no_classes_are_dealt_by_value() -> None:
    """Counts, for example: dealt like labels, but nobody says how many there are of each."""
    counts = np.array([-3, 500, 500, 2] * 12)
    parts = partition("shards", counts, 4, np.random.default_rng(0))
    assert sum(map(len, parts)) == 48
    with pytest.raises(DataError, match="num_classes"):
        label_counts(counts, parts, 0)


def test_runs_with_different_scores_share_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(tiny_config(), task=line(), folder=tmp_path / "line")
    simulate(tiny_config(), task=tiny_task(), folder=tmp_path / "clouds")
    said, page = reported(capsys, tmp_path / "both", tmp_path / "line", tmp_path / "clouds")
    assert "nearness -" in said
    assert "accuracy " in said
    assert "%" in said
    assert "Examples of each label at each user of clouds" in page


def test_accuracy_refuses_targets_that_it_cannot_compare() -> None:
    with pytest.raises(DataError, match=r"float32.*score="):
        own_task(lambda: nn.Linear(1, 1), torch.zeros(4, 1), torch.zeros(4))
    labels = several_labels(torch.int64)
    task = own_task(labels.model, labels.dataset.train_x, labels.dataset.train_y)
    model = labels.build_model(0)
    with pytest.raises(DataError, match=r"\(20, 3\).*score="):
        evaluate(replace(task, loss=labels.loss), model, model.vector())


def test_a_loss_that_is_no_single_number_is_named() -> None:
    task = replace(line(), loss=lambda outputs, targets: (outputs - targets).square())
    with pytest.raises(DataError, match=r"loss of task 'own'.*mean"):
        simulate(tiny_config(), task=task)
