from sb3_ora.top_iqn.top_iqn import TOPIQN
from sb3_ora.iqn.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["TOPIQN", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
