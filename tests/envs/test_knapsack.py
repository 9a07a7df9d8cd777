"""The knapsack problems, beside or-gym itself, brute force and integer programming."""

import importlib
import itertools
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from scipy.optimize import Bounds, LinearConstraint, milp
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

from sb3_ora.envs import KnapsackEnv
from sb3_ora.envs.knapsack import BINARY, BOUNDED, ONLINE, UNBOUNDED
from sb3_ora.envs.or_gym_import import classic_problems
from tests.tiny import several

CLASSES = ("KnapsackEnv", "BinaryKnapsackEnv", "BoundedKnapsackEnv", "OnlineKnapsackEnv")
MODES = [("dict", False), ("dict", True), ("flat", False), ("flat", True)]


# Beside or-gym


class Numpy:
    """numpy for or-gym, whose random numbers are those of the environment beside it."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.random = SimpleNamespace(randint=rng.integers, choice=rng.choice)

    def __getattr__(self, name):
        return getattr(np, name)


def original(env, monkeypatch, seed, mask):
    """or-gym's environment with the items of ``env``."""
    monkeypatch.undo()  # numpy for another one
    classic_problems()  # imports all of or-gym
    module = importlib.import_module("or_gym.envs.classic_or.knapsack")
    other = getattr(module, CLASSES[env.version])(env_config={"mask": mask})
    other.N, other.item_numbers, other.max_weight = env.n_items, np.arange(env.n_items), env.max_weight
    other.item_weights, other.item_values = env.item_weights.copy(), env.item_values.copy()
    if env.version >= BOUNDED:
        other.item_limits_init = env.item_limits.copy()
        other.item_probs = env.item_limits / env.item_limits.sum()
    other.randomize_params_on_reset = env.randomize
    monkeypatch.setattr(module, "np", Numpy(seed))
    return other


def some_action(env, rng):
    """Mostly valid, so that episodes get long, but not always."""
    valid = np.flatnonzero(env.action_masks())
    return int(rng.choice(valid)) if len(valid) and rng.random() < 0.9 else int(rng.integers(env.action_space.n))


def assert_same_observation(found, expected):
    if isinstance(found, dict):
        assert np.array_equal(found["action_mask"], expected["action_mask"])
        assert np.array_equal(found["state"], expected["state"])
    else:
        assert np.array_equal(found, expected.reshape(-1))


def play(env, other, n_episodes, seed):
    """Both through the same episodes; how often they ended in each way."""
    rng, lengths = np.random.default_rng(seed), []
    for episode in range(n_episodes):
        observation, info = env.reset(seed=seed if episode == 0 else None)
        assert_same_observation(observation, other.reset())
        assert info == {}
        done, total, length = False, 0, 0
        while not done:
            action = some_action(env, rng)
            observation, reward, done, truncated, info = env.step(action)
            expected, expected_reward, expected_done, _ = other.step(action)
            assert_same_observation(observation, expected)
            assert reward == expected_reward and done == expected_done and not truncated
            total, length = total + reward, length + 1
        np.testing.assert_array_equal(env.item_weights, other.item_weights)
        assert info["value"] == total
        lengths.append(length)
    return lengths


@pytest.mark.parametrize("randomize", [False, True])
@pytest.mark.parametrize("version", range(4))
def test_like_or_gym_step_for_step(or_gym, monkeypatch, version, randomize):
    env = KnapsackEnv(version, randomize=randomize, normalize=False, instance_seed=version)
    lengths = play(env, original(env, monkeypatch, 7, mask=True), 50 if version == ONLINE else 100, 7)
    assert len(set(lengths)) > 5 and max(lengths) > (49 if version == ONLINE else 8)


@pytest.mark.slow
@pytest.mark.parametrize("version", range(4))
def test_like_or_gym_for_thousands_of_episodes(or_gym, monkeypatch, version):
    for instance in range(20):
        env = KnapsackEnv(version, normalize=False, instance_seed=instance)
        play(env, original(env, monkeypatch, instance, mask=True), 150, instance)


@pytest.mark.parametrize("version", range(4))
def test_like_or_gym_without_masks(or_gym, monkeypatch, version):
    env = KnapsackEnv(version, n_items=20, max_weight=120, randomize=True, obs_mode="flat", normalize=False)
    play(env, original(env, monkeypatch, 8, mask=False), 50, 8)


# Observations


