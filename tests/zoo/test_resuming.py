"""A run of the zoo that was killed and continued from another folder, against the same run left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch as th
import yaml
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.save_util import load_from_zip_file

from sb3_ora.zoo.resuming import manager_of, saved_arguments, swapped

CONFIG = """
CartPole-v1:
  n_envs: 2
  n_timesteps: 500
  policy: 'MlpPolicy'
  normalize: "dict(norm_obs=True, norm_reward=False)"
  learning_rate: lin_2e-3
  learning_starts: 60
  buffer_size: 400
  policy_kwargs: "dict(net_arch=[16], head_arch=[8])"
"""
CALLBACK = """
  callback:
    - sb3_ora.checkpoint.RunCheckpoint:
        save_freq: 100
    - tests.zoo.stopping.Stop
"""
OPTIONS = "--algo ora_iqn --env CartPole-v1 --conf-file conf.yml --seed 1 --eval-freq 200 --eval-episodes 2 --n-eval-envs 1"
RUN = Path("logs/ora_iqn/CartPole-v1_1")


def zoo(folder, *arguments, start=subprocess.run, stop_at="", **kwargs):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "STOP_AT": stop_at}
    command = [sys.executable, "-m", "sb3_ora.zoo", *arguments]
    return start(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kwargs)


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / "whole", tmp_path / "killed"]
    for folder in made:
        folder.mkdir()
        (folder / "conf.yml").write_text(CONFIG + CALLBACK)
    return made


def kill_at(folder, pattern, *options):
    process = zoo(folder, "train", *OPTIONS.split(), *options, start=subprocess.Popen)
    while not list((folder / RUN / "checkpoints").glob(pattern)) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("how", ["killed", "Ctrl-C"])
def test_a_stopped_run_goes_on_in_its_folder(folders, tmp_path, how):
    whole, killed = folders
    zoo(whole, "train", *OPTIONS.split(), check=True)
    saved = killed / RUN / "CartPole-v1.zip"
    if how == "killed":
        kill_at(killed, "run_3*_steps.zip")
        assert not saved.exists()
        saved.write_bytes(b"PK")  # as if it had been killed while it saved the final model
    else:
        zoo(killed, "train", *OPTIONS.split(), stop_at="350", check=True)
        assert load_from_zip_file(saved)[0]["num_timesteps"] == 350  # rl-zoo3 saves the model as it is
    (killed / "conf.yml").unlink()  # the run has a copy of its settings
    done = zoo(tmp_path, "resume", str(Path("killed") / RUN))
    assert done.returncode == 0, done.stdout
    assert [path.name for path in (killed / RUN.parent).iterdir()] == ["CartPole-v1_1"]
    policies = [load_from_zip_file(folder / RUN / "CartPole-v1.zip")[1]["policy"] for folder in folders]
    assert all(th.equal(policies[0][name], policies[1][name]) for name in policies[0])
    one, other = (np.load(folder / RUN / "evaluations.npz") for folder in folders)
    assert len(one["timesteps"]) == 2 and all(np.array_equal(one[name], other[name]) for name in one)
    for i in range(2):
        rows = [(folder / RUN / f"{i}.monitor.csv").read_text().splitlines()[1:] for folder in folders]
        assert [row.rsplit(",", 1)[0] for row in rows[0]] == [row.rsplit(",", 1)[0] for row in rows[1]]
    assert (killed / RUN / "CartPole-v1" / "vecnormalize.pkl").exists()
    again = zoo(killed, "resume", str(RUN))
    assert again.returncode == 1 and again.stdout.splitlines()[-1].endswith("is complete: nothing to resume")


def test_environments_in_other_processes_keep_their_monitor_rows(folders):
    folder = folders[0]
    kill_at(folder, "run_3*_steps.zip", "--vec-env", "subproc")
    files = [folder / RUN / f"{i}.monitor.csv" for i in range(2)]
    before = [file.read_text() for file in files]
    assert all(len(text.splitlines()) > 4 for text in before)
    done = zoo(folder, "resume", str(RUN))
    assert done.returncode == 0, done.stdout
    for file, text in zip(files, before, strict=True):
        after = file.read_text()
        assert after.startswith(text) and len(after) > len(text)


def test_what_cannot_be_resumed(folders):
    folder = folders[0]
    done = zoo(folder, "resume", "logs")
    assert done.returncode == 1 and "is not the folder of a run" in done.stdout and "Traceback" not in done.stdout
    assert zoo(folder, "resume").returncode == 2
    (folder / "conf.yml").write_text(CONFIG)  # no checkpoints
    zoo(folder, "train", *OPTIONS.split(), "-n", "100", check=True)
    (folder / RUN / "CartPole-v1.zip").unlink()
    done = zoo(folder, "resume", str(RUN))
    assert (
        done.returncode == 1 and "has no RunCheckpoint among its callbacks" in done.stdout and "Traceback" not in done.stdout
    )


def test_a_resumed_run_takes_no_trained_agent_and_no_trial(tmp_path):
    settings = tmp_path / "logs" / "iqn" / "CartPole-v1_1" / "CartPole-v1"
    settings.mkdir(parents=True)
    given = {"trained_agent": "old.zip", "trial_id": 3, "log_folder": "elsewhere", "seed": 1}
    (settings / "args.yml").write_text(yaml.safe_dump(given))
    arguments, _ = saved_arguments(settings.parent)
    assert vars(arguments) == {"trained_agent": "", "trial_id": None, "log_folder": str(tmp_path / "logs"), "seed": 1}


def test_other_experiments_of_the_process_stay_as_they_are(tmp_path):
    (tmp_path / "config.yml").write_text("{}")
    before = dict(vars(ExperimentManager))
    resumed = manager_of(tmp_path, tmp_path)
    assert issubclass(resumed, ExperimentManager) and dict(vars(ExperimentManager)) == before
    with pytest.raises(OSError, match="inside"), swapped(os, "sep", "|"):
        assert os.sep == "|"
        raise OSError("inside")
    assert os.sep != "|"
