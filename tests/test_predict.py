"""Acting with a trained model: greedy by hand, no random numbers, the previous action in the state."""

import random

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ora import IQN, ORAIQN
from sb3_ora.risk import lower_tail_cvar
from tests.tiny import ALGORITHMS, set_values, tiny
from tests.toy_envs import AnySpace, Chain

#: Four heads that agree on action 0, and of which one warns of action 1, the better one on average
SAFE_AND_RISKY = [[1.0, -2.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]]


def put_levels(model, levels):
    """Levels of pairs (s, a) of a discrete environment with two actions, by hand: the key is 2 s + a."""
    rows = model.policy.risk.table.rows(np.array([2 * s + a for s, a in levels]))
    model.policy.risk.table.alpha[rows] = list(levels.values())


def two_action_model(**kwargs):
    model = tiny(ORAIQN, Chain(), **kwargs)
    set_values(model, SAFE_AND_RISKY)
    return model


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_deterministic_predictions_are_the_same_and_use_no_random_numbers(algorithm):
    model = tiny(algorithm, "CartPole-v1").learn(60)
    obs = model.env.observation_space.sample()[None].repeat(5, axis=0)
    before = (th.get_rng_state(), np.random.get_state()[1:], random.getstate())
    space_before = model.action_space.np_random.bit_generator.state
    first, second = (model.predict(obs, deterministic=True) for _ in range(2))
    assert np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])
    values = [model.policy.epistemic_values(model.policy.obs_to_tensor(obs)[0]) for _ in range(2)]
    assert th.equal(*values)
    assert th.equal(before[0], th.get_rng_state())
    assert all(np.array_equal(old, new) for old, new in zip(before[1], np.random.get_state()[1:], strict=True))
    assert before[2] == random.getstate()
    assert space_before == model.action_space.np_random.bit_generator.state


def test_predicting_changes_nothing():
    model = tiny(ORAIQN, Chain()).learn(80)
    table = {name: value.clone() for name, value in model.policy.risk.table.state_dict().items()}
    previous = model._previous_actions.copy()
    state = None
    for s in [0, 1, 2, 3, 4] * 3:
        _, state = model.predict(np.array([s]), state, deterministic=False)
    assert all(th.equal(table[name], value) for name, value in model.policy.risk.table.state_dict().items())
    assert np.array_equal(previous, model._previous_actions)


def test_the_level_is_that_of_the_state_and_the_action_before():
    """By hand: CVaR of action 1 is (-2)(0.25)/0.25 = -2 at 0.25, (-2 + 2)/2 = 0 at 0.5, 1 at 0.75, 1.75 at 1."""
    model = two_action_model()
    put_levels(model, {(3, 0): 0.25, (3, 1): 0.8, (2, 1): 0.5})
    for state, previous, action in [(3, 0, 0), (3, 1, 1), (2, 1, 0), (2, 0, 1), (0, 1, 1)]:
        assert model.predict(np.array([state]), (np.array([previous]),), deterministic=True)[0].tolist() == [action]


def test_without_a_previous_action_the_level_is_the_initial_one():
    model = two_action_model(alpha_max=0.5, alpha_min=0.25)
    put_levels(model, {(3, 0): 1.0, (3, 1): 1.0})
    obs, state = np.array([3]), (np.array([1]),)
    assert model.predict(obs, deterministic=True)[0].item() == 0
    assert model.predict(obs, state, np.array([True]), deterministic=True)[0].item() == 0
    assert model.predict(obs, state, np.array([False]), deterministic=True)[0].item() == 1


def test_the_state_carries_the_previous_action_of_each_environment():
    model = two_action_model()
    put_levels(model, {(4, 0): 0.25, (4, 1): 0.25, (3, 1): 0.25, (2, 0): 0.25})
    actions, state = model.predict(np.array([4, 4, 0]), deterministic=True)
    assert actions.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(state[0], [1, 1, 1])
    actions, state = model.predict(np.array([4, 2, 3]), state, np.array([False, False, True]), deterministic=True)
    assert actions.tolist() == [0, 1, 1]
    actions, state = model.predict(np.array([2, 3, 0]), state, np.zeros(3, dtype=bool), deterministic=True)
    assert actions.tolist() == [0, 0, 1]


def test_a_single_observation_gives_a_single_action():
    model = tiny(IQN, "CartPole-v1")
    obs = np.zeros(4, dtype=np.float32)
    for deterministic in (True, False):
        action, state = model.predict(obs, deterministic=deterministic)
        assert np.shape(action) == () and model.action_space.contains(int(action))
        again, _ = model.predict(obs, state, deterministic=True)
        assert np.shape(again) == ()
    assert model.predict(obs[None], deterministic=True)[0].shape == (1,)
    assert model.policy.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_the_state_holds_indices_and_the_actions_are_those_of_the_space(algorithm):
    model = tiny(algorithm, AnySpace(spaces.Discrete(5), spaces.Discrete(3, start=-4)))
    set_values(model, np.tile([0.0, 1.0, 0.0], (model.policy.n_heads, 1)))
    actions, state = model.predict(np.array([0, 1]), deterministic=True)
    assert actions.tolist() == [-3, -3] and state[0].tolist() == [1, 1]


