"""Wrapper that shows a model's risk level in the pictures of an environment."""

from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora.checks import check_kind
from sb3_ora.iqn import IQN
from sb3_ora.risk.state import NO_ACTION


class ShowRiskLevel(gym.Wrapper):
    """
    Keep the level at which a model compares actions in ``risk_level`` of the environment, which draws it: the alpha of
    the state and the action before it where the model's heads have one, otherwise the level of its return distortion.

    :param env: environment with an attribute ``risk_level``, such as :class:`NanoDroneEnv`
    :param model: model of this package
    :param vec_normalize: normalisation between the environment and the model, if any
    :raises ValueError: if the environment cannot show a level
    """

    def __init__(self, env: gym.Env, model: IQN, vec_normalize: VecNormalize | None = None):
        super().__init__(env)
        check_kind("model", model, IQN, "a model of this package")
        if vec_normalize is not None:
            check_kind("vec_normalize", vec_normalize, VecNormalize, "a VecNormalize or None")
        if not hasattr(env.unwrapped, "risk_level"):
            raise ValueError(f"env must have an attribute risk_level, as NanoDroneEnv has, got {env.unwrapped!r}")
        self.model, self.vec_normalize = model, vec_normalize
        self.drawn: Any = env.unwrapped  # what has the attribute

    def level(self, observation: np.ndarray, previous_action: int) -> float:
        """
        :param observation: what the model sees, not normalised (D,)
        :param previous_action: index of the action before it; ``NO_ACTION`` at an episode's start
        :return: the level at which it compares its actions
        """
        risk = self.model.policy.risk
        if risk.table is None or risk.use_mean:
            return float(risk.level)
        batch = observation[None]
        if self.vec_normalize is not None:
            normalized = self.vec_normalize.normalize_obs(batch)
            assert isinstance(normalized, np.ndarray)
            batch = normalized
        return float(risk.alphas(batch, np.array([previous_action]))[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.drawn.risk_level = None
        observation, info = self.env.reset(seed=seed, options=options)
        self.drawn.risk_level = self.level(observation, NO_ACTION)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The step is drawn in the colour of the level at which its action was chosen."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.drawn.risk_level = self.level(observation, int(action) - int(self.model.action_space.start))
        return observation, reward, terminated, truncated, info
