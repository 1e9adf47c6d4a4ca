"""`basecagg reproduce`: the paper's experiments, which lie beside the package in a checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

import basecagg
from basecagg.errors import MissingPartError


def _from_checkout() -> click.Command:
    """The command in `reproduction`, beside the package's own sources or in the current folder."""
    places = (Path(basecagg.__file__).parents[2], Path.cwd())
    found = [place for place in places if (place / "reproduction" / "catalogue.py").exists()]
    if not found:
        raise MissingPartError(
            "the experiments are in the folder `reproduction`, which is not installed with the package:"
            " run this command in a checkout of basecagg, or in its unpacked source archive"
        )
    if str(found[0]) not in sys.path:
        sys.path.append(str(found[0]))
    command: click.Command = importlib.import_module("reproduction.command").command
    return command


command = _from_checkout()
