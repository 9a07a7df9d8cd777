"""An environment that is registered when this module is imported, as that of a user's package."""

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Packaged(CartPoleEnv):
    """CartPole that knows its limit of steps."""

    def __init__(self, steps=20):
        super().__init__()
        self.limit_of_steps = steps

    def limit(self):
        return self.limit_of_steps

    def reset(self, *, seed=None, options=None):
        self.n_steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        self.n_steps += 1
        return observation, reward, terminated, self.n_steps >= self.limit_of_steps, info


gym.register("Packaged-v0", entry_point="tests.study.packaged:Packaged")
