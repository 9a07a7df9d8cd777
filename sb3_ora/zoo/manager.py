"""
What ``rl_zoo3.exp_manager.ExperimentManager`` does differently for the algorithms of this package.

Its methods are wrapped in place, so that subclasses and modules that already imported the class see the change too.
Runs of all other algorithms go straight to the original methods.
"""

import functools
import inspect
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from pprint import pprint
from typing import Any, TypeAlias

import optuna
import torch as th
from gymnasium.error import DependencyNotInstalled
from optuna.storages.journal import JournalFileBackend
from rl_zoo3 import exp_manager
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import get_latest_run_id
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv

from sb3_ora.checkpoint import RunCheckpoint
from sb3_ora.zoo.extras import missing_extra
from sb3_ora.zoo.files import default_config
from sb3_ora.zoo.registration import ALGORITHMS
from sb3_ora.zoo.sampling import merge_policy_kwargs, sampling_around

#: As it is named under ``callback`` in a YAML file
CHECKPOINT = f"sb3_ora.checkpoint.{RunCheckpoint.__name__}"
#: Mark of an experiment that has made its run folder itself
CLAIMED = "_sb3_ora_claimed"
#: What rl_zoo3 saves before it trains
SETTINGS = {"config.yml", "args.yml", "command.txt"}
Hyperparams: TypeAlias = dict[str, Any]


def read_hyperparameters(
    manager: ExperimentManager, original: Callable[[], tuple[Hyperparams, Hyperparams]]
) -> tuple[Hyperparams, Hyperparams]:
    """
    Read the hyperparameters; merge those of an Optuna trial into them, where rl_zoo3 replaces ``policy_kwargs`` as a
    whole; give the evaluation environment the ``env_kwargs`` of the file, unless the command line has some for it.

    :param manager: the experiment.
    :param original: rl_zoo3's method, bound.
    :return: hyperparameters to preprocess, and those to save.
    """
    trial_id, manager.trial_id = manager.trial_id, None  # read the file only, the trial comes below
    try:
        hyperparams, saved = original()
    finally:
        manager.trial_id = trial_id
    if manager.storage and manager.study_name and trial_id is not None:
        sampled = _load_trial(manager, hyperparams)
        print(f"Loaded trial {trial_id} of study {manager.study_name}:")
        pprint(sampled)
        hyperparams.update(sampled)
        saved = OrderedDict(sorted(hyperparams.items()))
    if manager._eval_env_kwargs_args is None and "env_kwargs" in hyperparams:
        manager.eval_env_kwargs = dict(hyperparams["env_kwargs"])
    limit_threads(manager, hyperparams.get("policy"))
    return hyperparams, saved


def _load_trial(manager: ExperimentManager, hyperparams: Hyperparams) -> Hyperparams:
    """
    :param manager: the experiment; its ``-params`` win over the trial
    :param hyperparams: what the YAML file and the command line say
    :return: hyperparameters of the trial, ``policy_kwargs`` merged
    :raises ValueError: if the study has no such trial
    """
    assert manager.storage is not None and manager.study_name is not None
    base = dict(hyperparams)
    if isinstance(base.get("policy_kwargs"), str):  # "dict(...)", which rl_zoo3 evaluates in its own module later
        base["policy_kwargs"] = eval(base["policy_kwargs"], vars(exp_manager))
    try:
        trial = manager.load_trial(manager.storage, manager.study_name, manager.trial_id)
    except IndexError as error:
        n_trials = _count_trials(manager.storage, manager.study_name)
        allowed = f"one of 0..{n_trials - 1}" if n_trials else "left out, as there is no trial"
        raise ValueError(f"trial_id must be {allowed} of study {manager.study_name!r}, got {manager.trial_id}") from error
    sampled = merge_policy_kwargs(base, trial)
    return {key: value for key, value in sampled.items() if key not in (manager.custom_hyperparams or {})}


def _count_trials(storage: str, study_name: str) -> int:
    opened: Any = storage
    if storage.endswith(".log"):  # as rl_zoo3 opens it
        opened = optuna.storages.JournalStorage(JournalFileBackend(storage))
    return len(optuna.load_study(storage=opened, study_name=study_name).trials)


def objective(manager: ExperimentManager, original: Callable[[Any], float], trial: Any) -> float:
    """
    Run a trial whose sampled values are laid over the hyperparameters of the YAML file. It has no checkpoints of the run,
    and is pruned where it ends with NaN.

    :param manager: the experiment.
    :param original: rl_zoo3's method, bound.
    :param trial: Optuna's trial.
    :return: mean return of the last evaluation.
    """
    specified = manager.specified_callbacks
    manager.specified_callbacks = [given for given in specified or [] if CHECKPOINT not in (given, *_keys(given))]
    try:
        with sampling_around(manager._hyperparams):
            return original(trial)
    except FloatingPointError as error:  # NaN, as some sampled values give
        raise optuna.TrialPruned(str(error)) from error
    finally:
        manager.specified_callbacks = specified


def _keys(given: Any) -> Iterable[str]:
    return given if isinstance(given, dict) else ()


