"""Acting during training: epsilon-greedy with one coin for each environment, and each environment's previous action."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ora import IQN, ORAIQN
from sb3_ora.risk.state import NO_ACTION
from tests.tiny import set_values, several, tiny
from tests.toy_envs import AnySpace, Scripted

BOX = spaces.Box(-1, 1, (2,))


class Recorder(BaseCallback):
    """What a function says of the model after each step."""

    model: Any

    def __init__(self, look):
        super().__init__()
        self.look, self.seen = look, []

    def _on_step(self) -> bool:
        self.seen.append(self.look(self.model))
        return True


def draw_actions(model, times, learning_starts=0):
    """Actions of many steps that are not taken, (times, E)."""
    model._last_obs = model.env.reset()
    model.num_timesteps = 10
    return np.array([model._sample_action(learning_starts, None, model.n_envs)[0] for _ in range(times)])


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_each_environment_tosses_its_own_coin(algorithm):
    """
    At epsilon 0.3 and three actions, an action is not the greedy one with probability 0.2, and all of 8 are greedy
    with probability 0.8^8 (0.7 or more with one coin for all). 5 standard deviations: false alarms below 1e-6.
    """
    times, n_envs = 1000, 8
    env = several(lambda: AnySpace(BOX), n_envs)
    model = tiny(algorithm, env, exploration_initial_eps=0.3, exploration_final_eps=0.3)
    set_values(model, np.tile([0.0, 0.0, 1.0], (model.policy.n_heads, 1)))
    random = draw_actions(model, times) != 2
    for share, probability, n in ((random.mean(), 0.2, times * n_envs), ((~random).all(axis=1).mean(), 0.8**8, times)):
        assert abs(share - probability) < 5 * np.sqrt(probability * (1 - probability) / n)


@pytest.mark.parametrize("start", [0, -1, 3])
def test_warm_up_is_uniform_over_the_legal_actions(start):
    """4000 draws, each action within 5 standard deviations of 1/4; also epsilon = 1 afterwards."""
    env = several(lambda: AnySpace(BOX, spaces.Discrete(4, start=start)), 4)
    model = tiny(IQN, env, exploration_initial_eps=1.0)
    for learning_starts in (100, 0):
        actions = draw_actions(model, 1000, learning_starts)
        legal, counts = np.unique(actions, return_counts=True)
        assert legal.tolist() == list(range(start, start + 4))
        assert np.abs(counts / 4000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 4000)


def test_greedy_at_epsilon_zero():
    model = tiny(IQN, AnySpace(BOX, spaces.Discrete(3, start=5)), exploration_initial_eps=0.0, exploration_final_eps=0.0)
    set_values(model, [[0.0, 2.0, 1.0]])
    assert (draw_actions(model, 100) == 6).all()


def test_the_distortion_decides_what_is_greedy():
    """One environment's return is U(0, 1) or 0.4 for sure: the mean prefers the first, the worst tenth the second."""
    chosen = []
    for level in (1.0, 0.1):
        model = tiny(IQN, AnySpace(BOX, spaces.Discrete(2)), distortion="cvar", risk_level=level, exploration_final_eps=0.0)
        model.quantile_net.forward = lambda obs, taus: th.stack([taus, th.full_like(taus, 0.4)], dim=-1)[None]
        model.exploration_rate = 0.0
        chosen.append(draw_actions(model, 1).item())
    assert chosen == [0, 1]


