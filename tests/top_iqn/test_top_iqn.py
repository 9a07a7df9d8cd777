"""The bandit over episodes, worked out by hand from scripted rewards."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_ora import IQN, TOPIQN
from sb3_ora.adapters import EWAFAdapter
from tests.tiny import same_parameters, set_values, several, tiny
from tests.toy_envs import Scripted

REWARDS = (1.0, -2.0, 0.5, 3.0, 0.25)
ARMS = np.array([0.1, 0.5, 1.0])


class Levels(BaseCallback):
    """Levels at which each step was made and what the bandit knew after it."""

    model: Any

    def __init__(self):
        super().__init__()
        self.seen, self.weights, self.policy = [], [], []

    def _on_training_start(self) -> None:
        self.next = self.model.adapter.acting_level.copy()

    def _on_step(self) -> bool:
        self.seen.append(self.next)
        self.next = self.model.adapter.acting_level.copy()
        self.weights.append(self.model.adapter.bandit.weights.copy())
        self.policy.append(self.model.policy.risk.level)
        return True


def standardised(feedback, window):
    last = feedback[-window:]
    return 0.0 if np.std(last) == 0 else (last[-1] - np.mean(last)) / np.std(last)


def play(lengths, steps, learning_rate, seed, window=None, decay=0.0, learning_starts=20):
    """
    Moskovitz et al. (2021): draw arms by softmax, credit the rise of the return over the episode before; but no arm for an
    episode with random actions of the warm-up in it.
    """
    generator, weights, last, rises = np.random.default_rng(seed), np.zeros(3), None, []
    probabilities = lambda: np.exp(weights) / np.exp(weights).sum()  # noqa: E731
    arms = generator.choice(3, size=len(lengths), p=probabilities())
    chances = probabilities()[arms]
    totals, lefts, levels, history = np.zeros(len(lengths)), np.array(lengths), [], []
    begun = np.zeros(len(lengths))
    for t in range(steps):
        levels.append(ARMS[arms])
        totals += REWARDS[t % len(REWARDS)]
        lefts -= 1
        for env in np.flatnonzero(lefts == 0):
            if last is not None and begun[env] * len(lengths) >= learning_starts:
                rises.append(totals[env] - last)
                gain = rises[-1] if window is None else standardised(rises, window)
                weights *= 1 - decay
                weights[arms[env]] += learning_rate * gain / max(chances[env], 0.01)
            last, totals[env], lefts[env], begun[env] = totals[env], 0.0, lengths[env], t + 1
            arms[env] = generator.choice(3, p=probabilities())
            chances[env] = probabilities()[arms[env]]
        history.append(weights.copy())
    return levels, history


@pytest.mark.parametrize(("window", "decay"), [(None, 0.0), (None, 0.3), (4, 0.0)])
@pytest.mark.parametrize("lengths", [(3,), (3, 4, 2)])
def test_levels_and_weights_are_those_of_the_bandit(lengths, window, decay):
    env = DummyVecEnv([lambda length=length: Scripted((length,), REWARDS) for length in lengths])
    kwargs = {"risk_levels": tuple(ARMS), "bandit_lr": 0.2, "feedback_window": window, "weight_decay": decay, "seed": 4}
    model, levels = tiny(TOPIQN, env, **kwargs), Levels()
    model.learn(40 * len(lengths), callback=levels)
    expected, weights = play(lengths, 40, 0.2, 4, window, decay)
    np.testing.assert_allclose(levels.seen, expected)
    np.testing.assert_allclose(levels.weights, weights, atol=1e-9)
    assert levels.policy == [ARMS[np.argmax(row)] for row in weights]
    assert len({tuple(level) for level in levels.seen}) > 1


def test_the_return_is_that_before_normalisation():
    env = VecNormalize(DummyVecEnv([lambda: Monitor(Scripted((5,), REWARDS))]))
    model = tiny(TOPIQN, env).learn(40)
    assert model.adapter.last_return == pytest.approx(sum(REWARDS))


class Lives(gym.Wrapper):
    """Two lives a game: the end of the first looks like the end of an episode, as with SB3's Atari wrapper."""

    def reset(self, **kwargs):
        if getattr(self, "lost_a_life", False):
            self.lost_a_life = False
            return self.env.unwrapped.observe(), {}
        return self.env.reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.lost_a_life = self.env.unwrapped.t == 2
        return obs, reward, terminated or self.lost_a_life, truncated, info


