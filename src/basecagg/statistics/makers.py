"""A centre makes the statistic that it is asked for, by name, from its own code: no asker's code runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from basecagg.errors import QuestionRefused
from basecagg.statistics.cox import Covariate, cox_step
from basecagg.statistics.hazard import HazardModel, hazard_gradient, hazard_step, moments
from basecagg.statistics.kaplan_meier import kaplan_meier
from basecagg.statistics.recipe import Recipe, digest, files_digest
from basecagg.statistics.statistic import Statistic, together
from basecagg.statistics.tables import count, histogram, mean

BY_RECORD: dict[str, Callable[..., Statistic[Any]]] = {
    "count": count,
    "mean": mean,
    "histogram": histogram,
    "Kaplan–Meier": kaplan_meier,
    "hazard step": lambda at, most, **model: hazard_step(_model(model, most), np.array(at)),
    "hazard gradient": lambda at, clip, most, **model: hazard_gradient(
        _model(model, most), np.array(at), clip=clip
    ),
    "moments": lambda most, **model: moments(_model(model, most)),
}
"""Sums over records: whatever the parameters, all centres together are one table. Every centre answers them."""
BY_CENTRE: dict[str, Callable[..., Statistic[Any]]] = {
    "Cox": lambda covariates, coefficients, **others: cox_step(
        _covariates(covariates), np.array(coefficients), **others
    ),
}
"""Not additive within a centre: an event that only one centre has tells of all who were at risk there. So a
centre approves each model, that is everything but the coefficients."""


def make(recipe: Recipe, approved: Mapping[str, Statistic[Any]], most: int) -> Statistic[Any]:
    """The statistic of this recipe as the centre has it, or `QuestionRefused`. No row is read for it."""
    if "together" in recipe:
        parts = [make(each, approved, most) for each in recipe["together"]]
        if len({each.by_record for each in parts}) > 1:  # one of them would be rounded as a whole
            raise QuestionRefused("sums over records are asked for apart from other statistics")
        return together(*parts)
    if "own" in recipe:
        return _approved(recipe, approved)
    if recipe["files"] != files_digest():
        raise QuestionRefused(
            "the asker has another version of basecagg.statistics than this centre"
        )
    if recipe["most"] != most:
        raise QuestionRefused(
            f"a bound of {recipe['most']} records for each centre: what was agreed on is {most}"
        )
    name = recipe["built-in"]
    if name in BY_CENTRE:
        _approved(recipe, approved)
    return (BY_RECORD | BY_CENTRE)[name](most=most, **recipe["parameters"])


def _approved(recipe: Recipe, approved: Mapping[str, Statistic[Any]]) -> Statistic[Any]:
    asked = digest(recipe)
    if asked not in approved:
        name = recipe.get("own") or recipe["built-in"]
        raise QuestionRefused(
            f"{name}, hash {asked[:12]}…, is no statistic that this centre approved: Desk.approve"
        )
    return approved[asked]


def _model(model: Mapping[str, Any], most: int) -> HazardModel:
    plain = {**model, "times": tuple(model["times"]), "most": most}
    return HazardModel(**plain | {"covariates": _covariates(model["covariates"])})


def _covariates(covariates: list[Any]) -> tuple[Covariate, ...]:
    return tuple(Covariate(*each) for each in covariates)
