"""Numbers that are no numbers: found before they reach weights, replay buffer or statistics, and traced to their source."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ora.callbacks import walk_callbacks

if TYPE_CHECKING:
    from sb3_ora.iqn.iqn import IQN


class NotFiniteError(FloatingPointError):
    """Training was stopped by NaN or an infinite number; the model is the one from before."""


# Environments


def _is_finite(values: Any) -> bool:
    """Whether an array, or each of a dict of arrays, is without NaN and infinities."""
    if isinstance(values, dict):
        return all(map(_is_finite, values.values()))
    array = np.asarray(values)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _check_rows(what: str, values: Any, envs: Iterable[int], when: str) -> None:
    """
    :param what: name of the values
    :param values: one row for each environment, (E, ...), or a dict of such arrays
    :param envs: numbers of these environments, (E,)
    :param when: where in the training
    :raises NotFiniteError: if one of them holds NaN or an infinite number
    """
    if isinstance(values, dict):
        for key, part in values.items():
            _check_rows(f"entry {key!r} of the {what}", part, envs, when)
        return
    if _is_finite(values):
        return
    array = np.asarray(values)
    for env, row in zip(envs, array.reshape(len(array), -1), strict=True):
        places = np.flatnonzero(~np.isfinite(row))
        if len(places):
            where = "" if row.size == 1 else f" at index {', '.join(map(str, places[:5]))} of {row.size}"
            raise NotFiniteError(f"{what} of environment {env} is {row[places[0]]}{where}, {when}")


class Statistics:
    """
    The statistics of ``VecNormalize``, to be put back. It replaces its arrays at each step, so keeping them costs nothing.

    :param env: the normalisation; None if there is none
    """

    def __init__(self, env: VecNormalize | None):
        self.env = env
        self.kept: list[tuple[RunningMeanStd, np.ndarray, np.ndarray, float]] = []
        if env is not None:
            self.returns = env.returns
            observed = getattr(env, "obs_rms", None)
            parts = [*(observed.values() if isinstance(observed, dict) else [observed]), env.ret_rms]
            self.kept = [(part, part.mean, part.var, part.count) for part in parts if part is not None]

    def restore(self) -> None:
        """Put them back as they were."""
        if self.env is not None:
            self.env.returns = self.returns
        for part, mean, var, count in self.kept:
            part.mean, part.var, part.count = mean, var, count


def check_first_observations(model: IQN, statistics: Statistics) -> None:
    """
    :param model: model whose environments have just been reset
    :param statistics: those before the reset
    :raises NotFiniteError: if an observation is not finite
    """
    normalize, when = model.get_vec_normalize_env(), "after reset()"
    try:
        for observations in (None if normalize is None else normalize.old_obs, model._last_obs):
            if observations is not None:
                _check_rows("observation", observations, range(model.n_envs), when)
    except NotFiniteError:
        statistics.restore()
        raise


class FiniteEnv(VecEnvWrapper):
    """
    The environment as rollouts see it: a step that returns NaN or an infinite number raises an error, and the statistics
    of ``VecNormalize`` are those from before.

    :param venv: training environment
    :param model: the model in training
    """

    def __init__(self, venv: VecEnv, model: IQN):
        super().__init__(venv)
        self.model = model

    def reset(self) -> VecEnvObs:
        return self.venv.reset()

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        normalize = self.model.get_vec_normalize_env()
        statistics = None if normalize is None else Statistics(normalize)
        result = self.venv.step(actions)
        observations, rewards, dones, _ = result
        well = not dones.any() and _is_finite(observations) and _is_finite(rewards)
        if not (well and (normalize is None or (_is_finite(normalize.old_obs) and _is_finite(normalize.old_reward)))):
            try:
                self._check(*result)
            except NotFiniteError:
                if statistics is not None:
                    statistics.restore()
                raise
        return result

    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()

    def _check(self, observations: VecEnvObs, rewards: np.ndarray, dones: np.ndarray, infos: list[dict]) -> None:
        normalize, envs = self.model.get_vec_normalize_env(), range(self.num_envs)
        when = f"after step {self.model.num_timesteps + self.num_envs}"
        if normalize is not None:  # which clips infinities
            _check_rows("observation", normalize.old_obs, envs, when)
            _check_rows("reward", normalize.old_reward, envs, when)
        _check_rows("observation", observations, envs, when)
        _check_rows("reward", rewards, envs, when)
        for env in np.flatnonzero(dones).tolist():
            last = infos[env].get("terminal_observation")
            if last is not None:
                row = {key: np.asarray(part)[None] for key, part in last.items()} if isinstance(last, dict) else [last]
                _check_rows("last observation of the episode", row, [env], when)


# Learning


def is_fused(optimizer: th.optim.Optimizer) -> bool:
    """
    :param optimizer: an optimizer; loading its state may have changed what it was made with
    :return: whether it makes its steps in one kernel, which can be told to do nothing
    """
    return all(group.get("fused") for group in optimizer.param_groups)


def check_update(model: IQN, loss: th.Tensor, batch: ReplayBufferSamples) -> th.Tensor:
    """
    Between the backward pass and the optimizer's step: keep an update from the weights if it is not finite. On a device
    that would have to be waited for, the fused optimizer skips the step, and :func:`checked_loss` tells of it.

    :param model: the model in training
    :param loss: its loss, ()
    :param batch: the transitions
    :return: the loss, without its graph; NaN if it or a gradient is not finite, ()
    :raises NotFiniteError: if the loss or a gradient is not finite
    """
    optimizer = model.policy.optimizer
    if loss.device.type != "cpu" and is_fused(optimizer):
        return skip_unless_finite(model, loss)
    optimizer.__dict__.pop("found_inf", None)  # of a fused step before
    value = loss.item()
    if not math.isfinite(value):
        raise NotFiniteError(f"the loss is {value} {_moment(model)}: {_source(model, batch)}")
    gradients = [gradient.reshape(-1) for gradient in _probe_gradients(model)]
    if gradients and not math.isfinite(th.cat(gradients).sum().item()):
        raise NotFiniteError(f"the loss is {value}, but its gradient is not finite {_moment(model)}: {_source(model, batch)}")
    return loss.detach()


def _probes(model: IQN) -> list[th.nn.Parameter]:
    """
    :param model: the model in training
    :return: parameters whose gradients tell for all: a layer's weights have finite ones where its bias has, which is small
    """
    if model._probes is None:
        trained = {id(p) for group in model.policy.optimizer.param_groups for p in group["params"]}
        found: list[th.nn.Parameter] = []
        for module in model.policy.modules():
            own = [p for p in module.parameters(recurse=False) if id(p) in trained]
            found += [p for p in own if p.ndim <= 1] or own
        model._probes = found
    return model._probes


def _probe_gradients(model: IQN) -> list[th.Tensor]:
    return [parameter.grad for parameter in _probes(model) if parameter.grad is not None]


def skip_unless_finite(model: IQN, loss: th.Tensor) -> th.Tensor:
    """
    Let the optimizer's next step do nothing if the loss or a gradient is not finite, without waiting for them.

    :param model: the model in training, whose optimizer is fused
    :param loss: its loss, ()
    :return: the loss, without its graph; NaN if it or a gradient is not finite, ()
    """
    total = loss.detach() + th.nn.utils.get_total_norm(_probe_gradients(model), 1.0)
    nothing = total - total  # 0, or NaN
    model.policy.optimizer.found_inf = nothing.ne(0).float()  # type: ignore[attr-defined]
    return loss.detach() + nothing


def checked_loss(model: IQN, loss: float) -> float:
    """
    :param model: the model in training
    :param loss: the mean loss of the last updates, as it is logged
    :return: the loss
    :raises NotFiniteError: if it is not finite
    """
    if not math.isfinite(loss):
        raise NotFiniteError(f"the loss or its gradient is {loss} {_moment(model)}: {_source(model, None)}")
    return loss


def _moment(model: IQN) -> str:
    return f"after {model._n_updates} updates, at step {model.num_timesteps}"


def _source(model: IQN, batch: ReplayBufferSamples | None) -> str:
    """What is not finite, as far as one can tell."""
    for name, net in (("the network", model.quantile_net), ("the target network", model.quantile_net_target)):
        for parameter, value in net.named_parameters():
            if not th.isfinite(value).all():
                return f"{parameter} of {name} holds NaN or an infinite number"
    for name in () if batch is None else ("observations", "next_observations", "rewards"):
        values = getattr(batch, name)
        for part in values.values() if isinstance(values, dict) else [values]:
            if not th.isfinite(part.float()).all():
                return f"the replay buffer holds NaN or an infinite number in its {name}"
    largest = 0.0 if batch is None else float(batch.rewards.abs().max())
    rewards = f" (the largest reward of the batch is {largest:g})" if largest else ""
    return f"weights and replay buffer are finite, so numbers have overflowed, or the gradient does not exist{rewards}"


# Errors


def tell_callbacks(callback: Any, error: BaseException) -> None:
    """
    Call ``on_training_error(error)`` of the callbacks that have it, such as
    :class:`~sb3_ora.checkpoint.RunCheckpoint`: SB3 does not call ``on_training_end`` then.

    :param callback: what the user gave to ``learn``
    :param error: what ended the training
    """
    for part in walk_callbacks(callback):
        if hasattr(part, "on_training_error"):
            part.on_training_error(error)
