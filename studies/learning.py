"""
Trains over seeds with the hyperparameters of ``hyperparams/*.yml`` through rl-zoo3 and evaluates the final models greedily.

    python studies/learning.py --algo ora_iqn --env CartPole-v1 --seeds 0 1 2 3 4 5 6 7 8 9 --jobs 2

A seed runs in a process of its own, with one torch thread and the settings of ``python -m rl_zoo3.train --seed SEED``.
Results go to ``studies/results``: ``learning.csv`` has a row for each seed, ``curves/`` a file for each seed.
"""

import argparse
import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import numpy as np

RESULTS = Path(__file__).parent / "results"
COLUMNS = [
    "algo",
    "env",
    "seed",
    "n_timesteps",
    "mean_return",
    "std_return",
    "episodes",
    "train_seconds",
    *(f"adapted_{third}" for third in ("first", "middle", "last")),
]


def append_rows(path: Path, columns: list[str], rows: Iterable[list], n_keys: int = 0) -> None:
    """
    :param path: CSV file, created with a header if it is not there; several processes may append to it
    :param columns: its header
    :param rows: what to append
    :param n_keys: so many of the first columns say what a row is of; rows of the same are replaced. 0 replaces none
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(rows)
    keys = {tuple(map(str, row[:n_keys])) for row in rows} if n_keys else set()
    with filelock.FileLock(f"{path}.lock"):
        kept = (
            [row for row in csv.reader(path.open(newline="")) if tuple(row[:n_keys]) not in keys]
            if path.exists()
            else [columns]
        )
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([*kept, *rows])


def run_cell(algo: str, env_id: str, seed: int, episodes: int, log_folder: str, hyperparams: dict) -> None:
    """
    Train one seed and write its results.

    :param algo: name of the algorithm in rl-zoo3
    :param env_id: environment
    :param seed: seed of the training; the evaluation has another one
    :param episodes: how many episodes the final model plays greedily
    :param log_folder: where rl-zoo3 logs
    :param hyperparams: hyperparameters that differ from the YAML file
    """
    import torch as th
    from rl_zoo3.exp_manager import ExperimentManager
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.utils import set_random_seed
    from stable_baselines3.common.vec_env import sync_envs_normalization

    import sb3_ora.zoo

    sb3_ora.zoo.register()
    th.set_num_threads(1)
    set_random_seed(seed)

    class Watch(BaseCallback):
        """Keeps the risk level of every step and, now and then, the spread of the heads."""

        def __init__(self) -> None:
            super().__init__()
            self.adapted: list[float] = []
            self.alphas: list[float] = []
            self.curve: list[list] = []

        def _on_step(self) -> bool:
            adapter = self.model.adapter  # type: ignore[attr-defined]
            if hasattr(adapter, "ltv") and self.model._acting is not None:  # type: ignore[attr-defined]
                alphas = self.model._acting_alphas  # type: ignore[attr-defined]
                self.adapted.append(float(np.mean(alphas < adapter.grid[-1] - 1e-9)))
                self.alphas.append(float(alphas.mean()))
                if len(self.alphas) % 100 == 0:
                    self.curve.append([self.num_timesteps, np.mean(self.alphas[-100:]), adapter.ltv])
            return True

    arguments = argparse.Namespace(num_threads=1, algo=algo, env=env_id, seed=seed, env_kwargs=None)
    manager = ExperimentManager(
        arguments, algo, env_id, log_folder, eval_freq=5000, n_eval_episodes=10, n_eval_envs=5, seed=seed, device="cpu",
        hyperparams=hyperparams or None, verbose=0, log_interval=-2,
    )  # fmt: skip
    model, _ = manager.setup_experiment()  # type: ignore[misc]
    watch = Watch()
    manager.callbacks.append(watch)
    start = time.monotonic()
    manager.learn(model)
    seconds = time.monotonic() - start
    manager.save_trained_model(model)

    env = manager.create_envs(n_envs=10, eval_env=True, no_log=True)
    assert model.env is not None
    sync_envs_normalization(model.env, env)
    env.seed(1_000_000 + seed)
    returns, _ = evaluate_policy(model, env, episodes, return_episode_rewards=True)
    thirds = [f"{np.mean(part):.4f}" if len(part) else "" for part in np.array_split(watch.adapted, 3)]
    row = [
        algo,
        env_id,
        seed,
        manager.n_timesteps,
        float(np.mean(returns)),
        round(float(np.std(returns)), 2),
        episodes,
        round(seconds),
        *thirds,
    ]
    label = Path(log_folder).name
    append_rows(RESULTS / f"{label}.csv", COLUMNS, [row], n_keys=3)
    print(dict(zip(COLUMNS, row, strict=True)), flush=True)

    evaluations = np.load(os.path.join(manager.save_path, "evaluations.npz"))
    steps, returns = evaluations["timesteps"], evaluations["results"].mean(axis=1)
    curve = [["return", int(step), float(mean), ""] for step, mean in zip(steps, returns, strict=True)]
    curve += [["risk", int(step), f"{alpha:.4f}", f"{ltv:.5g}"] for step, alpha, ltv in watch.curve]
    path = RESULTS / "curves" / label / f"{algo}_{env_id.replace('/', '-')}_{seed}.csv"
    path.unlink(missing_ok=True)
    append_rows(path, ["what", "step", "return_or_alpha", "ltv"], curve)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--jobs", type=int, default=1, help="seeds that run at once")
    parser.add_argument("--episodes", type=int, default=100, help="greedy episodes of the final model")
    parser.add_argument("--log-folder", default="logs/learning", help="rl-zoo3's; its name is that of the results file")
    parser.add_argument("--hyperparams", default="{}", help="Python dict of what differs from the YAML file")
    parser.add_argument("--cell", action="store_true", help="run the one seed in this process")
    args = parser.parse_args()
    if args.cell:
        run_cell(args.algo, args.env, args.seeds[0], args.episodes, args.log_folder, eval(args.hyperparams))
        return

    def run(seed: int) -> int:
        command = [sys.executable, __file__, "--algo", args.algo, "--env", args.env, "--seeds", str(seed), "--cell"]
        command += ["--episodes", str(args.episodes), "--log-folder", args.log_folder, "--hyperparams", args.hyperparams]
        return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode

    with ThreadPoolExecutor(args.jobs) as pool:
        failed = [seed for seed, code in zip(args.seeds, pool.map(run, args.seeds), strict=True) if code]
    if failed:
        sys.exit(f"failed: seeds {failed}")


if __name__ == "__main__":
    main()
