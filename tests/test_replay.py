"""What the replay buffers of Stable-Baselines3 hold after training, against what the environment did."""

import warnings

import numpy as np
import pytest
from gymnasium.spaces import Dict
from gymnasium.wrappers import TransformObservation
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_ora import IQN
from tests.tiny import ALGORITHMS, several, tiny
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


@pytest.mark.parametrize("dict_observations", [False, True])
@pytest.mark.parametrize("begin_anew", ["learn", "set_env"])
def test_n_step_returns_end_where_environments_are_reset(begin_anew, dict_observations):
    """An episode that a second call of learn leaves behind is no part of the returns of the next one, nor its end."""

    def make_one():
        env = Scripted((10, 7), rewards=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0))
        if not dict_observations:
            return env
        return TransformObservation(env, lambda x: {"x": x}, Dict({"x": env.observation_space}))

    def make():
        return several(make_one, 2)

    policy = "MultiInputPolicy" if dict_observations else "MlpPolicy"
    model = tiny(IQN, make(), policy, n_steps=3, gamma=0.5).learn(2 * 16)
    if begin_anew == "set_env":
        model.set_env(make())
    model.learn(2 * 12, reset_num_timesteps=begin_anew == "learn")
    buffer = model.replay_buffer
    # Rows 0 to 9 are the first episode, 10 to 15 a part of the second, which was left there; then a new one begins
    assert buffer.dones[:28].nonzero()[0].tolist() == [9, 9, 25, 25]
    for row, length in ((13, 3), (14, 2), (15, 1), (16, 3)):
        batch = buffer._get_samples(np.full(50, row))
        rewards = buffer.rewards[row : row + length, 0]
        assert batch.rewards.unique().tolist() == pytest.approx([float(rewards @ 0.5 ** np.arange(length))])
        assert batch.discounts.unique().tolist() == [0.5**length] and not batch.dones.any()


def test_an_interruption_is_no_end_where_a_time_out_is_one():
    kwargs = {"replay_buffer_kwargs": {"handle_timeout_termination": False, "n_steps": 3, "gamma": 0.5}}
    model = tiny(IQN, several(lambda: Scripted((50,)), 2), replay_buffer_class=NStepReplayBuffer, **kwargs).learn(2 * 16)
    model.learn(2 * 12)
    batch = model.replay_buffer._get_samples(np.full(20, 14))  # two steps before the reset
    assert batch.rewards.unique().tolist() == [1.5] and batch.discounts.unique().tolist() == [0.25]
    assert not batch.dones.any()


def test_an_end_stays_an_end():
    """The environments are reset just after an episode has ended: its last transition is no time-out."""
    model = tiny(IQN, several(lambda: Scripted((5,)), 2), n_steps=3).learn(20)
    model.learn(20)
    batch = model.replay_buffer._get_samples(np.full(20, 9))
    assert batch.dones.all() and model.replay_buffer.timeouts[9].tolist() == [0, 0]
