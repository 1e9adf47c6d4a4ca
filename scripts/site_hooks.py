"""What mkdocs does beyond its plugins: diagrams into pages, titles, and nothing is asked of anybody."""

from __future__ import annotations

import re
from typing import Any

from diagrams import draw

_NOTE_TO_EDITORS = re.compile(r"\A<!--.*?-->\s*", re.S)
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_NUMBERED_LINK = re.compile(r"^(\d+)\. (?=\[)", re.M)  # a list that has gaps would be counted anew


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Draw the diagrams, and begin with the title: only then the navigation shows it."""
    text = _NOTE_TO_EDITORS.sub("", markdown)
    text = _NUMBERED_LINK.sub(r"- \1\\. ", text)
    return _MERMAID.sub(lambda found: draw(found[1]), text)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search box for readers of the screen, and keep the theme from asking GitHub for stars."""
    named = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return named.replace('data-md-component="source"', "")
