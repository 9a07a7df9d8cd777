"""Action masks: which actions are valid, as an entry of the observation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

#: Name of the entry; it holds a number above 0 for each valid action
MASK_KEY = "action_mask"


def check_mask(observation_space: spaces.Space, action_space: spaces.Space, normalize: VecNormalize | None) -> None:
    """
    :param observation_space: what ``use_action_mask`` wants to read the mask from
    :param action_space: the actions, Discrete
    :param normalize: normalisation of the observations, if any
    :raises ValueError: if there is no mask of the right shape, or nothing beside it, or it is normalised
    """
    wanted = f"use_action_mask=True needs a Dict observation space with an entry {MASK_KEY!r}"
    if not isinstance(observation_space, spaces.Dict):
        raise ValueError(f"{wanted}, got {observation_space}")
    others = sorted(set(observation_space.spaces) - {MASK_KEY})
    if MASK_KEY not in observation_space.spaces:
        raise ValueError(f"{wanted}, got the entries {others}")
    mask, n_actions = observation_space[MASK_KEY], int(action_space.n)  # type: ignore[attr-defined]
    if not isinstance(mask, spaces.Box | spaces.MultiBinary) or mask.shape != (n_actions,):
        raise ValueError(f"{wanted}, a Box or MultiBinary with a number for each of the {n_actions} actions, got {mask}")
    if not others:
        raise ValueError(f"{wanted} and at least one other, which the network sees, got {observation_space}")
    if normalize is not None and normalize.norm_obs and MASK_KEY in (normalize.norm_obs_keys or ()):
        raise ValueError(f"use_action_mask=True needs masks as they are: give VecNormalize norm_obs_keys={others}")


def without_mask(observation_space: spaces.Space) -> spaces.Dict:
    """
    :param observation_space: a Dict with a mask
    :return: what the network sees of it
    """
    assert isinstance(observation_space, spaces.Dict)
    return spaces.Dict({key: space for key, space in observation_space.spaces.items() if key != MASK_KEY})


def valid_actions(observations: Mapping[str, Any]) -> Any:
    """
    The actions that may be taken; all of them where the mask says that none may. (That also holds for a mask that an
    evaluation environment normalises: the running mean lies between 0 and 1.)

    :param observations: observations with a mask, as arrays or tensors, (B, ...)
    :return: True for each valid action, of the same kind, (B, A)
    """
    valid = observations[MASK_KEY] > 0
    none = ~valid.any(-1)
    return valid | none[:, None]


def sample_actions(action_space: spaces.Discrete, rows: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """
    :param action_space: where to sample, with its own random numbers
    :param rows: for which of B observations, True for R of them, (B,)
    :param valid: which actions may be taken, (B, A); None for all
    :return: uniformly random actions, (R,)
    """
    if valid is None:
        return np.array([action_space.sample() for _ in range(rows.sum())], dtype=np.int64)
    return np.array([action_space.sample(mask=row.astype(np.int8)) for row in valid[rows]], dtype=np.int64)


def mask_values(values: th.Tensor, valid: th.Tensor | None) -> th.Tensor:
    """
    :param values: value of every head, (K, B, A)
    :param valid: which actions may be taken, (B, A); None for all
    :return: the values, minus infinity for actions that may not be taken, (K, B, A)
    """
    return values if valid is None else values.masked_fill(~valid, -th.inf)
