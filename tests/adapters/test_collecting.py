"""What the adapters of alpha see: the visited pairs, with the laws before and after the update that follows."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sb3_ora import IQN, ORAIQN, TOPIQN
from sb3_ora.adapters import FTPLAdapter, ensemble
from sb3_ora.risk import left_truncated_variance, lower_tail_cvar
from tests.tiny import ALGORITHMS, several, tiny
from tests.toy_envs import Chain, Scripted

MIDPOINTS = (th.arange(32) + 0.5) / 32


class Watch(BaseCallback):
    """Notes each visited pair after the warm-up, with a copy of the network at that moment."""

    model: Any

    def __init__(self):
        super().__init__()
        self.visits = []

    def _on_step(self) -> bool:
        env = self.model.env
        if self.num_timesteps - env.num_envs >= self.model.learning_starts:
            net = copy.deepcopy(self.model.quantile_net)
            for obs, action in zip(self.model._last_obs, self.locals["actions"], strict=True):
                self.visits.append((obs.copy(), int(action), net))
        return True


def law(net, obs, action):
    """Values of the heads of one pair (K,), from one evaluation for each fraction."""
    with th.no_grad():
        obs = th.as_tensor(obs).reshape(1, -1)
        return np.array([net(obs, tau.reshape(1, 1))[:, 0, 0, action].numpy() for tau in MIDPOINTS], dtype=float).mean(axis=0)


def watch_comparisons(model):
    """Notes what is compared, with a copy of the network at that moment."""
    seen, compare = [], model.adapter._compare

    def spy(keys, before, after):
        seen.append((keys.copy(), before.copy(), after.copy(), copy.deepcopy(model.quantile_net)))
        compare(keys, before, after)

    model.adapter._compare = spy
    return seen


@pytest.mark.parametrize(("n_envs", "train_freq"), [(1, 1), (1, 4), (3, 1), (3, 4)])
def test_laws_before_and_after_the_update(n_envs, train_freq):
    model = tiny(ORAIQN, several(lambda: Scripted((3, 5)), n_envs), train_freq=train_freq, learning_rate=0.05)
    seen, watch = watch_comparisons(model), Watch()
    model.learn(20 + 12 * n_envs, callback=watch)
    visits = list(watch.visits)
    assert len(visits) >= 12 * n_envs and sum(len(keys) for keys, *_ in seen) == len(visits)
    for keys, before, after, net_after in seen:
        for i in range(len(keys)):
            obs, action, net_before = visits.pop(0)
            assert keys[i] == (min(int(obs[0] / 10), 9) * 10 + min(int(obs[1] / 10), 9)) * 3 + action
            np.testing.assert_allclose(before[i], law(net_before, obs, action), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(after[i], law(net_after, obs, action), rtol=1e-4, atol=1e-5)
            assert np.abs(before[i] - after[i]).max() > 1e-4


def test_pairs_wait_until_there_was_an_update():
    """Updates after steps 24, 28, ...; what is seen from step 20 on is compared right after them, all at once."""
    model = tiny(ORAIQN, Scripted((5,)))
    seen = watch_comparisons(model)
    model.learn(20)
    assert (len(seen), len(model.adapter.pending)) == (0, 0)
    model.learn(3, reset_num_timesteps=False)  # a rollout is always finished
    assert [len(keys) for keys, *_ in seen] == [4]
    model.gradient_steps = 0
    model.learn(8, reset_num_timesteps=False)
    assert [len(keys) for keys, *_ in seen] == [4]
    assert len(model.adapter.pending) == 8
    model.gradient_steps = 1
    model.learn(4, reset_num_timesteps=False)
    assert [len(keys) for keys, *_ in seen] == [4, 12]


def test_nothing_is_learned_without_updates_and_the_queue_is_bounded(monkeypatch):
    monkeypatch.setattr(ensemble, "MAX_PENDING", 30)
    model = tiny(ORAIQN, several(Scripted, 4), gradient_steps=0)
    model.learn(200)
    assert len(model.policy.risk.table) == 0
    assert model.adapter.n_pending == sum(len(visits.actions) for visits in model.adapter.pending) == 28


def test_a_callback_may_change_what_the_policy_does():
    """Keys of the states were not wanted when the action was chosen, and are when the pair is visited."""
    levels = []

    def change(*_):
        model.policy.risk.use_mean = model.num_timesteps % 3 == 0
        levels.append(len(model.policy.risk.table))
        return True

    model = tiny(ORAIQN, Chain(), train_freq=1)
    model.learn(60, callback=change)
    assert len(levels) == 60 and levels[-1] > 0


def test_the_end_of_training_may_be_told_twice():
    model = tiny(ORAIQN, Scripted((5,)))
    seen = watch_comparisons(model)
    model.learn(40)
    table = {name: value.clone() for name, value in model.policy.risk.table.state_dict().items()}
    n_seen = len(seen)
    model.adapter.on_training_end()
    assert len(seen) == n_seen
    assert all(th.equal(table[name], value) for name, value in model.policy.risk.table.state_dict().items())


def test_many_pairs_are_evaluated_in_parts(monkeypatch):
    tables = []
    for chunk in (3, 1000):
        monkeypatch.setattr(ensemble, "CHUNK", chunk)
        model = tiny(ORAIQN, several(lambda: Scripted((3, 5)), 2), train_freq=8)
        seen = watch_comparisons(model)
        model.learn(100)
        tables.append(seen[0][2])
    np.testing.assert_allclose(*tables, rtol=1e-5, atol=1e-6)


class AtLevelsOfTheirOwn(FTPLAdapter):
    """Each environment acts at a level of the return's distortion that is its own."""

    def _bind(self):
        super()._bind()
        self.acting_level = np.linspace(0.3, 0.9, self.model.n_envs)


