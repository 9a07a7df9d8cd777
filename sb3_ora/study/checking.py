"""What can be said to be wrong with cells before the first of them is run."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Sequence
from importlib import import_module

import gymnasium as gym
from stable_baselines3.common.base_class import BaseAlgorithm

import sb3_ora.zoo
from sb3_ora.checks import check_choice
from sb3_ora.study.definition import Cell, Method
from sb3_ora.zoo.extras import missing_extra

#: Hyperparameters that rl-zoo3 takes itself
ZOO_KEYS = (
    "n_timesteps",
    "n_envs",
    "normalize",
    "frame_stack",
    "env_wrapper",
    "vec_env_wrapper",
    "callback",
    "monitor_kwargs",
    "noise_type",
    "noise_std",
)
#: Arguments of an algorithm that rl-zoo3 gives itself
GIVEN = {"self", "env", "tensorboard_log", "seed", "verbose", "device", "_init_setup_model"}


def check_cells(cells: Sequence[Cell]) -> None:
    """
    Look for an algorithm, hyperparameter or environment that is not there.

    :param cells: cells of one study
    :raises ValueError: for the first that is found
    """
    if not cells:
        return
    for package in cells[0].packages:
        try:
            import_module(package)
        except ImportError as error:
            raise ValueError(f"packages: {package!r} cannot be imported: {error}") from error
    sb3_ora.zoo.register()
    for env_id in dict.fromkeys(cell.environment.env_id for cell in cells):
        check_environment(env_id)
    for method in {cell.method.label: cell.method for cell in cells}.values():
        check_method(method)


def check_environment(env_id: str) -> None:
    """
    :param env_id: environment
    :raises ValueError: if there is none, or an extra is missing that it needs
    """
    hint = missing_extra(env_id)
    if hint is not None:
        raise ValueError(f"environments: {hint}")
    if env_id in gym.envs.registry:
        return
    module, colon, name = env_id.rpartition(":")
    if colon:  # rl-zoo3 looks it up as it stands
        raise ValueError(f"environments: {env_id!r} must be given as {name!r}, with packages: [{module}]")
    raise ValueError(f"environments: {env_id!r} is not registered with Gymnasium{_similar(env_id, list(gym.envs.registry))}")


def check_method(method: Method) -> None:
    """
    :param method: a method of the study
    :raises ValueError: if there is no such algorithm, or it has no such hyperparameter, or lacks one
    """
    from rl_zoo3.utils import ALGOS

    algorithm = ALGOS[check_choice(f"methods.{method.label}.algo", method.algo, ALGOS)]
    arguments = arguments_of(algorithm)
    known = (*(arguments or ()), *ZOO_KEYS)
    for name in method.hyperparams if arguments is not None else ():
        if name not in known:
            what = f"an argument of {algorithm.__name__} or a key of rl-zoo3"
            where = f"each key of hyperparams for methods.{method.label}"
            raise ValueError(f"{where} must be {what}, got {name!r}{_similar(name, known)}")
    for name in ("policy", "n_timesteps") if method.base == "none" else ():
        if name not in method.hyperparams:
            raise ValueError(f"hyperparams for methods.{method.label} must have {name!r}, as its base is 'none'")


def arguments_of(algorithm: type[BaseAlgorithm]) -> list[str] | None:
    """
    :param algorithm: class of an algorithm
    :return: arguments of its constructor that a file of hyperparameters may name; None if it takes any (``**kwargs``)
    """
    parameters = inspect.signature(algorithm.__init__).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return [name for name in parameters if name not in GIVEN]


def _similar(name: object, known: Sequence[str]) -> str:
    """The names that may be meant."""
    found = difflib.get_close_matches(str(name), known)
    return f"; similar: {', '.join(map(repr, found))}" if found else f"; allowed: {', '.join(known)}" * (len(known) < 100)
