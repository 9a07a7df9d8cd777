import sys

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import ARTIQN, ORAIQN
from sb3_ora.envs import NanoDroneEnv, NanoDroneVecEnv, ShowRiskLevel
from tests.tiny import tiny
from tests.toy_envs import AnySpace

UP = 5
SCENE = {"obstacles": [(0.0, -1.0, 2.0, 1.0)], "start": (-2.0, -2.0), "goal": (2.0, 2.0)}
AVERSE, NEUTRAL, UNKNOWN = (200, 40, 40), (40, 90, 200), (60, 60, 60)


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    pytest.importorskip("pygame", reason="needs pygame (extra: render)")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def pixel(image, x, y):
    """600 pixels for 8.4 m, y upwards."""
    scale = 600 / 8.4
    return tuple(image[round(300 - y * scale), round(300 + x * scale)].tolist())


def test_everything_is_where_it_should_be():
    env = NanoDroneEnv(render_mode="rgb_array", ranger_noise=0.0)
    env.reset(seed=0, options=SCENE)
    for _ in range(10):
        env.step(UP)  # to (-2, -1), beside the obstacle
    image = env.render()
    assert image.shape == (600, 600, 3) and image.dtype == np.uint8
    white, grey, green, orange = (255, 255, 255), (150, 150, 150), (120, 200, 120), (240, 170, 60)
    for point, colour in (
        ((0.0, -1.0), grey),
        ((0.95, -0.55), grey),
        ((1.05, -1.0), white),
        ((0.0, -0.45), white),
        ((2.0, 2.0), green),
        ((2.0, 2.45), green),
        ((2.0, 2.55), white),
        ((-4.0, 0.0), (30, 30, 30)),
        ((-2.0, -1.0), UNKNOWN),  # the drone
        ((-2.0, -1.5), UNKNOWN),  # where it came from
        ((-1.5, -1.0), orange),  # the ray that ends at the obstacle
        ((-2.0, 2.9), orange),  # and one of 4 m
        ((-2.0, 3.1), white),
    ):
        assert pixel(image, *point) == colour, point
    env.close()


def test_the_trail_has_the_colours_of_its_levels():
    env = NanoDroneEnv(render_mode="rgb_array", ranger_noise=0.0)
    env.reset(seed=0, options={**SCENE, "obstacles": []})
    plain = env.render()[10:50, 10:150]
    for level in (0.0, 1.0):
        env.risk_level = level
        for _ in range(10):
            env.step(UP)
    image = env.render()
    assert pixel(image, -2.0, -1.5) == AVERSE and pixel(image, -2.0, -0.5) == NEUTRAL == pixel(image, -2.0, 0.0)
    assert (image[10:50, 10:150] != plain).any()  # the number
    env.reset(seed=0)
    assert len(env.trail) == 1
    env.close()


def test_the_window_shows_each_step():
    env = NanoDroneEnv(render_mode="human")
    env.metadata = {**env.metadata, "render_fps": 0}  # as fast as can be
    env.reset(seed=0)
    env.step(UP)
    import pygame

    assert pygame.display.get_surface().get_size() == (600, 600)
    assert env.render() is None
    env.close()
    env.close()
    assert not pygame.display.get_init()


def test_without_pygame_there_is_a_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = NanoDroneEnv(render_mode="rgb_array")
    env.reset(seed=0)
    with pytest.raises(gym.error.DependencyNotInstalled, match="pip install pygame-ce"):
        env.render()


def test_rendering_without_a_mode_warns():
    env = NanoDroneEnv()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None
    with pytest.raises(gym.error.ResetNeeded):
        NanoDroneEnv(render_mode="rgb_array").render()


def test_shown_alphas_are_those_that_the_model_acts_on():
    env = VecNormalize(NanoDroneVecEnv(2), norm_reward=False)
    model = tiny(ORAIQN, env, risk_scope="action", alpha_min=0.2).learn(300)
    env.training = False
    shown = ShowRiskLevel(NanoDroneEnv(render_mode="rgb_array"), model, env)
    risk, seen, expected = model.policy.risk, [], []
    obs, _ = shown.reset(seed=0)
    seen.append(shown.unwrapped.risk_level)
    expected.append(risk.table.initial)
    for action in np.random.default_rng(0).integers(0, 12, 50):
        obs, *_ = shown.step(action)
        key = risk.keys(env.normalize_obs(obs[None]), np.array([action]))
        seen.append(shown.unwrapped.risk_level)
        expected.append(risk.table.lookup(key)[0])
    assert seen == expected and len({*seen}) > 1
    # A step is drawn in the colour of the level before it
    assert [level for _, _, level in shown.unwrapped.trail] == [None, *seen[:-1]]


def test_levels_of_the_return_distortion_are_shown_too():
    shown = ShowRiskLevel(NanoDroneEnv(), tiny(ARTIQN, "NanoDrone-v0", risk_levels=(0.3,)).learn(30))
    shown.reset(seed=0)
    assert shown.unwrapped.risk_level == 0.3
    with pytest.raises(ValueError, match="env must have an attribute risk_level"):
        ShowRiskLevel(gym.make("CartPole-v1"), shown.model)


class Drawn(AnySpace):
    """Actions 3 and 4; it shows a level."""

    risk_level: float | None = None


def test_actions_need_not_start_at_0():
    """One alpha for each action, whose index is the action minus 3."""
    env = Drawn(gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2, start=3))
    model = tiny(ORAIQN, env, risk_scope="action")
    table = model.policy.risk.table
    table.alpha[table.rows(model.policy.risk.keys(np.zeros((2, 2)), np.array([0, 1])))] = 0.25, 0.75
    shown = ShowRiskLevel(env, model)
    shown.reset(seed=0)
    levels = []
    for action in (3, 4, 3):
        shown.step(action)
        levels.append(env.risk_level)
    assert levels == [0.25, 0.75, 0.25]
