"""
A distortion of returns and a measure of epistemic risk of your own.

Both are small objects without state: one maps quantile fractions, the other is a function on [0, 1].

    python examples/custom_distortion_and_measure.py
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import ORAIQN
from sb3_ora.checks import check_number
from sb3_ora.risk import Distortion, EpistemicMeasure


class TrimmedMean(Distortion):
    """
    Mean of the middle part of the return, which ignores both tails: ``beta(tau) = 1/2 + level * (tau - 1/2)``.
    The level is the share that is kept; 1 is the mean.
    """

    def distort(self, taus: th.Tensor, level: float | th.Tensor) -> th.Tensor:
        return 0.5 + level * (taus - 0.5)

    def check_level(self, level: float) -> None:
        check_number("risk_level", level, 0, 1, open_low=True)


class MeanAndWorst(EpistemicMeasure):
    """
    ``alpha`` times the mean of the heads plus ``1 - alpha`` times the worst head; the mean at ``alpha = 1``.

    ``distortion`` acts on the survival function of the loss: the step at 0 is the weight of the worst head.
    """

    def distortion(self, u: np.ndarray, alpha: float | np.ndarray) -> np.ndarray:
        return alpha * u + (1.0 - alpha) * (u > 0.0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train ORAIQN with a distortion and a measure of your own on CartPole-v1.")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of training")
    args = parser.parse_args(arguments)

    heads = th.tensor([3.0, 1.0, 2.0, 6.0])
    for alpha in (0.1, 0.5, 1.0):
        print(f"heads {heads.tolist()} at alpha {alpha}: {MeanAndWorst()(heads, alpha):.2f}")

    th.set_num_threads(1)
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=8, seed=0), norm_reward=False)
    model = ORAIQN(
        "MlpPolicy",
        env,
        learning_rate=LinearSchedule(2e-3, 0.0, 1.0),
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=64,
        tau=0.02,
        train_freq=4,
        gradient_steps=8,
        n_steps=3,
        target_update_interval=8,
        exploration_fraction=0.16,
        exploration_final_eps=0.1,
        policy_kwargs={"net_arch": [128], "head_arch": [32], "optimizer_kwargs": {"eps": 1e-8}},
        distortion=TrimmedMean(),
        risk_level=0.8,
        epistemic_measure=MeanAndWorst(),
        seed=0,
        verbose=1,
    )
    model.learn(args.steps, log_interval=50)
    env.training = False  # keep the statistics of the observations
    mean, std = evaluate_policy(model, env, n_eval_episodes=20)
    print(f"mean return over 20 episodes: {mean:.1f} +/- {std:.1f}")


if __name__ == "__main__":
    main()
