"""The commands a user types, each in a process of its own and from another folder."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from stable_baselines3.common.monitor import load_results

import sb3_ora
from sb3_ora.zoo import ALGORITHMS

ROOT = str(Path(sb3_ora.__file__).parent.parent)


@pytest.fixture
def zoo(tmp_path):
    """Run ``python -m sb3_ora.zoo`` in an empty folder and return what it prints."""
    env = {**os.environ, "PYTHONPATH": ROOT, "SDL_VIDEODRIVER": "dummy"}

    def run(script, *arguments):
        command = [sys.executable, "-m", "sb3_ora.zoo", script, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def train(zoo, algo, *arguments):
    """200 steps, at a pace that does not depend on the tuned values."""
    pace = ["learning_starts:50", "train_freq:4", "gradient_steps:1", "n_envs:1"]
    return zoo("train", "--algo", algo, "--env", "CartPole-v1", "-n", 200, *arguments, "-params", *pace)


def test_train_enjoy_and_plot(zoo, tmp_path):
    """The first thing a new user does, in small."""
    printed = train(zoo, "ora_iqn", "--eval-freq", 100, "--seed", 1)
    run = tmp_path / "logs" / "ora_iqn" / "CartPole-v1_1"
    assert f"Saving to {run.relative_to(tmp_path)}" in printed
    assert {"best_model.zip", "CartPole-v1.zip", "evaluations.npz", "0.monitor.csv"} <= set(os.listdir(run))
    assert (run / "CartPole-v1" / "config.yml").is_file()
    evaluations = np.load(run / "evaluations.npz")
    assert list(evaluations["timesteps"]) == [100, 200] and evaluations["results"].shape == (2, 5)
    assert load_results(str(run))["l"].sum() <= 200

    options = ["-f", "logs", "--no-render", "-n", 100, "--load-best"]
    printed = zoo("enjoy", "--algo", "ora_iqn", "--env", "CartPole-v1", *options)
    assert "best_model.zip" in printed and "Mean reward: " in printed

    arguments = ["--env", "CartPole-v1", "-f", "logs", "--no-display", "-o", "results"]
    printed = zoo("all_plots", "--algos", "ora_iqn", *arguments)
    assert "ORA_IQN" in printed and (tmp_path / "results.pkl").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_training_options(zoo, tmp_path, algo):
    train(zoo, algo, "-tb", "tb", "--vec-env", "subproc", "--save-replay-buffer", "--eval-freq", -1)
    run = tmp_path / "logs" / algo / "CartPole-v1_1"
    assert list(tmp_path.glob("tb/CartPole-v1/*/events*")) and (run / "replay_buffer.pkl").is_file()

    printed = train(zoo, algo, "-i", run / "CartPole-v1.zip", "--eval-freq", -1)
    assert "Loading pretrained agent" in printed and "Loading replay buffer" in printed
    assert (tmp_path / "logs" / algo / "CartPole-v1_2" / "CartPole-v1.zip").is_file()

    options = ["-f", "logs", "--no-render", "-n", 100, "--n-envs", 2, "--stochastic"]
    printed = zoo("enjoy", "--algo", algo, "--env", "CartPole-v1", *options)
    assert "Loading latest experiment, id=2" in printed


@pytest.mark.slow
def test_several_environments_and_own_file(zoo, tmp_path):
    (tmp_path / "my.yml").write_text("CartPole-v1: {n_timesteps: 200, policy: MlpPolicy, n_envs: 2, n_heads: 3}")
    options = ["-conf", "my.yml", "--vec-env", "subproc", "--eval-freq", -1, "-params", "learning_starts:50"]
    zoo("train", "--algo", "ora_iqn", "--env", "CartPole-v1", *options)
    run = tmp_path / "logs" / "ora_iqn" / "CartPole-v1_1"
    config = yaml.load((run / "CartPole-v1" / "config.yml").read_text(), yaml.UnsafeLoader)
    assert (config["n_envs"], config["n_heads"], config["learning_starts"]) == (2, 3, 50)
    assert (run / "1.monitor.csv").is_file()


@pytest.mark.slow
def test_tuning_with_two_processes(tmp_path):
    env = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, "-m", "sb3_ora.zoo", "train", "--algo", "ora_iqn", "--env", "CartPole-v1"]
    study = ["--storage", "tune.log", "--study-name", "mine"]
    tuning = [*command, "-n", "60", "-optimize", "--n-trials", "2", "--no-optim-plots", *study]
    processes = [subprocess.Popen(tuning, cwd=tmp_path, env=env) for _ in range(2)]
    assert [process.wait(timeout=600) for process in processes] == [0, 0]

    loading = [*command, "-n", "60", "--trial-id", "3", "--eval-freq", "-1", *study]  # there are trials 0 to 3
    done = subprocess.run(loading, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "Loaded trial 3 of study mine" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_plots(zoo, tmp_path):
    for algo in ("iqn", "iqn", "ora_iqn", "ora_iqn"):
        train(zoo, algo, "--eval-freq", 100)
    zoo("plot_train", "--algo", "ora_iqn", "--env", "CartPole-v1", "-f", "logs")
    zoo("all_plots", "--algos", "iqn", "ora_iqn", "--env", "CartPole-v1", "-f", "logs", "--no-display", "-o", "results")
    printed = zoo("plot_from_file", "-i", "results.pkl", "--rliable", "-l", "IQN", "ORAIQN", "-o", "figure.svg")
    assert "CartPole-v1" in printed


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("pygame", "moviepy"))), reason="needs pygame and moviepy (extra: render)"
)
def test_record_video(zoo, tmp_path):
    train(zoo, "ora_iqn", "--eval-freq", -1)
    zoo("record_video", "--algo", "ora_iqn", "--env", "CartPole-v1", "-f", "logs", "-n", 50)
    assert list(tmp_path.glob("logs/ora_iqn/CartPole-v1_1/videos/*.mp4"))