def test_epsilon_follows_the_progress_of_training():
    model = tiny(IQN, Scripted(), exploration_initial_eps=0.9, exploration_final_eps=0.1, exploration_fraction=0.5)
    recorder = Recorder(lambda model: model.exploration_rate)
    model.learn(40, callback=recorder)
    # what acted at step t was set after step t - 1
    expected = [0.9] + [max(0.9 - 0.8 * (t / 40) / 0.5, 0.1) for t in range(1, 40)]
    assert recorder.seen == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_previous_actions_are_those_of_the_episode(algorithm, monkeypatch):
    """Three environments whose episodes end at different times: none at an episode's first step, else the last action."""
    games = [Scripted((2, 3)), Scripted((5,)), Scripted((1, 4), timeout=True)]
    model = tiny(algorithm, DummyVecEnv([lambda game=game: game for game in games]), learning_starts=30, train_freq=2)
    used, ask = [], model.policy.risk.alphas
    monkeypatch.setattr(
        model.policy.risk,
        "alphas",
        lambda obs, previous, states: used.append((obs.copy(), previous.copy())) or ask(obs, previous, states),
    )
    after = Recorder(lambda model: model._previous_actions.copy())
    model.learn(120, callback=after)
    assert np.array_equal(np.array(after.seen).T, [game.actions for game in games])
    # epsilon falls to 0.01 in the second half, so levels are wanted on nearly all steps after the 10 of the warm-up
    if algorithm is ORAIQN:
        assert len(used) == 40 - 10
    assert len(used) > 15
    for observation, previous in used:
        for env, game in enumerate(games):
            episode, t = observation[env].astype(int)
            lengths = [game.lengths[i % len(game.lengths)] for i in range(episode)]
            first = sum(lengths)  # the step at which this episode began
            expected = NO_ACTION if t == 0 else game.actions[first + t - 1]
            assert previous[env] == expected


def test_a_new_call_to_learn_continues_or_starts_episodes():
    model = tiny(IQN, Scripted((50,)))
    assert model._previous_actions.tolist() == [NO_ACTION]
    model.learn(30)
    last = model._previous_actions.copy()
    assert last.tolist() == model.env.envs[0].unwrapped.actions[-1:]
    model._setup_learn(30, reset_num_timesteps=False)
    assert model._previous_actions.tolist() == last.tolist()
    model._setup_learn(30, reset_num_timesteps=True)
    assert model._previous_actions.tolist() == [NO_ACTION]


def test_target_network_follows_at_its_interval():
    """Hard copies every 8 environment steps, that is every fourth step of two environments."""
    model = tiny(IQN, several(Scripted, 2), target_update_interval=8, learning_starts=0, train_freq=1, tau=1.0)

    def equal(model):
        pairs = zip(model.quantile_net.parameters(), model.quantile_net_target.parameters(), strict=True)
        return all(th.equal(*pair) for pair in pairs)

    recorder = Recorder(equal)
    model.learn(40, callback=recorder)
    # at the first step nothing was trained; after the copy of step t the network is trained once before step t + 1
    assert recorder.seen == [True] + [False] * 19
    model._n_calls = 3
    model._on_step()
    assert equal(model)


def test_soft_target_updates():
    model = tiny(IQN, Scripted(), tau=0.25, target_update_interval=1, train_freq=1)
    online, target = ([*net.parameters()] for net in (model.quantile_net, model.quantile_net_target))
    before = [parameter.clone() for parameter in target]
    for parameter in online:
        parameter.data.add_(1.0)
    model.learn(1)
    for now, old, new in zip(target, before, online, strict=True):
        th.testing.assert_close(now, 0.75 * old + 0.25 * new)


def test_the_prior_of_the_target_stays_that_of_the_network():
    model = tiny(ORAIQN, Scripted(), policy_kwargs={"prior_scale": 1.0}, tau=0.005, target_update_interval=1, train_freq=1)
    before = {name: value.clone() for name, value in model.quantile_net.state_dict().items() if "prior" in name}
    trained = model.quantile_net.heads[0].weight.clone()
    model.learn(150)
    assert before and not th.equal(trained, model.quantile_net.heads[0].weight)
    for net in (model.quantile_net, model.quantile_net_target):
        for name, value in before.items():
            assert th.equal(net.state_dict()[name], value), name


def test_more_environments_than_the_target_interval_warns():
    with pytest.warns(UserWarning, match="number of environments used is greater than the target network"):
        tiny(IQN, several(Scripted, 3), target_update_interval=2)
