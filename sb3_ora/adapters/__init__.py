"""Callbacks that move the risk attitude of a model during training."""

from sb3_ora.adapters.base import RiskAdapter
from sb3_ora.adapters.composite import CompositeAdapter
from sb3_ora.adapters.ensemble import EnsembleAdapter
from sb3_ora.adapters.ewaf import EWAFAdapter
from sb3_ora.adapters.ftpl import FTPLAdapter
from sb3_ora.adapters.recursive import RecursiveAdapter
from sb3_ora.adapters.schedule import ScheduleAdapter

__all__ = [
    "CompositeAdapter",
    "EWAFAdapter",
    "EnsembleAdapter",
    "FTPLAdapter",
    "RecursiveAdapter",
    "RiskAdapter",
    "ScheduleAdapter",
]
