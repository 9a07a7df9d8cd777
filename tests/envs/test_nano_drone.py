import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from sb3_ora.envs import NanoDroneEnv, NanoDroneVecEnv, NanoDroneVectorEnv
from sb3_ora.envs.nano_drone.config import NanoDroneConfig
from sb3_ora.envs.nano_drone.core import NanoDroneCore
from sb3_ora.envs.nano_drone.layouts import FIXED_OBSTACLES, check_options
from tests.envs.conftest import NUMBA, VARIANTS

ROOT = Path(__file__).parents[2]
RIGHT, UP, LEFT, DOWN = 2, 5, 8, 11  # 1 m/s


@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
@pytest.mark.filterwarnings("error")
def test_checkers_of_gymnasium_and_sb3(kwargs):
    check_env(gym.make("NanoDrone-v0", **kwargs).unwrapped, skip_render_check=True)
    sb3_check_env(gym.make("NanoDrone-v0", **kwargs))


def test_registered_where_rl_zoo3_is_imported_and_nothing_else():
    """The start-up hook is what imports this package there; numba and pygame wait until they are needed."""
    code = f"""
import sys; sys.path[:0] = {[str(ROOT / "startup"), str(ROOT)]}
import sb3_ora_zoo_hook; sb3_ora_zoo_hook.install()
import rl_zoo3.exp_manager, json, gymnasium
loaded = sorted({{"numba", "pygame"}} & set(sys.modules))
env = gymnasium.make("NanoDrone-v0", n_obstacles=2).unwrapped
print(json.dumps([loaded, type(env).__name__, env.core.config.n_obstacles]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[], "NanoDroneEnv", 2]


# Arrays


@NUMBA
@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
def test_numba_and_numpy_agree_to_the_last_bit(kwargs):
    cores = [NanoDroneCore(40, NanoDroneConfig(**kwargs), compiled) for compiled in (False, True)]
    generators = [[np.random.default_rng(i) for i in range(40)] for _ in cores]
    rng = np.random.default_rng(1)
    for core, own in zip(cores, generators, strict=True):
        for i in range(40):
            core.reset(i, own[i], check_options(None))
    for _ in range(300):
        actions = rng.integers(0, 12, 40)
        for core, own in zip(cores, generators, strict=True):
            core.step(actions)
            for i in np.flatnonzero(core.outcomes >= 2):
                core.finish(i)
                core.reset(i, own[i], check_options(None))
        for name in ("state", "rewards", "outcomes", "clearances", "edges", "advanced"):
            np.testing.assert_array_equal(getattr(cores[0], name), getattr(cores[1], name))


@NUMBA
def test_numba_and_numpy_agree_on_and_beside_edges():
    """Also where rays run along an edge: there the drone stands on the edge's line and reads 0."""
    cores = [NanoDroneCore(1, NanoDroneConfig(ranger_noise=0.0), compiled) for compiled in (False, True)]
    obstacles = [(0.0, 0.0, 1.0, 2.0), (1.0, 0.0, 1.0, 1.0)]
    grid = [-1.5, -1.001, -1.0, -0.5, 0.0, 0.5 + 1e-9, 0.5, 1.0, 1.001, 1.5, 4.0]
    zeros = 0
    for x in grid:
        for y in grid:
            layout = check_options({"obstacles": obstacles, "start": (x, y)})
            for core in cores:
                core.reset(0, np.random.default_rng(0), layout)
            np.testing.assert_array_equal(cores[0].state, cores[1].state)
            zeros += (cores[0].state[0, 5:] == 0).all()
    assert zeros > 10


def test_a_wall_under_the_drone_reads_zero_all_around(compiled):
    core = NanoDroneCore(1, NanoDroneConfig(ranger_noise=0.0), compiled)
    core.reset(0, np.random.default_rng(0), check_options({"obstacles": [], "start": (1.0, 4.0)}))
    assert core.state[0, 5:].tolist() == [0, 0, 0, 0]
    core.reset(0, np.random.default_rng(0), check_options({"obstacles": [], "start": (1.0, 3.0)}))
    assert core.state[0, 5:].tolist() == [3, 1, 4, 4]  # 5 m and 7 m are out of range


