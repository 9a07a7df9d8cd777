"""A replay buffer that Stable-Baselines3 lacks, and how much memory a buffer takes."""

import math
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_ora.checks import check_flag, check_integer, check_kind, check_number
from sb3_ora.iqn.arguments import check_device

#: Smaller buffers are not worth a message, in bytes
LARGE_BUFFER = 500_000_000


class _Arrays(dict[str, np.ndarray]):
    """Arrays (S, E, ...) by name; an index other than a name goes to each of them."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) if isinstance(index, str) else {key: value[index] for key, value in self.items()}


class DictNStepReplayBuffer(NStepReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    Replay buffer of Dict observations for n-step returns, with the arguments of SB3's ``NStepReplayBuffer``.

    :param buffer_size: number of transitions, of all environments together
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param n_envs: number of environments E
    :param optimize_memory_usage: not supported
    :param handle_timeout_termination: whether a time-out is no end of the return
    :param n_steps: number of steps n
    :param gamma: discount factor
    :raises ValueError: if an argument is out of range
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_steps: int = 3,
        gamma: float = 0.99,
    ):
        for name, value in (("buffer_size", buffer_size), ("n_envs", n_envs), ("n_steps", n_steps)):
            check_integer(name, value)
        check_kind("observation_space", observation_space, spaces.Dict, "a Dict space")
        check_kind("action_space", action_space, spaces.Space, "a space of Gymnasium")
        check_flag("handle_timeout_termination", handle_timeout_termination)
        check_number("gamma", gamma, 0, 1)
        if check_flag("optimize_memory_usage", optimize_memory_usage):
            raise ValueError("optimize_memory_usage=True is not for Dict observations: it must be False")
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            check_device(device),
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            n_steps=n_steps,
            gamma=gamma,
        )
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
