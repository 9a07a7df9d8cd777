"""Parts of the interface of Stable-Baselines3's models that are not about learning."""

import io
import json

import pandas as pd
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

from tests.tiny import ALGORITHMS, same_parameters, tiny
from tests.toy_envs import Chain, Scripted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_identity_is_learned(algorithm):
    """The observation is the action to take, one of 3."""
    env = make_vec_env(lambda: IdentityEnv(3, ep_length=20), 2, seed=0)
    settings = {"gamma": 0.0, "learning_rate": 1e-2, "train_freq": 1, "batch_size": 32, "exploration_final_eps": 0.2}
    model = tiny(algorithm, env, **settings).learn(500)
    assert evaluate_policy(model, env, 4) == (20.0, 0.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_window_of_the_episode_statistics(algorithm):
    model = tiny(algorithm, Scripted((4,), rewards=range(100)), stats_window_size=3).learn(40)
    assert [episode["r"] for episode in model.ep_info_buffer] == [sum(range(n, n + 4)) for n in (28, 32, 36)]
    assert model.ep_success_buffer.maxlen == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_saved_can_be_chosen(algorithm):
    model = tiny(algorithm, Chain(), verbose=0)
    model.verbose = 1
    files = [io.BytesIO() for _ in range(3)]
    model.save(files[0])
    model.save(files[1], exclude=["verbose"])
    model.save(files[2], exclude=["verbose"], include=["verbose"])
    assert [algorithm.load(file, device="cpu").verbose for file in files] == [1, 0, 1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_that_do_not_fit(algorithm):
    model, other = (tiny(algorithm, Chain(), seed=seed) for seed in (0, 1))
    given = other.learn(40).get_parameters()
    for exact in (True, False):
        with pytest.raises(ValueError, match="nobody"):
            model.set_parameters({**given, "nobody": {}}, exact_match=exact)
    with pytest.raises(ValueError, match="Names of parameters do not match"):
        model.set_parameters({"policy": given["policy"]})
    weights = dict(given["policy"])
    last = next(name for name in reversed(weights) if name.endswith("bias"))
    kept = model.policy.state_dict()[last].clone()
    del weights[last]
    with pytest.raises(RuntimeError, match="Missing key"):
        model.set_parameters({**given, "policy": weights})
    model.set_parameters({"policy": weights}, exact_match=False)
    state = model.policy.state_dict()
    assert same_parameters(state.pop(last), kept)
    assert all(same_parameters(state[name], value) for name, value in weights.items() if name in state)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_environments_are_exchanged(algorithm):
    model = tiny(algorithm, Scripted((4,))).learn(32)
    second = make_vec_env(lambda: Scripted((6,)), 1)
    model.set_env(second)
    assert model._last_obs is None
    model.learn(12)
    assert model.num_timesteps == 12 and [episode["l"] for episode in list(model.ep_info_buffer)[-2:]] == [6, 6]
    model.set_env(model.get_env(), force_reset=False)
    assert model._last_obs is not None
    assert model.learn(12, reset_num_timesteps=False).num_timesteps == 24
    file = io.BytesIO()
    model.save(file)
    loaded = algorithm.load(file, env=second, force_reset=False, device="cpu")
    assert (loaded._last_obs == model._last_obs).all()
    assert loaded.learn(12, reset_num_timesteps=False).num_timesteps == 36


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_formats_of_the_log_agree(algorithm, tmp_path, capsys):
    model = tiny(algorithm, Scripted((4,)))
    model.set_logger(configure(str(tmp_path), ["stdout", "log", "csv", "json"]))
    model.learn(80, log_interval=4)
    table = pd.read_csv(tmp_path / "progress.csv")
    lines = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    assert len(table) == len(lines) == 5
    assert set(table.columns) == set().union(*lines)
    for row, line in zip(table.to_dict("records"), lines, strict=True):
        assert {name: row[name] for name in line} == pytest.approx(line)
    assert (tmp_path / "log.txt").read_text() in capsys.readouterr().out