def test_noise_is_normal_and_clipped(compiled):
    """8 m wide and empty: two rays read 1 m, two lie beyond the range and only lose."""
    core = NanoDroneCore(500, NanoDroneConfig(n_obstacles=0, ranger_noise=0.02, max_steps=1000), compiled)
    readings = []
    for i in range(500):
        core.reset(i, np.random.default_rng(i), check_options({"start": (3.0, 3.0), "goal": (-3.0, -3.0)}))
    for step in range(100):  # back and forth over 0.1 m, over several blocks of noise
        core.step(np.full(500, DOWN if step % 2 else UP))
        if step % 2:
            readings.append(core.state[:, 5:].copy())
    east, north, west, south = np.concatenate(readings).T
    n = len(east)  # 25 000
    for noise in (east - 1, north - 1):
        assert abs(noise.mean()) < 5 * 0.02 / n**0.5
        assert noise.std() == pytest.approx(0.02, rel=5 / (2 * n) ** 0.5)
    # The mean of min(noise, 0) is -sigma / sqrt(2 pi)
    for reading in (west, south):
        assert reading.max() == 4.0 and (reading == 4.0).mean() == pytest.approx(0.5, abs=0.02)
        assert (reading - 4).mean() == pytest.approx(-0.02 / (2 * np.pi) ** 0.5, rel=0.05)
    # Independent in time and between rays
    series = np.array(readings)[:, :, 0] - 1
    assert abs(np.corrcoef(series[:-1].ravel(), series[1:].ravel())[0, 1]) < 5 / n**0.5
    assert abs(np.corrcoef(east, north)[0, 1]) < 5 / n**0.5


def test_without_numba_the_package_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "sb3_ora.envs.nano_drone.compiled", raising=False)
    package = importlib.import_module("sb3_ora.envs.nano_drone")
    monkeypatch.delattr(package, "compiled", raising=False)
    env = NanoDroneEnv()
    assert env.core.backend.step.__module__ == "sb3_ora.envs.nano_drone.geometry"
    env.reset(seed=0)
    env.step(np.int64(UP))
    with pytest.raises(ImportError, match="numba"):
        NanoDroneCore(1, NanoDroneConfig(), compiled=True)


# Episodes


@pytest.mark.parametrize("max_steps", [200, 251])
def test_time_is_up_at_the_last_step(max_steps):
    """The goal reached and the wall hit in that step do not count."""
    for start, goal, last, across in (
        ((0.0, 0.0), (0.0, 0.55), UP, (RIGHT, LEFT)),
        ((-3.9, 0.0), (3.0, 3.0), LEFT, (UP, DOWN)),
    ):
        env = NanoDroneEnv(max_steps=max_steps)
        env.reset(seed=0, options={"obstacles": [], "start": start, "goal": goal})
        for step in range(max_steps - 1):
            assert not any(env.step(across[step % 2])[2:4])
        early = copy.deepcopy(env)
        _, reward, terminated, truncated, info = env.step(last)
        assert (reward, terminated, truncated) == (-0.1, False, True)
        assert info["outcome"] == "timeout" and info["is_success"] is False
        early.core.steps -= 1  # with a step more to go, it would have counted
        assert early.step(last)[2]


def test_collision_comes_before_the_goal_and_the_goal_before_danger():
    beside = {"obstacles": [(0.0, 0.5, 1.0, 0.2)], "start": (0.0, 0.21), "goal": (0.0, 0.6)}
    for start, outcome, reward in (((0.0, 0.26), "collision", -25.1), ((0.0, 0.16), "reached", 49.9)):
        env = NanoDroneEnv()
        env.reset(seed=0, options={**beside, "start": start})
        _, got, terminated, truncated, info = env.step(UP)
        assert (info["outcome"], terminated, truncated) == (outcome, True, False) and got == pytest.approx(reward)
        assert info["is_success"] == (outcome == "reached")


def test_danger_by_hand():
    env = NanoDroneEnv()
    env.reset(seed=0, options={"obstacles": [(0.0, 1.0, 1.0, 1.0)], "start": (0.0, 0.2), "goal": (3.0, 3.0)})
    _, reward, terminated, _, info = env.step(UP)  # 0.2 m from the edge, 0.15 m from the rim
    assert info["outcome"] == "danger" and not terminated
    assert info["clearance"] == pytest.approx(0.15) and reward == pytest.approx(-0.1 - 5 * 0.05)


