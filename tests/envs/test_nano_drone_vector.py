"""Many drones at once do what as many single ones do, to the last bit."""

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
import pytest
from stable_baselines3.common.vec_env import VecMonitor

from sb3_ora import IQN
from sb3_ora.envs import NanoDroneEnv, NanoDroneVecEnv, NanoDroneVectorEnv
from tests.envs.conftest import VARIANTS
from tests.tiny import tiny


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert np.array_equal(ours[key], theirs[key]) and ours[key].dtype == theirs[key].dtype


@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
def test_vector_environment_against_gymnasiums_own(kwargs):
    n, steps = 4, 350
    ours = gym.make_vec("NanoDrone-v0", num_envs=n, vectorization_mode="vector_entry_point", **kwargs)
    theirs = gym.vector.SyncVectorEnv([lambda: NanoDroneEnv(**kwargs)] * n)
    assert isinstance(ours.unwrapped, NanoDroneVectorEnv)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    results = ours.reset(seed=5), theirs.reset(seed=5)
    rng, ended = np.random.default_rng(0), 0
    np.testing.assert_array_equal(results[0][0], results[1][0])
    same(results[0][1], results[1][1])
    assert ours.unwrapped.np_random_seed == theirs.np_random_seed == (5, 6, 7, 8)
    for _ in range(steps):
        actions = rng.integers(0, 12, n)
        mine, other = ours.step(actions), theirs.step(actions)
        for a, b in zip(mine[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
        same(mine[4], other[4])
        ended += (mine[2] | mine[3]).sum()
    assert ended > 3
    states = [[generator.bit_generator.state for generator in envs.np_random] for envs in (ours.unwrapped, theirs)]
    assert states[0] == states[1]


def test_vector_environment_resets_what_the_mask_says():
    env = NanoDroneVectorEnv(3)
    before, _ = env.reset(seed=[1, 2, 3])
    np.testing.assert_array_equal(before[1], NanoDroneEnv().reset(seed=2)[0])
    mask = np.array([False, True, False])
    after, infos = env.reset(seed=[None, 9, None], options={"reset_mask": mask})
    assert infos["_n_obstacles"].tolist() == mask.tolist()
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(after[1], NanoDroneEnv().reset(seed=9)[0])
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": np.zeros(3, dtype=bool)})
    with pytest.raises(ValueError, match="seed must be a number, or one for each of 3"):
        env.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="for each of 3"):
        env.step(np.array([0, 1]))
    with pytest.raises(ValueError, match="render_mode"):
        NanoDroneVectorEnv(2, render_mode="human")


@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
def test_sb3_environment_against_single_ones(kwargs):
    n, steps = 4, 350
    many, single = NanoDroneVecEnv(n, **kwargs), [NanoDroneEnv(**kwargs) for _ in range(n)]
    many.seed(8)
    expected = np.array([env.reset(seed=8 + i)[0] for i, env in enumerate(single)])
    np.testing.assert_array_equal(many.reset(), expected)
    rng, ended = np.random.default_rng(0), 0
    for _ in range(steps):
        actions = rng.integers(0, 12, n)
        observations, rewards, dones, infos = many.step(actions)
        for i, env in enumerate(single):
            obs, reward, terminated, truncated, info = env.step(actions[i])
            assert rewards[i] == np.float32(reward) and dones[i] == (terminated or truncated)
            last = infos[i].pop("terminal_observation", None)
            assert infos[i] == {**info, "TimeLimit.truncated": truncated and not terminated}
            assert (last is not None) == dones[i]
            if dones[i]:
                ended += 1
                np.testing.assert_array_equal(last, obs)
                obs, reset_info = env.reset()
                assert many.reset_infos[i] == reset_info
            np.testing.assert_array_equal(observations[i], obs)
    assert ended > 3


def test_sb3_environment_takes_options_and_names_its_arguments():
    env = NanoDroneVecEnv(2, n_obstacles=3)
    env.set_options([{"start": (0.0, 0.0), "obstacles": []}, {"start": (1.0, 0.0), "obstacles": []}])
    assert env.reset()[:, 0].tolist() == [0.0, 1.0]
    env.set_options({"begin": (0.0, 0.0)})
    with pytest.raises(ValueError, match="'begin'"):
        env.reset()
    assert env.get_attr("n_obstacles") == [3, 3] and env.get_attr("num_envs", [1]) == [2]
    assert env.env_is_wrapped(VecMonitor) == [False, False]
    with pytest.raises(NotImplementedError, match="n_obstacles"):
        env.set_attr("n_obstacles", 4)
    with pytest.raises(NotImplementedError, match="stage"):
        env.env_method("stage")


def test_training_logs_the_success_rate():
    env = VecMonitor(NanoDroneVecEnv(4, n_obstacles=2, max_steps=20))
    model = tiny(IQN, env).learn(400)
    assert len(model.ep_success_buffer) >= 4
    assert {*model.ep_success_buffer} <= {True, False}


@pytest.mark.parametrize("seed", [np.int64(3), [np.int64(3), np.int32(4)]])
def test_seeds_of_numpy(seed):
    env = NanoDroneVectorEnv(2)
    np.testing.assert_array_equal(env.reset(seed=seed)[0], env.reset(seed=3)[0])


def test_rewards_of_earlier_steps_stay():
    env = NanoDroneVectorEnv(2)
    env.reset(seed=0, options={"obstacles": [], "start": (3.0, 0.0), "goal": (0.0, 3.0)})
    rewards = [env.step(np.array([2, 2]))[1] for _ in range(10)]  # 1 m to the wall
    assert rewards[0].tolist() == [-0.1, -0.1] and rewards[-1].tolist() == [-25.1, -25.1]


def test_a_second_reset_has_another_layout():
    many, single = NanoDroneVecEnv(1), NanoDroneEnv()
    many.seed(8)
    for seed in (8, None, None):
        np.testing.assert_array_equal(many.reset()[0], single.reset(seed=seed)[0])


def test_options_are_for_one_reset():
    many, single = NanoDroneVecEnv(1), NanoDroneEnv()
    many.seed(8)
    many.set_options({"start": (0.0, 0.0), "obstacles": []})
    for seed, options in ((8, {"start": (0.0, 0.0), "obstacles": []}), (None, None)):
        np.testing.assert_array_equal(many.reset()[0], single.reset(seed=seed, options=options)[0])


def test_steps_before_a_reset():
    many = NanoDroneVecEnv(2)
    for env in (NanoDroneVectorEnv(2), many):
        with pytest.raises(ResetNeeded, match="call reset"):
            env.step(np.array([0, 0]))
    many.reset()
    many.step(np.array([0, 0]))
