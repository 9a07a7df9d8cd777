"""Models that are small enough to train within a second."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ora import ARTIQN, IQN, ORAIQN, TOPIQN

ALGORITHMS = (IQN, ORAIQN, ARTIQN, TOPIQN)
ENSEMBLE = {"net_arch": [16], "head_arch": [8], "n_cosines": 8}


def tiny(algorithm: type[IQN], env: Any, policy: str = "MlpPolicy", **kwargs: Any) -> Any:
    """A small model of this algorithm; keyword arguments are its own, ``policy_kwargs`` come on top of the small ones."""
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "buffer_size": 200,
        "learning_starts": 20,
        "batch_size": 8,
        "train_freq": 4,
        "target_update_interval": 20,
        "exploration_fraction": 0.5,
        "seed": 0,
        "device": "cpu",
        **kwargs,
    }
    if algorithm is ORAIQN:
        settings.setdefault("n_heads", 4)
    settings["policy_kwargs"] = {**ENSEMBLE, **kwargs.get("policy_kwargs", {})}
    return algorithm(policy, env, **settings)


def several(make_env, n_envs: int) -> DummyVecEnv:
    """``n_envs`` environments, one after the other."""
    return DummyVecEnv([make_env] * n_envs)


def same_parameters(first: Any, second: Any) -> bool:
    """Whether two nested states of dicts, lists, tensors and plain values are equal to the last bit."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_parameters(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_parameters, first, second))
    if isinstance(first, th.Tensor):
        return th.equal(first, second)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    return bool(first == second)


def set_values(model: Any, values: Any) -> None:
    """
    Let every head's value of an action be a given constant, whatever the observation and the fraction.

    :param values: (K, A)
    """
    for net in (model.policy.quantile_net, model.policy.quantile_net_target):
        last = net.heads[-1]
        with th.no_grad():
            last.weight.zero_()
            last.bias.copy_(th.as_tensor(np.asarray(values), dtype=th.float32).reshape(-1))
