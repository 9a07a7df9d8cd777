"""
Speed of IQN and ORAIQN beside Stable-Baselines3's DQN and sb3-contrib's QR-DQN, and of environments, on one CPU thread.

``python -m benchmarks`` prints, for each learner, the median time of a gradient step, and of an environment step on
CartPole-v1 with its gradient step (that is: action, ``env.step``, replay buffer, gradient step, risk adaptation), and
the ratios to DQN's. ``--quick`` takes a few seconds.

Then it prints environment steps per second of the Nano Drone in its different forms, and the ratios to CartPole-v1's.
``--part learners`` and ``--part environments`` leave the other out.

All learners have a batch of 64, two layers of 128 units (ORAIQN: 128, and 10 heads of 64) and Adam; QR-DQN has as many
quantiles as IQN acts on (32). They take turns, so that a busy machine slows all of them alike.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks.environments import print_environments
from sb3_ora import IQN, ORAIQN

BATCH = 64
NEVER = 10**9
LEARNERS: dict[str, tuple[Callable[..., OffPolicyAlgorithm], dict[str, Any]]] = {
    "DQN": (DQN, {"net_arch": [128, 128]}),
    "QRDQN": (QRDQN, {"net_arch": [128, 128], "n_quantiles": 32}),
    "IQN": (IQN, {"net_arch": [128], "head_arch": [128]}),
    "ORAIQN": (ORAIQN, {"net_arch": [128], "head_arch": [64]}),
}


def make(name: str) -> OffPolicyAlgorithm:
    """
    :param name: name of a learner
    :return: the learner, after 1000 random steps, which fill its replay buffer and are not followed by gradient steps
    """
    learner, policy_kwargs = LEARNERS[name]
    model = learner(
        "MlpPolicy",
        "CartPole-v1",
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=BATCH,
        train_freq=1,
        exploration_fraction=1e-6,
        policy_kwargs={"optimizer_class": th.optim.Adam, **policy_kwargs},
        seed=0,
        device="cpu",
    )
    model.learn(1_000, log_interval=NEVER)
    return model


def gradient_steps(model: OffPolicyAlgorithm, n: int) -> None:
    """
    :param model: a learner
    :param n: number of gradient steps to take
    """
    model.train(gradient_steps=n, batch_size=BATCH)


def environment_steps(model: OffPolicyAlgorithm, n: int) -> None:
    """
    :param model: a learner
    :param n: number of environment steps to take, each followed by a gradient step and what the learner adapts then
    """
    model.learn(n, log_interval=NEVER, reset_num_timesteps=False)


Run = Callable[[OffPolicyAlgorithm, int], None]


def measure(run: Run, models: list[OffPolicyAlgorithm], n: int, rounds: int) -> list[float]:
    """
    :param run: what to time, takes a learner and a number of steps
    :param models: the learners, which take turns
    :param n: steps per turn
    :param rounds: turns, after one that is not timed
    :return: median time per step in microseconds, for each learner
    """
    times: list[list[float]] = [[] for _ in models]
    for _ in range(rounds + 1):
        for model, results in zip(models, times, strict=True):
            start = time.perf_counter()
            run(model, n)
            results.append(1e6 * (time.perf_counter() - start) / n)
    return [median(results[1:]) for results in times]


def print_learners(quick: bool) -> None:
    """
    :param quick: whether a few steps are enough
    """
    n, rounds = (20, 3) if quick else (200, 21)
    models = [make(name) for name in LEARNERS]
    gradients = measure(gradient_steps, models, n, rounds)
    steps = measure(environment_steps, models, n, rounds)
    print(f"{'':8}{'gradient step':>24}{'environment + gradient step':>30}")
    for name, gradient, step in zip(LEARNERS, gradients, steps, strict=True):
        print(f"{name:8}{gradient:12.0f} us {gradient / gradients[0]:6.2f} x {step:18.0f} us {step / steps[0]:6.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="few steps: shows that it works, not how fast")
    parser.add_argument("--part", choices=("learners", "environments"), help="only this part")
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.part != "environments":
        print_learners(args.quick)
    if args.part != "learners":
        print_environments(args.quick)


if __name__ == "__main__":
    main()
