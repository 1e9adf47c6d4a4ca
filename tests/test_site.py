"""The site: it builds strictly, no link is dead, nothing is fetched from elsewhere, everybody can read it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, Browser, browser
from site_pages import Page, dead_links, foreign_loads, read

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "scripts"))
import diagrams  # noqa: E402

REPOSITORY = (
    "https://github.com/example/basecagg"  # of which the theme would like to count the stars
)
PHONE, DESKTOP = (390, 844), (1280, 900)
# A page of every kind: home, long text with a diagram, code, wide tables, plots, generated reference.
KINDS = (
    *("faq.html", "comparison.html", "tutorial/dialysis.html", "how-to/flower.html"),
    *("explanation/protocol.html", "results/incompatibility.html", "reference/mask-life.html"),
    *("reference/parameters.html", "decisions/index.html"),
)
LOOKS = [("index.html", size, scheme) for size in (PHONE, DESKTOP) for scheme in ("light", "dark")]
LOOKS += [(page, PHONE, "dark") for page in KINDS] + [
    (page, DESKTOP, "light") for page in KINDS[::2]
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    told = os.environ | {"REPOSITORY_URL": REPOSITORY}
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return read(site)


def test_no_link_is_dead(pages: dict[Path, Page]) -> None:
    assert len(pages) > 80
    assert list(dead_links(pages)) == []


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert list(foreign_loads(site, pages)) == []


def test_dead_links_and_foreign_scripts_would_be_noticed(tmp_path: Path) -> None:
    bad = '<a href="gone.html">a</a><a href="#gone">b</a><a href="https://example.org">fine</a>'
    bad += '<script src="https://example.org/x.js"></script><img src="//example.org/x.png">'
    (tmp_path / "page.html").write_text(bad)
    (tmp_path / "page.css").write_text("@import 'https://example.org/font.css';")
    found = read(tmp_path)
    assert list(dead_links(found)) == ["page.html: gone.html", "page.html: #gone"]
    assert len(list(foreign_loads(tmp_path, found))) == 3


def test_pages_are_called_by_their_titles(site: Path) -> None:
    """A title that mkdocs made from the name of a file has none of the page's own words."""
    home = (site / "index.html").read_text("utf-8")
    entries = re.findall(
        r'<a href="([^"#:]+)" class="md-nav__link[^"]*">\s*<span[^>]*>\s*([^<]+?)\s*<', home
    )
    assert len(entries) > 80
    for address, shown in entries:
        guessed = Path(address).stem.replace("-", " ").capitalize()
        heading = re.search(r"<h1[^>]*>(.*?)(?:<a|</h1)", (site / address).read_text("utf-8"), re.S)
        assert heading is not None, address
        assert shown != guessed or guessed in heading[1], address


def test_decisions_are_shown_by_their_numbers(site: Path) -> None:
    shown = (site / "decisions" / "index.html").read_text("utf-8")
    records = sorted(ROOT.glob("docs/decisions/0*.md"))
    for record in records:
        assert f'<li>{int(record.name[:4])}. <a href="{record.stem}.html">' in shown, record.name


def test_the_repository_is_linked_when_it_is_known(site: Path, pages: dict[Path, Page]) -> None:
    assert REPOSITORY in pages[site / "index.html"].links


# --- pictures -----------------------------------------------------------------------------------------


