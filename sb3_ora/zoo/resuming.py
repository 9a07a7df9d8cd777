"""``python -m sb3_ora.zoo resume FOLDER``: continues a killed run of ``rl_zoo3.train`` in its own folder."""

import argparse
import json
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ora.checkpoint import CheckpointError, RunCheckpoint, resume
from sb3_ora.zoo.manager import read_hyperparameters


def _is_final(path: Path) -> bool:
    """Whether the model in a file was trained to the end: rl-zoo3 saves one that was stopped with Ctrl-C as well."""
    try:
        with zipfile.ZipFile(path) as file:
            data = json.loads(file.read("data"))
    except zipfile.BadZipFile:  # the process ended while it wrote the file
        return False
    return data["num_timesteps"] >= data["_total_timesteps"]


def saved_arguments(folder: Path) -> tuple[argparse.Namespace, Path]:
    """
    :param folder: folder of a run, such as logs/ora_iqn/CartPole-v1_1
    :return: the arguments with which ``rl_zoo3.train`` was called, and the folder of its settings
    :raises CheckpointError: if it is no such folder, or the run is complete
    """
    files = list(folder.glob("*/args.yml"))
    if len(files) != 1:
        raise CheckpointError(f"{str(folder)!r} is not the folder of a run: no {folder / 'ENVIRONMENT' / 'args.yml'}")
    settings = files[0].parent
    model = folder / f"{settings.name}.zip"
    if model.is_file() and _is_final(model):
        raise CheckpointError(f"the run in {str(folder)!r} is complete: nothing to resume")
    values = yaml.load(files[0].read_text(), Loader=yaml.UnsafeLoader)  # as rl_zoo3 reads it
    arguments = argparse.Namespace(**values)
    arguments.log_folder = str(folder.parent.parent)
    arguments.trained_agent, arguments.trial_id = "", None  # both went into what was saved
    return arguments, settings


def continue_in(folder: Path, settings: Path, manager_class: type[ExperimentManager]) -> None:
    """
    Make experiments of this process continue a run.

    :param folder: folder of the run
    :param settings: folder of its settings
    :param manager_class: the class to change
    """
    hyperparams = yaml.load((settings / "config.yml").read_text(), Loader=yaml.UnsafeLoader)

    def read(manager: ExperimentManager) -> tuple[dict[str, Any], dict[str, Any]]:
        print(f"Loading hyperparameters from: {settings / 'config.yml'}")
        return read_hyperparameters(manager, lambda: (dict(hyperparams), OrderedDict(hyperparams)))

    def create_log_folder(manager: ExperimentManager) -> None:
        manager.save_path, manager.params_path = str(folder), str(settings)
        # Environments in other processes open their files of monitor rows themselves: those must not start empty
        manager.monitor_kwargs = {**manager.monitor_kwargs, "override_existing": False}

    def learn(manager: ExperimentManager, model: BaseAlgorithm) -> None:
        callback = manager.callbacks
        checkpoints = [part for part in callback if isinstance(part, RunCheckpoint)]
        if not checkpoints:
            raise CheckpointError(f"the run in {str(folder)!r} has no RunCheckpoint among its callbacks")
        assert model.env is not None and checkpoints[0].folder is not None
        try:
            resumed[:] = [resume(checkpoints[0].folder, model.env, callback, device=manager.device)]
        finally:
            callback[0].on_training_end()  # the progress bar
            model.env.close()

    def save_trained_model(manager: ExperimentManager, model: BaseAlgorithm) -> None:
        save(manager, resumed[0])

    resumed: list[BaseAlgorithm] = []
    save: Callable[..., None] = manager_class.save_trained_model
    replaced = {"read_hyperparameters": read, "create_log_folder": create_log_folder, "learn": learn}
    replaced |= {"save_trained_model": save_trained_model, "_save_config": lambda manager, saved: None}
    for name, function in replaced.items():
        setattr(manager_class, name, function)
