"""The built site, read without a browser: which links every page has, what it loads, and where they lead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements whose address the browser fetches by itself, before anybody clicks.
LOADS = {
    "link": "href",
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "srcset",
    "object": "data",
}


@dataclass
class Page(HTMLParser):
    """One page: its anchors, what it links, what it loads."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element names, links or loads."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (
            tag in LOADS
            and LOADS[tag] in given
            and given.get("rel") not in ("canonical", "prev", "next")
        ):
            self.loads.append(given[LOADS[tag]])


def read(site: Path) -> dict[Path, Page]:
    """Every page of a built site, but the one that a web server shows for what is not there."""
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def dead_links(pages: dict[Path, Page]) -> Iterator[str]:
    """Links within the site that lead to no file, or to no such place in it."""
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            gone = target.is_dir() or not target.exists()
            if gone or not _has(pages, target, unquote(parts.fragment)):
                yield f"{path.name}: {link}"


def _has(pages: dict[Path, Page], target: Path, anchor: str) -> bool:
    return not anchor or target not in pages or anchor in pages[target].anchors


def foreign_loads(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """What would be fetched from elsewhere, by pages or by style sheets."""
    for path, page in pages.items():
        yield from (f"{path.name}: {load}" for load in page.loads if urlsplit(load).netloc)
    for sheet in site.rglob("*.css"):
        found = re.findall(
            r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text("utf-8")
        )
        yield from (f"{sheet.name}: {address}" for address in found)
