"""One cell: a training through rl-zoo3's ``ExperimentManager`` and its final evaluation, in this process."""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import sys
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import filelock
import gymnasium as gym
import torch as th
import yaml
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import sync_envs_normalization

import sb3_ora.zoo
from sb3_ora.checkpoint import RunCheckpoint, resume
from sb3_ora.study.definition import Cell
from sb3_ora.study.resuming import begin_again, can_resume, checkpoint_for, remove_checkpoints
from sb3_ora.study.state import LOCK, RECORD, is_complete
from sb3_ora.study.watch import Watch, final_episodes

PACKAGES = ("sb3_ora", "stable_baselines3", "sb3_contrib", "rl_zoo3", "gymnasium", "torch", "numpy")
#: The final evaluation has seeds of its own, the same for every method and seed
TEST_SEED = 1_000_000
TEST_ENVS = 10
#: How long to wait for the process of a lost worker to end, in seconds
WAIT_FOR_LOCK = 60


class CellManager(ExperimentManager):
    """
    Experiment that writes to the folder of its cell.

    :param cell: the cell
    """

    def __init__(self, cell: Cell):
        algo, env_id, env_kwargs = cell.method.algo, cell.environment.env_id, cell.environment.env_kwargs
        config, hyperparams = None, cell.method.hyperparams or None
        if cell.method.base == "none":
            config, hyperparams = str(cell.folder / "hyperparams.yml"), None
            Path(config).write_text(yaml.safe_dump({env_id: cell.method.hyperparams}))
        super().__init__(
            argparse.Namespace(algo=algo, env=env_id, seed=cell.seed, env_kwargs=env_kwargs or None, num_threads=1),
            algo,
            env_id,
            str(cell.root / cell.method.label),
            eval_freq=cell.evaluation["freq"],
            n_eval_episodes=cell.evaluation["episodes"],
            n_eval_envs=min(cell.evaluation["episodes"], 5),
            hyperparams=hyperparams,
            env_kwargs=env_kwargs,
            eval_env_kwargs=env_kwargs,
            seed=cell.seed,
            log_interval=-2,
            verbose=0,
            device=cell.device,
            config=config,
        )
        self.save_path = str(cell.folder)
        self.params_path = f"{self.save_path}/{self.env_name}"

    def create_log_folder(self) -> None:
        os.makedirs(self.params_path, exist_ok=True)


