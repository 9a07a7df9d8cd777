"""
A small training that tests stop and resume, in their process or in one of its own:

    python small_run.py FOLDER ALGORITHM ENVIRONMENT N_ENVS STEPS [resume]

When it is through, the file "result.npz" in the folder holds what has to be the same.
"""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

import sb3_ora
from sb3_ora.checkpoint import RunCheckpoint, resume
from sb3_ora.envs.nano_drone import NanoDroneVecEnv

SETTINGS = {
    "learning_rate": 1e-3,
    "buffer_size": 150,
    "learning_starts": 60,
    "batch_size": 16,
    "train_freq": 4,
    "n_steps": 3,
    "target_update_interval": 40,
    "exploration_fraction": 0.5,
    "seed": 7,
    "device": "cpu",
    "policy_kwargs": {"net_arch": [16], "head_arch": [8]},
}


class Crash(BaseCallback):
    """Ends the run in the middle of a rollout."""

    at: int | None = None  # not the instance's, whose attributes are restored

    def _on_step(self) -> bool:
        if Crash.at is not None and self.num_timesteps >= Crash.at:
            raise KeyboardInterrupt
        return True


def environments(env_id, n_envs, seed, monitor=None):
    """Those of this name, or the drones that are moved together; episodes of drones are short, to have many."""
    if env_id == "NanoDroneVecEnv":
        env = NanoDroneVecEnv(n_envs, max_steps=40)
        env.seed(seed)
        return VecMonitor(env, None if monitor is None else str(monitor / "all"))
    env_kwargs = {"max_steps": 40} if env_id == "NanoDrone-v0" else None
    return make_vec_env(env_id, n_envs, seed=seed, monitor_dir=monitor and str(monitor), env_kwargs=env_kwargs)


def small_run(folder, algorithm, env_id, n_envs=1, steps=300, go_on=False, crash_at=None, **settings):
    """The trained model; it is in the folder, too."""
    monitor, checkpoints = folder / "monitor", folder / "checkpoints"
    env = VecNormalize(environments(env_id, n_envs, 3, monitor))
    eval_env = VecNormalize(environments(env_id, 2, 5), training=False, norm_reward=False)
    evaluation = EvalCallback(eval_env, log_path=str(folder), eval_freq=100 // n_envs, n_eval_episodes=3, verbose=0)
    callback = [RunCheckpoint(60, checkpoints), evaluation, Crash()]
    Crash.at = crash_at
    try:
        if go_on:
            model = resume(checkpoints, env, callback, device="cpu")
        else:
            learner = getattr(sb3_ora, algorithm)
            model = learner("MlpPolicy", env, **{**SETTINGS, **settings}).learn(steps, callback, log_interval=None)
    except KeyboardInterrupt:
        return None
    finally:
        env.close()
    weights = {f"weight {name}": value.numpy() for name, value in model.policy.state_dict().items() if th.is_tensor(value)}
    evaluations = {f"evaluation {name}": value for name, value in np.load(folder / "evaluations.npz").items()}
    np.savez(folder / "result.npz", steps=model.num_timesteps, **weights, **evaluations, random=np.random.rand(3))
    return model


def results(folder):
    """Everything that has to be the same: arrays, and monitor rows without their times."""
    rows = [
        [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()[1:]]
        for path in sorted((folder / "monitor").glob("*.csv"))
    ]
    return dict(np.load(folder / "result.npz")), rows


def assert_same(one, other):
    (arrays, rows), (others, other_rows) = results(one), results(other)
    assert arrays.keys() == others.keys()
    assert [name for name in arrays if not np.array_equal(arrays[name], others[name])] == []
    assert rows == other_rows and all(len(part) > 3 for part in rows)


if __name__ == "__main__":
    th.set_num_threads(1)
    name, learner, environment, number, length, *rest = sys.argv[1:]
    small_run(Path(name), learner, environment, int(number), int(length), go_on=rest == ["resume"])
