"""
Success, collision and time-out rates of a saved model in Nano Drone layouts that are the same for every method.

    python -m sb3_ora.envs.evaluate --algo ora_iqn --model logs/ora_iqn/NanoDrone-v0_1/NanoDrone-v0.zip

Each layout is drawn from a seed of its own, in mode "eval", so neither the method nor its actions have a part in it.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from math import isnan, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora.checks import check_callable, check_integer, check_kind
from sb3_ora.envs.nano_drone import NanoDroneVecEnv

DENSITIES = (2, 6, 12)
ENDS = ("reached", "collision", "timeout")


class Result(NamedTuple):
    """How the episodes of one density have ended (E,)."""

    density: int
    outcomes: np.ndarray  # names
    returns: np.ndarray  # sums of rewards
    lengths: np.ndarray  # steps

    def count(self, outcome: str) -> int:
        """
        :param outcome: "reached", "collision" or "timeout"
        :return: number of episodes that have ended so
        """
        return int((self.outcomes == outcome).sum())


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """
    Wilson's score interval of a share.

    :param successes: how often it happened
    :param trials: out of how many
    :param confidence: probability that the interval holds the true share
    :return: its ends, in [0, 1]
    """
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    centre = (successes + z2 / 2) / (trials + z2)
    half = sqrt(z2 * (successes * (trials - successes) / trials + z2 / 4)) / (trials + z2)
    # Where all or none succeed, one end is exact
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == trials else centre + half)


def check_observations(model: BaseAlgorithm, env: NanoDroneVecEnv) -> None:
    """
    :param model: what flies
    :param env: where
    :raises ValueError: if the model was trained on observations of another shape, or in other units
    """
    if getattr(model, "observation_space", env.observation_space) != env.observation_space:
        raise ValueError(
            f"model was trained on {model.observation_space}, but flies with {env.observation_space}: see obs_mode, normalize"
        )


def evaluate(
    model: BaseAlgorithm,
    density: int,
    n_layouts: int = 500,
    seed: int = 0,
    vec_normalize: VecNormalize | None = None,
    **env_kwargs: Any,
) -> Result:
    """
    Fly one episode in each layout, all at once, with ``deterministic=True``.

    :param model: what flies; it only has to have SB3's ``predict``
    :param density: number of obstacles
    :param n_layouts: number of layouts E
    :param seed: of the first layout; the others have the numbers after it
    :param vec_normalize: statistics of the observations with which the model was trained, if any
    :param env_kwargs: other arguments of :class:`NanoDroneVecEnv`; ``mode`` is "eval"
    :return: how the episodes have ended
    :raises ValueError: if the model was trained on other observations
    """
    n_layouts = check_integer("n_layouts", n_layouts)
    check_callable("predict of the model", getattr(model, "predict", None), "a method as that of SB3's models")
    check_integer("density", density, 0)
    check_integer("seed", seed, 0)
    if vec_normalize is not None:
        check_kind("vec_normalize", vec_normalize, VecNormalize, "a VecNormalize or None")
    env = NanoDroneVecEnv(n_layouts, density, **{"mode": "eval", **env_kwargs})
    check_observations(model, env)
    env.seed(seed)
    observations: Any = env.reset()
    outcomes = np.full(n_layouts, "", dtype="<U9")
    returns, lengths = np.zeros(n_layouts), np.zeros(n_layouts, dtype=np.int64)
    flying, actions = np.arange(n_layouts), np.zeros(n_layouts, dtype=np.int64)
    state: tuple[np.ndarray, ...] | None = None
    axes: list[int] = []
    starts = np.ones(n_layouts, dtype=bool)
    while len(flying):
        seen = observations[flying]
        seen = seen if vec_normalize is None else vec_normalize.normalize_obs(seen)
        actions[flying], state = model.predict(seen, state, starts, deterministic=True)
        observations, rewards, dones, infos = env.step(actions)
        returns[flying] += rewards[flying]
        lengths[flying] += 1
        for drone in flying[dones[flying]]:
            outcomes[drone] = infos[drone]["outcome"]
        going = ~dones[flying]
        flying = flying[going]
        if state is not None:  # a row for each drone; of a recurrent policy a column for each
            axes = axes or [0 if len(part) == n_layouts else 1 for part in state]
            state = tuple(np.compress(going, part, axis) for part, axis in zip(state, axes, strict=True))
        starts = np.zeros(len(flying), dtype=bool)
    return Result(density, outcomes, returns, lengths)


def rows(results: Sequence[Result]) -> list[dict[str, float]]:
    """
    :param results: one for each density
    :return: a table: percentages with 95 % Wilson intervals, mean return, mean length of the successful episodes in steps
    """
    table = []
    for result in results:
        n = len(result.outcomes)
        row: dict[str, float] = {"density": result.density, "episodes": n}
        for name in ENDS:
            k = result.count(name)
            low, high = wilson_interval(k, n)
            row |= {name: 100 * k / n, f"{name}_low": 100 * low, f"{name}_high": 100 * high}
        successful = result.lengths[result.outcomes == "reached"]
        row["mean_return"] = float(result.returns.mean())
        row["mean_success_steps"] = float(successful.mean()) if len(successful) else float("nan")
        table.append(row)
    return table


def print_table(table: Sequence[dict[str, float]]) -> None:
    """
    :param table: as :func:`rows` makes it
    """
    print(f"{'density':>7}{'success %':>24}{'collision %':>24}{'time-out %':>24}{'return':>9}{'steps':>7}")
    for row in table:
        cells = [f"{row[end]:.1f} [{row[end + '_low']:.1f}, {row[end + '_high']:.1f}]" for end in ENDS]
        shares = "".join(f"{cell:>24}" for cell in cells)
        steps = "-" if isnan(row["mean_success_steps"]) else f"{row['mean_success_steps']:.1f}"
        print(f"{row['density']:7}{shares}{row['mean_return']:9.2f}{steps:>7}")


def write_csv(table: Sequence[dict[str, float]], path: Path) -> None:
    """
    :param table: as :func:`rows` makes it
    :param path: where it goes
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


