"""or-gym's other environments through the adapter."""

import random
import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

from sb3_ora.envs.or_gym import PROBLEMS, UNSUPPORTED, OrGymEnv
from sb3_ora.envs.or_gym_import import classic_problems

pytestmark = pytest.mark.filterwarnings("ignore:.*out of date")


def play(env, n_steps, seed=0, valid=True, reset_seed=None):
    """Observations, rewards and ends of random steps."""
    rng, steps = np.random.default_rng(seed), []
    observation, _ = env.reset(seed=reset_seed)
    for _ in range(n_steps):
        assert env.observation_space.contains(observation), observation
        allowed = np.flatnonzero(env.action_masks())
        action = int(rng.choice(allowed)) if valid and len(allowed) else int(rng.integers(env.action_space.n))
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((observation, reward, terminated))
        assert not truncated and info == {} and type(reward) is float
        if terminated:
            observation, _ = env.reset()
    return steps


def same(first, second):
    return all(
        np.array_equal(a["state"], b["state"]) and np.array_equal(a["action_mask"], b["action_mask"]) and rest == others
        for (a, *rest), (b, *others) in zip(first, second, strict=True)
    )


@pytest.mark.filterwarnings("ignore:.*unconventional shape")
@pytest.mark.parametrize("obs_mode", ["dict", "flat"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_environment_checkers(or_gym, name, obs_mode):
    env = gym.make(f"or_gym/{name}", obs_mode=obs_mode).unwrapped
    check_env(env, skip_render_check=True)
    check_env_of_sb3(env)
    play(env, 60)
    play(env, 60, valid=False)


@pytest.mark.parametrize("name", PROBLEMS)
def test_random_numbers_are_the_environments_own(or_gym, name):
    np.random.seed(1)
    random.seed(1)
    before = np.random.get_state()[1].copy(), random.getstate()
    env = OrGymEnv(name)
    first = play(env, 60, reset_seed=3)
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])
    assert random.getstate() == before[1]
    np.random.seed(2)
    random.seed(2)
    again = OrGymEnv(name)
    play(again, 7, seed=5)
    assert same(play(again, 60, reset_seed=3), first)
    assert not same(play(again, 60, reset_seed=4), first)


@pytest.mark.parametrize("name", PROBLEMS)
def test_environments_do_not_disturb_each_other(or_gym, name):
    config = {"N": 10} if name == "TSP-v0" else {}  # faster
    alone = play(OrGymEnv(name, **config), 30, reset_seed=3)
    env, other = OrGymEnv(name, **config), OrGymEnv(name, **config)
    rng = np.random.default_rng(0)
    env.reset(seed=3)
    steps = []
    for _ in range(30):
        other.reset()
        allowed = np.flatnonzero(env.action_masks())
        action = rng.choice(allowed) if len(allowed) else rng.integers(env.action_space.n)
        steps.append(env.step(int(action))[:3])
        if steps[-1][2]:
            env.reset()
    assert same(steps, alone)


def test_without_a_seed_episodes_differ(or_gym):
    assert not same(*(play(OrGymEnv("BinPacking-v0"), 30) for _ in range(2)))


# What the adapter sets right


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "TSP-v0"])
def test_invalid_actions_are_those_that_end_an_episode_or_do_nothing(or_gym, name):
    """The mask, against what the problem itself does with each action."""
    checked = 0
    for seed in range(12):
        env = OrGymEnv(name)
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(int(rng.integers(1, 12))):
            if not env.action_masks().any() or env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))[2]:
                break
        else:
            action = int(rng.integers(env.action_space.n))
            valid = env.action_masks()[action]
            if name == "VehicleRouting-v0":
                status = [env.problem.order_dict.get(i, {}).get("Status") for i in range(10)]
                full = env.problem.vehicle_load >= env.problem.vehicle_capacity
                groups = [s == 1 for s in status] + [s == 2 and not full for s in status] + [s == 3 for s in status]
                np.testing.assert_array_equal(env.action_masks(), [True, *groups, True, True])
            else:
                reward, terminated = env.step(action)[1:3]
                assert terminated != valid and (reward <= -91) != valid  # the penalties are 91 and more
            checked += 1
    assert checked > 5


def test_salesman_may_go_along_every_connection(or_gym):
    env = OrGymEnv("TSP-v0", N=12)
    observation, _ = env.reset(seed=0)
    again = False
    for _ in range(20):
        connected = np.isin(np.arange(12), env.problem.node_dict[env.problem.current_node])
        np.testing.assert_array_equal(observation["action_mask"], connected)
        visited = np.array([env.problem.visit_log[node] > 0 for node in range(12)])
        again |= bool((connected & visited).any())
        observation, reward, terminated, *_ = env.step(int(np.flatnonzero(connected)[0]))
        assert reward == -1.0
        if terminated:
            observation, _ = env.reset()
    assert again


