"""Stable-Baselines3's DQN, sb3-contrib's QR-DQN and the learners of this package, set to the common work."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.work import (
    BATCH,
    BUFFER,
    EPSILON,
    GAMMA,
    HEAD_WIDTH,
    LEARNING_RATE,
    N_ACTING,
    N_COSINES,
    N_HEADS,
    N_QUANTILES,
    TARGET_COPY,
    WARM_UP,
    WIDTH,
    Learner,
    Make,
    cart_pole,
)
from sb3_ora import IQN, ORAIQN

FOREVER = 10**9


def make_model(
    algorithm: Callable[..., OffPolicyAlgorithm],
    policy_kwargs: dict[str, Any],
    fused: bool = True,
    seed: int = 0,
    n_envs: int = 1,
    batch: int = BATCH,
    **arguments: Any,
) -> OffPolicyAlgorithm:
    """
    :param algorithm: a learner with Stable-Baselines3's interface
    :param policy_kwargs: its network
    :param fused: whether its Adam is torch's fused one
    :param seed: seed
    :param n_envs: number of environments E
    :param batch: batch size B
    :param arguments: further arguments of the learner
    :return: the learner, which has taken no step
    """
    return algorithm(
        "MlpPolicy",
        DummyVecEnv([cart_pole] * n_envs),
        learning_rate=LEARNING_RATE,
        buffer_size=BUFFER,
        learning_starts=WARM_UP,
        batch_size=batch,
        gamma=GAMMA,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=TARGET_COPY,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        policy_kwargs={
            **policy_kwargs,
            "optimizer_class": th.optim.Adam,
            "optimizer_kwargs": {"eps": 0.01 / batch, "fused": fused},
        },
        seed=seed,
        device="cpu",
        **arguments,
    )


def make_ours(n_heads: int = 1, head_width: int | None = None, **arguments: Any) -> OffPolicyAlgorithm:
    """
    :param n_heads: number of heads K; 1 for IQN, more for ORAIQN
    :param head_width: hidden units of each head
    :param arguments: arguments of :func:`make_model` and of the learner
    :return: IQN or ORAIQN with the network of the common work
    """
    ensemble: dict[str, Any] = {"n_heads": n_heads} if n_heads > 1 else {}
    head_width = (HEAD_WIDTH if ensemble else WIDTH) if head_width is None else head_width
    network = {"net_arch": [WIDTH, WIDTH], "head_arch": [head_width], "n_cosines": N_COSINES}
    quantiles: dict[str, Any] = {"n_quantiles": N_QUANTILES, "n_target_quantiles": N_QUANTILES, "n_risk_samples": N_ACTING}
    return make_model(ORAIQN if ensemble else IQN, network, **quantiles, **ensemble, **arguments)


def gradient_steps(model: OffPolicyAlgorithm, n: int) -> None:
    """
    :param model: a learner
    :param n: number of gradient steps to take, each with its replay sampling
    """
    for _ in range(n):
        model.train(gradient_steps=1, batch_size=model.batch_size)


def as_learner(model: OffPolicyAlgorithm) -> Learner:
    """
    :param model: a learner with Stable-Baselines3's interface
    :return: what the benchmark asks of it
    """
    callback: BaseCallback | None = None

    def steps(n: int) -> None:
        """What the loop of ``learn`` does; that starts and ends training each time, which must not count."""
        nonlocal callback
        if callback is None:
            _, callback = model._setup_learn(FOREVER, None, reset_num_timesteps=False)
            callback.on_training_start({}, {})
        for _ in range(n):
            model.collect_rollouts(
                model.env,  # type: ignore[arg-type]
                callback,
                model.train_freq,  # type: ignore[arg-type]
                model.replay_buffer,  # type: ignore[arg-type]
                learning_starts=model.learning_starts,
                log_interval=None,
            )
            model.train(gradient_steps=1, batch_size=model.batch_size)

    warm_up = partial(model.learn, WARM_UP, log_interval=None)  # type: ignore[arg-type]
    return Learner(warm_up, steps, partial(gradient_steps, model, 1))


def _baseline(algorithm: Callable[..., OffPolicyAlgorithm], fused: bool, network: dict[str, Any], seed: int) -> Learner:
    return as_learner(make_model(algorithm, {"net_arch": [WIDTH] * 3, **network}, fused, seed))


def _ours(fused: bool, arguments: dict[str, Any], seed: int) -> Learner:
    return as_learner(make_ours(fused=fused, seed=seed, **arguments))


def learner_cases() -> dict[str, Make]:
    """
    :return: makers of the learners, by name, each with torch's plain and with its fused Adam
    """
    ensemble: dict[str, Any] = {"n_heads": N_HEADS}
    cases: dict[str, Make] = {}
    for adam, fused in (("plain", False), ("fused", True)):
        cases[f"SB3 DQN, {adam}"] = partial(_baseline, DQN, fused, {})
        cases[f"QR-DQN(8), {adam}"] = partial(_baseline, QRDQN, fused, {"n_quantiles": N_QUANTILES})
        cases[f"IQN, {adam}"] = partial(_ours, fused, {})
        cases[f"ORAIQN(10), {adam}"] = partial(_ours, fused, ensemble)
        cases[f"Composite(10), {adam}"] = partial(_ours, fused, {**ensemble, "risk_adapter": "composite"})
    return cases