def load_model(algo: str, path: Path, device: str = "auto") -> BaseAlgorithm:
    """
    :param algo: name of an algorithm that rl-zoo3 knows
    :param path: saved model
    :param device: where it runs
    :return: the model
    :raises ValueError: if there is no such algorithm, or no such file
    """
    from rl_zoo3.utils import ALGOS  # slow to import

    from sb3_ora.zoo import register

    register()
    if algo not in ALGOS:
        raise ValueError(f"algo must be one of {', '.join(ALGOS)}, got {algo!r}")
    try:
        return ALGOS[algo].load(path, device=device)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ValueError(f"--model: no such file {str(path)!r}") from error


def find_statistics(model: Path) -> Path | None:
    """
    :param model: a saved model
    :return: the statistics of observations in the folder of its run, as rl-zoo3 saves them; None if there are none
    :raises ValueError: if there are several
    """
    found = sorted(model.parent.glob("*/vecnormalize.pkl"))
    if len(found) > 1:
        raise ValueError(f"vecnormalize must be given: there are {', '.join(map(str, found))}")
    return found[0] if found else None


def load_statistics(path: Path, env: NanoDroneVecEnv) -> VecNormalize:
    """
    :param path: statistics of observations, as ``VecNormalize`` saves them
    :param env: environment with the observations
    :return: the statistics
    :raises ValueError: if there is no such file
    """
    if not path.is_file():
        raise ValueError(f"--vecnormalize: no such file {str(path)!r}")
    return VecNormalize.load(str(path), env)


def build_parser() -> argparse.ArgumentParser:
    """
    :return: the command line
    """
    parser = argparse.ArgumentParser(prog="python -m sb3_ora.envs.evaluate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--algo", required=True, help="name of the algorithm in rl-zoo3")
    parser.add_argument("--model", required=True, type=Path, help="saved model (.zip)")
    statistics = "saved statistics of VecNormalize; by default those that rl-zoo3 left beside the model"
    parser.add_argument("--vecnormalize", type=Path, help=statistics)
    parser.add_argument("--densities", type=int, nargs="+", default=list(DENSITIES), help="numbers of obstacles")
    parser.add_argument("--layouts", type=int, default=500, help="layouts, and episodes, at each density")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first layout")
    parser.add_argument("--max-steps", type=int, default=200, help="step at which time is up")
    parser.add_argument("--ranger-noise", type=float, default=0.01, help="standard deviation of the range finders in metres")
    parser.add_argument("--obs-mode", default="position", help="observation the model was trained with")
    parser.add_argument("--normalize", action="store_true", help="whether the model was trained with normalize=True")
    parser.add_argument("--safe-start", action="store_true", help="no obstacle at the start")
    parser.add_argument("--device", default="auto", help="where the model runs: cpu, cuda, ...")
    parser.add_argument("--csv", type=Path, help="file for the table")
    return parser


def run(args: argparse.Namespace) -> None:
    """
    :param args: command line
    :raises ValueError: if something in it cannot be meant
    """
    names = ("max_steps", "ranger_noise", "obs_mode", "normalize", "safe_start")
    env_kwargs = {name: getattr(args, name) for name in names}
    model, vec_normalize = load_model(args.algo, args.model, args.device), None
    path = args.vecnormalize or find_statistics(args.model)
    if path is not None:
        env = NanoDroneVecEnv(1, **env_kwargs)
        check_observations(model, env)
        vec_normalize = load_statistics(path, env)
        print(f"Observations are normalised as {path} says")
    table = rows([evaluate(model, n, args.layouts, args.seed, vec_normalize, **env_kwargs) for n in args.densities])
    print_table(table)
    if args.csv is not None:
        write_csv(table, args.csv)


def main(arguments: Sequence[str] | None = None) -> None:
    """
    :param arguments: command line; None for that of the process
    :raises SystemExit: with status 2 after an error line
    """
    args = build_parser().parse_args(arguments)
    try:
        run(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
