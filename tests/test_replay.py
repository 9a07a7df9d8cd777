"""What the replay buffers of Stable-Baselines3 hold after training, against what the environment did."""

import warnings

import numpy as np
import pytest
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv

from tests.tiny import ALGORITHMS, tiny
from tests.toy_envs import Scripted

SMALL_MEMORY = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_transitions_are_those_of_the_environment(algorithm, small):
    """Step t of episode e is the environment's step 4 e + t. The buffer of 50 has gone round twice."""
    env = Scripted((4,), rewards=np.arange(200))
    model = tiny(algorithm, env, buffer_size=50, **(SMALL_MEMORY if small else {})).learn(120)
    batch = model.replay_buffer.sample(400)
    (episodes, times), (next_episodes, next_times) = batch.observations.numpy().T, batch.next_observations.numpy().T
    steps = (4 * episodes + times).astype(int)
    ends = times == 3
    assert set(steps) == set(range(70, 120)) - ({70} if small else set())
    assert np.array_equal(batch.rewards.numpy().ravel(), steps)
    assert np.array_equal(batch.actions.numpy().ravel(), np.array(env.actions)[steps])
    assert np.array_equal(batch.dones.numpy().ravel(), ends)
    assert np.array_equal(next_times[~ends], times[~ends] + 1) and np.array_equal(next_episodes[~ends], episodes[~ends])
    if not small:
        assert set(next_times[ends]) == {4}


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_new_start_cuts_the_last_episode_of_the_small_buffer(algorithm, small):
    model = tiny(algorithm, Scripted((4,)), buffer_size=50, **(SMALL_MEMORY if small else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(30).learn(30, reset_num_timesteps=False)
    if small:
        with pytest.warns(UserWarning, match="last trajectory in the replay buffer will be truncated"):
            model.learn(30)
        assert model.replay_buffer.dones[60 % 50 - 1] == 1
    else:
        model.learn(30)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hindsight(algorithm, tmp_path):
    """Rewards are those of the goals that were put in; two of three are goals that were reached later in the episode."""
    kwargs = {"n_sampled_goal": 2, "goal_selection_strategy": "final"}
    settings = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": kwargs, "n_heads": 2}
    if algorithm.__name__ != "ORAIQN":
        del settings["n_heads"]
    model = tiny(algorithm, BitFlippingEnv(n_bits=4, continuous=False, max_steps=4), "MultiInputPolicy", **settings)
    model.learn(100)
    batch = model.replay_buffer.sample(3000)
    assert len(batch.rewards) == 3000 and model._n_updates > 0
    reached = (batch.next_observations["achieved_goal"] == batch.next_observations["desired_goal"]).all(dim=1)
    assert np.array_equal(batch.rewards.numpy().ravel(), np.where(reached, 0.0, -1.0))
    assert (batch.observations["desired_goal"] == batch.next_observations["desired_goal"]).all()
    original = (batch.observations["desired_goal"] == 1).all(dim=1)  # the goal of the environment
    assert 0.25 < original.float().mean() < 0.5  # a third, and where it was reached

    model.save_replay_buffer(tmp_path / "buffer")
    other = tiny(algorithm, model.get_env(), "MultiInputPolicy", **settings)
    other.load_replay_buffer(tmp_path / "buffer")
    for key, value in model.replay_buffer.observations.items():
        assert np.array_equal(other.replay_buffer.observations[key], value)
    assert other.learn(40)._n_updates > 0
