"""
Does it cost anything that transitions share their random fractions, four at a time?

A bandit with a safe arm that pays 1 and a gamble that pays -10 with probability 0.1 and else 2.78 (mean 1.5): how far IQN's
CVaR at level 0.1 of the gamble, which is -10, and its mean are off after 400 gradient steps, over seeds, with fractions
drawn as the loss draws them, independently for each transition, and once for the whole batch. Prints a table and writes
``studies/results/shared_fractions.csv``.

    python studies/shared_fractions.py --seeds 20
"""

import argparse
import csv
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb3_ora import IQN

RESULTS = Path(__file__).parent / "results" / "shared_fractions.csv"
LOSS, WIN, CHANCE, SAFE = -10.0, 25 / 9, 0.1, 1.0


class Gamble(gym.Env):
    """One step: action 0 is safe, 1 gambles."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, dtype=np.float32), {}

    def step(self, action):
        gambled = LOSS if self.np_random.random() < CHANCE else WIN
        return np.ones(1, dtype=np.float32), gambled if action == 1 else SAFE, True, False, {}


class Independent(IQN):
    """Fractions of its own for each transition, as in the IQN paper."""

    def _draw_taus(self, n: int, batch_size: int) -> th.Tensor:
        return th.rand(batch_size, n)


class OneForAll(IQN):
    """The same fractions for the whole batch."""

    def _draw_taus(self, n: int, batch_size: int) -> th.Tensor:
        return (th.arange(n) + th.rand(1, n)) / n


DRAWS = {"four share, equally spaced": IQN, "independent": Independent, "one for all": OneForAll}


def errors(learner: type[IQN], seed: int) -> tuple[float, float]:
    """
    :param learner: how it draws fractions
    :param seed: of the run
    :return: how far CVaR at 0.1 and mean of the gamble are off
    """
    model = learner(
        "MlpPolicy", Gamble(), learning_rate=0.01, buffer_size=1000, learning_starts=1000, batch_size=64,
        policy_kwargs={"net_arch": [64], "head_arch": [], "optimizer_kwargs": {"eps": 1e-8}}, seed=seed, device="cpu",
    )  # fmt: skip
    model.learn(1000)
    model.train(400, batch_size=64)
    with th.no_grad():
        grid = (th.arange(1000) + 0.5).unsqueeze(0) / 1000
        tail, mean = (model.quantile_net(th.ones(1, 1), level * grid)[0, 0, :, 1].mean().item() for level in (0.1, 1.0))
    buffer = model.replay_buffer
    assert buffer is not None
    paid = buffer.rewards[buffer.actions[..., 0] == 1]
    return tail - LOSS, mean - float(paid.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    th.set_num_threads(1)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["fractions", "seed", "error_cvar", "error_mean"])
        for name, learner in DRAWS.items():
            found = np.array([errors(learner, seed) for seed in range(args.seeds)])
            writer.writerows([name, seed, *row] for seed, row in enumerate(found.round(4)))
            tail, mean = np.sqrt((found**2).mean(axis=0))
            print(f"{name:28} root mean square error of CVaR {tail:.2f}, of the mean {mean:.2f}")


if __name__ == "__main__":
    main()