def test_the_picture_of_the_idea_is_up_to_date() -> None:
    command = [sys.executable, ROOT / "scripts" / "idea.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_diagram_is_drawn(site: Path) -> None:
    sources = sum(page.read_text("utf-8").count("```mermaid") for page in ROOT.glob("docs/**/*.md"))
    built = [page.read_text("utf-8") for page in site.rglob("*.html")]
    assert sources == sum(page.count('class="diagram"') for page in built) > 5
    assert not any("sequenceDiagram" in page or "stateDiagram" in page for page in built)


def test_a_diagram_says_all_that_its_source_says() -> None:
    drawn = diagrams.draw(
        "sequenceDiagram\nparticipant A as Ann\nparticipant B as Bob\nA->>B: hello <you>"
    )
    assert "Ann to Bob: hello &lt;you&gt;" in drawn
    assert drawn.count('class="head"') == 2
    drawn = diagrams.draw(
        "stateDiagram-v2\n[*] --> new\nnew --> old : grow\nnew --> new : wait\nold --> [*]"
    )
    assert "new to old: grow; new to new: wait" in drawn
    assert drawn.count('class="head"') == 3  # the end has a double border


@pytest.mark.parametrize("source", ["pie\n", "sequenceDiagram\nloop", "stateDiagram-v2\nnonsense"])
def test_a_diagram_that_is_not_understood_stops_the_build(source: str) -> None:
    with pytest.raises(ValueError, match=r"diagrams\.py"):
        diagrams.draw(source)


# --- the first page of the repository ---------------------------------------------------------------


def test_the_readme_shows_what_it_is_at_first_sight() -> None:
    """A picture, two commands and three doors before the first heading of a section."""
    first, *_ = (ROOT / "README.md").read_text("utf-8").partition("\n## ")
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', first)
    assert len(pictures) == 2
    assert all((ROOT / picture).exists() for picture in pictures)
    assert re.findall(r"^make \w+", first, re.M) == ["make run", "make test"]
    (doors,) = re.findall(r"^\| you .*\|$", first, re.M)
    assert doors.count("|") == 4
    assert len(first.splitlines()) < 40


# --- in a browser -------------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def complaints(tab: Browser) -> list[str]:
    """What axe finds in the page that is open: the rule, and the first element that breaks it."""
    tab.run((files("axe_core_python") / "axe.min.js").read_text("utf-8") + ";0")
    found: list[dict[str, Any]] = tab.run(
        "axe.run({resultTypes: ['violations']}).then(all => all.violations.map("
        "({id, nodes}) => ({id, html: nodes[0].html})))"
    )
    return [f"{rule['id']}: {rule['html']}" for rule in found]


def check(tab: Browser, address: str, size: tuple[int, int], scheme: str) -> None:
    tab.open(address, *size, scheme)
    assert complaints(tab) == []
    assert tab.run("document.documentElement.scrollWidth") <= size[0]
    dark = tab.run("document.body.dataset.mdColorScheme") == "slate"
    assert dark == (scheme == "dark")
    assert [asked for asked in tab.requests if not asked.startswith(("file:", "data:"))] == []
    assert address in tab.requests


@needs_chromium
@pytest.mark.parametrize(("page", "size", "scheme"), LOOKS)
def test_everybody_can_read_it_and_nothing_is_asked_of_the_network(
    tab: Browser, site: Path, page: str, size: tuple[int, int], scheme: str
) -> None:
    check(tab, (site / page).as_uri(), size, scheme)


@needs_chromium
@pytest.mark.soak
def test_every_page_at_every_size(tab: Browser, site: Path, pages: dict[Path, Page]) -> None:
    for page in pages:
        for size in (PHONE, DESKTOP):
            for scheme in ("light", "dark"):
                check(tab, page.as_uri(), size, scheme)


@needs_chromium
def test_the_browser_would_notice(tab: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<img src='http://127.0.0.1:9/x.png'><p style='width: 900px; color: #ddd'>grey</p>"
    )
    tab.open(bad.as_uri(), *PHONE)
    assert {"image-alt", "color-contrast"} <= {found.split(":")[0] for found in complaints(tab)}
    assert tab.run("document.documentElement.scrollWidth") > 390
    assert "http://127.0.0.1:9/x.png" in tab.requests


@needs_chromium
def test_search_works_in_pages_opened_as_files(tab: Browser, site: Path) -> None:
    tab.open((site / "index.html").as_uri(), *DESKTOP)
    # A slow machine hears the first key before the search is ready: press it until there is a result.
    found = tab.run(
        "new Promise(found => { const input = document.querySelector('.md-search__input');"
        " input.focus(); input.value = 'staleness'; const look = () => {"
        " input.dispatchEvent(new Event('keyup', {bubbles: true}));"
        " const first = document.querySelector('.md-search-result__link');"
        " first ? found(first.href) : setTimeout(look, 100) }; look() })"
    )
    assert found.startswith(site.as_uri())
    assert [asked for asked in tab.requests if not asked.startswith(("file:", "data:"))] == []
