from sb3_ora.iqn.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_ora.top_iqn.top_iqn import TOPIQN

__all__ = ["TOPIQN", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
