import dataclasses
import json
import os
import re
import time
from importlib import import_module

import filelock
import numpy as np
import pandas as pd
import pytest
from stable_baselines3.common.monitor import load_results

import sb3_ora
from sb3_ora import IQN
from sb3_ora.checkpoint import checkpoints_in
from sb3_ora.study import cell as cell_module
from sb3_ora.study import watch
from sb3_ora.study.cell import CellManager, run_cell, write_record
from sb3_ora.study.resuming import begin_again, checkpoint_for
from sb3_ora.study.state import state_of
from sb3_ora.zoo import register
from tests.study.made_up import write_study
from tests.tiny import tiny
from tests.toy_envs import Chain

TEXT = """
environments:
  CartPole-v1:
    tests: {short: {steps: 7}, other: {steps: 9}}
seeds: 1
evaluation: {freq: 100, episodes: 2, final_episodes: 3, references: {limit: limit}}
packages: [tests.study.packaged]
configs:
  tuned:
    base: none
    hyperparams:
      policy: MlpPolicy
      n_timesteps: 200
      n_envs: 2
      learning_starts: 50
      batch_size: 8
      policy_kwargs: {net_arch: [8], head_arch: [4]}
methods:
  ora-cvar: {algo: ora_iqn, hyperparams: {n_heads: 3}}
""".replace("CartPole-v1", "Packaged-v0")


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    (cell,) = write_study(tmp_path_factory.mktemp("cell"), TEXT).cells()
    run_cell(cell)
    return cell


def test_files(cell):
    """What rl-zoo3 writes, and what the study adds."""
    files = set(os.listdir(cell.folder))
    assert {"best_model.zip", "Packaged-v0.zip", "Packaged-v0", "evaluations.npz", "0.monitor.csv", "1.monitor.csv"} <= files
    assert {"record.json", "episodes.csv", "final.csv", "risk.csv"} <= files
    assert list(np.load(cell.folder / "evaluations.npz")["timesteps"]) == [100, 200]
    episodes = pd.read_csv(cell.folder / "episodes.csv")
    monitor = load_results(str(cell.folder))
    assert sorted(episodes["return"]) == sorted(monitor["r"]) and len(episodes) >= 4
    for number in (0, 1):  # environments run in step: an episode ends at twice the steps of its own environment
        steps = 2 * pd.read_csv(cell.folder / f"{number}.monitor.csv", skiprows=1)["l"].cumsum()
        assert set(steps) <= {*episodes["step"]}


def test_final_episodes(cell):
    final = pd.read_csv(cell.folder / "final.csv")
    assert final["test"].tolist() == ["short"] * 3 + ["other"] * 3
    assert (final["return"] == final["length"]).all()
    assert final.loc[final["test"] == "short", "length"].max() <= 7


def test_record(cell):
    text = (cell.folder / "record.json").read_text()
    record = json.loads(text)
    assert record["seed"] == 1 and record["n_timesteps"] == 200 and record["hyperparams"]["n_heads"] == "3"
    assert record["references"] == {"short": {"limit": 7}, "other": {"limit": 9}}
    assert record["command"] == cell.shell_line and record["versions"]["sb3_ora"] == sb3_ora.__version__
    assert 0 < record["train_seconds"] <= record["wall_seconds"] < 600 and 50 < record["peak_memory_mb"] < 5000
    assert record["machine"]["cores"] == os.cpu_count() and os.uname().nodename not in json.dumps(record["machine"])


@pytest.mark.parametrize("greedily", [True, False])
def test_final_episodes_are_greedy_where_rl_zoo3_evaluates_greedily(tmp_path, monkeypatch, greedily):
    calls = []
    monkeypatch.setattr(cell_module, "final_episodes", lambda *arguments: calls.append(arguments[-1]) or [])
    monkeypatch.setattr(cell_module.CellManager, "is_minigrid", lambda self, env_id: not greedily)
    for one in write_study(tmp_path, TEXT).cells():
        run_cell(one)
    assert calls == [greedily] * 2


def test_how_the_final_model_is_tested(tmp_path, monkeypatch):
    """The statistics of training, the same episodes for every seed, and env_kwargs in evaluations too."""
    calls, play = [], cell_module.final_episodes

    def spy(model, env, n_episodes, seed, deterministic):
        assert deterministic
        calls.append((seed, n_episodes, env.training, env.obs_rms.mean.copy(), model.env.obs_rms.mean.copy()))
        return play(model, env, n_episodes, seed, deterministic)

    monkeypatch.setattr(cell_module, "final_episodes", spy)
    text = TEXT.replace("n_envs: 2", "n_envs: 2\n      normalize: true").replace("seeds: 1", "seeds: 2")
    text = text.replace("    tests: {short: {steps: 7}, other: {steps: 9}}", "    env_kwargs: {steps: 5}")
    for one in write_study(tmp_path, text).cells():
        run_cell(one)
        assert np.load(one.folder / "evaluations.npz")["ep_lengths"].max() <= 5
    assert len({call[:3] for call in calls}) == 1 and len(calls) == 2 and calls[0][1:3] == (3, False)
    for *_, tested, trained in calls:
        assert np.array_equal(tested, trained) and tested.any()


