"""Statistics by secure sums: each centre computes a vector from its own rows, and only the sum is seen."""

from basecagg.statistics.cox import Covariate, cox_step, fit_cox
from basecagg.statistics.crosstab import (
    Category,
    CrossTable,
    MantelHaenszel,
    Significance,
    crosstab,
    mantel_haenszel,
)
from basecagg.statistics.desk import Desk, Question
from basecagg.statistics.encoding import private_sums
from basecagg.statistics.groups import Groups, by_group
from basecagg.statistics.hazard import (
    HazardModel,
    fit_hazard,
    fit_hazard_privately,
    hazard_gradient,
    hazard_step,
    moments,
)
from basecagg.statistics.kaplan_meier import SurvivalCurve, kaplan_meier
from basecagg.statistics.log_rank import SurvivalByGroup, survival_by_group
from basecagg.statistics.newton import NewtonStep
from basecagg.statistics.quantiles import Distribution, distribution
from basecagg.statistics.regression import Regression, fit_regression, regression_step
from basecagg.statistics.statistic import Statistic, over_records, together
from basecagg.statistics.study import Study, StudyAudit
from basecagg.statistics.tables import Summary, count, histogram, mean
from basecagg.statistics.weighting import WeightedMeans, fit_weighted_means, weighted_means

__all__ = [
    "Category",
    "Covariate",
    "CrossTable",
    "Desk",
    "Distribution",
    "Groups",
    "HazardModel",
    "MantelHaenszel",
    "NewtonStep",
    "Question",
    "Regression",
    "Significance",
    "Statistic",
    "Study",
    "StudyAudit",
    "Summary",
    "SurvivalByGroup",
    "SurvivalCurve",
    "WeightedMeans",
    "by_group",
    "count",
    "cox_step",
    "crosstab",
    "distribution",
    "fit_cox",
    "fit_hazard",
    "fit_hazard_privately",
    "fit_regression",
    "fit_weighted_means",
    "hazard_gradient",
    "hazard_step",
    "histogram",
    "kaplan_meier",
    "mantel_haenszel",
    "mean",
    "moments",
    "over_records",
    "private_sums",
    "regression_step",
    "survival_by_group",
    "together",
    "weighted_means",
]
