"""``python -m sb3_ora.zoo resume FOLDER``: continues a killed run of ``rl_zoo3.train`` in its own folder."""

import argparse
import json
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
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


def manager_of(folder: Path, settings: Path) -> type[ExperimentManager]:
    """
    :param folder: folder of the run
    :param settings: folder of its settings
    :return: class of an experiment that continues the run
    """
    hyperparams = yaml.load((settings / "config.yml").read_text(), Loader=yaml.UnsafeLoader)

    class ResumedRun(ExperimentManager):
        """Experiment with the settings, the folder and the last checkpoint of the run."""

        resumed: BaseAlgorithm

        def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
            print(f"Loading hyperparameters from: {settings / 'config.yml'}")
            return read_hyperparameters(self, lambda: (dict(hyperparams), OrderedDict(hyperparams)))

        def create_log_folder(self) -> None:
            self.save_path, self.params_path = str(folder), str(settings)
            # Environments in other processes open their files of monitor rows themselves: those must not start empty
            self.monitor_kwargs = {**self.monitor_kwargs, "override_existing": False}

        def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
            pass

        def learn(self, model: BaseAlgorithm) -> None:
            callback = self.callbacks
            checkpoints = [part for part in callback if isinstance(part, RunCheckpoint)]
            if not checkpoints:
                raise CheckpointError(f"the run in {str(folder)!r} has no RunCheckpoint among its callbacks")
            assert model.env is not None and checkpoints[0].folder is not None
            try:
                self.resumed = resume(checkpoints[0].folder, model.env, callback, device=self.device)
            finally:
                callback[0].on_training_end()  # the progress bar
                model.env.close()

        def save_trained_model(self, model: BaseAlgorithm) -> None:
            super().save_trained_model(self.resumed)

    return ResumedRun


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """
    Let an attribute have another value inside.

    :param owner: module or class
    :param name: of its attribute
    :param value: in the meantime
    """
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
