"""What a question says about a statistic: a name, parameters and a hash, as JSON. No function travels.

A centre makes the statistic itself, from its own code: see `makers`. So the hash protects nobody by itself. It
says whether asker and centre mean the same text.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np

from basecagg.errors import ParameterError

FREE = ("coefficients", "at")
"""Parameters that a fit changes from step to step: who approves a model approves it for all of them."""
Recipe: TypeAlias = dict[str, Any]
"""Plain data: what is left of it when it has been written down and read again."""


def of_ones_own(
    name: str, function: Callable[..., Any], bounds: Any, per_record: float | None, by_record: bool
) -> Recipe:
    """A statistic that somebody wrote, by its name and a hash.

    The hash is of the function's own text, the values that it closes over, its defaults, the bounds,
    `per_record` and `by_record`. It is not of what the function calls or finds in its module, nor of numpy.
    """
    try:
        text = inspect.getsource(function)
        around = inspect.getclosurevars(function).nonlocals
    except (OSError, TypeError):
        raise ParameterError(
            f"{name}: there is no text of its function to hash; write it with def, in a file or a notebook",
            rule="a statistic of one's own is a function with a text",
        ) from None
    defaults = {
        each.name: each.default
        for each in inspect.signature(function).parameters.values()
        if each.default is not each.empty
    }
    bound = plain([name, text, around, defaults, bounds, per_record, by_record])
    return {"own": name, "sha256": hashlib.sha256(written(bound).encode()).hexdigest()}


def written(recipe: Any) -> str:
    """The one text of plain data."""
    return json.dumps(recipe, sort_keys=True, ensure_ascii=False)


def digest(recipe: Recipe) -> str:
    """What a centre approves a statistic by: SHA-256 of all but the coefficients at which a model is asked."""
    kept = {name: value for name, value in recipe.items() if name != "parameters"}
    parameters = recipe.get("parameters", {})
    kept["parameters"] = {n: _real(value) for n, value in parameters.items() if n not in FREE}
    return hashlib.sha256(written(kept).encode()).hexdigest()


def _real(value: Any) -> Any:
    """A range from 0 to 100 is the one from 0.0 to 100.0."""
    if isinstance(value, Mapping):
        return {name: _real(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_real(each) for each in value]
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole else value


@cache
def files_digest() -> str:
    """SHA-256 of all files of this package: with the same ones, two centres compute the same."""
    texts = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in files("basecagg.statistics").iterdir()
        if each.name.endswith(".py")
    }
    return hashlib.sha256(written(texts).encode()).hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list | range):
        return [plain(each) for each in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ParameterError(
        f"a {type(value).__name__} is no plain value: a statistic is made of numbers, words and lists of them",
        rule="parameters of a statistic are plain values",
    )