def test_wrong_states_and_observations_are_refused():
    model = two_action_model()
    with pytest.raises(ValueError, match=r"state must hold one previous action for each of 2 observations, got \(3,\)"):
        model.predict(np.array([0, 1]), (np.zeros(3),))
    with pytest.raises(ValueError, match="returns \\(observation, info\\)"):
        model.predict((np.array([0]), {}))


def test_exploration_in_evaluation_is_per_environment_and_at_its_own_rate():
    """5 standard deviations of 5 000 coins; the exploration rate of training, 1 at the start, does not matter."""
    model = tiny(IQN, Chain(), evaluation_eps=0.4)
    set_values(model, [[0.0, 1.0]])
    assert model.exploration_rate == 1.0
    actions = np.array([model.predict(np.zeros(10, dtype=int))[0] for _ in range(500)])
    for share, probability, n in [((actions == 0).mean(), 0.2, 5000), ((actions == 1).all(axis=1).mean(), 0.8**10, 500)]:
        assert abs(share - probability) < 5 * np.sqrt(probability * (1 - probability) / n)


def test_random_actions_are_the_previous_actions_of_the_next_call():
    model = tiny(IQN, AnySpace(spaces.Discrete(5), spaces.Discrete(4, start=7)), evaluation_eps=1.0)
    for _ in range(5):
        actions, state = model.predict(np.zeros(6, dtype=int))
        assert np.array_equal(actions, state[0] + 7)
    assert np.unique(actions).size > 1


def test_no_exploration_without_evaluation_eps():
    model = tiny(IQN, Chain(), evaluation_eps=0.0)
    set_values(model, [[0.0, 1.0]])
    before = np.random.get_state()[2]
    assert all((model.predict(np.zeros(10, dtype=int))[0] == 1).all() for _ in range(50))
    assert np.random.get_state()[2] == before


def play_by_hand(model, chain, n_episodes):
    """Returns of a game, with the level looked up in the table and the CVaR taken head by head."""
    returns = []
    for _ in range(n_episodes):
        (obs, _), previous, total, over = chain.reset(), None, 0.0, False
        while not over:
            key = None if previous is None else 2 * obs + previous
            alpha = model.alpha_max if key is None else model.policy.risk.table.lookup(np.array([key])).item()
            values = model.policy.epistemic_values(th.tensor([[obs]]))[:, 0].detach()  # (K, A)
            previous = int(lower_tail_cvar(values.T, alpha).argmax())
            obs, reward, terminated, truncated, _ = chain.step(previous)
            total, over = total + reward, terminated or truncated
        returns.append(total)
    return returns


@pytest.mark.parametrize("n_envs", [1, 3])
def test_evaluate_policy_is_the_game_by_hand(n_envs):
    model = two_action_model()
    put_levels(model, {(1, 1): 0.25, (0, 0): 0.9, (2, 1): 0.8, (3, 1): 0.5})
    put_levels(model, {(0, 1): 0.25})
    ends = [5, 2, 1][:n_envs]
    env = DummyVecEnv([lambda end=end: Chain(5, end) for end in ends])
    found, _ = evaluate_policy(model, env, n_eval_episodes=2 * n_envs, return_episode_rewards=True, warn=False)
    by_hand = [total for end in ends for total in play_by_hand(model, Chain(5, end), 2)]
    assert sorted(found) == pytest.approx(sorted(by_hand))
    model.policy.risk.use_mean = True
    neutral, _ = evaluate_policy(model, env, n_eval_episodes=2 * n_envs, return_episode_rewards=True, warn=False)
    assert neutral != found, "the levels should matter for this test"


@pytest.mark.parametrize("n_envs", [1, 3])
def test_evaluate_policy_of_a_trained_model(n_envs):
    """Each environment alone gives what they give together."""
    model = tiny(ORAIQN, "CartPole-v1", train_freq=1).learn(120)
    rewards = [
        evaluate_policy(model, make_vec_env("CartPole-v1", 1, seed=seed), 1, return_episode_rewards=True)[0][0]
        for seed in range(5, 5 + n_envs)
    ]
    together, _ = evaluate_policy(model, make_vec_env("CartPole-v1", n_envs, seed=5), n_envs, return_episode_rewards=True)
    assert sorted(together) == sorted(rewards)
