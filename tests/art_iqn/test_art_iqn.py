"""The bandit over steps, worked out by hand from the network's quantiles."""

import copy
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ora import ARTIQN, ORAIQN
from sb3_ora.adapters import EWAFAdapter
from sb3_ora.risk import PublishedARTController
from tests.tiny import tiny
from tests.toy_envs import Scripted


class Watch(BaseCallback):
    """Each step after the warm-up: what was seen and done by a network, at which level, and what the bandit knew then."""

    model: Any

    def __init__(self):
        super().__init__()
        self.steps, self.levels, self.weights = [], [], []

    def _on_training_start(self) -> None:
        self.next = self.model.adapter.acting_level.copy()

    def _on_step(self) -> bool:
        if self.num_timesteps - self.model.n_envs >= self.model.learning_starts:
            net = copy.deepcopy(self.model.quantile_net)
            self.steps.append((net, self.model._last_obs.copy(), self.locals["actions"].copy(), self.locals["dones"].copy()))
            self.levels.append(self.next)
            self.weights.append(self.model.adapter.bandit.weights.copy())
        self.next = self.model.adapter.acting_level.copy()
        return True


def spread(net, obs, action, n, scale):
    """Spread of the lower half of the return about its median, from quantiles i / n one by one."""
    with th.no_grad():
        row = th.as_tensor(obs).reshape(1, -1)
        quantiles = [net(row, th.tensor([[i / n]]))[:, 0, 0, action].mean().item() for i in range(1, n // 2 + 1)]
    return scale * sum((quantile - quantiles[-1]) ** 2 for quantile in quantiles)


def play(watch, arms, learning_rate, seed, sign, n, window=None, decay=0.0):
    """Levels and weights: g = RTV_{t-1} - RTV_t, w += lr g / p, for the arm drawn by each environment."""
    n_envs = len(watch.steps[0][1])
    generator, weights, last = np.random.default_rng(seed), np.zeros(len(arms)), [None] * n_envs
    probabilities = lambda: np.exp(weights) / np.exp(weights).sum()  # noqa: E731
    drawn = generator.choice(len(arms), size=n_envs, p=probabilities())
    chances = probabilities()[drawn]
    levels, history, gains = [], [], []
    for net, obs, actions, dones in watch.steps:
        levels.append(arms[drawn])
        now = [spread(net, obs[env], actions[env], n, 2 / n) for env in range(n_envs)]
        for env in range(n_envs):
            if last[env] is not None:
                gains.append(sign * (last[env] - now[env]))
                recent = gains if window is None else gains[-window:]
                gain = recent[-1]
                if window is not None:
                    gain = 0.0 if len(recent) == 1 else (gain - np.mean(recent)) / np.std(recent)
                weights *= 1 - decay
                weights[drawn[env]] += learning_rate * gain / max(chances[env], 0.01)
        last = [None if done else value for done, value in zip(dones, now, strict=True)]
        drawn = generator.choice(len(arms), size=n_envs, p=probabilities())
        chances = probabilities()[drawn]
        history.append(weights.copy())
    return levels, history


def wild(model):
    """Weights so large that returns spread."""
    rng = np.random.default_rng(0)
    for parameter in model.quantile_net.parameters():
        parameter.data.copy_(th.tensor(rng.normal(size=parameter.shape)))
    return model


@pytest.mark.parametrize(
    ("sign", "direction", "window", "decay"),
    [("falling", 1.0, None, 0.0), ("paper", -1.0, None, 0.0), ("falling", 1.0, 6, 0.2)],
)
@pytest.mark.parametrize("lengths", [(7,), (3, 4, 2)])
def test_levels_and_weights_are_those_of_the_bandit(lengths, sign, direction, window, decay):
    env = DummyVecEnv([lambda length=length: Scripted((length,)) for length in lengths])
    arms = np.array([0.1, 0.4, 1.0])
    kwargs = {"risk_levels": tuple(arms), "bandit_lr": 0.05, "sign": sign, "n_variance_quantiles": 8, "seed": 4}
    kwargs |= {"feedback_window": window, "weight_decay": decay}
    model, watch = wild(tiny(ARTIQN, env, learning_starts=24, **kwargs)), Watch()
    model.learn(24 + 20 * len(lengths), callback=watch)
    levels, weights = play(watch, arms, 0.05, 4, direction, 8, window, decay)
    assert np.abs(weights[-1]).max() > 1e-3
    np.testing.assert_allclose(watch.weights, weights, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(watch.levels, levels)
    assert model.policy.risk.level == arms[np.argmax(weights[-1])]


def published(tcvs, learning_rate=2.0, skipped=1):
    """
    Levels of the published controller before each step: windows of 5, sums of the tail variances, the first sum is never
    stored (it is in the flight script, skipped=0), both weights move;
    level = (e^w1 + S / 9) / (10 S / 9) with S = e^w0 + e^w1.
    """
    averse, neutral, stored = -3.0, 3.0, 0.0
    window, errors, levels = deque(maxlen=5), deque(maxlen=5), []
    for t, tcv in enumerate(tcvs):
        total = np.exp(averse) + np.exp(neutral)
        levels.append((np.exp(neutral) + total / 9) / (10 * total / 9))
        window.append(tcv)
        if t >= skipped:
            errors.append(stored - sum(window))
            stored = sum(window)
            neutral += learning_rate * np.mean(errors)
            averse -= learning_rate * np.mean(errors)
    return levels


@pytest.mark.parametrize(("mode", "skipped"), [("published", 1), ("published-flight", 0)])
def test_the_published_controller_for_each_environment(mode, skipped):
    lengths = (7, 4)
    env = DummyVecEnv([lambda length=length: Scripted((length,)) for length in lengths])
    model, watch = tiny(ARTIQN, env, mode=mode, bandit_lr=2.0, learning_starts=56, buffer_size=400), Watch()
    for parameter in model.quantile_net.parameters():
        parameter.data.mul_(2.0)
    model.learn(56 + 2 * 28, callback=watch)  # the warm-up ends where episodes of both begin
    for env, length in enumerate(lengths):
        tcvs = [spread(net, obs[env], actions[env], 16, 1 / 32) for net, obs, actions, _ in watch.steps]
        expected = np.concatenate([published(tcvs[i : i + length], skipped=skipped) for i in range(0, 28, length)])
        np.testing.assert_allclose([levels[env] for levels in watch.levels], expected, rtol=1e-3)
        assert expected.min() < 0.99 * expected.max()


def test_the_published_level_of_predict_is_the_mean_of_the_environments():
    env = DummyVecEnv([lambda length=length: Scripted((length,)) for length in (7, 4)])
    model = tiny(ARTIQN, env, mode="published", bandit_lr=2.0).learn(60)
    assert model.policy.risk.level == pytest.approx(np.mean([controller.level for controller in model.adapter.controllers]))


def test_warm_up_steps_give_no_feedback():
    model = tiny(ARTIQN, Scripted((3,)), learning_starts=1000).learn(60)
    assert model.adapter.bandit.weights.tolist() == [0.0, 0.0]


def test_a_new_start_forgets_the_last_spread():
    """The first step of an episode has no step before it, also after an episode that was not finished."""
    model = wild(tiny(ARTIQN, Scripted((50,)), train_freq=1))
    model.learn(30)
    assert np.isfinite(model.adapter.last_variance).all()
    weights = model.adapter.bandit.weights.copy()
    model.learning_starts = 0
    model.learn(1)
    assert np.array_equal(model.adapter.bandit.weights, weights)
    model.learn(1, reset_num_timesteps=False)
    assert not np.array_equal(model.adapter.bandit.weights, weights)


def test_an_ensemble_may_be_steered_by_the_spread_of_its_mean_return():
    """The quantiles are averaged over the heads, and what follows is as with one network."""
    adapter = EWAFAdapter("tail-variance", risk_levels=(0.1, 1.0), bandit_lr=0.05)
    model, watch = wild(tiny(ORAIQN, Scripted((7,)), distortion="cvar", risk_adapter=adapter, learning_starts=24)), Watch()
    model.learn(44, callback=watch)
    levels, weights = play(watch, np.array([0.1, 1.0]), 0.05, 0, 1.0, 16)
    np.testing.assert_allclose(watch.weights, weights, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(watch.levels, levels)


def test_published_controllers_start_anew_where_environments_are_reset():
    model = tiny(ARTIQN, Scripted((50,)), mode="published", bandit_lr=2.0, train_freq=1).learn(40)
    (controller,) = model.adapter.controllers
    untouched = PublishedARTController(0.1, 1.0, 2.0).state_dict()
    assert controller.state_dict() != untouched
    model._setup_learn(1)
    model.adapter.on_training_start({}, {})
    assert controller.state_dict() == untouched
