"""
What the heads have to themselves against how far they disagree, and what that does to the return.

    python -m studies.heads --seeds 0
    python -m studies.heads --seeds 1 2 3 4 --n-timesteps 0

Two measurements of each architecture, over seeds, written to ``studies/results/heads.csv``:

- the disagreement (LTV) of the heads in the states of a chain of one-hot states, half of which is never visited, after
  1000 updates on the visited half: an ensemble is of use if it stays much larger where there is no data;
- CartPole-v1 with its hyperparameters and fewer steps: the greedy return, and the disagreement during training.
"""

import argparse
import csv
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from studies.learning import RESULTS, append_rows

#: keys of ``policy_kwargs``
ARCHITECTURES: dict[str, dict] = {
    "none": {"head_arch": []},
    "32": {"head_arch": [32]},
    "64": {"head_arch": [64]},
    "64-64": {"head_arch": [64, 64]},
    "32-prior": {"head_arch": [32], "prior_scale": 1.0},
    "32-independent": {"head_arch": [32], "independent_heads": True},
}
COLUMNS = ["architecture", "seed", "ltv_start", "ltv_visited", "ltv_unvisited", "mean_return", "ltv_cartpole", "train_seconds"]


class HalfSeenChain(gym.Env):
    """
    States 0 ... 9, one-hot; action 1 moves on, action 0 goes back to the start, which pays 0.02. Moving on from state 4
    pays 1 and ends the episode, so that states 5 ... 9 are never seen.
    """

    observation_space = spaces.Box(0, 1, (10,))
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.steps = 0
        return np.eye(10, dtype=np.float32)[0], {}

    def step(self, action):
        self.steps += 1
        self.state = self.state + 1 if action == 1 else 0
        done = self.state == 5
        reward = 1.0 if done else (0.0 if action == 1 else 0.02)
        return np.eye(10, dtype=np.float32)[self.state % 5], reward, done, self.steps >= 20, {}


def chain_spread(architecture: dict, seed: int) -> list[float]:
    """
    :param architecture: keys of ``policy_kwargs``
    :param seed: seed of the network and of the batches
    :return: LTV before training, in visited states after it, and in states never visited
    """
    import torch as th

    from sb3_ora import ORAIQN
    from sb3_ora.risk import left_truncated_variance

    th.set_num_threads(1)
    policy_kwargs = {"net_arch": [64], "optimizer_kwargs": {"eps": 1e-8}, **architecture}
    model = ORAIQN(
        "MlpPolicy", HalfSeenChain(), learning_rate=1e-3, buffer_size=400, learning_starts=400, gamma=0.9, seed=seed,
        policy_kwargs=policy_kwargs, device="cpu",
    )  # fmt: skip

    def spread() -> np.ndarray:
        values = model.policy.epistemic_values(th.eye(10)).detach().numpy()  # (K, S, A)
        return left_truncated_variance(values.transpose(1, 2, 0)).mean(axis=1)  # (S,)

    before = spread()
    model.learn(400)
    for _ in range(40):
        model.train(25, batch_size=32)
        model.quantile_net_target.load_state_dict(model.quantile_net.state_dict())
    after = spread()
    return [float(before.mean()), float(after[:5].mean()), float(after[5:].mean())]


def cartpole(name: str, architecture: dict, seed: int, n_timesteps: int) -> list[float]:
    """
    :param name: name of the architecture
    :param architecture: keys of ``policy_kwargs``
    :param seed: seed of the training
    :param n_timesteps: length of the training
    :return: mean greedy return, mean LTV of the visited pairs in the last third of training, seconds
    """
    label = f"heads_{name}"
    hyperparams = {
        "n_timesteps": n_timesteps,
        "policy_kwargs": f"dict(net_arch=[128], optimizer_kwargs=dict(eps=1e-8), **{architecture})",
    }
    command = [sys.executable, str(Path(__file__).with_name("learning.py")), "--algo", "ora_iqn", "--env", "CartPole-v1"]
    command += ["--seeds", str(seed), "--cell", "--log-folder", f"logs/{label}", "--hyperparams", repr(hyperparams)]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.DEVNULL)
    with (RESULTS / f"{label}.csv").open() as file:
        row = [row for row in csv.DictReader(file) if row["seed"] == str(seed)][-1]
    with (RESULTS / "curves" / label / f"ora_iqn_CartPole-v1_{seed}.csv").open() as file:
        ltv = [float(row["ltv"]) for row in csv.DictReader(file) if row["what"] == "risk"]
    return [float(row["mean_return"]), float(np.mean(ltv[-len(ltv) // 3 :])), float(row["train_seconds"])]


def run(name: str, seed: int, n_timesteps: int) -> None:
    """
    :param name: name of the architecture
    :param seed: seed of both measurements
    :param n_timesteps: length of the training on CartPole-v1; 0 for none
    """
    architecture = ARCHITECTURES[name]
    row = chain_spread(architecture, seed)
    if n_timesteps:
        row += cartpole(name, architecture, seed, n_timesteps)
    cells = [f"{value:.4g}" for value in row] + [""] * (len(COLUMNS) - 2 - len(row))
    append_rows(RESULTS / "heads.csv", COLUMNS, [[name, seed, *cells]], n_keys=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="cells that run at once")
    parser.add_argument("--n-timesteps", type=int, default=25_000, help="length of a CartPole-v1 training, 0 for none")
    args = parser.parse_args()

    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        cells = [pool.submit(run, name, seed, args.n_timesteps) for seed in args.seeds for name in ARCHITECTURES]
        for cell in cells:
            cell.result()


if __name__ == "__main__":
    main()
