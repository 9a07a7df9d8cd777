import csv
import re

import numpy as np
import pytest
from scipy.stats import binomtest
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import IQN
from sb3_ora.envs import NanoDroneEnv, NanoDroneVecEnv
from sb3_ora.envs.evaluate import ENDS, Result, evaluate, main, print_table, rows, wilson_interval
from sb3_ora.envs.nano_drone.config import NanoDroneConfig
from tests.tiny import tiny


@pytest.mark.parametrize("n", [1, 7, 500])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_wilson_interval_against_scipy(n, confidence):
    for k in {0, 1, n // 3, n - 1, n}:
        expected = binomtest(k, n).proportion_ci(confidence, method="wilson")
        assert wilson_interval(k, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


class Sweep:
    """Up while it is free, else to the right; remembers its last action, as models of this package do."""

    def __init__(self):
        self.calls = []

    def predict(self, observations, state=None, episode_start=None, deterministic=False):
        assert deterministic and episode_start.all() == (state is None)
        self.calls.append(len(observations))
        actions = np.where(observations[:, 4] > 0.3, 5, np.where(observations[:, 0] > 1, 8, 2))
        if state is not None:
            actions = np.where((state[0] == 8) & (observations[:, 5] > 0.3), 8, actions)
        return actions, (actions,)


def by_hand(policy, density, seed, **kwargs):
    env = NanoDroneEnv(density, "eval", **kwargs)
    obs, state, total, steps, over = env.reset(seed=seed)[0], None, 0.0, 0, False
    while not over:
        action, state = policy.predict(obs[None], state, np.array([steps == 0]), deterministic=True)
        obs, reward, terminated, truncated, info = env.step(action[0])
        total, steps, over = total + reward, steps + 1, terminated or truncated
    return info["outcome"], total, steps


def test_evaluation_against_one_environment_at_a_time():
    result = evaluate(Sweep(), 6, n_layouts=30, seed=3, max_steps=120)
    expected = [by_hand(Sweep(), 6, 3 + i, max_steps=120) for i in range(30)]
    assert result.outcomes.tolist() == [outcome for outcome, _, _ in expected]
    np.testing.assert_allclose(result.returns, [total for _, total, _ in expected], rtol=1e-5)
    assert result.lengths.tolist() == [steps for _, _, steps in expected]
    assert {*result.outcomes} == {*ENDS}
    (row,) = rows([result])
    assert row["reached"] + row["collision"] + row["timeout"] == pytest.approx(100)
    successful = [steps for outcome, _, steps in expected if outcome == "reached"]
    assert row["mean_success_steps"] == pytest.approx(np.mean(successful))
    low, high = wilson_interval(len(successful), 30)
    assert (row["reached_low"], row["reached_high"]) == pytest.approx((100 * low, 100 * high))


def test_drones_that_have_arrived_are_not_asked_again():
    policy = Sweep()
    result = evaluate(policy, 2, n_layouts=20)
    assert policy.calls == [int((result.lengths > step).sum()) for step in range(result.lengths.max())]


def test_command_line_with_normalised_observations(tmp_path, capsys):
    env = VecNormalize(NanoDroneVecEnv(2, obs_mode="partial"), norm_reward=False)
    model = tiny(IQN, env).learn(60)
    model.save(tmp_path / "model.zip")
    env.save(str(tmp_path / "vecnormalize.pkl"))
    arguments = ["--algo", "iqn", "--model", str(tmp_path / "model.zip"), "--densities", "0", "2", "--layouts", "8"]
    statistics = ["--vecnormalize", str(tmp_path / "vecnormalize.pkl"), "--csv", str(tmp_path / "new" / "table.csv")]
    main([*arguments, *statistics, "--obs-mode", "partial", "--max-steps", "15", "--device", "cpu"])
    assert "success %" in capsys.readouterr().out
    with (tmp_path / "new" / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["density"], row["episodes"]) for row in table] == [("0", "8"), ("2", "8")]
    env.training = False
    expected = rows([evaluate(IQN.load(tmp_path / "model.zip"), 2, 8, vec_normalize=env, obs_mode="partial", max_steps=15)])
    assert {key: float(value) for key, value in table[1].items()} == pytest.approx(expected[0], nan_ok=True)

    folders = [tmp_path / name for name in ("NanoDrone-v0", "Other-v0")]  # as rl-zoo3 has one beside its models
    for folder in folders:
        folder.mkdir()
    env.save(str(folders[0] / "vecnormalize.pkl"))
    as_found = [*arguments, "--csv", str(tmp_path / "found.csv"), "--obs-mode", "partial", "--max-steps", "15"]
    main([*as_found, "--device", "cpu"])
    assert f"normalised as {folders[0] / 'vecnormalize.pkl'} says" in capsys.readouterr().out
    assert (tmp_path / "found.csv").read_text() == (tmp_path / "new" / "table.csv").read_text()
    env.save(str(folders[1] / "vecnormalize.pkl"))
    assert re.search("^error: vecnormalize must be given: there are .*NanoDrone-v0.*, .*Other-v0", failure(as_found, capsys))
    (folders[1] / "vecnormalize.pkl").unlink()

    for wrong in (arguments, [*arguments, "--obs-mode", "partial", "--normalize"]):
        assert re.search("^error: model was trained on .* see obs_mode, normalize\n$", failure(wrong, capsys))
    assert re.search("^error: algo must be one of .*'iqm'\n$", failure(["--algo", "iqm", *arguments[2:]], capsys))
    absent = str(tmp_path / "absent.pkl")
    assert failure([*as_found, "--vecnormalize", absent], capsys) == f"error: --vecnormalize: no such file {absent!r}\n"


@pytest.mark.parametrize("name", ["absent.zip", "absent", "."])
def test_a_model_that_is_not_there(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert failure(["--algo", "iqn", "--model", name], capsys) == f"error: --model: no such file {name!r}\n"


def failure(arguments, capsys):
    """The error line of a command that fails."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    return capsys.readouterr().err


def test_no_success_has_no_length(capsys):
    print_table(rows([Result(6, np.array(["timeout"] * 2), np.zeros(2), np.array([5, 5]))]))
    assert capsys.readouterr().out.splitlines()[-1].split()[-2:] == ["0.00", "-"]


class Remembering:
    """Keeps each drone's first action as its state, laid out as by this package's models or by recurrent ones."""

    def __init__(self, recurrent):
        self.recurrent = recurrent

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        if state is None:
            rows = np.random.default_rng(0).integers(0, 12, (len(observation), 3))
        else:
            rows = state[0][1] if self.recurrent else state[0]
        assert len(rows) == len(observation)
        return rows[:, 0], ((np.stack([rows + 20, rows]) if self.recurrent else rows),)


def test_states_of_recurrent_policies_stay_with_their_drones():
    plain, recurrent = (evaluate(Remembering(recurrent), 6, 20) for recurrent in (False, True))
    assert len({*plain.lengths}) > 5
    np.testing.assert_array_equal(recurrent.lengths, plain.lengths)
    np.testing.assert_array_equal(recurrent.returns, plain.returns)


def test_options_of_the_command_line(tmp_path, monkeypatch, capsys):
    """Each reaches the environment; outcomes are made up, so the table is known."""
    tiny(IQN, NanoDroneVecEnv(2, obs_mode="partial")).save(tmp_path / "model.zip")
    calls = []

    def fly(model, density, n_layouts, seed, vec_normalize, **env_kwargs):
        calls.append((density, n_layouts, seed, vec_normalize, env_kwargs))
        outcomes = np.array(["reached"] * 5 + ["collision"] * 2 + ["timeout"] * 3)
        return Result(density, outcomes, np.array([40.0] * 5 + [-30.0] * 2 + [-20.0] * 3), np.arange(50, 60))

    monkeypatch.setattr("sb3_ora.envs.evaluate.evaluate", fly)
    options = (
        "--obs-mode partial --max-steps 33 --ranger-noise 0.5 --normalize --safe-start --seed 9 --layouts 10 --densities 4"
    )
    main(["--algo", "iqn", "--model", str(tmp_path / "model.zip"), "--csv", str(tmp_path / "table.csv"), *options.split()])
    env_kwargs = {"obs_mode": "partial", "max_steps": 33, "ranger_noise": 0.5, "normalize": True, "safe_start": True}
    assert calls == [(4, 10, 9, None, env_kwargs)]
    with (tmp_path / "table.csv").open() as file:
        (row,) = csv.DictReader(file)
    values = {key: float(value) for key, value in row.items()}
    for end, k in (("reached", 5), ("collision", 2), ("timeout", 3)):
        interval = binomtest(k, 10).proportion_ci(0.95, method="wilson")
        expected = [10 * k, 100 * interval.low, 100 * interval.high]
        assert [values[end], values[f"{end}_low"], values[f"{end}_high"]] == pytest.approx(expected)
    assert values["mean_return"] == pytest.approx((5 * 40 - 2 * 30 - 3 * 20) / 10)
    assert values["mean_success_steps"] == 52
    printed = capsys.readouterr().out.splitlines()[-1].split()
    assert printed[:2] == ["4", "50.0"] and printed[-2:] == ["8.00", "52.0"]


def test_defaults_of_the_command_line(monkeypatch):
    calls = []

    def fly(model, density, n_layouts, seed, vec_normalize, **env_kwargs):
        calls.append((density, n_layouts, seed))
        default = NanoDroneConfig()
        assert env_kwargs == {name: getattr(default, name) for name in env_kwargs} and len(env_kwargs) == 5
        return Result(density, np.array(["reached"]), np.ones(1), np.ones(1, dtype=int))

    monkeypatch.setattr("sb3_ora.envs.evaluate.evaluate", fly)
    monkeypatch.setattr("sb3_ora.envs.evaluate.load_model", lambda *_: object())
    main(["--algo", "iqn", "--model", "no/such/model.zip"])
    assert calls == [(2, 500, 0), (6, 500, 0), (12, 500, 0)]
