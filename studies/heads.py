"""
What the heads have to themselves against how far they disagree where there is no data.

An ensemble is of use if its disagreement stays much larger there than where there is data. Measured in the states of a chain
of one-hot states, half of which is never visited, after 1000 updates on the visited half, over seeds. Prints a table and
writes ``studies/results/heads.csv``. (``studies/ablation.yml`` has what the heads do to the return on CartPole-v1.)

    python studies/heads.py --seeds 5
"""

import argparse
import csv
from pathlib import Path
from statistics import median

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb3_ora import ORAIQN
from sb3_ora.risk import left_truncated_variance

RESULTS = Path(__file__).parent / "results" / "heads.csv"
N_VISITED = 5
#: keys of ``policy_kwargs``
ARCHITECTURES: dict[str, dict] = {
    "none": {"head_arch": []},
    "32": {"head_arch": [32]},
    "64": {"head_arch": [64]},
    "64-64": {"head_arch": [64, 64]},
    "32-prior": {"head_arch": [32], "prior_scale": 1.0},
    "32-bootstrap": {"head_arch": [32], "bootstrap_p": 0.5},
    "32-independent": {"head_arch": [32], "independent_heads": True},
}


class HalfSeenChain(gym.Env):
    """
    States 0 ... 9, one-hot; action 1 moves on, action 0 goes back to the start, which pays 0.02. Moving on from state 4
    pays 1 and ends the episode, so that states 5 ... 9 are never seen.
    """

    observation_space = spaces.Box(0, 1, (2 * N_VISITED,))
    action_space = spaces.Discrete(2)

    def _observation(self) -> np.ndarray:
        return np.eye(2 * N_VISITED, dtype=np.float32)[self.state % N_VISITED]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.state = self.state + 1 if action == 1 else 0
        done = self.state == N_VISITED
        reward = 1.0 if done else (0.0 if action == 1 else 0.02)
        return self._observation(), reward, done, self.steps >= 20, {}


def chain_spread(architecture: dict, seed: int, n_rounds: int = 40) -> tuple[float, float, float]:
    """
    :param architecture: keys of ``policy_kwargs``
    :param seed: seed of the network and of the batches
    :param n_rounds: how many times 25 updates are made, and the target network set to the online one
    :return: LTV before training, in visited states after it, and in states never visited
    """
    policy_kwargs = {"net_arch": [64], "optimizer_kwargs": {"eps": 1e-8}, **architecture}
    model = ORAIQN(
        "MlpPolicy", HalfSeenChain(), learning_rate=1e-3, buffer_size=400, learning_starts=400, gamma=0.9, seed=seed,
        policy_kwargs=policy_kwargs, device="cpu",
    )  # fmt: skip

    def spread() -> np.ndarray:
        values = model.policy.epistemic_values(th.eye(2 * N_VISITED)).detach().numpy()  # (K, S, A)
        return left_truncated_variance(values.transpose(1, 2, 0)).mean(axis=1)  # (S,)

    before = spread()
    model.learn(400)
    for _ in range(n_rounds):
        model.train(25, batch_size=32)
        model.quantile_net_target.load_state_dict(model.quantile_net.state_dict())
    after = spread()
    return float(before.mean()), float(after[:N_VISITED].mean()), float(after[N_VISITED:].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    th.set_num_threads(1)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["architecture", "seed", "ltv_start", "ltv_visited", "ltv_unvisited"])
        for name, architecture in ARCHITECTURES.items():
            found = [chain_spread(architecture, seed) for seed in range(args.seeds)]
            writer.writerows([name, seed, *(f"{value:.4g}" for value in row)] for seed, row in enumerate(found))
            ratios = [unvisited / visited for _, visited, unvisited in found]
            print(
                f"{name:16} LTV unvisited over visited: median {median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})"
            )


if __name__ == "__main__":
    main()