def test_observation_modes_hold_the_same_numbers():
    start = {"obstacles": [(1.0, 0.5, 1.0, 1.0)], "start": (-1.0, 0.5), "goal": (0.0, 3.0)}
    seen = {}
    for mode in ("position", "partial", "velocity"):
        env = NanoDroneEnv(obs_mode=mode, ranger_noise=0.0)
        env.reset(seed=0, options=start)
        seen[mode] = env.step(UP)[0]
    distance = np.hypot(1.0, 2.4)
    np.testing.assert_allclose(seen["velocity"], [-1, 0.6, 0, 1, distance, 1.5, 3.4, 3, 4], atol=1e-6)
    np.testing.assert_array_equal(seen["position"], seen["velocity"][[0, 1, 4, 5, 6, 7, 8]])
    np.testing.assert_array_equal(seen["partial"], seen["velocity"][4:])
    env = NanoDroneEnv(obs_mode="velocity", ranger_noise=0.0, normalize=True)
    env.reset(seed=0, options=start)
    np.testing.assert_allclose(env.step(UP)[0], seen["velocity"] / [4, 4, 1, 1, 4, 4, 4, 4, 4], rtol=1e-6)


def test_fixed_and_evaluation_layouts():
    env = NanoDroneEnv(mode="fixed")
    _, info = env.reset(seed=0)
    assert info == {"n_obstacles": 11, "stage": "fixed"}
    np.testing.assert_array_equal(env.core.obstacles[0], FIXED_OBSTACLES)
    env = NanoDroneEnv(mode="eval", n_obstacles=3)
    for seed in range(20):
        obs, info = env.reset(seed=seed)
        assert obs[:2].tolist() == [0.0, -3.0] and info == {"n_obstacles": 3, "stage": "eval"}


def test_a_safe_start_is_free_and_changes_nothing_else():
    free, blocked = [], 0
    for seed in range(300):
        layouts = []
        for safe in (False, True):
            env = NanoDroneEnv(mode="eval", n_obstacles=12, safe_start=safe)
            env.reset(seed=seed)
            layouts.append(env.core.obstacles[0])
        x, y, wx, wy = layouts[1].T
        free.append((np.hypot(np.maximum(abs(x) - wx / 2, 0), np.maximum(abs(y + 3) - wy / 2, 0)) > 0.05).all())
        changed = (layouts[0] != layouts[1]).any(axis=1)
        blocked += changed.any()
        x, y, wx, wy = layouts[0][changed].T
        assert (np.hypot(np.maximum(abs(x) - wx / 2, 0), np.maximum(abs(y + 3) - wy / 2, 0)) <= 0.05).all()
    # The reference's start is inside an obstacle or touches one in 8.8 % of layouts (6.5 % + 2.3 %)
    assert all(free) and 10 <= blocked <= 50


def test_the_curriculum_by_hand():
    """Successes over episodes, the one to come included, must reach 0.8: after 4 of 4 (4 / 5), not after 3 (3 / 4)."""
    quick = {"obstacles": [], "start": (0.0, 2.4), "goal": (0.0, 2.5)}
    crash = {"obstacles": [], "start": (-3.9, 0.0)}

    def fly(env, options, action):
        stage = env.reset(options=options)[1]["stage"]
        while not any(env.step(action)[2:4]):
            pass
        return stage

    env = NanoDroneEnv(mode="curriculum")
    env.reset(seed=0)
    assert [fly(env, quick, UP) for _ in range(6)] == 4 * ["first"] + 2 * ["second"]
    for _ in range(20):
        assert fly(env, crash, LEFT) == "second"  # for good
    counts = [env.reset()[1]["n_obstacles"] for _ in range(300)]
    assert set(counts) == set(range(6, 13))
    env = NanoDroneEnv(mode="curriculum")
    env.reset(seed=0)
    fly(env, crash, LEFT)
    assert [fly(env, quick, UP) for _ in range(9)] == 8 * ["first"] + ["second"]  # 7 / 9 is less, 8 / 10 is not
    assert env.stage == "second" and NanoDroneEnv(mode="first").stage == "first"


