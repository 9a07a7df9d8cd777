"""Implicit quantile networks for Stable-Baselines3 whose risk attitude adapts online."""

import sb3_ora.envs  # noqa: F401, registers them
from sb3_ora.art_iqn import ARTIQN
from sb3_ora.iqn import IQN
from sb3_ora.ora_iqn import ORAIQN
from sb3_ora.top_iqn import TOPIQN

__version__ = "0.1.0"

__all__ = ["ARTIQN", "IQN", "ORAIQN", "TOPIQN", "__version__"]
