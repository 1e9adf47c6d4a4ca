"""The report of runs: one file that needs nothing else, every plot as a file, a page that fits its screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from basecagg.cli import main
from basecagg.errors import DataError
from basecagg.protections.pairs import PRESETS
from basecagg.reports.plots import INK
from basecagg.reports.run_report import _seen, summary_rows
from basecagg.reports.runs import read_run
from basecagg.simulation import SimulationConfig
from basecagg.simulation.run_folder import METRICS, TOTALS

PLOTS = ("accuracy-by-version", "accuracy-by-time", "staleness", "traffic", "phases", "partition")
SMALL = ("--versions=3", "--set=users=8", "--set=buffer_size=4", "--set=model=logistic")


def basecagg(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("reports") / "runs"
    basecagg("run", *SMALL, "--method=fedbuff", "--method=basecagg", "--out", out)
    return out


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
    for row in summary_rows([read_run(runs / name) for name in ("fedbuff", "basecagg")]):
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
    assert all("currentColor" in drawing and INK not in drawing for drawing in drawings)


def test_runs_of_several_folders_are_compared_on_one_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedbuff", tmp_path / "mine <b>")
    basecagg("report", tmp_path / "mine <b>", runs, "--out", tmp_path / "page")
    source = (tmp_path / "page" / "report.html").read_text()
    assert "mine &lt;b&gt;" in source
    assert "<b>" not in source
    assert "3 runs on digits" in source


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
        read_run(tmp_path / "fedbuff")


@pytest.mark.parametrize("method", sorted(PRESETS))
def test_every_method_says_what_its_server_saw(method: str, runs: Path, tmp_path: Path) -> None:
    run = replace(read_run(runs / "fedbuff"), config=SimulationConfig(method=method))
    (seen,) = _seen([run], {})
    assert "update" in seen


def test_arithmetic_only_is_said_even_beside_an_audit(runs: Path) -> None:
    config = SimulationConfig(cryptography="arithmetic")
    run = replace(read_run(runs / "basecagg"), config=config)
    (seen,) = _seen([run], {"basecagg": "Only sums were learned."})
    assert "Only sums were learned. Arithmetic only: nothing was sealed or signed" in seen


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