# Seeds and options


def test_seeds_decide_everything():
    def play(seed):
        env = NanoDroneEnv(mode="second")
        seen = [env.reset(seed=seed)[0]]
        for action in np.random.default_rng(0).integers(0, 12, 300):
            obs, _, terminated, truncated, _ = env.step(action)
            seen.append(env.reset()[0] if terminated or truncated else obs)
        return np.array(seen)

    np.testing.assert_array_equal(play(3), play(3))
    assert not np.array_equal(play(3), play(4))
    state = np.random.get_state()[1].copy()
    play(5)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_a_copy_goes_on_alike():
    env = NanoDroneEnv()
    env.reset(seed=0)
    env.step(0)
    twin = copy.deepcopy(env)
    for _ in range(40):
        np.testing.assert_array_equal(env.step(3)[0], twin.step(3)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"obstacle": []}, r"options may hold 'obstacles', 'start', 'goal', got 'obstacle'"),
        ({"obstacles": [(0, 0, 1)]}, r"options\['obstacles'\] must be a list of \(cx, cy, wx, wy\)"),
        ({"obstacles": [(0, 0, 1, 0)]}, "with positive widths"),
        ({"obstacles": [(0, 0, 1, np.inf)]}, r"options\['obstacles'\]"),
        ({"obstacles": "many"}, r"options\['obstacles'\].*'many'"),
        ({"start": (0, 0, 0)}, r"options\['start'\] must be a pair \(x, y\) in \[-4, 4\]"),
        ({"start": (0, 4.1)}, r"options\['start'\].*4\.1"),
        ({"goal": (0, np.nan)}, r"options\['goal'\]"),
        ({"goal": 3}, r"options\['goal'\].*got 3"),
        ({"obstacles": [(x, y, 0.5, 0.5) for x in range(-3, 4) for y in range(-3, 4)]}, "give options.'start'. too"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, message):
    for reset in (NanoDroneEnv().reset, NanoDroneVectorEnv(2).reset):
        with pytest.raises(ValueError, match=message):
            reset(seed=0, options=options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_obstacles", -1),
        ("n_obstacles", 2.5),
        ("mode", "third"),
        ("max_steps", 0),
        ("ranger_noise", -0.1),
        ("safe_start", 1),
        ("normalize", "yes"),
        ("obs_mode", "pos"),
        ("render_mode", "ansi"),
    ],
)
def test_bad_arguments_are_refused(name, value):
    makers = (NanoDroneEnv, lambda **kwargs: NanoDroneVectorEnv(2, **kwargs), lambda **kwargs: NanoDroneVecEnv(2, **kwargs))
    for make in makers[: 2 if name == "render_mode" else 3]:
        with pytest.raises(ValueError, match=f"{name} must be.*got {value!r}"):
            make(**{name: value})


@pytest.mark.parametrize("action", [-1, 12, 1.0, np.array([1, 2])])
def test_bad_actions_are_refused_and_move_nothing(action, compiled):
    env = NanoDroneEnv()
    env.core = NanoDroneCore(1, NanoDroneConfig(), compiled)
    env.reset(seed=0)
    state = env.core.state.copy()
    with pytest.raises(ValueError, match=r"action must be an integer in \[0, 11\]"):
        env.step(action)
    np.testing.assert_array_equal(env.core.state, state)


def test_steps_before_the_first_reset_are_refused():
    with pytest.raises(gym.error.ResetNeeded):
        NanoDroneEnv().step(0)


def test_more_obstacles_than_the_mode_draws_fit():
    env = NanoDroneVectorEnv(2, n_obstacles=1)
    obstacles = [(x, -3.5, 0.2, 0.2) for x in np.linspace(-3, 3, 9)]
    env.reset(seed=0, options={"obstacles": obstacles, "start": (0.0, -3.0), "goal": (0.0, 2.0)})
    assert env.core.state[:, 8] == pytest.approx(np.full(2, 0.4), abs=0.1)
    env.reset(options={"obstacles": [], "start": (0.0, -3.0)})
    assert env.core.state[:, 8] == pytest.approx(np.full(2, 1.0), abs=0.1)
