"""
Draws what ``studies/learning.py`` left: evaluation returns of each algorithm, and the risk level and spread of ORAIQN.

    python studies/plot_learning.py --env CartPole-v1 --output docs/images
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

RESULTS = Path(__file__).parent / "results"
# Colour (Okabe and Ito) and line style of each algorithm, the same in every figure
STYLES = {
    "ora_iqn": ("ORAIQN", "#D55E00", "-"),
    "iqn": ("IQN", "#0072B2", "--"),
    "art_iqn": ("ARTIQN", "#009E73", "-."),
    "top_iqn": ("TOPIQN", "#CC79A7", ":"),
}


def read_curves(folder: Path, algo: str, env_id: str, what: str) -> pd.DataFrame:
    """
    :param folder: folder of the curves
    :param algo: name of the algorithm in rl-zoo3
    :param env_id: environment
    :param what: "return" or "risk"
    :return: rows of all seeds with columns step, return_or_alpha, ltv and seed
    """
    files = sorted(folder.glob(f"{algo}_{env_id.replace('/', '-')}_*.csv"))
    frames = [pd.read_csv(file).assign(seed=int(file.stem.rsplit("_", 1)[1])) for file in files]
    curves = pd.concat(frames) if frames else pd.DataFrame(columns=["what", "step", "return_or_alpha", "ltv", "seed"])
    return curves[curves["what"] == what]


def draw_band(axis: plt.Axes, curves: pd.DataFrame, column: str, label: str, color: str, style: str) -> None:
    """
    Mean over seeds, and the band between their 5 and 95 % quantiles.

    :param axis: where to draw
    :param curves: rows of all seeds
    :param column: what to draw
    :param label: name in the legend, followed by the number of seeds
    :param color: colour
    :param style: line style
    """
    by_step = curves.groupby("step")[column]
    mean, low, high = by_step.mean(), by_step.quantile(0.05), by_step.quantile(0.95)
    axis.plot(mean.index, mean, style, color=color, label=f"{label} ({curves['seed'].nunique()} seeds)")
    axis.fill_between(mean.index, low, high, color=color, alpha=0.15, linewidth=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True)
    parser.add_argument("--label", default="learning", help="name of the results, as in --log-folder of learning.py")
    parser.add_argument("--output", type=Path, required=True, help="folder of the pictures")
    args = parser.parse_args()
    folder = RESULTS / "curves" / args.label
    args.output.mkdir(parents=True, exist_ok=True)

    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for algo, style in STYLES.items():
        curves = read_curves(folder, algo, args.env, "return")
        if len(curves):
            draw_band(axis, curves, "return_or_alpha", *style)
    axis.set(xlabel="environment steps", ylabel="return of 10 greedy episodes", title=args.env)
    axis.legend(frameon=False)
    figure.savefig(args.output / "training.png", dpi=150)

    curves = read_curves(folder, "ora_iqn", args.env, "risk")
    figure, (above, below) = plt.subplots(2, 1, figsize=(6, 4.2), sharex=True, layout="constrained")
    for axis, column, label in ((above, "return_or_alpha", "risk level alpha"), (below, "ltv", "LTV of the heads")):
        draw_band(axis, curves, column, *STYLES["ora_iqn"])
        axis.set_ylabel(label)
    above.set_title(f"ORAIQN on {args.env}")
    above.set_ylim(0, 1.05)
    below.set_yscale("log")
    below.set_xlabel("environment steps")
    above.legend(frameon=False)
    figure.savefig(args.output / "alpha_ltv.png", dpi=150)


if __name__ == "__main__":
    main()
