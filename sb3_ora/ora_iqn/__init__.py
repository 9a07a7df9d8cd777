from sb3_ora.iqn.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_ora.ora_iqn.ora_iqn import ORAIQN

__all__ = ["ORAIQN", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