def test_a_complete_cell_is_not_run_again(cell):
    before = {path.name: path.stat().st_mtime_ns for path in cell.folder.iterdir() if path.name != "cell.lock"}
    run_cell(cell)
    assert before == {path.name: path.stat().st_mtime_ns for path in cell.folder.iterdir() if path.name != "cell.lock"}


def test_an_incomplete_cell_begins_again_with_the_same_numbers(cell, tmp_path):
    (other,) = write_study(tmp_path, TEXT).cells()
    (other.folder / "old").mkdir(parents=True)
    (other.folder / "9.monitor.csv").write_text("r,l,t\n")
    (other.folder / "cell.log").write_text("why it failed")
    run_cell(other)
    assert not (other.folder / "old").exists() and not (other.folder / "9.monitor.csv").exists()
    assert (other.folder / "cell.log").read_text() == "why it failed"
    for name in ("episodes.csv", "final.csv", "risk.csv"):
        assert (other.folder / name).read_bytes() == (cell.folder / name).read_bytes()


def interrupt_at(step, monkeypatch):
    """Let the training of the next cell end as a kill would, but in this process."""
    on_step = watch.Watch._on_step

    def interrupted(self):
        if self.num_timesteps == step:
            monkeypatch.undo()
            raise OSError("killed")
        return on_step(self)

    monkeypatch.setattr(watch.Watch, "_on_step", interrupted)


def test_an_interrupted_cell_goes_on_with_the_same_numbers(cell, tmp_path, monkeypatch, capsys):
    (other,) = write_study(tmp_path, TEXT).cells()
    interrupt_at(150, monkeypatch)
    with pytest.raises(OSError, match="killed"):
        run_cell(other)
    assert state_of(other) == "incomplete" and len(checkpoints_in(other.folder / "checkpoints")) == 1
    monotonic = time.monotonic
    monkeypatch.setattr("sb3_ora.study.watch.time.monotonic", lambda: monotonic() + 3600)  # in another process, an hour later
    capsys.readouterr()
    run_cell(other)
    assert "Resuming from" in capsys.readouterr().out
    assert not (other.folder / "checkpoints").exists()
    for name in ("episodes.csv", "final.csv", "risk.csv"):
        assert (other.folder / name).read_bytes() == (cell.folder / name).read_bytes()
    seconds = [json.loads((one.folder / "record.json").read_text())["train_seconds"] for one in (cell, other)]
    assert 0 < seconds[1] < 20 * seconds[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("limit: limit", "limit: limits", "evaluation.references: 'limits' is no method of Packaged-v0 (short)"),
        ("other: {steps: 9}", "other: {size: 9}", "unexpected keyword argument 'size'"),
    ],
)
def test_a_test_that_cannot_be_made_is_found_before_training(tmp_path, old, new, message):
    assert old in TEXT
    (other,) = write_study(tmp_path, TEXT.replace(old, new, 1)).cells()
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        run_cell(other)
    assert not (other.folder / "episodes.csv").exists() and not list(other.folder.glob("*.monitor.csv"))


def test_a_checkpoint_of_the_hyperparameters(cell, tmp_path):
    """As the documentation of the zoo has it: the cell, which has one of its own, trains as without it."""
    callback = "callback: [{sb3_ora.checkpoint.RunCheckpoint: {save_freq: 100}}]"
    (other,) = write_study(tmp_path, TEXT.replace("policy: MlpPolicy", f"policy: MlpPolicy\n      {callback}", 1)).cells()
    run_cell(other)
    assert (other.folder / "final.csv").read_bytes() == (cell.folder / "final.csv").read_bytes()


def test_an_interrupted_cell_of_other_settings_is_kept(tmp_path, monkeypatch):
    (cell,) = write_study(tmp_path, TEXT).cells()
    interrupt_at(150, monkeypatch)
    with pytest.raises(OSError, match="killed"):
        run_cell(cell)
    assert state_of(cell) == "incomplete"
    (other,) = write_study(tmp_path, TEXT.replace("final_episodes: 3", "final_episodes: 4")).cells()
    assert state_of(other) == "changed"
    with pytest.raises(ValueError, match="holds an interrupted run of other settings: remove it, or choose another output"):
        run_cell(other)
    assert state_of(cell) == "incomplete" and checkpoints_in(cell.folder / "checkpoints")


