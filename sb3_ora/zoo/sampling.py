"""
Search spaces for ``python -m rl_zoo3.train -optimize``.

rl_zoo3 lets the sampled values replace those of the YAML file, ``policy_kwargs`` as a whole. Here the sampled
``policy_kwargs`` are laid over those of the YAML file, so that its ensemble and risk settings stay in force.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # optuna is only loaded by rl_zoo3
    from optuna.trial import BaseTrial

Sampler = Callable[["BaseTrial", int, int, dict[str, Any]], dict[str, Any]]

NET_ARCHS = {"small": [64, 64], "medium": [128, 128], "big": [256, 256]}
# Search range of ``risk_level`` for each distortion, from risk-averse towards neutral
RISK_LEVELS = {"cvar": (0.05, 1.0), "wang": (-1.5, 0.0), "cpw": (0.5, 1.0), "power": (-4.0, 0.0)}

_yaml_hyperparams: ContextVar[Mapping[str, Any]] = ContextVar("_yaml_hyperparams", default=MappingProxyType({}))


@contextmanager
def sampling_around(hyperparams: Mapping[str, Any]) -> Iterator[None]:
    """
    Let the samplers called inside know the hyperparameters they will be laid over.

    :param hyperparams: the hyperparameters of the YAML file, as rl_zoo3 passes them to the algorithm.
    """
    token = _yaml_hyperparams.set(hyperparams)
    try:
        yield
    finally:
        _yaml_hyperparams.reset(token)


def merge_policy_kwargs(hyperparams: Mapping[str, Any], sampled: Mapping[str, Any]) -> dict[str, Any]:
    """
    Lay the sampled ``policy_kwargs`` over those of the YAML file.

    :param hyperparams: hyperparameters of the YAML file; ``policy_kwargs``, if there, is a dict.
    :param sampled: sampled hyperparameters.
    :return: the sampled hyperparameters with merged ``policy_kwargs``.
    """
    return {**sampled, "policy_kwargs": {**(hyperparams.get("policy_kwargs") or {}), **sampled.get("policy_kwargs", {})}}


def convert_params(sampled: Mapping[str, Any]) -> dict[str, Any]:
    """
    Turn the values that Optuna stores for a trial into constructor arguments.

    :param sampled: parameters of a trial of one of the samplers below.
    :return: arguments of the algorithm.
    """
    hyperparams = dict(sampled)
    hyperparams["gamma"] = 1 - hyperparams.pop("one_minus_gamma")
    hyperparams["batch_size"] = 2 ** hyperparams.pop("batch_size_pow")
    hyperparams["gradient_steps"] = max(hyperparams["train_freq"] // hyperparams.pop("subsample_steps"), 1)
    hyperparams["policy_kwargs"] = {
        "net_arch": NET_ARCHS[hyperparams.pop("net_arch")],
        "head_arch": [hyperparams.pop("head_width")],
    }
    return hyperparams


def _suggest_common(trial: "BaseTrial", base: Mapping[str, Any]) -> None:
    """Suggest what all four algorithms share."""
    one_minus_gamma = trial.suggest_float("one_minus_gamma", 0.0001, 0.05, log=True)
    batch_size_pow = trial.suggest_int("batch_size_pow", 4, 9)  # 16 to 512
    trial.suggest_float("learning_rate", 1e-5, 5e-3, log=True)
    trial.suggest_int("train_freq", 1, 10)
    trial.suggest_int("subsample_steps", 1, 4)  # environment steps per gradient step
    trial.suggest_float("exploration_fraction", 0.01, 0.5)
    trial.suggest_float("exploration_final_eps", 0.0, 0.2)
    trial.suggest_categorical("n_quantiles", [8, 16, 32, 64])
    trial.suggest_categorical("net_arch", list(NET_ARCHS))
    trial.suggest_categorical("head_width", [32, 64, 128])
    if base.get("tau", 1.0) == 1.0:  # a soft update has no interval worth tuning
        trial.suggest_int("target_update_interval", 1, 20_000, log=True)
    # Shown by optuna dashboards instead of the transformed values
    trial.set_user_attr("gamma", 1 - one_minus_gamma)
    trial.set_user_attr("batch_size", 2**batch_size_pow)


def _suggest_iqn(trial: "BaseTrial", base: Mapping[str, Any]) -> None:
    """Suggest a fixed risk level, where the YAML file has chosen a distortion and a fixed level."""
    distortion = base.get("distortion")
    limits = RISK_LEVELS.get(distortion) if isinstance(distortion, str) else None
    if limits and isinstance(base.get("risk_level"), int | float | None):
        trial.suggest_float("risk_level", *limits)


def _suggest_ora_iqn(trial: "BaseTrial", base: Mapping[str, Any]) -> None:
    """Suggest the size of the ensemble and how its risk level adapts."""
    trial.suggest_categorical("n_heads", [5, 10, 20])
    adapter = base.get("risk_adapter") or "ftpl"
    # Composite's risk level is constant, and a state key, or the last visit of a state, is for a level of each state
    by_state = base.get("state_key") is not None or base.get("reference") == "visit"
    if adapter != "composite" and not by_state:
        trial.suggest_categorical("risk_scope", ["state-action", "action", "global"])
    if adapter == "ftpl":
        trial.suggest_categorical("eta", ["auto", 0.1, 0.5, 2.0])


def _suggest_bandit(trial: "BaseTrial", base: Mapping[str, Any]) -> None:
    """Suggest the learning rate of the bandit over risk levels."""
    trial.suggest_float("bandit_lr", 1e-3, 1.0, log=True)


def _sampler(suggest: Callable[["BaseTrial", Mapping[str, Any]], None]) -> Sampler:
    """
    Make a sampler with the signature that rl_zoo3 calls.

    :param suggest: suggests the parameters of one algorithm to a trial, beside the common ones.
    :return: the sampler.
    """

    def sample(trial: "BaseTrial", n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
        hyperparams = _yaml_hyperparams.get()
        _suggest_common(trial, hyperparams)
        suggest(trial, hyperparams)
        return merge_policy_kwargs(hyperparams, convert_params(trial.params))

    return sample


SAMPLERS: dict[str, Sampler] = {
    "iqn": _sampler(_suggest_iqn),
    "ora_iqn": _sampler(_suggest_ora_iqn),
    "art_iqn": _sampler(_suggest_bandit),
    "top_iqn": _sampler(_suggest_bandit),
}
CONVERTERS = dict.fromkeys(SAMPLERS, convert_params)