def test_parts_hold_each_environment_equally_often(monkeypatch):
    """Seven pairs at once do not divide into three environments, whose levels pairs take in turn: six do."""
    tables = []
    for chunk in (7, 1000):
        monkeypatch.setattr(ensemble, "CHUNK", chunk)
        env = several(lambda: Scripted((3, 5)), 3)
        model = tiny(ORAIQN, env, train_freq=8, distortion="cvar", risk_adapter=AtLevelsOfTheirOwn())
        seen = watch_comparisons(model)
        model.learn(100)
        tables.append(seen[0][2])
    np.testing.assert_allclose(*tables, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("train_freq", [1, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_forward_pass_for_each_step(algorithm, train_freq, n_envs):
    """
    Beside the learner's own passes in train, at most one for each step after the warm-up, whatever is adapted;
    and one more at the end for the pairs that wait then.
    """
    env = several(lambda: Scripted((3, 5)), n_envs)
    model = tiny(algorithm, env, train_freq=train_freq, learning_starts=24, exploration_fraction=0.01)
    outside, training, train = [], [], model.train

    def count(net, name):
        method = getattr(net, name)
        setattr(net, name, lambda *args: ((training if model.policy.training else outside).append(name), method(*args))[1])

    for name in ("forward", "encode", "quantiles"):
        count(model.quantile_net, name)
    model.train = lambda *args, **kwargs: (train(*args, **kwargs), model.policy.set_training_mode(False))
    model.learn(24 + 24 * n_envs)
    steps = (model.num_timesteps - 24) // n_envs
    assert len(training) == 3 * model._n_updates
    for name in ("forward", "encode", "quantiles"):
        if algorithm in (IQN, TOPIQN):  # which need no values where all environments explore
            assert 0.8 * steps < outside.count(name) <= steps
        else:
            assert outside.count(name) == (steps + 1 if algorithm is ORAIQN else steps)


def test_the_first_look_at_the_state_key_is_after_the_warm_up():
    """Unbounded observations: mean and deviation of the warm-up, which stay as they are."""
    model = tiny(ORAIQN, "CartPole-v1")
    key = model.policy.risk.state_key
    model.learn(19)
    assert not key.fitted
    model.learn(80)  # learning has started at 20, but that would be few observations
    assert not key.fitted
    model.learn(30)
    assert key.fitted
    low = key.state_dict()["low"].clone()
    model.learn(60)
    assert th.equal(low, key.state_dict()["low"])


def test_a_small_replay_buffer_is_enough_for_the_state_key():
    model = tiny(ORAIQN, "CartPole-v1", buffer_size=50).learn(60)
    assert model.policy.risk.state_key.fitted


def visits_by_hand(model, watch, n_updates):
    """The law at each pair's last visit against the one now, for pairs between whose visits there was an update."""
    last, comparisons = {}, []
    for (obs, action, net), updates in zip(watch.visits, n_updates, strict=True):
        key, now = 2 * int(obs) + action, law(net, obs, action)
        if key in last and last[key][1] != updates:
            comparisons.append((key, last[key][0], now))
        last[key] = (now, updates)
    return comparisons


@pytest.mark.parametrize("n_envs", [1, 2])
def test_comparing_visits_is_a_dict_of_laws(n_envs):
    model = tiny(ORAIQN, several(Chain, n_envs), learning_rate=0.05)
    assert model.adapter.by_visit
    seen, watch, n_updates = watch_comparisons(model), Watch(), []
    watch_visit, watch._on_step = watch._on_step, lambda: n_updates.append(model._n_updates) or watch_visit()
    model.learn(100, callback=watch)
    n_updates = np.repeat(n_updates, n_envs)[-len(watch.visits) :]
    expected = visits_by_hand(model, watch, n_updates)
    assert len(seen) == len(expected) > 20
    for (keys, before, after, _), (key, old, new) in zip(seen, expected, strict=True):
        assert keys.tolist() == [key]
        np.testing.assert_allclose(before[0], old, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(after[0], new, rtol=1e-4, atol=1e-5)


def test_the_spread_that_is_logged_is_that_of_the_pairs_just_visited():
    model = tiny(ORAIQN, several(lambda: Scripted((3, 5)), 2))
    watch = Watch()
    model.learn(60, callback=watch)
    laws = np.array([law(net, obs, action) for obs, action, net in watch.visits[-2:]])
    assert model.adapter.ltv == pytest.approx(left_truncated_variance(laws).mean(), rel=1e-3)


def test_losses_on_the_grid_are_differences_of_risk():
    model = tiny(ORAIQN, Chain(), alpha_min=0.2, alpha_step=0.25)
    assert model.adapter.grid.tolist() == [0.2, 0.45, 0.7, 0.95, 1.0]
    before, after = np.random.default_rng(0).normal(size=(2, 6, 4))
    losses = model.adapter.grid_losses(before, after)
    for p, g in np.ndindex(6, 5):
        alpha = model.adapter.grid[g]
        gap = lower_tail_cvar(th.tensor(before[p]), alpha) - lower_tail_cvar(th.tensor(after[p]), alpha)
        assert losses[p, g] == pytest.approx(abs(gap.item()))


def test_the_state_key_is_fitted_to_transitions_of_all_environments():
    model = tiny(ORAIQN, several(lambda: gym.make("CartPole-v1"), 4), buffer_size=1000).learn(120)
    assert model.policy.risk.state_key.fitted
