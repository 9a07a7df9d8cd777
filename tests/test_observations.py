"""Batches of observations, as arrays or dicts of arrays."""

import numpy as np
import pytest
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora.observations import batch_length, slice_batch, stack_batches, warm_up_observations
from tests.tiny import several
from tests.toy_envs import Scripted


def test_arrays_and_dicts_are_stacked_and_cut_alike():
    first, second = np.arange(6).reshape(3, 2), np.arange(6, 10).reshape(2, 2)
    both = np.arange(10).reshape(5, 2)
    assert batch_length(both) == batch_length({"a": both, "b": both}) == 5
    assert np.array_equal(stack_batches([first, second]), both)
    stacked = stack_batches([{"a": first, "b": -first}, {"a": second, "b": -second}])
    assert np.array_equal(stacked["a"], both) and np.array_equal(stacked["b"], -both)
    part = slice_batch(stacked, slice(1, 4))
    assert np.array_equal(part["a"], both[1:4]) and np.array_equal(slice_batch(-both, slice(1, 4)), part["b"])


@pytest.mark.parametrize(("stored", "limit", "expected"), [(4, 2000, 4), (4, 5, 3), (10, 4, 2), (30, 2000, 12)])
def test_the_first_observations_of_the_buffer(stored, limit, expected):
    """Two environments and at most 12 rows: whole rows, no more of them than the limit needs."""
    env = several(Scripted, 2)
    buffer = ReplayBuffer(24, env.observation_space, env.action_space, device="cpu", n_envs=2)
    for i in range(stored):
        obs = np.array([[i, 0], [i, 1]], dtype=np.float32)
        buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
    found = warm_up_observations(buffer, None, limit)
    first = 24 if stored == 30 else 0  # rows 0 ... 5 were overwritten twice
    rows = [[first + i if first + i < 30 else i + 12, e] for i in range(expected) for e in range(2)]
    assert found.tolist() == rows


def test_they_are_seen_as_the_policy_sees_them():
    env = VecNormalize(several(Scripted, 2))
    env.obs_rms.mean, env.obs_rms.var = np.array([1.0, 2.0]), np.array([4.0, 9.0])
    buffer = ReplayBuffer(24, env.observation_space, env.action_space, device="cpu", n_envs=2)
    obs = np.array([[3, 2], [1, 5]], dtype=np.float32)
    buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
    np.testing.assert_allclose(warm_up_observations(buffer, env), [[1, 0], [0, 1]], atol=1e-4)
    assert np.array_equal(buffer.observations[0], obs)
