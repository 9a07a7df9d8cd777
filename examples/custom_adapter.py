"""
A risk adapter of your own: alpha falls where the heads disagree more than usual.

An ``EnsembleAdapter`` collects the visited pairs of a state and an action and hands them over after each parameter
update. What is left to write is how they change the table of alpha, and what has to be saved with the model.

    python examples/custom_adapter.py
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import ORAIQN
from sb3_ora.adapters import EnsembleAdapter
from sb3_ora.risk import left_truncated_variance


class DisagreementAdapter(EnsembleAdapter):
    """
    Sets ``alpha = alpha_max - (alpha_max - alpha_min) * s / (s + typical)``, where ``s`` is the spread of the worse half
    of the heads and ``typical`` its running mean over all visits.

    :param rate: how fast the running mean forgets
    :param verbose: verbosity level
    """

    def __init__(self, rate: float = 0.01, verbose: int = 0):
        super().__init__(verbose)
        self.rate = rate

    def _bind(self) -> None:
        super()._bind()  # settles self.options, such as alpha_min, and self.grid
        self.typical = 0.0

    def _compare(self, keys: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        spreads = np.sqrt(left_truncated_variance(after))  # (P,)
        mean = float(spreads.mean())
        self.typical = mean if self.typical == 0.0 else self.typical + self.rate * (mean - self.typical)
        caution = spreads / np.maximum(spreads + self.typical, 1e-12)  # (P,), between 0 and 1
        low, high = self.options["alpha_min"], self.options["alpha_max"]
        table = self.model.policy.risk.table
        assert table is not None
        rows = table.rows(keys)  # first, as it may move the column that the next line writes to
        table.alpha[rows] = high - (high - low) * caution

    def record(self) -> None:
        super().record()  # risk/alpha_mean and so on
        self.model.logger.record("risk/typical_spread", self.typical)

    def learned_state(self) -> dict[str, Any]:
        return {"typical": self.typical}  # tensors and plain values only; the table is saved with the policy

    def load_learned_state(self, state: dict[str, Any]) -> None:
        self.typical = state["typical"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train ORAIQN with an adapter of your own on CartPole-v1.")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of training")
    args = parser.parse_args(arguments)

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
        risk_adapter=DisagreementAdapter(),
        seed=0,
        verbose=1,
    )
    model.learn(args.steps, log_interval=50)
    env.training = False  # keep the statistics of the observations
    mean, std = evaluate_policy(model, env, n_eval_episodes=20)
    print(f"mean return over 20 episodes: {mean:.1f} +/- {std:.1f}")


if __name__ == "__main__":
    main()