@pytest.mark.parametrize("reason", ["no settings", "damage"])
def test_a_checkpoint_that_is_not_of_the_cell(cell, tmp_path, monkeypatch, capsys, reason):
    (other,) = write_study(tmp_path, TEXT).cells()
    interrupt_at(150, monkeypatch)
    with pytest.raises(OSError, match="killed"):
        run_cell(other)
    folder = other.folder / "checkpoints"
    (checkpoints_in(folder)[0] if reason == "damage" else folder / "settings.json").write_text("")
    capsys.readouterr()
    run_cell(other)
    assert "Resuming from" not in capsys.readouterr().out
    assert (other.folder / "episodes.csv").read_bytes() == (cell.folder / "episodes.csv").read_bytes()


def test_an_interrupted_training_is_not_complete(tmp_path, monkeypatch):
    """rl-zoo3 swallows the interrupt of Ctrl-C, and would save the model."""

    def interrupt(self):
        raise KeyboardInterrupt

    (cell,) = write_study(tmp_path, TEXT).cells()
    monkeypatch.setattr(watch.Watch, "_on_step", interrupt)
    with pytest.raises(RuntimeError, match="training stopped after 2 of 200 steps"):
        run_cell(cell)
    assert state_of(cell) == "incomplete"


def test_a_cell_of_another_process(cell, monkeypatch):
    """It is waited for; then nothing of it has changed."""
    monkeypatch.setattr("sb3_ora.study.cell.WAIT_FOR_LOCK", 0)
    before = {path.name: path.stat().st_mtime_ns for path in cell.folder.iterdir() if path.name != "cell.lock"}
    with filelock.FileLock(cell.folder / "cell.lock"), pytest.raises(filelock.Timeout, match=r"cell\.lock"):
        run_cell(cell)
    assert before == {path.name: path.stat().st_mtime_ns for path in cell.folder.iterdir() if path.name != "cell.lock"}


def test_begin_again_keeps_log_and_lock(tmp_path):
    for name in ("cell.log", "cell.lock", "other"):
        (tmp_path / name).touch()
    begin_again(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["cell.lock", "cell.log"]


SMALL = """
environments:
  Packaged-v0: {}
seeds: 2
packages: [tests.study.packaged]
configs:
  tuned:
    base: none
    hyperparams: {policy: MlpPolicy, n_timesteps: 200, n_envs: 2, learning_starts: 50, batch_size: 8, policy_kwargs: {}}
methods:
  ora-cvar: {algo: ora_iqn, hyperparams: {n_heads: 3}}
"""


@pytest.fixture
def managers(tmp_path):
    """Two seeds of one method, without the files of the zoo."""
    register()
    import_module("tests.study.packaged")
    cells = write_study(tmp_path, SMALL).cells()
    for cell in cells:
        cell.folder.mkdir(parents=True)
    return [(cell, CellManager(cell)) for cell in cells]


def test_seeds_are_other_models(managers):
    weights = []
    for cell, manager in managers:
        model, _ = manager.setup_experiment()
        assert model.seed == cell.seed
        weights.append(model.policy.state_dict()["quantile_net.trunk.0.weight"])
    assert not (weights[0] == weights[1]).all()


def test_nothing_of_the_zoo_under_base_none(managers):
    model, hyperparams = managers[0][1].setup_experiment()
    given = {"policy", "n_timesteps", "n_envs", "learning_starts", "batch_size", "policy_kwargs", "n_heads"}
    assert set(hyperparams) == given
    assert (model.gamma, model.train_freq.frequency, model.target_update_interval) == (0.99, 4, 10_000)  # the defaults


def test_a_record_is_whole_or_not_there(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("disk is full")

    monkeypatch.setattr("sb3_ora.study.cell.os.replace", full)
    with pytest.raises(OSError, match="full"):
        write_record(tmp_path, {"complete": True})
    assert not (tmp_path / "record.json").exists()


def test_the_device_of_the_study(managers):
    cell, _ = managers[0]
    assert CellManager(dataclasses.replace(cell, device="cuda:1")).device == "cuda:1"


def test_large_buffers_are_not_written(tmp_path, monkeypatch):
    cell = write_study(tmp_path, SMALL).cells()[0]
    cell.folder.mkdir(parents=True)
    model = tiny(IQN, Chain(one_hot=True))  # 200 transitions of 2 * 5 float32
    assert checkpoint_for(cell, model) is not None
    monkeypatch.setattr("sb3_ora.study.resuming.LARGE_BUFFER", 200 * 2 * 5 * 4)
    assert checkpoint_for(cell, model) is None
