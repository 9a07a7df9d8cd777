"""A replay buffer that Stable-Baselines3 lacks, and how much memory a buffer takes."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

#: Smaller buffers are not worth a message, in bytes
LARGE_BUFFER = 500_000_000


class _Arrays(dict[str, np.ndarray]):
    """Arrays (S, E, ...) by name; an index other than a name goes to each of them."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) if isinstance(index, str) else {key: value[index] for key, value in self.items()}


class DictNStepReplayBuffer(NStepReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    Replay buffer of Dict observations for n-step returns, with the arguments of SB3's ``NStepReplayBuffer``.

    :param n_steps: number of steps n
    :param gamma: discount factor
    """

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any):
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)
        self.observations = _Arrays(self.observations)
        self.next_observations = _Arrays(self.next_observations)

    def to_torch(self, array: Any, copy: bool = True) -> Any:
        """
        :param array: an array, or a dict of arrays
        :param copy: whether to copy the data
        :return: the same as tensors
        """
        if isinstance(array, dict):
            return {key: super(DictNStepReplayBuffer, self).to_torch(value, copy) for key, value in array.items()}
        return super().to_torch(array, copy)


def observation_bytes(observation_space: spaces.Space, buffer_size: int, optimize_memory_usage: bool = False) -> int:
    """
    :param observation_space: Observation space
    :param buffer_size: number of transitions
    :param optimize_memory_usage: whether next observations are not stored apart
    :return: bytes that a replay buffer takes for observations, once it is full
    """
    parts = observation_space.spaces.values() if isinstance(observation_space, spaces.Dict) else [observation_space]
    shapes: list[Any] = [get_obs_shape(part) for part in parts]
    one = sum(math.prod(shape) * np.dtype(part.dtype).itemsize for shape, part in zip(shapes, parts, strict=True))
    return buffer_size * one * (1 if optimize_memory_usage else 2)
