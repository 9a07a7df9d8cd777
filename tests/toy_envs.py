"""Small environments whose returns, lengths and laws are known in advance."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Gamble(gym.Env):
    """One step an episode: action 0 pays 1; action 1 pays 4.375, or -10 one time in five, which is 1.5 on average."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, dtype=np.float32), {}

    def step(self, action):
        reward = 1.0 if action == 0 else (-10.0 if self.np_random.random() < 0.2 else 4.375)
        return np.ones(1, dtype=np.float32), reward, True, False, {}


class Chain(gym.Env):
    """
    States 0 ... n - 1 in a row; action 1 moves on, action 0 goes back to the start, which pays 0.02. Moving on from
    state ``end - 1`` pays 1 and ends the episode, so states from ``end`` on are never visited.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, n: int = 5, end: int = 5, one_hot: bool = False):
        self.n, self.end, self.one_hot = n, end, one_hot
        self.observation_space = spaces.Box(0, 1, (n,)) if one_hot else spaces.Discrete(n)

    def observe(self, state: int):
        return np.eye(self.n, dtype=np.float32)[state] if self.one_hot else state

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.steps = 0
        return self.observe(0), {}

    def step(self, action):
        self.steps += 1
        self.state = self.state + 1 if action == 1 else 0
        done = self.state == self.end
        reward = 1.0 if done else (0.0 if action == 1 else 0.02)
        return self.observe(self.state % self.end), reward, done, self.steps >= 20, {}


class Scripted(gym.Env):
    """
    Episodes of given lengths and rewards, whatever the actions, which it keeps.

    :param lengths: length of each episode, repeated
    :param rewards: reward of each step since the environment was made, repeated
    :param timeout: whether episodes are cut (truncated) instead of ending (terminated)
    :param n_actions: number of actions
    """

    def __init__(self, lengths: Sequence[int] = (3,), rewards: Sequence[float] = (1.0,), timeout: bool = False, n_actions=3):
        self.lengths, self.rewards, self.timeout = lengths, rewards, timeout
        self.observation_space = spaces.Box(0, 100, (2,))
        self.action_space = spaces.Discrete(n_actions)
        self.episode, self.total_steps = -1, 0
        self.actions: list[int] = []

    def observe(self):
        return np.array([self.episode % 100, self.t], dtype=np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(int(action))
        self.actions.append(int(action))
        self.t += 1
        reward = float(self.rewards[self.total_steps % len(self.rewards)])
        self.total_steps += 1
        done = self.t == self.lengths[self.episode % len(self.lengths)]
        return self.observe(), reward, done and not self.timeout, done and self.timeout, {}


class AnySpace(gym.Env):
    """Random observations of any space in episodes of 5 steps; refuses actions outside its action space."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space | None = None):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3) if action_space is None else action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        if not self.action_space.contains(int(action)):
            raise ValueError(f"action {action} is not in {self.action_space}")
        self.t += 1
        return self.observation_space.sample(), float(self.np_random.random()), self.t == 5, False, {}


def stand_in(policy: str) -> gym.Env:
    """Observations that a policy of this name can take, of no meaning."""
    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    return AnySpace(image if policy == "CnnPolicy" else spaces.Box(-1, 1, (4,)))