@pytest.mark.parametrize("version", range(4))
def test_forms_of_observations_say_the_same(version):
    envs = [KnapsackEnv(version, obs_mode=mode, normalize=normalize) for mode, normalize in MODES]
    rng = np.random.default_rng(0)
    for _ in range(20):
        observations, done = [env.reset(seed=3)[0] for env in envs], False
        while not done:
            for env, observation in zip(envs, observations, strict=True):
                assert env.observation_space.contains(observation)
            (whole, scaled), (flat, flat_scaled) = observations[:2], observations[2:]
            np.testing.assert_array_equal(whole["action_mask"], envs[0].action_masks())
            np.testing.assert_array_equal(scaled["action_mask"], envs[0].action_masks())
            for numbers, fractions, env in ((whole["state"], scaled["state"], envs[0]), (flat, flat_scaled, envs[2])):
                space = env.observation_space["state"] if env is envs[0] else env.observation_space
                np.testing.assert_allclose(fractions, numbers / space.high, rtol=1e-6)
            if version != UNBOUNDED:
                np.testing.assert_array_equal(whole["state"].ravel(), flat)
            action = some_action(envs[0], rng)
            steps = [env.step(action) for env in envs]
            observations, done = [step[0] for step in steps], steps[0][2]
            assert len({step[1:4] for step in steps}) == 1


def test_earlier_observations_stay_as_they_were():
    env = KnapsackEnv(normalize=False)
    first, _ = env.reset()
    second = env.step(int(np.argmin(env.item_weights)))[0]
    assert first["state"][1, -1] == 0 and second["state"][1, -1] == env.item_weights.min()
    assert first["state"][2].sum() - second["state"][2].sum() == 1


@pytest.mark.filterwarnings("ignore:.*unconventional shape")
@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("mode, normalize", MODES)
def test_environment_checkers(version, mode, normalize):
    for n_items, max_weight in ((50, 200), (1, 1), (300, 40)):  # where or-gym's own bounds fail
        env = KnapsackEnv(version, n_items, max_weight, obs_mode=mode, normalize=normalize)
        check_env(env, skip_render_check=True)
        check_env_of_sb3(env)


@pytest.mark.parametrize("version", range(4))
def test_masks_for_sb3_contrib(version):
    envs = several(lambda: KnapsackEnv(version), 2)
    observations, steps, done = envs.reset(), 0, [False]
    while not any(done):
        masks = get_action_masks(envs)
        assert masks.dtype == bool and is_masking_supported(envs)
        np.testing.assert_array_equal(masks, observations["action_mask"])
        observations, _, done, _ = envs.step(masks.argmax(axis=1))
        steps += 1
    assert steps > 1


# Instances


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_instances():
    first, second = (gym.make("or_gym/Knapsack-v1").unwrapped for _ in range(2))
    other = gym.make("or_gym/Knapsack-v1", instance_seed=1).unwrapped
    assert len(first.item_weights) == first.action_space.n == 50 and first.max_weight == 200 and not first.randomize
    assert first.version == 1 and [gym.make(f"or_gym/Knapsack-v{v}").unwrapped.version for v in range(4)] == [0, 1, 2, 3]
    weights, values = first.item_weights.copy(), first.item_values.copy()
    for seed in (None, 5):
        first.reset(seed=seed)
        np.testing.assert_array_equal(first.item_weights, weights)
        np.testing.assert_array_equal(second.item_weights, weights)
        np.testing.assert_array_equal(second.item_values, values)
    assert (other.item_weights != weights).any()


def test_items_are_uniform():
    """Extremes are met, and means lie within 5 standard errors (a false alarm in about 10^6 runs)."""
    envs = [KnapsackEnv(BOUNDED, instance_seed=seed) for seed in range(200)]
    for name, low, high in (("item_weights", 1, 99), ("item_values", 0, 99), ("item_limits", 1, 9)):
        drawn = np.concatenate([getattr(env, name) for env in envs])
        deviation = np.sqrt(((high - low + 1) ** 2 - 1) / 12 / len(drawn))
        assert drawn.min() == low and drawn.max() == high
        assert drawn.mean() == pytest.approx((low + high) / 2, abs=5 * deviation)


def test_random_instances_follow_the_seed():
    env = KnapsackEnv(randomize=True)
    env.reset(seed=1)
    first = env.item_weights.copy(), env.optimal_value()
    env.reset()
    assert (env.item_weights != first[0]).any() and env.optimal_value() != first[1]
    env.reset(seed=1)
    np.testing.assert_array_equal(env.item_weights, first[0])
    assert env.optimal_value() == first[1]


# Values


def packings(env):
    """Values of all possible packings, by trying every number of copies of each item."""
    most = env.max_weight // env.item_weights
    if env.version != UNBOUNDED:
        most = np.minimum(most, env.item_limits)
    for counts in itertools.product(*(range(n + 1) for n in most.tolist())):
        if np.dot(counts, env.item_weights) <= env.max_weight:
            yield float(np.dot(counts, env.item_values))


@pytest.mark.parametrize("version, n_items, max_weight", [(UNBOUNDED, 4, 120), (BINARY, 9, 200), (BOUNDED, 4, 160)])
def test_optimum_is_that_of_brute_force(version, n_items, max_weight):
    for seed in range(12):
        env = KnapsackEnv(version, n_items, max_weight, instance_seed=seed)
        assert env.optimal_value() == max(packings(env))
        assert env.greedy_value() in set(packings(env))