def run_cell(cell: Cell) -> None:
    """
    Train and evaluate, unless the cell is complete. Another process that runs the same cell is waited for, a little.

    :param cell: the cell
    :raises RuntimeError: if training stopped early
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(cell.folder / LOCK, timeout=WAIT_FOR_LOCK):
        if is_complete(cell):
            return
        interrupted = can_resume(cell)
        if not interrupted:
            begin_again(cell.folder)
        for package in cell.packages:
            import_module(package)
        sb3_ora.zoo.register()
        check_tests(cell)
        th.set_num_threads(1)
        set_random_seed(cell.seed)
        manager = CellManager(cell)
        model, hyperparams = manager.setup_experiment()  # type: ignore[misc]
        model, train_seconds = train(cell, manager, model, interrupted)
        start = time.monotonic()
        references = test(cell, manager, model)
        record = {
            "complete": True,
            "settings": cell.settings(),
            "hyperparams": {name: str(value) for name, value in hyperparams.items()},
            "n_timesteps": manager.n_timesteps,
            "references": references,
            "seed": cell.seed,
            "command": cell.shell_line,
            "versions": versions(),
            "machine": machine(model.device),
            "train_seconds": round(train_seconds, 3),
            "wall_seconds": round(train_seconds + time.monotonic() - start, 3),
            "peak_memory_mb": peak_memory(),
        }
        write_record(cell.folder, record)
        remove_checkpoints(cell)


def train(cell: Cell, manager: CellManager, model: BaseAlgorithm, interrupted: bool) -> tuple[BaseAlgorithm, float]:
    """
    Train the model, or go on where an interrupted run has left a checkpoint.

    :param cell: the cell
    :param manager: experiment that was set up
    :param model: its model
    :param interrupted: whether it goes on
    :return: the trained model, and the seconds that its training took, also before it was interrupted
    :raises RuntimeError: if training stopped early, as after an interrupt, which rl-zoo3 swallows
    """
    watch = Watch(max(manager.n_timesteps // 500, 1))
    # The cell has a checkpoint of its own
    manager.callbacks[:] = [*(part for part in manager.callbacks if not isinstance(part, RunCheckpoint)), watch]
    checkpoint = checkpoint_for(cell, model)
    if checkpoint is not None:
        manager.callbacks.append(checkpoint)
    if interrupted:
        assert checkpoint is not None and checkpoint.folder is not None and model.env is not None
        print(f"Resuming from {checkpoint.folder}")
        env = model.env
        try:
            model = resume(checkpoint.folder, env, list(manager.callbacks), device=manager.device)
        finally:
            env.close()  # as rl-zoo3 does
    else:
        manager.learn(model)
    if model.num_timesteps < manager.n_timesteps:
        raise RuntimeError(f"training stopped after {model.num_timesteps} of {manager.n_timesteps} steps")
    manager.save_trained_model(model)
    folder = Path(manager.save_path)
    write_rows(folder / "episodes.csv", ["step", "return", "length"], watch.episodes)
    if watch.risk:
        write_rows(folder / "risk.csv", ["step", "alpha", "adapted", "ltv", "changed"], watch.risk)
    return model, watch.seconds


def check_tests(cell: Cell) -> None:
    """
    Make the environment of each test once, to find out now, and not after the training, whether it can be made.

    :param cell: the cell
    :raises ValueError: if an environment lacks a method that the evaluation refers to
    """
    for name, env_kwargs in cell.environment.tests.items():
        env = gym.make(cell.environment.env_id, **env_kwargs)
        for method in cell.evaluation["references"].values():
            if not hasattr(env.unwrapped, str(method)):
                raise ValueError(f"evaluation.references: {method!r} is no method of {cell.environment.env_id} ({name})")
        env.close()


def test(cell: Cell, manager: CellManager, model: BaseAlgorithm) -> dict[str, dict[str, float]]:
    """
    Play in each test of the environment, greedily where rl-zoo3 evaluates greedily, and write how each episode ended.

    :param cell: the cell
    :param manager: its experiment
    :param model: the trained model
    :return: for each test the values that the environment knows, to compare returns with
    """
    rows: list[list[Any]] = []
    references: dict[str, dict[str, float]] = {}
    n_episodes = cell.evaluation["final_episodes"]
    for name, env_kwargs in cell.environment.tests.items():
        manager.eval_env_kwargs = env_kwargs
        env = manager.create_envs(min(n_episodes, TEST_ENVS), eval_env=True, no_log=True)
        assert model.env is not None
        sync_envs_normalization(model.env, env)
        episodes = final_episodes(model, env, n_episodes, TEST_SEED, manager.deterministic_eval)
        rows += [[name, number, *episode] for number, episode in enumerate(episodes)]
        known = cell.evaluation["references"].items()
        references[name] = {reference: float(env.env_method(method, indices=0)[0]) for reference, method in known}
        env.close()
    write_rows(cell.folder / "final.csv", ["test", "episode", "return", "length", "outcome"], rows)
    return references


# What is written


def write_rows(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    """
    :param path: CSV file to write
    :param columns: its header
    :param rows: its rows
    """
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """
    Write the record, whole or not at all: it tells that a cell is complete.

    :param folder: folder of the cell
    :param record: plain values
    """
    temporary = folder / f"{RECORD}.part"
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, folder / RECORD)


def versions() -> dict[str, str]:
    """
    :return: version of Python and of each package in ``PACKAGES``
    """
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # on PYTHONPATH only
            found[package] = getattr(import_module(package), "__version__", "unknown")
    return found


def machine(device: th.device) -> dict[str, Any]:
    """
    :param device: device of the model
    :return: kind of processor and of system, without the name of the host
    """
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    name = th.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.system(), "device": name}


def peak_memory() -> float | None:
    """
    :return: largest resident memory of this process in MB; None where the system does not tell
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    units = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * units / 1e6, 1)
