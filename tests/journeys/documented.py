"""The commands on the pages that people follow, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    "README.md",
    "docs/index.md",
    "docs/tutorial/*.md",
    "docs/how-to/*.md",
    "examples/*/README.md",
)
PAGES = [str(path.relative_to(ROOT)) for name in SOURCES for path in sorted(ROOT.glob(name))]
_BLOCK = re.compile(r"^ *```(bash|sh|shell|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(page: str, kind: str) -> list[str]:
    """What stands in the page's blocks of a kind, such as `toml`."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def commands(text: str) -> list[str]:
    """Every command in the blocks of a page that are for a shell, without its comment."""
    return [found for kind, block in _BLOCK.findall(text) for found in _typed(kind, block)]


def _typed(kind: str, block: str) -> Iterator[str]:
    lines = block.replace("\\\n", " ").splitlines()
    if kind == "console":  # the other lines are answers
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    loop: list[str] = []
    for line in lines:
        plain = re.sub(r"(^|\s+)#.*", "", line).rstrip()
        if plain.startswith("for ") or loop:
            loop.append(plain)
            if plain.endswith("done"):
                yield "\n".join(loop)
                loop = []
        elif plain:
            yield re.sub(r"\s+", " ", plain)
