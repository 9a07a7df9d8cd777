"""Kinds of observations, actions, environments and replay buffers, each trained and asked for actions."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize

from sb3_ora import IQN, ORAIQN
from sb3_ora.risk import BucketKey, DiscreteKey, SimHashKey
from tests.tiny import ALGORITHMS, several, tiny
from tests.toy_envs import AnySpace, Chain, Scripted

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
VECTOR = spaces.Box(-1, 1, (3,))
SPACES = {
    "float32": ("MlpPolicy", VECTOR, BucketKey),
    "float64": ("MlpPolicy", spaces.Box(-1, 1, (3,), np.float64), BucketKey),
    "unbounded": ("MlpPolicy", spaces.Box(-np.inf, np.inf, (3,)), BucketKey),
    "matrix": ("MlpPolicy", spaces.Box(-1, 1, (2, 3)), SimHashKey),
    "channel last": ("CnnPolicy", IMAGE, SimHashKey),
    "channel first": ("CnnPolicy", spaces.Box(0, 255, (1, 36, 36), np.uint8), SimHashKey),
    "discrete": ("MlpPolicy", spaces.Discrete(5), DiscreteKey),
    "multi-discrete": ("MlpPolicy", spaces.MultiDiscrete([3, 4]), DiscreteKey),
    "multi-binary": ("MlpPolicy", spaces.MultiBinary(4), DiscreteKey),
    "dict": ("MultiInputPolicy", spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}), SimHashKey),
    "dict with image": ("MultiInputPolicy", spaces.Dict({"a": VECTOR, "image": IMAGE}), SimHashKey),
}
SMALL_CNN = {"features_extractor_kwargs": {"features_dim": 16}}
SMALL_COMBINED = {"features_extractor_kwargs": {"cnn_output_dim": 16}}


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch):
    """State keys are fitted from as few transitions as these short runs have."""
    monkeypatch.setattr("sb3_ora.adapters.ensemble.MIN_WARM_UP", 1)


def learned(model):
    """Whether the model has trained and, where it has a table, learned levels."""
    table = model.policy.risk.table
    return model._n_updates > 0 and (table is None or len(table) > 0)


def model_for(algorithm, name, n_envs=1, **kwargs):
    policy, space, _ = SPACES[name]
    kwargs["policy_kwargs"] = {"CnnPolicy": SMALL_CNN, "MultiInputPolicy": SMALL_COMBINED}.get(policy, {})
    return tiny(algorithm, several(lambda: AnySpace(space), n_envs), policy, **kwargs)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("name", SPACES)
def test_observation_spaces(name, n_envs):
    model = model_for(ORAIQN, name, n_envs).learn(48)
    assert learned(model)
    assert isinstance(model.policy.risk.state_key, SPACES[name][2])
    assert model.policy.risk.state_key.fitted
    env = several(lambda: AnySpace(SPACES[name][1]), 2)
    rewards, lengths = evaluate_policy(model, env, n_eval_episodes=4, return_episode_rewards=True, warn=False)
    assert lengths == [5] * 4 and len(rewards) == 4


@pytest.mark.parametrize("name", ["float64", "channel last", "multi-binary", "dict with image"])
@pytest.mark.parametrize("algorithm", [algorithm for algorithm in ALGORITHMS if algorithm is not ORAIQN])
def test_observation_spaces_of_the_other_algorithms(algorithm, name):
    assert learned(model_for(algorithm, name).learn(40))


@pytest.mark.parametrize("name", ["channel last", "float64", "dict with image", "discrete"])
def test_the_keys_of_predict_are_those_of_training(name):
    """An observation has one key, whether it comes from the environment, raw to predict, or from the replay buffer."""
    model = model_for(ORAIQN, name).learn(48)
    risk, policy = model.policy.risk, model.policy
    in_training = risk.keys(model._last_obs, np.array([1]))
    buffer = model.replay_buffer
    last = (buffer.pos - 1) % buffer.buffer_size
    batch = buffer._get_samples(np.array([last]))
    from_buffer = risk.keys(policy.observations_to_numpy(batch.next_observations), np.array([1]))
    raw = AnySpace(SPACES[name][1]).reset(seed=3)[0]
    expected = risk.keys(policy.observations_to_numpy(policy.obs_to_tensor(raw)[0]), np.array([1]))
    env = several(lambda: AnySpace(SPACES[name][1]), 1)
    env.seed(3)
    wrapped = model._wrap_env(env)
    assert risk.keys(wrapped.reset(), np.array([1])).tolist() == expected.tolist()
    # steps never fall on an episode's end here: 48 is no multiple of 5
    assert from_buffer.tolist() == in_training.tolist()


@pytest.mark.parametrize("start", [-2, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_actions_that_do_not_start_at_zero(algorithm, start):
    env = AnySpace(VECTOR, spaces.Discrete(3, start=start))
    model = tiny(algorithm, env, exploration_fraction=0.01).learn(80)
    assert learned(model)
    legal = set(range(start, start + 3))
    assert set(np.unique(model.replay_buffer.actions[:80])) <= legal
    assert set(np.unique(model.predict(env.observation_space.sample()[None].repeat(50, 0))[0])) <= legal
    evaluate_policy(model, env, n_eval_episodes=1, warn=False)


@pytest.mark.parametrize("action_space", [VECTOR, spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)])
def test_other_action_spaces_are_refused(action_space):
    with pytest.raises(AssertionError, match=r"only supports .*Discrete.* as action spaces but .* was provided"):
        tiny(ORAIQN, AnySpace(VECTOR, action_space))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_vectorised_environments(algorithm):
    model = tiny(algorithm, several(lambda: gym.make("CartPole-v1"), 4), train_freq=2).learn(80)
    assert learned(model) and model.num_timesteps == 80


def test_environments_in_processes_of_their_own():
    env = SubprocVecEnv([lambda: Scripted((3,))] * 2)
    model = tiny(ORAIQN, env).learn(64)
    assert learned(model)
    env.close()


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_normalised_observations(algorithm):
    env = VecNormalize(several(lambda: Scripted((4,)), 2))
    model = tiny(algorithm, env).learn(80)
    assert learned(model)
    assert model.get_vec_normalize_env() is env
    assert model.replay_buffer.observations[..., 1].max() == 3.0  # stored as they were
    env.training = False
    evaluate_policy(model, env, n_eval_episodes=2, warn=False)


def test_buckets_lie_where_normalised_observations_do():
    """The mean of the warm-up and 3 standard deviations, in the units of the policy: about -3 ... 3."""
    env = VecNormalize(several(lambda: Scripted((10,), n_actions=2), 2))
    model = tiny(ORAIQN, env, learning_starts=80, buffer_size=400).learn(100)
    key = model.policy.risk.state_key
    normalised = env.normalize_obs(model.replay_buffer.observations[:40].reshape(-1, 2).copy())
    assert key.fitted
    assert key._low[1] == pytest.approx((normalised.mean(axis=0) - 3 * normalised.std(axis=0))[1], abs=0.5)


def test_stacked_frames():
    env = VecFrameStack(several(lambda: AnySpace(IMAGE), 2), 3)
    assert learned(tiny(ORAIQN, env, "CnnPolicy", policy_kwargs=SMALL_CNN).learn(40))


def test_default_features_extractors():
    assert isinstance(model_for(IQN, "channel last").quantile_net.features_extractor, NatureCNN)
    assert isinstance(model_for(IQN, "dict").quantile_net.features_extractor, CombinedExtractor)


def test_default_architectures():
    def widths(algorithm, policy, space):
        net = algorithm(policy, AnySpace(space), buffer_size=10, device="cpu").quantile_net
        return net.net_arch, net.shared_arch, net.head_arch

    assert widths(IQN, "MlpPolicy", VECTOR) == ([64, 64], [], [64])
    assert widths(ORAIQN, "MlpPolicy", VECTOR) == ([64, 64], [], [64])
    assert widths(IQN, "CnnPolicy", IMAGE) == ([], [], [512])
    assert widths(ORAIQN, "CnnPolicy", IMAGE) == ([], [], [64])


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_n_step_returns(algorithm):
    model = tiny(algorithm, several(lambda: gym.make("CartPole-v1"), 2), n_steps=3).learn(60)
    assert isinstance(model.replay_buffer, NStepReplayBuffer) and learned(model)


def test_memory_efficient_buffer():
    kwargs = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    model = tiny(ORAIQN, "CartPole-v1", **kwargs).learn(60)
    assert model.replay_buffer.optimize_memory_usage and learned(model)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_hindsight_experience_replay(n_envs):
    env = several(lambda: BitFlippingEnv(n_bits=3, continuous=False, max_steps=3), n_envs)
    kwargs = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"n_sampled_goal": 2}}
    model = tiny(ORAIQN, env, "MultiInputPolicy", **kwargs).learn(60)
    assert isinstance(model.replay_buffer, HerReplayBuffer) and learned(model)


def test_dict_buffer():
    assert isinstance(model_for(IQN, "dict").replay_buffer, DictReplayBuffer)


def test_training_after_episodes():
    """Episodes of 5: after the warm-up of 20, updates after 25, 30, ..., 60."""
    model = tiny(ORAIQN, Scripted((5,)), train_freq=(1, "episode"), gradient_steps=3).learn(60)
    assert model._n_updates == 3 * 8 and learned(model)


@pytest.mark.parametrize(("gradient_steps", "n_updates"), [(-1, 40), (0, 0), (2, 20)])
def test_gradient_steps(gradient_steps, n_updates):
    """Updates after steps 24, 28, ..., 60: ten times."""
    model = tiny(ORAIQN, Chain(), gradient_steps=gradient_steps).learn(60)
    assert model._n_updates == n_updates


def test_buckets_of_normalised_matrices():
    """As for vectors: bounds of the space say nothing about what the policy sees, so the buckets are fitted."""
    space = spaces.Box(100, 102, (2, 2))
    env = VecNormalize(several(lambda: AnySpace(space), 2))
    key = tiny(ORAIQN, env, state_key="bucket").learn(150).policy.risk.state_key
    assert key.fitted and len(np.unique(key(np.random.default_rng(0).normal(size=(100, 2, 2))))) > 50


def test_bounds_hold_where_only_rewards_are_normalised():
    env = VecNormalize(several(lambda: AnySpace(spaces.Box(-1, 1, (3,))), 1), norm_obs=False)
    assert tiny(ORAIQN, env).policy.risk.state_key.fitted
