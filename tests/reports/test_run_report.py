"""The report of runs: one file that needs nothing else, every plot as a file, a page that fits its screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from tiny import tiny_config, tiny_task

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from basecagg import SimulationConfig, simulate
from basecagg.cli import main
from basecagg.errors import DataError
from basecagg.reports import plots
from basecagg.reports.run_report import _seen, summary, write_report
from basecagg.reports.runs import RunRecord, names, read_runs
from basecagg.simulation.protections import PRESETS
from basecagg.simulation.run_folder import METRICS, TASK, TOTALS

PLOTS = ("score-by-version", "score-by-time", "staleness", "traffic", "phases", "partition")
SMALL = ("--versions=3", "--set=users=8", "--set=buffer_size=4", "--set=model=logistic")


def basecagg(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("reports") / "runs"
    basecagg("run", *SMALL, "--method=fedbuff", "--method=basecagg", "--out", out)
    return out


def read(*folders: Path) -> list[RunRecord]:
    return list(read_runs(folders).values())


def text_of(page: Path) -> str:
    """What a reader sees."""
    words: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            words.append(data)

    Reader().feed(page.read_text())
    return " ".join(words)


def test_the_page_needs_nothing_but_itself(runs: Path) -> None:
    source = (runs / "report.html").read_text()
    targets = re.findall(r"""\b(?:src|href)\s*=\s*["']?([^"'\s>]*)""", source)
    assert [target for target in targets if not target.startswith(("#", "data:image/"))] == []
    assert not re.search(r"""@import|url\(\s*["']?[^#"']|<script|<link""", source)


def test_the_page_says_what_was_run_and_what_the_server_saw(runs: Path) -> None:
    text = text_of(runs / "report.html")
    for heading in ("Result", "Plots", "What the server saw", "Counters", "Configuration"):
        assert heading in text
    assert "every single update, in clear" in text
    assert "Only sums were learned" in text
    header, rows = summary(read(runs / "fedbuff", runs / "basecagg"))
    for row in (header, *rows):
        assert all(cell in text for cell in row)
    for counted in ("clipped elements", "buffers burned", "sums that could wrap around"):
        assert counted in text
    assert "update_levels" in text


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_is_a_png_and_an_svg(name: str, runs: Path) -> None:
    assert (runs / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    drawing = ElementTree.parse(runs / "plots" / f"{name}.svg").getroot()
    assert drawing.tag.endswith("svg")


def test_plots_on_the_page_take_its_text_colour(runs: Path) -> None:
    drawings = re.findall(r"<svg.*?</svg>", (runs / "report.html").read_text(), re.S)
    assert len(drawings) == len(PLOTS)
    assert all("currentColor" in drawing and plots.INK not in drawing for drawing in drawings)


def test_runs_of_several_folders_are_compared_on_one_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedbuff", tmp_path / "mine <b>")
    basecagg("report", tmp_path / "mine <b>", runs, "--out", tmp_path / "page")
    source = (tmp_path / "page" / "report.html").read_text()
    assert "mine &lt;b&gt;" in source
    assert "<b>" not in source
    assert "3 runs of logistic on digits, 8 users." in source


def test_a_run_that_has_not_ended_can_be_looked_at(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "basecagg", tmp_path / "basecagg")
    (tmp_path / "basecagg" / TOTALS).unlink()
    basecagg("report", tmp_path)
    assert "basecagg" in text_of(tmp_path / "report.html")


def test_a_run_without_a_result_is_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedbuff", tmp_path / "fedbuff")
    lines = [json.loads(line) for line in (runs / "fedbuff" / METRICS).read_text().splitlines()]
    bare = [json.dumps(line | {"score": None}) for line in lines]
    (tmp_path / "fedbuff" / METRICS).write_text("\n".join(bare))
    with pytest.raises(DataError, match="no evaluated version"):
        read_runs([tmp_path / "fedbuff"])


@pytest.mark.parametrize("method", sorted(PRESETS))
def test_every_method_says_what_its_server_saw(method: str, runs: Path, tmp_path: Path) -> None:
    run = replace(*read(runs / "fedbuff"), config=SimulationConfig(method=method))
    (seen,) = _seen([run], {})
    assert "update" in seen


def test_arithmetic_only_is_said_even_beside_an_audit(runs: Path) -> None:
    config = SimulationConfig(cryptography="arithmetic")
    run = replace(*read(runs / "basecagg"), config=config)
    (seen,) = _seen([run], {"basecagg": "Only sums were learned."})
    assert "Only sums were learned. Arithmetic only: nothing was sealed or signed" in seen


@pytest.mark.parametrize(
    ("correctness", "words"),
    [
        (None, "A sum opens when U + T = 70 answers agree: T = 8 liars cannot write it."),
        ("honest-holders", "any U = 70 answers open a sum, and T = 8 liars could write it."),
    ],
)
def test_it_says_what_is_assumed_of_holders(runs: Path, correctness: Any, words: str) -> None:
    config = SimulationConfig(correctness=correctness)
    (seen,) = _seen([replace(*read(runs / "basecagg"), config=config)], {})
    assert words in seen
    (plain,) = _seen(
        [replace(*read(runs / "basecagg"), config=replace(config, method="fedbuff"))], {}
    )
    assert "liars" not in plain


# --- privacy ------------------------------------------------------------------------------------------


def test_epsilon_stands_beside_accuracy_where_it_is_promised(runs: Path, tmp_path: Path) -> None:
    changes = {"noise": 2.0, "max_uses": 2, "max_colluders": 1, "versions": 9}
    for method in ("basecagg-dp", "cdp"):
        simulate(tiny_config(method, **changes), task=tiny_task(), folder=tmp_path / method)
    page = write_report(
        read(tmp_path / "basecagg-dp", tmp_path / "cdp", runs / "fedbuff"), tmp_path, {}
    )
    text = text_of(page)
    (spent,) = {f"{run.totals['epsilon']:.3g}" for run in read(tmp_path / "cdp")}
    for said in ("Privacy", "ε spent", spent, "largest ε of a user", "The run ended after version"):
        assert said in text
    assert (tmp_path / "plots" / "epsilon-by-version.png").exists()
    without = text_of(write_report(read(runs / "fedbuff"), tmp_path / "plain", {}))
    assert "ε spent" not in without
    assert not (tmp_path / "plain" / "plots" / "epsilon-by-version.png").exists()


# --- a fair comparison --------------------------------------------------------------------------------


def test_names_say_just_enough_to_tell_runs_apart() -> None:
    places = [Path(place) for place in ("/r/a/fedbuff", "/r/b/fedbuff", "/r/b/ldp", "/b/fedbuff")]
    assert names(places) == ["a/fedbuff", "r/b/fedbuff", "ldp", "//b/fedbuff"]
    look_alikes = names([Path("/a\x1b"), Path("/a\\x1b")])  # one is escaped to what the other is
    assert len(set(look_alikes)) == 2


@pytest.fixture(scope="module")
def namesakes(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    """Two runs that are both called fedbuff, of which one has other users; one of them twice."""
    other: Path = tmp_path_factory.mktemp("more") / "other"
    basecagg("run", *SMALL, "--method=fedbuff", "--set=users=12", "--out", other)
    return read(runs / "fedbuff", other / "fedbuff", runs / ".." / "runs" / "fedbuff")


def test_runs_of_one_name_are_drawn_and_listed_apart(
    namesakes: list[RunRecord], tmp_path: Path
) -> None:
    assert [run.name for run in namesakes] == ["runs/fedbuff", "other/fedbuff"]
    for draw in (plots.traffic, plots.phases):
        (axes,) = draw(namesakes).axes
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            "runs/fedbuff",
            "other/fedbuff",
        ]
        assert len({round(bar.get_y(), 3) for bar in axes.patches}) == 2
    write_report(namesakes, tmp_path, {"other/fedbuff": "the other"})
    text = text_of(tmp_path / "report.html")
    assert "2 runs of logistic on digits, 8 and 12 users." in text
    assert "other/fedbuff: the other" in text
    assert re.search(r"differs in\s+runs/fedbuff\s+other/fedbuff\s+users\s+8\s+12\s", text)


def test_every_method_says_its_updates_and_its_bytes(tmp_path: Path) -> None:
    """An update in clear is as large whatever the schedule: methods are compared by what they send."""
    methods = ("fedavg", "fedbuff", "fedasync", "fedat")
    chosen = [f"--method={method}" for method in methods]
    basecagg("run", *SMALL, "--set=tiers=2", *chosen, "--out", tmp_path)
    runs = read(*(tmp_path / method for method in methods))
    header, rows = summary(runs)
    assert header[1] == "accuracy"
    assert header[5:] == ("updates", "lost", "MB per user", "CPU, all parties")
    for run, row in zip(runs, rows, strict=True):
        assert row[5] == str(run.totals["updates"])
        each = run.totals["bytes"]["PlainUpdate"] / run.totals["updates"]
        assert each == pytest.approx(4 * 650 + 165, abs=20)  # with a ticket
    assert [row[8] == "–" for row in rows] == [False, False, True, True]


def test_a_task_of_ones_own_is_reported_by_its_name(tmp_path: Path) -> None:
    simulate(tiny_config(versions=2), task=tiny_task(), folder=tmp_path / "mine")
    (tmp_path / "mine" / TOTALS).unlink()  # from the beginning, not only at the end
    basecagg("report", tmp_path / "mine")
    text = text_of(tmp_path / "mine" / "report.html")
    assert "1 run of clouds, 8 users." in text


def test_runs_of_before_tasks_were_kept_are_read(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedbuff", tmp_path / "fedbuff")
    (tmp_path / "fedbuff" / TASK).unlink()
    (run,) = read(tmp_path / "fedbuff")
    assert run.task == "logistic on digits"


ODD = ["$\\frac{$", "_mine", "[/]", ":smile:", "运行", "<script>", "a\x1b[31m\nb", "\udcff"]


def test_odd_names_do_not_end_a_report(runs: Path, tmp_path: Path) -> None:
    for name in ODD:
        shutil.copytree(runs / "fedbuff", tmp_path / name)
    folders = [tmp_path / name for name in ODD]
    basecagg("report", *folders, "--out", tmp_path / "page")
    text = text_of(tmp_path / "page" / "report.html")
    shown = [run.name for run in read(*folders)]
    assert all(name.isprintable() and name in text for name in shown)
    (legend,) = plots.staleness(read(*folders)).legends
    assert [label.get_text().replace(r"\$", "$") for label in legend.get_texts()] == shown


# --- in a browser -----------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
_PROBE = """<script>
const root = document.documentElement;
parent.postMessage([innerWidth, root.scrollWidth, getComputedStyle(document.body).backgroundColor], "*");
</script>"""
_FRAME = """<!doctype html><body><iframe src="probed.html" width={width} height=900></iframe><script>
onmessage = event => document.body.dataset.seen = JSON.stringify(event.data);
</script>"""


def look(page: Path, folder: Path, width: int, scheme: int) -> tuple[int, int, str]:
    """The width of the window, that of the page, and the colour behind it. Scheme 0 is dark, 1 is light."""
    assert CHROMIUM is not None
    (folder / "probed.html").write_text(page.read_text().replace("</body>", f"{_PROBE}</body>"))
    (folder / "frame.html").write_text(_FRAME.format(width=width))
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=1400,1000",
        "--virtual-time-budget=5000",
        "--dump-dom",
        (folder / "frame.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stdout
    window, content, colour = json.loads(seen[1].replace("&quot;", '"'))
    return window, content, colour


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(width: int, runs: Path, tmp_path: Path) -> None:
    window, content, _ = look(runs / "report.html", tmp_path, width, 1)
    assert window == width
    assert content <= width


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_follows_the_colour_scheme(runs: Path, tmp_path: Path) -> None:
    dark, light = (look(runs / "report.html", tmp_path, 800, scheme)[2] for scheme in (0, 1))
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(18, 22, 28)"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_probe_would_notice_a_page_that_is_too_wide(runs: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.html"
    source = (runs / "report.html").read_text()
    wide.write_text(source.replace("</body>", "<div style='width:900px'>wide</div></body>"))
    _, content, _ = look(wide, tmp_path, 390, 1)
    assert content > 390


def test_the_time_to_a_score_is_that_of_the_first_version_with_it(runs: Path) -> None:
    both = read(runs / "fedbuff", runs / "basecagg")
    header, rows = summary(both)
    reached = min(run.best_score for run in both)
    assert header[2] == f"time to {100 * reached:.1f}\u00a0%"
    for run, row in zip(both, rows, strict=True):
        first = next(v for v in run.versions if v["score"] >= reached)
        assert row[2] == f"{first['time']:.1f} s"
    basecagg("report", runs / "fedbuff", runs / "basecagg", "--target=1.1", "--out", runs / "never")
    assert re.search(r"fedbuff\s+\S+ %\s+–", text_of(runs / "never" / "report.html"))


def test_what_was_spent_and_lost_stands_in_the_table(tmp_path: Path) -> None:
    private = ("--set=epsilon=8", "--set=max_uses=4", "--set=dropout=0.2")
    both = ("--method=basecagg-dp", "--method=fedbuff")
    basecagg(
        "run",
        "--versions=3",
        "--set=users=12",
        "--set=buffer_size=6",
        *private,
        *both,
        "--out",
        tmp_path,
    )
    runs = read(tmp_path / "basecagg-dp", tmp_path / "fedbuff")
    header, rows = summary(runs)
    assert header[-1] == "ε spent"
    assert float(rows[0][-1]) == pytest.approx(runs[0].totals["epsilon"], rel=0.01)
    assert rows[1][-1] == "–"
    assert [row[6] for row in rows] == [str(run.versions[-1]["lost"]) for run in runs]
