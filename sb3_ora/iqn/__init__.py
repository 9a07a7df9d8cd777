from sb3_ora.iqn.iqn import IQN
from sb3_ora.iqn.policies import CnnPolicy, IQNPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["IQN", "CnnPolicy", "IQNPolicy", "MlpPolicy", "MultiInputPolicy"]
