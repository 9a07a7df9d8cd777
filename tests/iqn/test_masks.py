"""Action masks in acting, exploring and targets, with environments that refuse masked actions."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from scipy.stats import chisquare
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import IQN, ORAIQN
from sb3_ora.envs import KnapsackEnv
from sb3_ora.iqn.policies import IQNPolicy
from tests.test_spaces import learned
from tests.tiny import ALGORITHMS, set_values, several, tiny
from tests.toy_envs import AnySpace

N_ACTIONS = 6
STATE = spaces.Box(-1, 1, (3,))
MASK = spaces.Box(0, 1, (N_ACTIONS,), np.int8)


class Masked(gym.Env):
    """Random states and masks of one to three valid actions, in episodes of 7 steps; a masked action raises."""

    def __init__(self, mask_space: spaces.Space = MASK, start: int = 0):
        self.observation_space = spaces.Dict({"action_mask": mask_space, "state": STATE})
        self.action_space = spaces.Discrete(N_ACTIONS, start=start)

    def observe(self):
        valid = self.np_random.choice(N_ACTIONS, self.np_random.integers(1, 4), replace=False)
        self.valid = np.isin(np.arange(N_ACTIONS), valid)
        state = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"action_mask": self.valid.astype(self.observation_space["action_mask"].dtype), "state": state}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        if not self.valid[action - int(self.action_space.start)]:
            raise ValueError(f"action {action} is masked")
        self.t += 1
        return self.observe(), float(action), self.t == 7, False, {}


def masked(algorithm=IQN, env=None, **kwargs):
    return tiny(algorithm, Masked() if env is None else env, "MultiInputPolicy", use_action_mask=True, **kwargs)


# Never a masked action


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_masked_action_is_taken_in_training(algorithm, n_envs):
    model = masked(algorithm, several(Masked, n_envs), exploration_final_eps=0.3).learn(200)
    assert learned(model)


@pytest.mark.parametrize("learning_starts, eps", [(1000, 0.0), (0, 1.0), (0, 0.0)])
def test_without_masks_each_way_of_acting_takes_masked_actions(learning_starts, eps):
    """So that the environment would notice: in the warm-up, while exploring, and greedily."""
    settings = {"learning_starts": learning_starts, "exploration_initial_eps": eps, "exploration_final_eps": eps}
    with pytest.raises(ValueError, match="is masked"):
        tiny(IQN, Masked(), "MultiInputPolicy", **settings).learn(100)
    masked(**settings).learn(100)


@pytest.mark.parametrize(
    "algorithm, kwargs",
    [
        (IQN, {"n_steps": 3, "distortion": "cvar", "risk_level": 0.25}),
        (IQN, {"double_q": True}),
        (ORAIQN, {"next_action": "ensemble"}),
        (ORAIQN, {"n_steps": 3}),
        (ORAIQN, {"risk_adapter": "recursive", "risk_scope": "action"}),
        (ORAIQN, {"risk_adapter": "composite", "policy_kwargs": {"prior_scale": 1.0}}),
        (ORAIQN, {"reference": "visit", "policy_kwargs": {"bootstrap_p": 0.5}}),
    ],
)
def test_no_masked_action_is_taken_with_other_settings(algorithm, kwargs):
    masked(algorithm, several(Masked, 2), **kwargs).learn(160)


@pytest.mark.parametrize(
    "make_env",
    [
        lambda: Masked(spaces.MultiBinary(N_ACTIONS)),
        lambda: Masked(spaces.Box(0, 1, (N_ACTIONS,))),
        lambda: Masked(start=2),
    ],
)
def test_kinds_of_masks_and_actions(make_env):
    model = masked(ORAIQN, make_env()).learn(100)
    evaluate_policy(model, make_env(), n_eval_episodes=3, deterministic=False, warn=False)


def test_normalised_states():
    env = VecNormalize(several(Masked, 2), norm_obs_keys=["state"])
    model = masked(ORAIQN, env).learn(200)
    assert learned(model)
    everything = VecNormalize(several(Masked, 2))  # an evaluation environment that normalises masks, too
    for _ in range(2):
        evaluate_policy(model, everything, n_eval_episodes=20, warn=False)
    assert everything.obs_rms["action_mask"].mean.min() > 0


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_knapsack_takes_invalid_items_only_where_there_is_no_other(algorithm):
    class Strict(KnapsackEnv):
        def step(self, action):
            assert self.action_masks()[action] or not self.action_masks().any()
            return super().step(action)

    learned(masked(algorithm, several(lambda: Strict(n_items=12), 2), exploration_final_eps=0.3).learn(200))


class Pairs(BaseCallback):
    """Whether actions that wait for their comparison were valid."""

    n_pairs = 0

    def _on_step(self):
        for visits in self.model.adapter.pending:
            mask = visits.observations["action_mask"]
            assert mask[np.arange(len(mask)), visits.actions].all()
            self.n_pairs += len(mask)
        return True


def test_waiting_pairs_hold_no_masked_action():
    pairs = Pairs()
    masked(ORAIQN, several(Masked, 2), train_freq=8).learn(160, callback=pairs)
    assert pairs.n_pairs > 100


# Acting


def observations(masks):
    rng = np.random.default_rng(0)
    return {"action_mask": np.array(masks, dtype=np.int8), "state": rng.uniform(-1, 1, (len(masks), 3)).astype(np.float32)}


VALUES = [[1.0, 100.0, 3.0, 2.0, -1.0, 0.0], [1.0, 90.0, 0.0, 2.0, 5.0, 0.0]]  # of two heads: means 1, 95, 1.5, 2, 2, 0
MASKS = [[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
GREEDY = [3, 2, 5, 1, 1]  # where nothing is valid, everything is


@pytest.mark.parametrize("start", [0, 2])
def test_greedy_actions(start):
    model = masked(ORAIQN, Masked(start=start), n_heads=2)
    set_values(model, VALUES)
    batch = observations(MASKS)
    for _ in range(3):
        actions, state = model.predict(batch, deterministic=True)
        assert (actions - start).tolist() == state[0].tolist() == GREEDY
    for row, expected in enumerate(GREEDY):
        action, _ = model.predict({key: value[row] for key, value in batch.items()}, deterministic=True)
        assert action.shape == () and action - start == expected
    tensors, _ = model.policy.obs_to_tensor(batch)
    with th.no_grad():
        assert (model.policy(tensors) - start).tolist() == GREEDY


def test_epistemic_risk_is_compared_among_valid_actions():
    """The worst head: 1, 90, 0, 2, -1, 0."""
    model = masked(ORAIQN, n_heads=2, alpha_min=0.1, alpha_max=0.1)
    set_values(model, VALUES)
    masks = [[1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1], [0, 0, 1, 1, 1, 1]]
    assert model.predict(observations(masks), deterministic=True)[0].tolist() == [0, 2, 3]


@pytest.mark.parametrize("way", ["warm-up", "epsilon", "predict"])
def test_random_actions_are_uniform_on_valid_ones(way):
    """Chance of a false alarm 10^-4 per row, and the seed is fixed."""
    env = several(Masked, 5)
    model = masked(IQN, env, exploration_initial_eps=1.0, evaluation_eps=1.0, learning_starts=0)
    batch, counts = observations(MASKS), np.zeros((5, N_ACTIONS))
    model._last_obs = batch
    env.action_space.seed(0)
    model.action_space.seed(0)
    for _ in range(300):
        if way == "predict":
            actions, state = model.predict(batch)
            assert state[0].tolist() == actions.tolist()
        else:
            actions, _ = model._sample_action(10 if way == "warm-up" else 0, None, 5)
        counts[np.arange(5), actions] += 1
    for count, mask in zip(counts, MASKS, strict=True):
        valid = np.array(mask if any(mask) else [1] * N_ACTIONS, dtype=bool)
        assert count[~valid].sum() == 0 and count[valid].sum() == 300
        assert valid.sum() == 1 or chisquare(count[valid]).pvalue > 1e-4


# Targets


def batch_of(masks, discounts=None):
    n = len(masks)
    current, following = observations([[1] * N_ACTIONS] * n), observations(masks)
    as_tensors = [{key: th.as_tensor(value) for key, value in part.items()} for part in (current, following)]
    actions, dones = th.zeros(n, 1, dtype=th.long), th.zeros(n, 1)
    dones[2] = 1
    rewards = th.arange(n, dtype=th.float32)[:, None]
    return DictReplayBufferSamples(as_tensors[0], actions, as_tensors[1], dones, rewards, discounts)


BEST = [[2, 3, 0, 100, 100], [2, 1, 0, 90, 90]]  # each head's largest value among the valid actions


@pytest.mark.parametrize("discounts", [None, [0.5, 0.25, 0.5, 0.5, 0.125]])
@pytest.mark.parametrize("kwargs", [{}, {"double_q": True}, {"distortion": "cvar"}])
def test_targets_never_use_a_masked_action(kwargs, discounts):
    model = masked(ORAIQN, n_heads=2, gamma=0.5, **kwargs)
    set_values(model, VALUES)
    given = None if discounts is None else th.tensor(discounts)[:, None]
    targets = model._target_quantiles(batch_of(MASKS, given)).transpose(1, 2)  # (K, B, N')
    expected = np.arange(5) + np.array([1, 1, 0, 1, 1]) * np.array(discounts or [0.5] * 5) * np.array(BEST)
    np.testing.assert_allclose(targets.numpy(), np.repeat(expected[:, :, None], 8, axis=2), rtol=1e-6)


def test_targets_of_the_ensembles_action():
    """Means 1, 95, 1.5, 2, 2, 0."""
    model = masked(ORAIQN, n_heads=2, gamma=0.5, next_action="ensemble")
    set_values(model, VALUES)
    model.policy.risk.state_key.fit(observations(MASKS))
    targets = model._target_quantiles(batch_of(MASKS))[:, 0]
    taken = np.array(VALUES)[:, GREEDY]
    np.testing.assert_allclose(targets.numpy(), np.arange(5) + np.array([1, 1, 0, 1, 1]) * 0.5 * taken, rtol=1e-6)


def test_targets_of_collected_steps():
    """With n-step returns: the masks in the buffer are those of the observations bootstrapped from."""
    model = masked(IQN, n_steps=3, gamma=0.5, learning_starts=1000).learn(150)
    set_values(model, [[float(2**action) for action in range(N_ACTIONS)]])
    batch = model.replay_buffer.sample(64)
    targets = model._target_quantiles(batch)[0].T  # (B, N')
    values = 2.0 ** np.arange(N_ACTIONS)
    best = (values * batch.next_observations["action_mask"].numpy()).max(axis=1)
    expected = batch.rewards[:, 0] + (1 - batch.dones[:, 0]) * batch.discounts[:, 0] * th.tensor(best, dtype=th.float32)
    np.testing.assert_allclose(targets.numpy(), expected[:, None].expand_as(targets).numpy(), rtol=1e-6)
    assert (best < 32).any()


def test_nothing_becomes_nan_where_everything_is_masked():
    def make_env():
        return AnySpace(spaces.Dict({"action_mask": spaces.Box(0, 0, (3,), np.int8), "state": STATE}))

    model = tiny(ORAIQN, make_env(), "MultiInputPolicy", use_action_mask=True).learn(140)
    assert learned(model) and all(parameter.isfinite().all() for parameter in model.policy.parameters())


# The network, files


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_the_network_does_not_see_masks(algorithm):
    model = masked(algorithm, policy_kwargs={"prior_scale": 1.0})
    assert model.quantile_net.features_dim == 3
    first, second = (observations([mask]) for mask in MASKS[:2])
    tensors = [model.policy.obs_to_tensor(batch)[0] for batch in (first, second)]
    assert th.equal(*(model.policy.epistemic_values(batch) for batch in tensors))
    assert tiny(algorithm, Masked(), "MultiInputPolicy").quantile_net.features_dim == 3 + N_ACTIONS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_masks_are_used_after_loading(algorithm, tmp_path):
    model = masked(algorithm).learn(60)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    batch = observations(MASKS[:3] * 10)
    expected = model.predict(batch, deterministic=True)[0]
    assert batch["action_mask"][np.arange(30), expected].all()
    loaded = algorithm.load(tmp_path / "model", env=Masked())
    assert loaded.use_action_mask and np.array_equal(loaded.predict(batch, deterministic=True)[0], expected)
    loaded.learn(60)
    policy = IQNPolicy.load(tmp_path / "policy") if algorithm is IQN else type(model.policy).load(tmp_path / "policy")
    assert np.array_equal(policy.predict(batch)[0], expected)


# Errors


@pytest.mark.parametrize(
    "space, message",
    [
        (STATE, "needs a Dict observation space with an entry 'action_mask', got Box"),
        (spaces.Dict({"mask": MASK, "state": STATE}), r"'action_mask', got the entries \['mask', 'state'\]"),
        (spaces.Dict({"action_mask": spaces.Box(0, 1, (5,)), "state": STATE}), "each of the 3 actions, got Box.*5"),
        (spaces.Dict({"action_mask": spaces.Discrete(3), "state": STATE}), r"each of the 3 actions, got Discrete\(3\)"),
        (spaces.Dict({"action_mask": spaces.MultiBinary(3)}), "at least one other, which the network sees"),
    ],
)
def test_unsuitable_observations(space, message):
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy"
    with pytest.raises(ValueError, match=f"use_action_mask=True .*{message}"):
        tiny(IQN, AnySpace(space), policy, use_action_mask=True)


def test_normalised_masks_are_refused():
    with pytest.raises(ValueError, match=r"give VecNormalize norm_obs_keys=\['state'\]"):
        masked(env=VecNormalize(several(Masked, 1)))
    masked(env=VecNormalize(several(Masked, 1), norm_obs=False))


def test_the_policy_is_told_by_the_algorithm():
    with pytest.raises(ValueError, match="policy_kwargs must not hold use_action_mask=True"):
        tiny(IQN, Masked(), "MultiInputPolicy", policy_kwargs={"use_action_mask": True})
