import numpy as np
import pytest
import torch as th
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ora import IQN, ORAIQN
from sb3_ora.risk import lower_tail_cvar
from sb3_ora.study.watch import Watch, final_episodes
from tests.tiny import set_values, tiny
from tests.toy_envs import Chain, Scripted


class Drawn(Scripted):
    """An episode's length and return are drawn at its reset; the outcome tells them apart."""

    def reset(self, seed=None, options=None):
        result = super().reset(seed=seed)
        self.length, self.pay = int(self.np_random.integers(1, 9)), float(self.np_random.integers(100))
        return result

    def step(self, action):
        self.np_random.random(int(action) + 1)  # so that a later reset depends on what was done
        observation, *_ = super().step(action)
        done = self.t == self.length
        return observation, self.pay * done, done, False, {"outcome": f"{self.pay:.0f}", "is_success": True}


def drawn(seed):
    """What an environment with this seed gives."""
    env = Drawn()
    env.reset(seed=seed)
    return [env.pay, env.length, f"{env.pay:.0f}"]


@pytest.mark.parametrize("n_envs", [1, 3, 10])
def test_each_episode_has_its_own_seed(n_envs):
    env = DummyVecEnv([lambda: Monitor(Drawn())] * n_envs)
    rows = final_episodes(tiny(IQN, Drawn()), env, 7, seed=50)
    assert rows == [drawn(50 + number) for number in range(7)]


class Game(Drawn):
    """Two lives; it ends with the second one."""

    def __init__(self):
        super().__init__()
        self.ale = self

    def reset(self, seed=None, options=None):
        result = super().reset(seed=seed)
        self.length += 3  # so that the game goes on for some steps after the first life
        return result

    def lives(self):
        return 2 - (self.t >= self.length // 2) - (self.t >= self.length)

    def get_action_meanings(self):
        return ["NOOP"]


@pytest.mark.parametrize("n_envs", [1, 2, 10])
def test_each_game_too(n_envs):
    """SB3's wrapper goes on with the game after a lost life, and after a reset in the middle of one."""
    env = DummyVecEnv([lambda: EpisodicLifeEnv(Monitor(Game()))] * n_envs)
    rows = final_episodes(tiny(IQN, Drawn()), env, 25, seed=50)
    assert rows == [[pay, length + 3, outcome] for pay, length, outcome in (drawn(50 + number) for number in range(25))]


def test_outcome_without_one():
    class Plain(Scripted):
        def step(self, action):
            *result, _ = super().step(action)
            return *result, {"is_success": self.episode > 0}

    env = DummyVecEnv([lambda: Monitor(Plain(lengths=(2,)))])
    assert final_episodes(tiny(IQN, Plain()), env, 2, 0) == [[2, 2, ""], [2, 2, "success"]]


def test_training_episodes():
    """Two environments in step, episodes of 3 and 5 steps that pay 1 a step: the steps at which they end are known."""
    env = DummyVecEnv([lambda: Monitor(Scripted((3,))), lambda: Monitor(Scripted((5,)))])
    watch = Watch(10)
    tiny(IQN, env, learning_starts=1000).learn(30, callback=watch)
    expected = sorted([[2 * step, 3, 3] for step in (3, 6, 9, 12, 15)] + [[2 * step, 5, 5] for step in (5, 10, 15)])
    assert watch.episodes == expected and watch.risk == []


def test_risk_of_an_ensemble():
    """Rows are means over 7 steps, the last one over the rest; the test keeps every step itself."""
    watch, kept = Watch(7), []
    model = tiny(ORAIQN, Scripted((5,)), risk_scope="global", eta=0.1)

    def keep(local, _):
        if model._acting is not None:
            (law,) = model._acting.values.transpose(1, 0, 2)  # (K, A)
            (alpha,) = model._acting_alphas
            averse = [lower_tail_cvar(th.tensor(law[:, action]), alpha).item() for action in range(law.shape[1])]
            changed = float(np.argmax(averse) != np.argmax(law.mean(axis=0)))
            kept.append([alpha, float(alpha < 1), model.adapter.ltv, changed if model.num_timesteps % 5 == 0 else np.nan])
        return True

    model.learn(68, callback=[watch, ConvertCallback(keep)])
    rows = np.array(watch.risk, dtype=float)
    assert rows[:, 0].tolist() == [21, 28, 35, 42, 49, 56, 63, 68]
    kept = np.array(kept)  # steps 21 to 68
    assert len(kept) == 48 and kept[:, 0].min() < 1
    means = [kept[0], *np.nanmean(kept[1:43].reshape(6, 7, 4), axis=1), np.nanmean(kept[43:], axis=0)]
    assert rows[:, 1:] == pytest.approx(np.array(means), rel=1e-5, nan_ok=True)
    assert 0 < np.nanmean(kept[:, 3]) < 1


def test_the_action_before_counts_in_final_episodes():
    """
    Heads agree that action 0 is worth 1; action 1 is worth 1.75 on average and -2 at worst. With alpha(1, 1) = 1/4 the
    agent turns back in state 1, ten times for 0.02 each; if the level is that of an episode's start, it walks to the end.
    """
    model = tiny(ORAIQN, Chain())
    set_values(model, [[1.0, -2.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    model.policy.risk.table.alpha[model.policy.risk.table.rows(np.array([2 * 1 + 1]))] = 0.25
    env = DummyVecEnv([lambda: Monitor(Chain())] * 2)
    rows = final_episodes(model, env, 2, 0)
    assert [row[:2] for row in rows] == [[pytest.approx(0.2), 20]] * 2


def test_final_episodes_that_are_not_greedy():
    """Action 0 is best and ends nothing; a coin that always says explore walks on half of the time. Each call is the same."""
    model = tiny(IQN, Chain(), evaluation_eps=1.0)
    set_values(model, [[1.0, 0.0]])
    env = DummyVecEnv([lambda: Monitor(Chain())] * 2)
    assert [row[1] for row in final_episodes(model, env, 4, 0)] == [20] * 4
    rows = final_episodes(model, env, 4, 0, deterministic=False)
    assert len({row[1] for row in rows}) > 1
    assert final_episodes(model, env, 4, 0, deterministic=False) == rows
    assert final_episodes(model, env, 4, 7, deterministic=False) != rows
