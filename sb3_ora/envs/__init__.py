"""Environments of the paper, registered with Gymnasium."""

from gymnasium.envs.registration import register

from sb3_ora.envs.knapsack import KnapsackEnv

__all__ = ["KnapsackEnv"]

for _version in range(4):
    register(
        id=f"or_gym/Knapsack-v{_version}",
        entry_point="sb3_ora.envs.knapsack:KnapsackEnv",
        kwargs={"version": _version, "n_items": 50, "instance_seed": 0, "randomize": False},
    )
