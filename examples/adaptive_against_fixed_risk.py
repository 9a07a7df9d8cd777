"""
Adaptive against fixed epistemic risk on a small risky task.

Trains ORAIQN with alpha adapting between 0.1 and 1, fixed at 0.1 and fixed at 1, with several seeds each, and draws
how often an episode ends at the goal, and the alpha that was acted on. Each run's numbers are in a ``progress.csv``.
The gusts are a risk of the returns (aleatory), whereas alpha acts on the disagreement of the heads: it makes the agent careful
where little is known, not where gusts are. For that, give ``distortion="cvar"`` and a ``risk_level``.

    python examples/adaptive_against_fixed_risk.py --output logs/ledge
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.logger import configure

from sb3_ora import ORAIQN

SETTINGS: dict[str, dict[str, float]] = {
    "adaptive": {"alpha_min": 0.1, "alpha_max": 1.0},
    "fixed at 0.1": {"alpha_min": 0.1, "alpha_max": 0.1},
    "fixed at 1": {"alpha_min": 1.0, "alpha_max": 1.0},
}
CURVES = {"rollout/success_rate": "episodes that reach the goal", "rollout/ep_rew_mean": "return", "risk/alpha_mean": "alpha"}


class LedgeEnv(gym.Env[np.ndarray, np.int64]):
    """
    A walk along a ledge. The start is the lower left corner of a grid, the goal the lower right one (reward 1), and
    between them lies a drop (reward -1); both end the episode. In each step a gust carries the walker one row down with
    probability 0.1, so the short way along the edge is the dangerous one.

    The observation is the row and the column, each divided by its largest value; actions are up, right, down, left.
    """

    n_rows, n_columns = 3, 5
    moves = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])

    def __init__(self, gust: float = 0.1):
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self.gust = gust
        self.limits = np.array([self.n_rows, self.n_columns]) - 1

    def observation(self) -> np.ndarray:
        return (self.position / self.limits).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = np.array([self.n_rows - 1, 0])
        return self.observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        position = self.position + self.moves[action]
        position[0] += self.np_random.random() < self.gust
        self.position = np.clip(position, 0, self.limits)
        row, column = self.position
        at_goal = bool(row == self.n_rows - 1 and column == self.n_columns - 1)
        fell = bool(row == self.n_rows - 1 and 0 < column < self.n_columns - 1)
        reward = float(at_goal) - float(fell)
        return self.observation(), reward, at_goal or fell, False, {"is_success": at_goal}


def train(setting: str, seed: int, n_steps: int, folder: Path) -> pd.DataFrame:
    """
    :param setting: one of ``SETTINGS``
    :param seed: seed of the run
    :param n_steps: environment steps
    :param folder: where ``progress.csv`` goes
    :return: what was logged
    """
    model = ORAIQN(
        "MlpPolicy",
        gym.wrappers.TimeLimit(LedgeEnv(), max_episode_steps=40),
        learning_rate=1e-3,
        buffer_size=20_000,
        learning_starts=100,
        batch_size=64,
        gamma=0.95,
        target_update_interval=250,
        exploration_fraction=0.3,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [64], "head_arch": [32]},
        seed=seed,
        **SETTINGS[setting],  # type: ignore[arg-type]
    )
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(n_steps, log_interval=10)
    return pd.read_csv(folder / "progress.csv")


def draw(logs: dict[str, list[pd.DataFrame]], n_steps: int, path: Path) -> None:
    """
    Draw the mean over the seeds, and the range from the lowest to the highest.

    :param logs: what each setting's runs have logged
    :param n_steps: environment steps of a run
    :param path: where to save the figure
    """
    figure, axes = plt.subplots(1, len(CURVES), figsize=(4 * len(CURVES), 3.2), layout="constrained")
    steps = np.linspace(0, n_steps, 100)
    for axis, (name, label) in zip(axes, CURVES.items(), strict=True):
        for setting, runs in logs.items():
            known = [run[["time/total_timesteps", name]].dropna() for run in runs]
            curves = np.array([np.interp(steps, run["time/total_timesteps"], run[name]) for run in known])  # (runs, 100)
            axis.plot(steps, curves.mean(axis=0), label=setting)
            axis.fill_between(steps, curves.min(axis=0), curves.max(axis=0), alpha=0.2)
        axis.set(xlabel="environment steps", ylabel=label)
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Adaptive against fixed epistemic risk on a small risky task.")
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of each run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each setting")
    parser.add_argument("--output", type=Path, default=Path("logs/ledge"), help="folder for the logs and ledge.png")
    args = parser.parse_args(arguments)

    th.set_num_threads(1)
    logs: dict[str, list[pd.DataFrame]] = {}
    for setting in SETTINGS:
        folder = args.output / setting.replace(" ", "_")
        logs[setting] = [train(setting, seed, args.steps, folder / str(seed)) for seed in range(args.seeds)]
        last = [run["rollout/success_rate"].dropna().iloc[-1] for run in logs[setting]]
        print(f"{setting}: {np.mean(last):.0%} of the last 100 episodes reach the goal ({min(last):.0%} to {max(last):.0%})")
    draw(logs, args.steps, args.output / "ledge.png")
    print(f"saved {args.output / 'ledge.png'}")


if __name__ == "__main__":
    main()
