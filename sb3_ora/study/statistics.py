"""
Statistics of a few runs: numbers in, numbers out. The unit is the seed; what is one number of one seed is the caller's choice.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from sb3_ora.checks import check_integer, check_number

#: Largest number of values, of both samples together, for which the exact distribution of U is worked out
MAX_EXACT = 100


class MannWhitney(NamedTuple):
    """Result of :func:`mann_whitney`."""

    u: float
    p: float
    exact: bool


def check_values(name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """
    :param name: argument name, for the message
    :param values: what the user gave
    :return: the values, (n,)
    :raises ValueError: if they are not finite numbers in one row
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
        raise ValueError(f"{name} must be a non-empty row of finite numbers, got {values!r}")
    return array


# Two samples


def mann_whitney_u(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """
    :param first: one number for each run of the first method, (n,)
    :param second: the same of the second method, (m,)
    :return: Mann and Whitney's U of the first: pairs in which it is larger, ties counting one half
    """
    first, second = check_values("first", first), check_values("second", second)
    ranks = stats.rankdata(np.concatenate([first, second]))  # (n + m,)
    n = len(first)
    return float(ranks[:n].sum() - n * (n + 1) / 2)


def mann_whitney(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> MannWhitney:
    """
    Two-sided test that neither of two methods tends to larger values (Mann and Whitney 1947). Up to ``MAX_EXACT`` values p
    is that of the permutation distribution of U, with ties too: twice the smaller tail. With more values it is the normal
    approximation, corrected for ties and continuity.

    :param first: one number for each run of the first method, (n,)
    :param second: the same of the second method, (m,)
    :return: U of the first, p, and whether p is exact
    """
    first, second = check_values("first", first), check_values("second", second)
    u = mann_whitney_u(first, second)
    if len(first) + len(second) > MAX_EXACT:
        constant = np.ptp(np.concatenate([first, second])) == 0
        p = 1.0 if constant else float(stats.mannwhitneyu(first, second, method="asymptotic").pvalue)
        return MannWhitney(u, p, False)
    doubled = np.rint(2 * stats.rankdata(np.concatenate([first, second]))).astype(np.int64)  # (n + m,)
    n = len(first)
    probabilities = _rank_sum_distribution(doubled, n)
    observed = round(2 * u) + n * (n + 1)
    tails = probabilities[: observed + 1].sum(), probabilities[observed:].sum()
    return MannWhitney(u, min(1.0, 2 * float(min(tails))), True)


def _rank_sum_distribution(ranks: np.ndarray, size: int) -> np.ndarray:
    """
    :param ranks: integer ranks of all values, (N,)
    :param size: how many are drawn without replacement
    :return: probability of each sum of the ranks drawn, (largest sum + 1,)
    """
    counts = np.zeros((size + 1, int(np.sort(ranks)[-size:].sum()) + 1))  # subsets by their size and sum
    counts[0, 0] = 1
    for rank in ranks:
        counts[1:, rank:] += counts[:-1, :-rank]
    return counts[size] / counts[size].sum()


def probability_of_improvement(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """
    :param first: one number for each run of the first method, (n,)
    :param second: the same of the second method, (m,)
    :return: probability that a run of the first is better than one of the second, ties counting one half
    """
    return mann_whitney_u(first, second) / (len(first) * len(second))


def rank_biserial(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """
    :param first: one number for each run of the first method, (n,)
    :param second: the same of the second method, (m,)
    :return: effect size r = 2 P(first > second) - 1 in [-1, 1], ties counting one half
    """
    return 2 * probability_of_improvement(first, second) - 1


def effect_interval(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, n_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """
    :param first: one number for each run of the first method, (n,)
    :param second: the same of the second method, (m,)
    :param n_resamples: how many resamples R
    :param seed: seed of the resampling
    :return: 95 % bootstrap interval of :func:`rank_biserial`, runs drawn anew within each method
    """
    first, second, rng = check_values("first", first), check_values("second", second), np.random.default_rng(seed)
    ours, theirs = (rng.choice(values, (n_resamples, len(values))) for values in (first, second))
    effects = np.sign(ours[:, :, None] - theirs[:, None, :]).mean(axis=(1, 2))  # (R,)
    low, high = np.quantile(effects, [0.025, 0.975])
    return float(low), float(high)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """
    :param p_values: p of each test of a family, (T,)
    :return: p corrected for the number of tests (Holm 1979), in the same order, (T,)
    """
    p_values = np.asarray(p_values, dtype=np.float64)
    if p_values.ndim != 1 or not ((p_values >= 0) & (p_values <= 1)).all():
        raise ValueError(f"p_values must be a row of numbers in [0, 1], got {p_values!r}")
    order = np.argsort(p_values)
    scaled = p_values[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected


# One sample, over one task or several


def check_scores(scores: np.ndarray) -> np.ndarray:
    """
    :param scores: one number for each run and task, (runs, tasks), or (runs,) of one task
    :return: the scores, (runs, tasks)
    """
    array = np.asarray(scores, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"scores must be finite numbers in the shape (runs, tasks), got {scores!r}")
    return array


def row_means(values: np.ndarray) -> np.ndarray:
    """
    :param values: (R, n)
    :return: mean of each row, (R,)
    """
    return values.mean(axis=1)


def row_interquartile_means(values: np.ndarray) -> np.ndarray:
    """
    :param values: (R, n)
    :return: mean of the middle half of each row, without the lowest and the highest quarter rounded down, (R,)
    """
    cut = values.shape[1] // 4
    return np.sort(values, axis=1)[:, cut : values.shape[1] - cut].mean(axis=1)


def interquartile_mean(scores: np.ndarray) -> float:
    """
    :param scores: one number for each run and task, (runs, tasks), or (runs,) of one task
    :return: IQM, the mean of the middle half of all numbers (Agarwal et al. 2021)
    """
    return float(row_interquartile_means(check_scores(scores).reshape(1, -1))[0])


def bootstrap_interval(
    scores: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray] = row_interquartile_means,
    coverage: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """
    Percentile interval of the stratified bootstrap: runs are drawn anew within each task (Agarwal et al. 2021).

    :param scores: one number for each run and task, (runs, tasks), or (runs,) of one task
    :param statistic: number of each row of an array (R, runs * tasks)
    :param coverage: of the interval, in (0, 1)
    :param n_resamples: how many resamples R
    :param seed: seed of the resampling
    :return: lower and upper end
    """
    scores = check_scores(scores)
    check_number("coverage", coverage, 0, 1, open_low=True, open_high=True)
    check_integer("n_resamples", n_resamples)
    rng = np.random.default_rng(seed)
    resampled = [rng.choice(task, (n_resamples, len(task))) for task in scores.T]  # tasks times (R, runs)
    low, high = np.quantile(statistic(np.concatenate(resampled, axis=1)), [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """
    :param scores: one number for each run and task, (runs, tasks), or (runs,) of one task
    :param thresholds: where to evaluate the profile, (T,)
    :return: fraction of runs and tasks with a score above each threshold (Agarwal et al. 2021), (T,)
    """
    return (check_scores(scores)[..., None] > np.asarray(thresholds)).mean(axis=(0, 1))


# Curves


def running_mean(values: Sequence[float] | np.ndarray, window: int) -> np.ndarray:
    """
    :param values: in the order of time, (n,)
    :param window: how many
    :return: mean of each value and those before it, ``window`` of them where there are so many, (n,)
    """
    check_integer("window", window)
    sums = np.concatenate([[0.0], np.cumsum(check_values("values", values))])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def on_grid(steps: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """
    :param steps: ascending, (n,)
    :param values: at these steps, (n,)
    :param grid: steps to interpolate at, (T,)
    :return: linear interpolation; NaN before the first step and after the last, (T,)
    """
    return np.interp(grid, steps, values, left=np.nan, right=np.nan)


def band(curves: np.ndarray, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    :param curves: one curve for each seed, NaN where it has no value, (seeds, T)
    :param coverage: share of the seeds within the band, in (0, 1]
    :return: mean, lower and upper quantile of the curves that have a value, NaN where none has, each (T,)
    """
    check_number("coverage", coverage, 0, 1, open_low=True)
    curves = np.atleast_2d(np.asarray(curves, dtype=np.float64))
    mean, low, high = np.full((3, curves.shape[1]), np.nan)
    known = ~np.isnan(curves).all(axis=0)
    if known.any():
        mean[known] = np.nanmean(curves[:, known], axis=0)
        tails = [(1 - coverage) / 2, (1 + coverage) / 2]
        low[known], high[known] = np.nanquantile(curves[:, known], tails, axis=0)
    return mean, low, high


def area_under_curve(curve: np.ndarray) -> float:
    """
    :param curve: values on an even grid, NaN where there are none, (T,)
    :return: area divided by the length of the part that has values: the mean height by the trapezoidal rule
    """
    values = np.asarray(curve, dtype=np.float64)
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return float(values[0]) if len(values) else float("nan")
    return float((values.sum() - (values[0] + values[-1]) / 2) / (len(values) - 1))
