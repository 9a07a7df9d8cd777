"""The world of "Adaptive Risk Tendency: Nano Drone Navigation in Cluttered Environments" (Liu et al. 2022)."""

from sb3_ora.envs.nano_drone.env import NanoDroneEnv
from sb3_ora.envs.nano_drone.vec_env import NanoDroneVecEnv
from sb3_ora.envs.nano_drone.vector_env import NanoDroneVectorEnv

__all__ = ["NanoDroneEnv", "NanoDroneVecEnv", "NanoDroneVectorEnv"]
