"""Batches of observations, as arrays or dicts of arrays."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

Observations: TypeAlias = np.ndarray | dict[str, np.ndarray]


def batch_length(observations: Observations) -> int:
    """
    :param observations: a batch, (B, ...)
    :return: B
    """
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)


def stack_batches(batches: Sequence[Observations]) -> Observations:
    """
    :param batches: batches of the same observation space, (B_i, ...)
    :return: one batch of all their observations, in order
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, dict):
        return {key: np.concatenate([batch[key] for batch in batches]) for key in first}
    return np.concatenate(batches)  # type: ignore[arg-type]


def slice_batch(observations: Observations, part: slice) -> Observations:
    """
    :param observations: a batch, (B, ...)
    :param part: which of them
    :return: that part
    """
    if isinstance(observations, dict):
        return {key: value[part] for key, value in observations.items()}
    return observations[part]


def warm_up_observations(buffer: ReplayBuffer, vec_normalize: VecNormalize | None, limit: int = 2000) -> Observations:
    """
    :param buffer: what was collected so far
    :param vec_normalize: normalisation between the buffer and the policy, if any
    :param limit: how many observations are enough
    :return: the first observations in it as the policy sees them, (at most ``limit``, ...)
    """
    size = -(-min(limit, buffer.size() * buffer.n_envs) // buffer.n_envs)

    def first(stored: np.ndarray) -> np.ndarray:
        return stored[:size].reshape(-1, *stored.shape[2:])

    stored = buffer.observations
    observations = {key: first(value) for key, value in stored.items()} if isinstance(stored, dict) else first(stored)
    return observations if vec_normalize is None else vec_normalize.normalize_obs(observations)
