"""What training writes to the log."""

import csv
import importlib

import numpy as np
import pytest
from stable_baselines3.common.logger import configure

from sb3_ora import ARTIQN, IQN, ORAIQN, TOPIQN
from tests.tiny import ALGORITHMS, several, tiny
from tests.toy_envs import Chain

COMMON = {"train/loss", "train/n_updates", "rollout/exploration_rate", "time/total_timesteps"}
ENSEMBLE = {f"risk/{name}" for name in ("alpha_mean", "alpha_min", "alpha_max", "ltv", "loss", "keys")} | {"train/q_spread"}
ARMS = {"risk/level", "risk/probability_0.1", "risk/probability_1"}
LOGGED = {IQN: COMMON, ORAIQN: COMMON | ENSEMBLE, ARTIQN: COMMON | ARMS, TOPIQN: COMMON | ARMS}


def log_of(model, folder, steps=120, **kwargs):
    """The last line of the log that has each column, as numbers."""
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(steps, log_interval=1, **kwargs)
    model.dump_logs()
    with open(folder / "progress.csv") as file:
        lines = list(csv.DictReader(file))
    return {name: float(value) for line in lines for name, value in line.items() if value}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_names(algorithm, tmp_path):
    log = log_of(tiny(algorithm, several(Chain, 2)), tmp_path)
    assert LOGGED[algorithm] <= set(log)
    assert all(map(np.isfinite, log.values()))
    others = {name for name in log if name.startswith("risk/")} - LOGGED[algorithm]
    assert others <= ({"risk/probability_0.5"} if algorithm is TOPIQN else set())


def test_values(tmp_path):
    model = tiny(ORAIQN, Chain(), reference="update", eta=50.0, learning_rate=0.05)
    log = log_of(model, tmp_path)
    assert 0.1 <= log["risk/alpha_min"] < log["risk/alpha_mean"] < log["risk/alpha_max"] == 1.0
    assert log["risk/ltv"] > 0 and log["risk/loss"] > 0 and log["train/loss"] > 0 and log["train/q_spread"] > 0
    assert log["risk/keys"] == len(model.policy.risk.table)
    assert log["train/n_updates"] == model._n_updates
    assert log["rollout/exploration_rate"] == pytest.approx(0.01)


def test_numbers_of_a_training():
    """The loss is the mean over the updates, the spread that of the heads in the last one."""
    model = tiny(ORAIQN, Chain(), learning_starts=10).learn(20)
    kept, update = [], model._update
    model._update = lambda *args: kept.append(update(*args)) or kept[-1]
    model.train(3, 8)
    logged = model.logger.name_to_value
    assert len(kept) == 3
    assert logged["train/loss"] == pytest.approx(np.mean([one.loss.item() for one in kept]))
    assert logged["train/q_spread"] == pytest.approx(kept[-1].taken.numpy().mean(axis=1).std(axis=0, ddof=1).mean(), rel=1e-5)


def test_levels_of_a_bandit_add_up(tmp_path):
    model = tiny(ARTIQN, Chain(), risk_levels=(0.25, 0.5))
    log = log_of(model, tmp_path)
    probabilities = model.adapter.bandit.probabilities
    assert log["risk/probability_0.25"] + log["risk/probability_0.5"] == pytest.approx(1.0)
    assert len(probabilities) == 2 and log["risk/level"] in (0.25, 0.5)


def test_level_of_a_schedule(tmp_path):
    log = log_of(tiny(IQN, Chain(), distortion="cvar", risk_level="0.2->0.4"), tmp_path)
    assert 0.35 < log["risk/level"] <= 0.4


def test_one_head_has_no_spread(tmp_path):
    assert "train/q_spread" not in log_of(tiny(ORAIQN, Chain(), n_heads=1), tmp_path)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tensorboard(algorithm, tmp_path):
    model = tiny(algorithm, Chain(), tensorboard_log=str(tmp_path)).learn(80, log_interval=1)
    model.learn(80, log_interval=1, tb_log_name="second", progress_bar=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"{algorithm.__name__}_1", "second_1"])
    module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(tmp_path / "second_1"))
    events.Reload()
    assert LOGGED[algorithm] - {"train/n_updates", "time/total_timesteps"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("risk_adapter", ["ftpl", "recursive", "composite"])
def test_levels_used(risk_adapter, tmp_path):
    log = log_of(tiny(ORAIQN, Chain(), risk_adapter=risk_adapter), tmp_path)
    if risk_adapter == "composite":
        assert log["risk/alpha_min"] == log["risk/alpha_mean"] == log["risk/alpha_max"] == 1.0
        assert "risk/loss" not in log and log["risk/keys"] == 0
    else:
        assert log["risk/keys"] > 0


def test_each_arm_is_logged_with_its_own_probability():
    model = tiny(TOPIQN, Chain()).learn(20)
    model.adapter.bandit.weights[:] = np.log([0.2, 0.3, 0.5])
    model.adapter.record()
    logged = [model.logger.name_to_value[f"risk/probability_{arm}"] for arm in ("0.1", "0.5", "1")]
    assert logged == pytest.approx([0.2, 0.3, 0.5])
