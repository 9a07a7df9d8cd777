"""Environments of the paper, registered with Gymnasium."""

from gymnasium.envs.registration import register

from sb3_ora.envs.nano_drone import NanoDroneEnv, NanoDroneVecEnv, NanoDroneVectorEnv
from sb3_ora.envs.show_risk import ShowRiskLevel

__all__ = ["NanoDroneEnv", "NanoDroneVecEnv", "NanoDroneVectorEnv", "ShowRiskLevel"]

register(
    id="NanoDrone-v0",
    entry_point="sb3_ora.envs.nano_drone:NanoDroneEnv",
    vector_entry_point="sb3_ora.envs.nano_drone:NanoDroneVectorEnv",
)