def test_salesman_pays_the_way(or_gym):
    env = OrGymEnv("TSP-v1", N=6)
    observation, _ = env.reset(seed=0)
    x, y = env.problem.coords
    total, position, way = 0.0, observation["state"][0], 0.0
    terminated = False
    while not terminated:
        np.testing.assert_array_equal(observation["action_mask"], 1 - observation["state"][1:])
        action = int(np.flatnonzero(observation["action_mask"])[-1])
        observation, reward, terminated, *_ = env.step(action)
        way += np.hypot(x[action] - x[position], y[action] - y[position])
        total, position = total + reward, action
    assert total == pytest.approx(-way) and observation["state"][1:].all()
    observation, _ = env.reset()
    assert env.step(int(observation["state"][0]))[1:3] == (-100.0, True)


def test_nodes_follow_the_instance_seed(or_gym):
    first, second, other = (OrGymEnv("TSP-v1", instance_seed=seed).problem.coords for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_bin_packing_mask_holds_zeros_and_ones(or_gym):
    env = OrGymEnv("BinPacking-v0")
    steps = play(env, 200, reset_seed=0)
    assert max(observation["state"][:-1].max() for observation, *_ in steps) > 1
    for observation, *_ in steps:
        bins, item = observation["state"][:-1], observation["state"][-1]
        expected = (bins > 0) & (np.arange(9) + item <= 9)
        expected[0] = True
        np.testing.assert_array_equal(observation["action_mask"], expected)


def test_vehicle_gets_its_capacity_back_and_is_silent(or_gym, capsys):
    env = OrGymEnv("VehicleRouting-v0")
    play(env, 400, reset_seed=0)
    assert env.problem.vehicle_capacity < 4, "no order was missed: play longer"
    observation, _ = env.reset()
    assert env.problem.vehicle_capacity == 4 == observation["state"][7]
    assert capsys.readouterr().out == ""


def test_flat_observations_of_machines(or_gym):
    flat, whole = OrGymEnv("VMPacking-v0", obs_mode="flat"), OrGymEnv("VMPacking-v0")
    np.testing.assert_array_equal(flat.reset(seed=0)[0], whole.reset(seed=0)[0]["state"].ravel())
    kept = whole.step(3)[0]["state"].copy()
    later = whole.step(4)[0]["state"]
    assert kept[3, 0] == 1 and kept[4, 0] == 0 and later[4, 0] == 1


# Errors


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_environments_say_why(name):
    with pytest.raises(ValueError, match=f"or_gym/{name} is not supported: (its actions are continuous|it is broken)"):
        gym.make(f"or_gym/{name}")


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"name": "TSP-v7"}, "name must be one of 'BinPacking-v0', .*, got 'TSP-v7'"),
        ({"name": "TSP-v0", "obs_mode": "mask"}, "obs_mode must be one of 'dict', 'flat', got 'mask'"),
        ({"name": "TSP-v0", "mask": False}, "mask=False is set by obs_mode"),
        ({"name": "TSP-v0", "instance_seed": -1}, "instance_seed must be an integer in .0, 4294967295., got -1"),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        OrGymEnv(**kwargs)


def test_unknown_settings_and_actions(or_gym):
    with pytest.raises(ValueError, match="or_gym/TSP-v0 has no setting nodes=7"):
        OrGymEnv("TSP-v0", nodes=7)
    with pytest.raises(ValueError, match=r"action must be an integer in \[0, 8\], got 9"):
        OrGymEnv("BinPacking-v0").step(9)


@pytest.fixture
def not_imported(monkeypatch):
    """As before or-gym was imported."""
    monkeypatch.setattr("sb3_ora.envs.or_gym.classic_problems", classic_problems.__wrapped__)  # not the cached ones
    for name in [name for name in sys.modules if name.split(".")[0] in ("or_gym", "gym")]:
        monkeypatch.delitem(sys.modules, name)


def test_gym_is_left_as_it_was(or_gym, not_imported, monkeypatch):
    gym_of_the_user = ModuleType("gym")
    monkeypatch.setitem(sys.modules, "gym", gym_of_the_user)
    OrGymEnv("TSP-v0")
    assert sys.modules["gym"] is gym_of_the_user and not any(name.startswith("gym.") for name in sys.modules)


@pytest.mark.filterwarnings("ignore:.*float16")
def test_or_gym_is_left_as_it_was_outside_the_adapter(or_gym, capsys):
    """With the global random numbers, and printing."""
    OrGymEnv("VehicleRouting-v0")
    make = sys.modules["or_gym.envs.classic_or.vehicle_routing"].VehicleRoutingEnv
    states = []
    for _ in range(2):
        np.random.seed(1)
        random.seed(1)
        states.append(make().reset())
    before = np.random.get_state()[2]  # how many of its numbers are used up
    problem = make()
    assert np.random.get_state()[2] != before
    np.testing.assert_array_equal(*states)
    problem.step(31)
    assert "direction" in capsys.readouterr().out


def test_without_or_gym(not_imported, monkeypatch):
    monkeypatch.setitem(sys.modules, "or_gym", None)
    with pytest.raises(DependencyNotInstalled, match="pip install --no-deps or-gym"):
        OrGymEnv("TSP-v0")
    assert not any(name.split(".")[0] == "gym" for name in sys.modules)


def test_nothing_to_see():
    with pytest.warns(UserWarning, match="or_gym/BinPacking-v0 cannot be drawn: render_mode='human' has no effect"):
        env = gym.make("or_gym/BinPacking-v0", render_mode="human")
    assert env.render_mode is None
