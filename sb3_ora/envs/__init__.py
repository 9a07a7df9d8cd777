"""Environments of the paper, registered with Gymnasium."""

import warnings

from gymnasium.envs.registration import register

from sb3_ora.envs.knapsack import KnapsackEnv
from sb3_ora.envs.nano_drone import NanoDroneEnv, NanoDroneVecEnv, NanoDroneVectorEnv
from sb3_ora.envs.or_gym import PROBLEMS, UNSUPPORTED, OrGymEnv
from sb3_ora.envs.show_risk import ShowRiskLevel

__all__ = ["KnapsackEnv", "NanoDroneEnv", "NanoDroneVecEnv", "NanoDroneVectorEnv", "OrGymEnv", "ShowRiskLevel"]

register(
    id="NanoDrone-v0",
    entry_point="sb3_ora.envs.nano_drone:NanoDroneEnv",
    vector_entry_point="sb3_ora.envs.nano_drone:NanoDroneVectorEnv",
)
for _version in range(4):
    register(
        id=f"or_gym/Knapsack-v{_version}",
        entry_point="sb3_ora.envs.knapsack:KnapsackEnv",
        kwargs={"version": _version, "n_items": 50, "instance_seed": 0, "randomize": False},
    )
for _name in (*PROBLEMS, *UNSUPPORTED):  # the unsupported ones say why when they are made
    register(id=f"or_gym/{_name}", entry_point="sb3_ora.envs.or_gym:OrGymEnv", kwargs={"name": _name, "instance_seed": 0})
# Gymnasium takes the numbers for versions of one environment; in or-gym they are different problems
warnings.filterwarnings("ignore", r".*The environment or_gym/\S+ is out of date", DeprecationWarning)
