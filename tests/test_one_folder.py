"""Two runs that are given the same folder do not destroy each other's files."""

import subprocess
import sys

import pytest
from stable_baselines3.common import utils
from stable_baselines3.common.callbacks import ConvertCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from sb3_ora import IQN, ORAIQN
from sb3_ora.checkpoint import CheckpointError, RunCheckpoint, last_checkpoint
from sb3_ora.checkpoint.resuming import LOCK
from tests.tiny import tiny
from tests.toy_envs import Chain


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.zip")}


def test_a_folder_of_another_process(tmp_path):
    """A process that is in training holds the lock; killed, it does not."""
    tiny(IQN, Chain()).learn(70, callback=RunCheckpoint(60, tmp_path))
    before = contents(tmp_path)
    assert list(before) == ["run_60_steps.zip"]
    lock = f"lock = filelock.FileLock({str(tmp_path / LOCK)!r}); lock.acquire()"
    code = f"import filelock, time; {lock}; print('held', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match="is that of another run, which goes on: give another one"):
            tiny(IQN, Chain(), seed=5).learn(150, callback=RunCheckpoint(20, tmp_path))
        assert contents(tmp_path) == before
    finally:
        other.kill()
        other.communicate()
    with pytest.raises(CheckpointError, match=r"holds run_60_steps.zip of another run, and this one is at step 0: resume"):
        tiny(IQN, Chain(), seed=5).learn(150, callback=RunCheckpoint(20, tmp_path))
    assert contents(tmp_path) == before and last_checkpoint(tmp_path).meta["num_timesteps"] == 60


def test_the_folder_is_free_after_training(tmp_path):
    """A model that goes on writes to its own folder, and so does one whose training was stopped."""
    model = tiny(ORAIQN, Chain()).learn(70, callback=RunCheckpoint(60, tmp_path))
    model.learn(70, callback=RunCheckpoint(60, tmp_path), reset_num_timesteps=False)
    assert last_checkpoint(tmp_path).meta["num_timesteps"] == 132

    def stop(local, overall):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(70, callback=[RunCheckpoint(60, tmp_path), ConvertCallback(stop)], reset_num_timesteps=False)
    model.learn(70, callback=RunCheckpoint(60, tmp_path), reset_num_timesteps=False)
    assert last_checkpoint(tmp_path).meta["num_timesteps"] > 132
    with pytest.raises(CheckpointError, match="of another run, and this one is at step 0"):
        model.learn(70, callback=RunCheckpoint(60, tmp_path))


def test_tensorboard(tmp_path, monkeypatch):
    """Runs that start at the same moment may get the same folder, but each has a file of its own."""
    monkeypatch.setattr(utils, "get_latest_run_id", lambda *_: 0)
    models = [tiny(IQN, Chain(), seed=seed, tensorboard_log=str(tmp_path), learning_starts=5) for seed in (0, 1)]
    for model in models:
        model.learn(120, log_interval=1, tb_log_name="same")
    files = list((tmp_path / "same_1").iterdir())
    assert len(files) == 2
    for file in files:
        events = EventAccumulator(str(file)).Reload()
        assert len(events.Scalars("train/loss")) > 3
