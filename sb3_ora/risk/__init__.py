"""Risk measures, distortions and online adaptation of risk levels; usable without a learner."""

from sb3_ora.risk.distortions import CPW, CVaR, Distortion, Neutral, Power, Wang, make_distortion, midpoints
from sb3_ora.risk.ewaf import EWAF, PublishedARTController, tail_variance
from sb3_ora.risk.ftpl import FTPL, leader
from sb3_ora.risk.keys import BucketKey, DiscreteKey, SimHashKey, StateKey, make_state_key
from sb3_ora.risk.measures import (
    EpistemicMeasure,
    LowerQuantile,
    LowerTailCVaR,
    left_truncated_variance,
    lower_quantile,
    lower_tail_cvar,
    make_measure,
)
from sb3_ora.risk.regret import regret
from sb3_ora.risk.satisficing import satisficing_level
from sb3_ora.risk.schedules import PiecewiseLinear, make_level_schedule
from sb3_ora.risk.table import RiskTable

__all__ = [
    "CPW",
    "EWAF",
    "FTPL",
    "BucketKey",
    "CVaR",
    "DiscreteKey",
    "Distortion",
    "EpistemicMeasure",
    "LowerQuantile",
    "LowerTailCVaR",
    "Neutral",
    "PiecewiseLinear",
    "Power",
    "PublishedARTController",
    "RiskTable",
    "SimHashKey",
    "StateKey",
    "Wang",
    "leader",
    "left_truncated_variance",
    "lower_quantile",
    "lower_tail_cvar",
    "make_distortion",
    "make_level_schedule",
    "make_measure",
    "make_state_key",
    "midpoints",
    "regret",
    "satisficing_level",
    "tail_variance",
]
