"""The how-to tells the truth: its diff leads from a plain Flower app to the example, in ten lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from deployment_apps import DIFFS, PAGE, accuracies, converted, side
from deployment_harness import EXAMPLE, Simulation, copy_of

from basecagg.flower import BufferedSecAgg

ROOT = Path(__file__).parents[2]
MOST_CHANGED_LINES = 12
"""Without pyproject.toml."""
FIGURES = ROOT / "benchmarks" / "results" / "flower-deployment.json"
DECISION = ROOT / "docs" / "decisions" / "0013-flower.md"


def plain_app(folder: Path) -> Path:
    """The example with the diff undone: what a user of Flower has today."""
    app = copy_of(EXAMPLE, folder)
    for name, diff in DIFFS.items():
        text = (app / name).read_text("utf-8")
        for before, after in zip(side(diff, "-"), side(diff, "+"), strict=True):
            assert text.count(after) == 1, f"{name} does not hold once:\n{after}"
            text = text.replace(after, before)
        (app / name).write_text(text, "utf-8")
    return app


def test_few_lines_are_new_or_different() -> None:
    python = "".join(diff for name, diff in DIFFS.items() if name.endswith(".py"))
    changed = re.findall(r"^[+-].+", python, re.MULTILINE)
    assert 0 < len(changed) <= MOST_CHANGED_LINES


def test_flowers_quickstart_converted_by_this_page_learns(tmp_path: Path) -> None:
    """Six nodes on the simulation engine, with the fraction-evaluate of 0.5 that the quickstart has."""
    app = converted(tmp_path)
    with Simulation.running(6) as federation:
        federation.start_run(app, "num-server-rounds=3 buffer-size=3 local-epochs=5")
        said = federation.finish_run()
    learned = accuracies(said)
    assert list(learned) == [0, 1, 2, 3]
    assert learned[3] > max(0.3, learned[0])
    assert "Aggregated MetricRecord (evaluate): {'eval_acc': " in said


@pytest.mark.soak
def test_the_converted_quickstart_learns_as_well_as_without_protection(tmp_path: Path) -> None:
    """Equal numbers of trainings, three seeds, the mean of the last versions: within two points."""
    finals: dict[str, list[float]] = {"basecagg": [], "none": []}
    for seed in range(3):
        for protection, found in finals.items():
            app = converted(tmp_path / f"{protection}{seed}", protection=protection)
            server = app / "pytorchexample" / "server_app.py"
            seeded = f"__import__('torch').manual_seed({seed})\n    global_model = Net()"
            server.write_text(server.read_text().replace("global_model = Net()", seeded))
            with (app / "pyproject.toml").open("a") as file:
                file.write(f'basecagg-protection = "{protection}"\n')
            with Simulation.running(6) as federation:
                federation.start_run(app, "num-server-rounds=24 buffer-size=3")
                learned = accuracies(federation.finish_run())
            found.append(sum(list(learned.values())[-5:]) / 5)
    means = {protection: sum(found) / 3 for protection, found in finals.items()}
    print(finals)
    assert means["none"] > 0.8
    assert abs(means["basecagg"] - means["none"]) <= 0.02


def test_what_the_diff_starts_from_is_a_plain_flower_app(tmp_path: Path) -> None:
    app = plain_app(tmp_path)
    texts = {name: (app / name).read_text("utf-8") for name in DIFFS}
    assert "ClientApp()" in texts["flower_mnist/client_app.py"]
    assert "FedAvg(" in texts["flower_mnist/server_app.py"]
    assert not [name for name, text in texts.items() if "basecagg.flower" in text]


def test_the_figures_on_the_pages_are_the_measured_ones() -> None:
    page, decision = PAGE.read_text("utf-8"), DECISION.read_text("utf-8")
    for way, found in json.loads(FIGURES.read_text("utf-8"))["ways"].items():
        opened, version, messages, _, each = found.values()
        assert f"| {way} | {opened} s | {version} s | {each} s | {messages} |" in page
        assert f" {opened} s " in decision.replace("\n", " ")


def test_the_python_on_the_page_runs() -> None:
    """Here and not with the other pages: importing Flower needs this folder's conftest."""
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, object] = {}
        exec(compile(block, PAGE.name, "exec"), names)
        assert isinstance(names["strategy"], BufferedSecAgg)


@pytest.mark.soak
def test_the_plain_app_runs(tmp_path: Path) -> None:
    with Simulation.running(4) as federation:
        federation.start_run(plain_app(tmp_path), "num-server-rounds=2")
        assert "round 2: accuracy" in federation.finish_run()