def setup_experiment(manager: ExperimentManager, original: Callable[[], Any]) -> Any:
    """
    Set up; where that fails, give the run folder back, which would be taken for the latest run.

    :param manager: the experiment.
    :param original: rl_zoo3's method, bound.
    :return: model and hyperparameters, None before an optimization.
    """
    try:
        return original()
    except BaseException:
        if vars(manager).pop(CLAIMED, False):
            with suppress(OSError):  # what went wrong is worth more
                _remove_unused(Path(manager.save_path), Path(manager.params_path))
        raise


def _remove_unused(folder: Path, settings: Path) -> None:
    """
    :param folder: of a run whose training has not begun; kept if it has other files than set-up writes
    :param settings: folder of its settings
    """
    ours = all(path == settings or path.name.endswith(".monitor.csv") for path in folder.iterdir())
    if ours and {path.name for path in settings.glob("*")} <= SETTINGS:
        shutil.rmtree(folder)


def _has_run(manager: ExperimentManager) -> bool:
    """Whether it trains in a folder of its own; the trials of an optimization do not."""
    return manager.continue_training or not manager.optimize_hyperparameters


def create_log_folder(manager: ExperimentManager, original: Callable[[], None]) -> None:
    """
    Claim a run folder: of two runs that start at the same time, one takes the next number. An optimization has none.

    :param manager: the experiment.
    :param original: rl_zoo3's method, bound.
    """
    if not _has_run(manager):
        return
    os.makedirs(manager.log_path, exist_ok=True)
    while True:
        try:
            os.mkdir(manager.save_path)  # fails, atomically, where another run was faster
            break
        except FileExistsError:
            run_id = get_latest_run_id(manager.log_path, manager.env_name) + 1
            manager.save_path = os.path.join(manager.log_path, f"{manager.env_name}_{run_id}")
    manager.params_path = f"{manager.save_path}/{manager.env_name}"
    vars(manager)[CLAIMED] = True
    original()


def create_envs(
    manager: ExperimentManager, original: Callable[..., VecEnv], n_envs: int, eval_env: bool = False, no_log: bool = False
) -> VecEnv:
    """
    Make environments, without monitor files in an optimization, and say which extra of this package is missing.

    :param manager: the experiment.
    :param original: rl_zoo3's method, bound.
    :param n_envs: how many.
    :param eval_env: whether for evaluation.
    :param no_log: whether to write no monitor files.
    :return: the environments.
    :raises DependencyNotInstalled: if a package is missing.
    """
    try:
        return original(n_envs, eval_env=eval_env, no_log=no_log or not _has_run(manager))
    except DependencyNotInstalled:
        hint = missing_extra(manager.env_name.gym_id)
        if hint is None:
            raise
        raise DependencyNotInstalled(hint) from None  # Gymnasium's own hint is for another way to install


def create_callbacks(manager: ExperimentManager, original: Callable[[], None]) -> None:
    """
    Let checkpoints of the run go to its folder, unless the hyperparameters name another one.

    :param manager: the experiment.
    :param original: rl_zoo3's method, bound.
    """
    original()
    for callback in manager.callbacks:
        if isinstance(callback, RunCheckpoint) and callback.folder is None:
            callback.folder = os.path.join(manager.save_path, "checkpoints")


def limit_threads(manager: ExperimentManager, policy: Any) -> None:
    """
    Use one torch thread for a small network on the CPU, unless the user has chosen a number: several threads
    gain nothing there, and lose a lot where other processes are busy.

    :param manager: the experiment.
    :param policy: name of the policy.
    """
    chosen = getattr(manager.args, "num_threads", -1) > 0 or os.environ.get("OMP_NUM_THREADS")
    if chosen or policy != "MlpPolicy" or get_device(manager.device).type != "cpu" or th.get_num_threads() == 1:
        return
    th.set_num_threads(1)
    if manager.verbose >= 1:
        print("Using one torch thread (--num-threads or OMP_NUM_THREADS choose another number)")


def extend(manager_class: type[ExperimentManager]) -> None:
    """
    Wrap the methods of ``ExperimentManager``. A second call changes nothing.

    :param manager_class: the class to change.
    """
    if hasattr(manager_class.__init__, "_sb3_ora"):
        return
    for function in (setup_experiment, read_hyperparameters, objective, create_log_folder, create_callbacks, create_envs):
        setattr(manager_class, function.__name__, _wrap(getattr(manager_class, function.__name__), function))
    setattr(manager_class, "__init__", _wrap_init(manager_class.__init__))  # noqa: B010, mypy forbids the assignment


def _wrap(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """
    :param original: method of ``ExperimentManager``
    :param function: what to call instead, with the experiment, the bound method, and its arguments
    :return: method that does so for the algorithms of this package
    """

    @functools.wraps(original)
    def method(self: ExperimentManager, *args: Any, **kwargs: Any) -> Any:
        bound = functools.partial(original, self)
        return function(self, bound, *args, **kwargs) if self.algo in ALGORITHMS else bound(*args, **kwargs)

    return method


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    """
    :param original: ``ExperimentManager.__init__``
    :return: constructor that takes the hyperparameter file of this package where no other one is given
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: ExperimentManager, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        algo = bound.arguments["algo"]
        if algo in ALGORITHMS and not bound.arguments.get("config"):
            bound.arguments["config"] = default_config(algo)
        original(*bound.args, **bound.kwargs)

    setattr(method, "_sb3_ora", True)  # noqa: B010, mypy forbids the assignment
    return method


extend(ExperimentManager)  # also where this module is imported first
