"""Environments of the paper, registered with Gymnasium."""

from gymnasium.envs.registration import register

from sb3_ora.envs.knapsack import KnapsackEnv
from sb3_ora.envs.or_gym import PROBLEMS, UNSUPPORTED, OrGymEnv

__all__ = ["KnapsackEnv", "OrGymEnv"]

for _version in range(4):
    register(
        id=f"or_gym/Knapsack-v{_version}",
        entry_point="sb3_ora.envs.knapsack:KnapsackEnv",
        kwargs={"version": _version, "n_items": 50, "instance_seed": 0, "randomize": False},
    )
for _name in (*PROBLEMS, *UNSUPPORTED):  # the unsupported ones say why when they are made
    register(id=f"or_gym/{_name}", entry_point="sb3_ora.envs.or_gym:OrGymEnv", kwargs={"name": _name, "instance_seed": 0})