def test_a_lost_life_is_no_episode():
    model = tiny(
        TOPIQN, Lives(Monitor(Scripted((5,), (1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0)))), seed=1, learning_starts=0
    )
    levels = Levels()
    model.learn(20, callback=levels)
    assert model.adapter.last_return == 15.0
    changes = np.flatnonzero(np.abs(np.diff(levels.weights, axis=0)).sum(axis=1)) + 2  # steps, counted from 1
    assert changes.tolist() == [10, 15, 20]


def test_a_new_start_forgets_the_unfinished_episode():
    model = tiny(TOPIQN, several(lambda: Scripted((6,), (1.0,)), 1))
    model.learn(8)  # one episode and two steps
    assert model.adapter.episode_return.tolist() == [2.0]
    model.learn(4, reset_num_timesteps=False)
    assert model.adapter.episode_return.tolist() == [0.0] and model.adapter.last_return == 6.0
    model.learn(8)
    model.learn(4)
    assert model.adapter.episode_return.tolist() == [4.0]


def test_each_environment_acts_at_its_own_level():
    """Quantiles of U(0, 1) against 0.4 for sure: at level 1 the first is better, at 0.1 the second."""
    model = tiny(TOPIQN, several(lambda: Scripted(n_actions=2), 4), exploration_initial_eps=0.0, learning_starts=0)
    model.quantile_net.forward = lambda obs, taus: _uniform_or_sure(taus.expand(len(obs), -1))
    model._last_obs = model.env.reset()
    model.exploration_rate = 0.0
    model.adapter.acting_level = np.array([1.0, 0.1, 0.1, 1.0])
    assert model._sample_action(0, None, 4)[0].tolist() == [0, 1, 1, 0]


def _uniform_or_sure(taus):
    quantiles = taus.unsqueeze(-1).repeat(1, 1, 2)
    quantiles[..., 1] = 0.4
    return quantiles.unsqueeze(0)


def test_predict_acts_at_the_most_probable_level():
    model = tiny(TOPIQN, Scripted((4,), n_actions=2)).learn(40)
    best = model.adapter.arms[np.argmax(model.adapter.bandit.weights)]
    assert model.policy.risk.level == best
    model.quantile_net.forward = lambda obs, taus: _uniform_or_sure(taus.expand(len(obs), -1))
    assert model.predict(np.zeros((1, 2), dtype=np.float32))[0].item() == (0 if best == 1.0 else 1)


def test_plain_iqn_with_the_adapter_is_topiqn():
    kwargs = {"risk_levels": (0.1, 0.5, 1.0), "bandit_lr": 0.1}
    top = tiny(TOPIQN, Scripted((3, 4), REWARDS), **kwargs).learn(60)
    adapter = EWAFAdapter("episode-return", **kwargs)
    iqn = tiny(IQN, Scripted((3, 4), REWARDS), distortion="cvar", risk_adapter=adapter).learn(60)
    assert np.array_equal(top.adapter.bandit.weights, iqn.adapter.bandit.weights)
    assert same_parameters(top.policy.state_dict(), iqn.policy.state_dict())


def test_feedback_of_any_size_stays_finite():
    model = tiny(TOPIQN, Scripted((2,), (1e9, 0.0, -1e9, 1e9)))
    set_values(model, np.zeros((1, 3)))
    model.learn(60)
    assert np.isfinite(model.adapter.bandit.weights).all() and np.isfinite(model.adapter.bandit.probabilities).all()


def test_an_episode_after_a_reset_is_credited():
    """The one that it ended was of the warm-up."""
    model = tiny(TOPIQN, Scripted((6,), (1.0, 5.0, 2.0, 7.0, 3.0, 0.5, 9.0)), learning_starts=8)
    model.learn(8)
    assert not model.adapter.bandit.weights.any() and not model.adapter.played.any()
    model.learning_starts = 0
    model.learn(6)
    assert model.adapter.bandit.weights.any()
