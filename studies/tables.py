"""
Prints what ``studies/learning.py`` measured as Markdown.

    python studies/tables.py --label learning
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

RESULTS = Path(__file__).parent / "results"
#: Return from which a task counts as solved
TARGETS = {"CartPole-v1": 475, "Acrobot-v1": -100, "LunarLander-v3": 200, "MountainCar-v0": -110}


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """
    :param values: one number for each seed
    :return: 95 % bootstrap interval of their mean; the mean itself twice where they are all equal
    """
    if len(values) < 2 or np.ptp(values) == 0:
        return float(values.mean()), float(values.mean())
    interval = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return float(interval.low), float(interval.high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", default="learning", help="name of the results, as in --log-folder of learning.py")
    args = parser.parse_args()
    results = pd.read_csv(RESULTS / f"{args.label}.csv")
    print("| environment | algorithm | steps | seeds | mean return [95 % interval] | worst seed | solved | minutes a seed |")
    print("|---|---|---|---|---|---|---|---|")
    for (env, algo), runs in results.groupby(["env", "algo"], sort=False):
        returns = runs["mean_return"].to_numpy()
        low, high = mean_interval(returns)
        solved = f"{(returns >= TARGETS[env]).sum()} of {len(returns)} (≥ {TARGETS[env]})" if env in TARGETS else ""
        minutes = runs["train_seconds"].median() / 60
        print(
            f"| {env} | `{algo}` | {runs['n_timesteps'].iloc[0]:,} | {len(returns)} | {returns.mean():.1f} "
            f"[{low:.1f}, {high:.1f}] | {returns.min():.1f} | {solved} | {minutes:.1f} |"
        )
    adapted = results.dropna(subset=["adapted_first"])
    if len(adapted):
        print("\n| environment | algorithm | seed | share of steps with alpha below alpha_max, in each third of training |")
        print("|---|---|---|---|")
        for row in adapted.itertuples():
            thirds = ", ".join(f"{getattr(row, f'adapted_{third}'):.0%}" for third in ("first", "middle", "last"))
            print(f"| {row.env} | `{row.algo}` | {row.seed} | {thirds} |")


if __name__ == "__main__":
    main()
