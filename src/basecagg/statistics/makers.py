"""A centre makes the statistic that it is asked for, by name, from its own code: no asker's code runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from basecagg.errors import QuestionRefused
from basecagg.statistics.cox import Covariate, cox_step
from basecagg.statistics.crosstab import Category, crosstab
from basecagg.statistics.groups import by_group
from basecagg.statistics.hazard import HazardModel, hazard_gradient, hazard_step, moments
from basecagg.statistics.kaplan_meier import kaplan_meier
from basecagg.statistics.log_rank import survival_by_group
from basecagg.statistics.quantiles import distribution
from basecagg.statistics.recipe import Recipe, digest, files_digest
from basecagg.statistics.regression import regression_step
from basecagg.statistics.statistic import Statistic, together
from basecagg.statistics.tables import count, histogram, mean
from basecagg.statistics.weighting import weighted_means

BY_RECORD = (
    *(count, mean, histogram, crosstab, by_group, distribution),
    *(regression_step, weighted_means),
    *(kaplan_meier, survival_by_group, hazard_step, hazard_gradient, moments),
)
"""Sums over records: whatever the parameters, all centres together are one table. Every centre answers them."""
BY_CENTRE = (cox_step,)
"""Not additive within a centre: an event that only one centre has tells of all who were at risk there. So a
centre approves each model, that is everything but the coefficients."""
_MAKERS: dict[str, Callable[..., Statistic[Any]]] = {
    each.__name__: each for each in (*BY_RECORD, *BY_CENTRE)
}


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
    maker, parameters = _MAKERS[recipe["built-in"]], recipe["parameters"]
    asked = parameters.get("model", parameters)["most"]
    if asked != most:
        raise QuestionRefused(
            f"a bound of {asked} records for each centre: what was agreed on is {most}"
        )
    if maker in BY_CENTRE:
        _approved(recipe, approved)
    return maker(**_as_made(parameters, most))


def _approved(recipe: Recipe, approved: Mapping[str, Statistic[Any]]) -> Statistic[Any]:
    asked = digest(recipe)
    if asked not in approved:
        name = recipe.get("own") or recipe["built-in"]
        raise QuestionRefused(
            f"{name}, hash {asked[:12]}…, is no statistic that this centre approved: Desk.approve"
        )
    return approved[asked]


def _as_made(parameters: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Parameters that were read from JSON, as makers take them; the bound is the centre's own."""
    made = dict(parameters)
    if "most" in made:
        made["most"] = most
    if "covariates" in made:
        made["covariates"] = tuple(Covariate(*each) for each in made["covariates"])
    for name in ("outcome", "value"):
        if name in made:
            made[name] = Covariate(*made[name])
    if "columns" in made:
        made["columns"] = tuple(_category(each) for each in made["columns"])
    if "group" in made:
        made["group"] = _category(made["group"])
    if "times" in made:
        made["times"] = tuple(made["times"])
    if "model" in made:
        made["model"] = HazardModel(**_as_made(made["model"], most))
    return made


def _category(written: tuple[str, list[float]]) -> Category:
    name, levels = written
    return Category(name, tuple(levels))