@pytest.mark.parametrize("version", [UNBOUNDED, BINARY, BOUNDED])
def test_optimum_is_that_of_integer_programming(version):
    for seed in range(10):
        env = KnapsackEnv(version, instance_seed=seed)
        most = np.inf if version == UNBOUNDED else env.item_limits
        capacity = LinearConstraint(env.item_weights[None, :], ub=env.max_weight)
        found = milp(-env.item_values, integrality=np.ones(50), bounds=Bounds(0, most), constraints=capacity)
        assert env.optimal_value() == pytest.approx(-found.fun)


@pytest.mark.parametrize("version", [UNBOUNDED, BINARY, BOUNDED])
def test_greedy_value_is_what_a_greedy_agent_earns(version):
    gaps = []
    for seed in range(20):
        env = KnapsackEnv(version, instance_seed=seed)
        env.reset()
        info = {}
        while not info:
            ratios = np.where(env.action_masks(), env.item_values / env.item_weights, -1)
            info = env.step(int(ratios.argmax()))[4]
        assert info["value"] == info["greedy_value"] == env.greedy_value() <= info["optimal_value"] == env.optimal_value()
        assert info["gap"] == pytest.approx(1 - info["value"] / info["optimal_value"])
        gaps.append(info["gap"])
    assert max(gaps) > 0


def expected_value(env, selective):
    """Of the online problem, by recursion over loads and steps."""
    odds = env.item_limits / env.item_limits.sum()

    @cache
    def value(load, left):
        if left == 0:
            return 0.0
        leave, total = value(load, left - 1), 0.0
        for weight, worth, probability in zip(env.item_weights, env.item_values, odds, strict=True):
            take = worth + value(load + weight, left - 1) if load + weight <= env.max_weight else -np.inf
            total += probability * (max(leave, take) if selective or take < 0 else take)
        return total

    return value(0, 50)


def test_online_values_are_those_of_recursion():
    for seed in range(3):
        env = KnapsackEnv(ONLINE, 5, 60, instance_seed=seed)
        assert env.optimal_value() == pytest.approx(expected_value(env, True))
        assert env.greedy_value() == pytest.approx(expected_value(env, False))
        assert 0 < env.greedy_value() < env.optimal_value()


def test_online_greedy_value_is_what_taking_everything_earns():
    """Within 5 standard errors; the seed is fixed."""
    env, returns = KnapsackEnv(ONLINE), []
    env.reset(seed=0)
    for _ in range(400):
        env.reset()
        info = {}
        while not info:
            info = env.step(int(env.action_masks()[1]))[4]
        returns.append(info["value"])
    assert np.mean(returns) == pytest.approx(env.greedy_value(), abs=5 * np.std(returns) / 20)


def test_instance_without_value():
    env = KnapsackEnv(max_weight=1)
    env.item_weights[:] = 2
    env.reset()
    *_, terminated, _, info = env.step(0)
    assert terminated and info == {"value": 0.0, "optimal_value": 0.0, "greedy_value": 0.0, "gap": 0.0}


# Arguments


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"version": 4}, "version must be 0 .unbounded., 1 .0-1., 2 .bounded. or 3 .online., got 4"),
        ({"version": -1}, "version must be an integer of at least 0, got -1"),
        ({"n_items": 0}, "n_items must be an integer of at least 1, got 0"),
        ({"max_weight": 1.5}, "max_weight must be an integer in .1, 1000000., got 1.5"),
        ({"instance_seed": None}, "instance_seed must be an integer of at least 0, got None"),
        ({"obs_mode": "mask"}, "obs_mode must be one of 'dict', 'flat', got 'mask'"),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        KnapsackEnv(**kwargs)


@pytest.mark.parametrize("version, action", [(1, 50), (1, -1), (3, 2), (1, 0.5)])
def test_wrong_actions(version, action):
    env = KnapsackEnv(version)
    env.reset()
    with pytest.raises(ValueError, match=rf"action must be an integer in \[0, {env.action_space.n - 1}\], got {action}"):
        env.step(action)


def test_nothing_to_see():
    """rl-zoo3's enjoy wants to see everything."""
    with pytest.warns(UserWarning, match="KnapsackEnv cannot be drawn: render_mode='human' has no effect"):
        env = gym.make("or_gym/Knapsack-v1", render_mode="human")
    assert env.reset(seed=0)[1] == {} and env.render_mode is None


@pytest.mark.parametrize("env_id", ["or_gym/Knapsack-v1", "or_gym/BinPacking-v0"])
def test_no_remarks_on_what_nobody_asked_for(env_id, request):
    """Stable-Baselines3 makes environments with "rgb_array"; the number of a problem is not a version."""
    if "BinPacking" in env_id:
        request.getfixturevalue("or_gym")
    code = f"""
import warnings
from stable_baselines3.common.base_class import maybe_make_env
import sb3_ora.envs
with warnings.catch_warnings(record=True) as caught:
    env = maybe_make_env({env_id!r}, verbose=0)
print(env.render_mode, *(warning.message for warning in caught))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot be drawn" not in done.stdout and "out of date" not in done.stdout and done.stdout.startswith("None")
