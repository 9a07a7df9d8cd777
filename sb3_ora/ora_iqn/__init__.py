from sb3_ora.ora_iqn.ora_iqn import ORAIQN
from sb3_ora.iqn.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["ORAIQN", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
