"""Checks of the constructor's arguments of the algorithms and policies, before anything is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import get_device

from sb3_ora.checks import (
    check_callable,
    check_choice,
    check_flag,
    check_integer,
    check_kind,
    check_kwargs,
    check_number,
    check_path,
    check_seed,
    check_subclass,
    check_verbose,
)
from sb3_ora.iqn.masks import check_mask
from sb3_ora.risk.distortions import Neutral, make_distortion
from sb3_ora.risk.state import RISK_SCOPES

if TYPE_CHECKING:
    from sb3_ora.iqn.iqn import IQN
    from sb3_ora.iqn.policies import IQNPolicy

#: What the algorithm hands to the policy itself
SET_BY_ALGORITHM = {
    "n_heads",
    "n_risk_samples",
    "distortion",
    "risk_level",
    "epistemic_measure",
    "alpha",
    "risk_scope",
    "state_key",
    "max_keys",
    "use_action_mask",
}


def check_device(value: Any) -> th.device:
    """
    :param value: what the user gave as ``device``
    :return: the device
    :raises ValueError: if it is none that torch has here
    """
    try:
        return get_device(value)
    except (TypeError, ValueError, RuntimeError) as error:
        allowed = "'auto', a torch.device, or the name of one that is here, such as 'cpu' or 'cuda:0'"
        raise ValueError(f"device must be {allowed}, got {value!r}") from error


def check_made_with(algorithm: type[IQN], policy_class: type[IQNPolicy], **given: Any) -> None:
    """
    Check the arguments from which Stable-Baselines3 makes environment, device and policy class at once.

    :param algorithm: the algorithm
    :param policy_class: class of its policies
    :param given: its arguments of these names
    :raises ValueError: if one of them is not what it must be
    """
    policy, env = given["policy"], given["env"]
    if isinstance(policy, str):
        check_choice("policy", policy, algorithm.policy_aliases)
    else:
        check_subclass("policy", policy, policy_class, f"a name or a subclass of {policy_class.__name__}")
    if not isinstance(env, str) and not (hasattr(env, "reset") and hasattr(env, "step")):
        if env is not None or given["is_complete"]:  # load makes a model without, at first
            raise ValueError(f"env must be an environment or the id of one, got {env!r}")
    check_verbose(given["verbose"])
    check_kwargs("policy_kwargs", given["policy_kwargs"])
    check_kwargs("replay_buffer_kwargs", given["replay_buffer_kwargs"])
    if given["tensorboard_log"] is not None:
        check_path("tensorboard_log", given["tensorboard_log"])
    check_device(given["device"])


def algorithm_of(kind: type[IQN]) -> str:
    """
    :param kind: class of a model
    :return: name of the algorithm of this package that it is, or extends
    """
    return next(base.__name__ for base in kind.__mro__ if base.__module__.startswith("sb3_ora."))


def check_algorithm(model: IQN) -> None:
    """
    :param model: a model with the attributes of a file
    :raises ValueError: if the file is of another algorithm
    """
    mine = algorithm_of(type(model))
    if model._algorithm != mine:
        raise ValueError(f"the file holds a model of {model._algorithm}, not of {mine}: use {model._algorithm}.load")


def check_learner(model: IQN) -> None:
    """
    :param model: an algorithm that holds its arguments, and is not set up yet
    :raises ValueError: if one of them is out of range or contradicts another
    """
    for name in ("n_quantiles", "n_target_quantiles", "n_risk_samples", "target_update_interval"):
        check_integer(name, getattr(model, name))
    for name in ("buffer_size", "batch_size", "n_steps"):
        check_integer(name, getattr(model, name))
    check_integer("stats_window_size", model._stats_window_size)
    check_number("learning_starts", model.learning_starts, 0)
    check_integer("gradient_steps", model.gradient_steps, -1)
    for name in ("exploration_initial_eps", "exploration_final_eps", "exploration_fraction", "evaluation_eps", "gamma"):
        check_number(name, getattr(model, name), 0, 1)
    check_number("tau", model.tau, 0, 1, open_low=True)
    if model.max_grad_norm is not None:
        check_number("max_grad_norm", model.max_grad_norm, 0, open_low=True)
    for name in ("double_q", "use_action_mask", "optimize_memory_usage", "cuda_graphs"):
        check_flag(name, getattr(model, name))
    check_seed("seed", model.seed)
    check_choice("target_risk", model.target_risk, ("acting", "neutral"))
    _check_learning_rate(model.learning_rate)
    _check_train_freq(model.train_freq)
    _check_buffer(model)
    for name in sorted(SET_BY_ALGORITHM & model.policy_kwargs.keys()):
        raise ValueError(f"policy_kwargs must not hold {name}={model.policy_kwargs[name]!r}: the algorithm sets it")
    if model.use_action_mask:
        check_mask(model.observation_space, model.action_space, None if model.env is None else model.get_vec_normalize_env())
    if isinstance(make_distortion(model.distortion), Neutral) and model.risk_level is not None:
        raise ValueError(
            f"risk_level={model.risk_level!r} has no effect with distortion='neutral': "
            "choose a distortion ('cvar', 'wang', 'cpw', 'power' or an object), or leave risk_level at None"
        )


def _check_learning_rate(learning_rate: Any) -> None:
    if callable(learning_rate):
        check_number("learning_rate at the start of training", learning_rate(1.0), 0)
    else:
        check_number("learning_rate", learning_rate, 0)


def _check_train_freq(train_freq: Any) -> None:
    frequency, unit = train_freq if isinstance(train_freq, tuple) and len(train_freq) == 2 else (train_freq, "step")
    unit = getattr(unit, "value", unit)  # a loaded model holds SB3's TrainFreq
    if unit not in ("step", "episode") if isinstance(unit, str) else True:
        raise ValueError(f"the unit in train_freq must be 'step' or 'episode', got {train_freq!r}")
    check_integer("the frequency in train_freq", frequency)


def check_n_steps(model: IQN) -> None:
    """
    :param model: a model that will be trained
    :raises ValueError: if its replay buffer does not hold the steps of one return
    """
    if model.n_steps > model.buffer_size:
        raise ValueError(f"n_steps must not be larger than buffer_size={model.buffer_size}, got {model.n_steps}")


def _check_buffer(model: IQN) -> None:
    """The replay buffer that Stable-Baselines3 will make, and how its settings go together."""
    if model.buffer_size > 1:  # which is what one gives to load() for a model that will not be trained
        check_n_steps(model)
    if model.replay_buffer_class is not None:
        check_subclass("replay_buffer_class", model.replay_buffer_class, ReplayBuffer, "a subclass of ReplayBuffer or None")
    elif model.optimize_memory_usage:
        wanted = "optimize_memory_usage=True"
        if isinstance(model.observation_space, spaces.Dict):
            raise ValueError(f"{wanted} is not for Dict observations, got {model.observation_space}")
        if model.n_steps > 1:
            raise ValueError(f"{wanted} is not for n-step returns, got n_steps={model.n_steps}")
        if model.replay_buffer_kwargs.get("handle_timeout_termination", True):
            raise ValueError(
                f"{wanted} cannot tell time-outs from ends, got replay_buffer_kwargs={model.replay_buffer_kwargs!r}: "
                "it must hold handle_timeout_termination=False"
            )


def check_policy(
    observation_space: Any,
    action_space: Any,
    lr_schedule: Any,
    activation_fn: Any,
    independent_heads: Any,
    alpha: Any,
    risk_scope: Any,
    use_action_mask: Any,
    features_extractor_class: Any,
    features_extractor_kwargs: Any,
    normalize_images: Any,
    optimizer_class: Any,
    optimizer_kwargs: Any,
) -> None:
    """
    Check those arguments of a policy that it hands on as they are, see :class:`~sb3_ora.iqn.IQNPolicy`.

    :raises ValueError: if one of them is not what it must be
    """
    check_kind("observation_space", observation_space, spaces.Space, "a space of Gymnasium")
    check_kind("action_space", action_space, spaces.Discrete, "a Discrete space")
    check_callable("lr_schedule", lr_schedule, "a function of the progress remaining")
    check_callable("activation_fn", activation_fn, "a class of torch.nn, or a function that makes a module")
    check_number("alpha", alpha, 0, 1, open_low=True)
    check_choice("risk_scope", risk_scope, RISK_SCOPES)
    check_subclass(
        "features_extractor_class", features_extractor_class, BaseFeaturesExtractor, "a BaseFeaturesExtractor class"
    )
    check_kwargs("features_extractor_kwargs", features_extractor_kwargs)
    check_subclass("optimizer_class", optimizer_class, th.optim.Optimizer, "a subclass of torch.optim.Optimizer")
    check_kwargs("optimizer_kwargs", optimizer_kwargs)
    check_flag("independent_heads", independent_heads)
    check_flag("normalize_images", normalize_images)
    if check_flag("use_action_mask", use_action_mask):
        check_mask(observation_space, action_space, None)
