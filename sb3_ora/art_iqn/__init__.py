from sb3_ora.art_iqn.art_iqn import ARTIQN
from sb3_ora.iqn.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["ARTIQN", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
