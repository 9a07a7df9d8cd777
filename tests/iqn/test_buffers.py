"""The n-step buffer of Dict observations, beside Stable-Baselines3's of arrays."""

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import IQN, ORAIQN
from sb3_ora.iqn.buffers import DictNStepReplayBuffer, observation_bytes
from tests.test_spaces import learned
from tests.tiny import several, tiny
from tests.toy_envs import AnySpace

VECTOR = spaces.Box(-10, 10, (3,))
DICT = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(4)})


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_samples_are_those_of_the_buffer_of_arrays(n_envs, normalised):
    """Both filled with the same steps, more than they hold, and asked with the same random numbers."""
    space = spaces.Dict({"a": VECTOR, "b": spaces.Box(0, 1, (1,))})
    rng, kwargs = np.random.default_rng(0), {"n_envs": n_envs, "n_steps": 3, "gamma": 0.5}
    arrays = NStepReplayBuffer(20 * n_envs, VECTOR, spaces.Discrete(2), "cpu", **kwargs)
    dicts = DictNStepReplayBuffer(20 * n_envs, space, spaces.Discrete(2), "cpu", **kwargs)
    envs = None, None
    if normalised:
        envs = tuple(VecNormalize(several(lambda s=s: AnySpace(s), n_envs), norm_reward=False) for s in (VECTOR, space))
        for statistics in (envs[0].obs_rms, envs[1].obs_rms["a"]):
            statistics.mean, statistics.var = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    for t in range(33):
        a, next_a = rng.uniform(-10, 10, (2, n_envs, 3))
        actions, rewards = rng.integers(0, 2, n_envs), rng.normal(size=n_envs)
        dones, infos = rng.random(n_envs) < 0.2, [{"TimeLimit.truncated": bool(rng.random() < 0.1)} for _ in range(n_envs)]
        arrays.add(a, next_a, actions, rewards, dones, infos)
        pair = ({"a": array, "b": np.full((n_envs, 1), t / 33)} for array in (a, next_a))
        dicts.add(*pair, actions, rewards, dones, infos)
        np.random.seed(t)
        expected = arrays.sample(16, envs[0])
        np.random.seed(t)
        found = dicts.sample(16, envs[1])
        for name in ("actions", "dones", "rewards", "discounts"):
            assert (getattr(found, name) == getattr(expected, name)).all()
        assert (found.observations["a"] == expected.observations).all()
        assert (found.next_observations["a"] == expected.next_observations).all()
        assert found.observations["b"].shape == (16, 1)


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_training_saving_and_loading(algorithm, tmp_path, recwarn):
    env = several(lambda: AnySpace(DICT), 2)
    model = tiny(algorithm, env, "MultiInputPolicy", n_steps=3).learn(140)
    assert isinstance(model.replay_buffer, DictNStepReplayBuffer) and learned(model)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (3, model.gamma)
    assert model.replay_buffer_class is None and model.replay_buffer_kwargs == {}
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = algorithm.load(tmp_path / "model", env=env)
    loaded.load_replay_buffer(tmp_path / "buffer")
    np.random.seed(0)
    expected = model.replay_buffer.sample(8)
    np.random.seed(0)
    found = loaded.replay_buffer.sample(8)
    assert (found.next_observations["a"] == expected.next_observations["a"]).all()
    loaded.learn(40)
    assert not [warning for warning in recwarn if "n_steps" in str(warning.message)]


IMAGE = spaces.Box(0, 255, (84, 84, 4), np.uint8)


@pytest.mark.parametrize(
    "space, kwargs",
    [
        (IMAGE, {}),
        (IMAGE, {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}),
        (spaces.Dict({"image": IMAGE, "vector": spaces.Box(-1, 1, (3000,)), "number": spaces.Discrete(4)}), {}),
    ],
)
def test_memory_is_announced(space, kwargs, capsys):
    """What is printed is what the arrays hold; they take it only once they are filled."""
    policy = "CnnPolicy" if space is IMAGE else "MultiInputPolicy"
    model = IQN(policy, AnySpace(space), buffer_size=20_000, verbose=1, device="cpu", **kwargs)
    stored = [model.replay_buffer.observations, getattr(model.replay_buffer, "next_observations", {})]
    arrays = [array for part in stored for array in (part.values() if isinstance(part, dict) else [part])]
    expected = sum(array.nbytes for array in arrays)
    printed = capsys.readouterr().out
    assert f"The replay buffer takes {expected / 1e9:.1f} GB for 20000 transitions" in printed
    assert observation_bytes(model.observation_space, 20_000, model.optimize_memory_usage) == expected


@pytest.mark.parametrize("kwargs", [{"verbose": 0, "buffer_size": 20_000}, {"verbose": 1, "buffer_size": 100}])
def test_or_not(kwargs, capsys):
    IQN("CnnPolicy", AnySpace(IMAGE), device="cpu", **kwargs)
    assert "The replay buffer" not in capsys.readouterr().out
