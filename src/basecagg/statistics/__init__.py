"""Statistics by secure sums: each centre computes a vector from its own rows, and only the sum is seen."""

from basecagg.statistics.cox import Covariate, cox_step, fit_cox
from basecagg.statistics.desk import Desk, Question
from basecagg.statistics.encoding import private_sums
from basecagg.statistics.hazard import (
    HazardModel,
    fit_hazard,
    fit_hazard_privately,
    hazard_gradient,
    hazard_step,
    moments,
)
from basecagg.statistics.kaplan_meier import SurvivalCurve, kaplan_meier
from basecagg.statistics.newton import NewtonStep
from basecagg.statistics.statistic import Statistic, over_records, together
from basecagg.statistics.study import Study, StudyAudit
from basecagg.statistics.tables import Summary, count, histogram, mean

__all__ = [
    "Covariate",
    "Desk",
    "HazardModel",
    "NewtonStep",
    "Question",
    "Statistic",
    "Study",
    "StudyAudit",
    "Summary",
    "SurvivalCurve",
    "count",
    "cox_step",
    "fit_cox",
    "fit_hazard",
    "fit_hazard_privately",
    "hazard_gradient",
    "hazard_step",
    "histogram",
    "kaplan_meier",
    "mean",
    "moments",
    "over_records",
    "private_sums",
    "together",
]
