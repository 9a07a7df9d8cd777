import itertools

import numpy as np
import pytest
from scipy import stats

from sb3_ora.study.statistics import (
    MAX_EXACT,
    area_under_curve,
    band,
    bootstrap_interval,
    effect_interval,
    holm,
    interquartile_mean,
    mann_whitney,
    mann_whitney_u,
    on_grid,
    performance_profile,
    probability_of_improvement,
    rank_biserial,
    row_means,
    running_mean,
)

CLOSE = {"rel": 1e-9, "abs": 1e-9}


def samples(n, m, seed, digits=None):
    """Two samples; rounded to so many digits they have ties."""
    rng = np.random.default_rng(seed)
    first, second = rng.normal(0.5, 1, n), rng.normal(0, 1, m)
    return (first, second) if digits is None else (first.round(digits), second.round(digits))


@pytest.mark.parametrize(("n", "m"), [(3, 3), (5, 5), (10, 10), (10, 7), (1, 4), (30, 25)])
def test_mann_whitney_is_scipys_exact_test(n, m):
    first, second = samples(n, m, n + m)
    result = mann_whitney(first, second)
    expected = stats.mannwhitneyu(first, second, method="exact")
    assert result.u == expected.statistic and result.exact
    assert result.p == pytest.approx(expected.pvalue, **CLOSE)


@pytest.mark.parametrize(("n", "m", "seed"), [(4, 4, 0), (5, 3, 1), (3, 6, 2)])
def test_with_ties_p_counts_all_ways_to_split_the_values(n, m, seed):
    first, second = samples(n, m, seed, digits=0)
    together = np.concatenate([first, second])
    assert len(np.unique(together)) < n + m

    def pairs(a, b):
        return sum((x > y) + (x == y) / 2 for x in a for y in b)

    splits = [set(rows) for rows in itertools.combinations(range(n + m), n)]
    values = [pairs(together[list(rows)], together[list(set(range(n + m)) - rows)]) for rows in splits]
    observed = pairs(first, second)
    tails = np.mean(np.array(values) <= observed), np.mean(np.array(values) >= observed)
    result = mann_whitney(first, second)
    assert result.u == observed
    assert result.p == pytest.approx(min(1, 2 * min(tails)), **CLOSE)


def test_with_ties_p_is_scipys_permutation_test():
    first, second = samples(5, 6, 4, digits=0)
    expected = stats.permutation_test((first, second), mann_whitney_u, permutation_type="independent", n_resamples=np.inf)
    assert mann_whitney(first, second).p == pytest.approx(expected.pvalue, **CLOSE)


def test_many_values_use_the_normal_approximation():
    first, second = samples(MAX_EXACT, 40, 5, digits=1)
    result = mann_whitney(first, second)
    assert not result.exact
    assert result.p == pytest.approx(stats.mannwhitneyu(first, second, method="asymptotic").pvalue, **CLOSE)
    assert mann_whitney(np.ones(MAX_EXACT), np.ones(1)).p == 1


def test_three_seeds_cannot_show_anything():
    """The smallest two-sided p of 3 against 3 runs is 2 / C(6, 3)."""
    assert mann_whitney([4, 5, 6], [1, 2, 3]).p == pytest.approx(0.1, **CLOSE)
    assert mann_whitney([1, 1], [1, 1, 1]).p == 1


def test_effect_sizes():
    first, second = [3, 5, 5, 9], [1, 5, 6]
    better, equal = 1 + 1 + 1 + 3, 2  # 3 and each 5 beat the 1, 9 beats all; each 5 equals the 5
    assert probability_of_improvement(first, second) == pytest.approx((better + equal / 2) / 12, **CLOSE)
    assert rank_biserial(first, second) == pytest.approx(2 * 7 / 12 - 1, **CLOSE)
    assert rank_biserial(second, first) == pytest.approx(-rank_biserial(first, second), **CLOSE)
    assert rank_biserial([2, 3], [0, 1]) == 1


def test_rank_biserial_is_somers_d():
    first, second = samples(9, 12, 6, digits=0)
    group = np.repeat([1, 0], [9, 12])
    assert rank_biserial(first, second) == pytest.approx(
        stats.somersd(group, np.concatenate([first, second])).statistic, **CLOSE
    )


def test_holm():
    """By hand: 0.01 * 4, 0.02 * 3, 0.03 * 2 lifted to the one before, 0.5 * 1."""
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06], **CLOSE)
    assert holm([0.6, 0.9]) == pytest.approx([1, 1], **CLOSE)
    assert len(holm([])) == 0


def test_holm_is_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="needs statsmodels")
    p_values = np.random.default_rng(0).random(20) ** 3
    assert holm(p_values) == pytest.approx(multitest.multipletests(p_values, method="holm")[1], **CLOSE)


def test_interquartile_mean():
    assert interquartile_mean(np.array([0, 1, 2, 3, 4, 5, 6, 100])) == pytest.approx((2 + 3 + 4 + 5) / 4, **CLOSE)
    for n in range(1, 12):
        scores = np.random.default_rng(n).normal(0, 1, (n, 3))
        assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None), **CLOSE)


def test_rliable():
    metrics = pytest.importorskip("rliable.metrics", reason="needs rliable")
    library = pytest.importorskip("rliable.library", reason="needs rliable")
    rng = np.random.default_rng(0)
    scores, others = rng.normal(0, 1, (7, 3)), rng.normal(0.3, 1, (5, 3))
    assert interquartile_mean(scores) == pytest.approx(metrics.aggregate_iqm(scores), **CLOSE)
    mine = np.mean([probability_of_improvement(scores[:, task], others[:, task]) for task in range(3)])
    assert mine == pytest.approx(metrics.probability_of_improvement(scores, others), **CLOSE)
    thresholds = np.linspace(-2, 2, 9)
    profiles, _ = library.create_performance_profile({"mine": scores}, thresholds, reps=2)
    assert performance_profile(scores, thresholds) == pytest.approx(profiles["mine"], **CLOSE)
    # Its interval has random numbers of its own: ends of 1000 resamples vary by about 0.02, scipy's below agree exactly
    _, intervals = library.get_interval_estimates({"mine": scores}, metrics.aggregate_iqm, reps=1000)
    assert bootstrap_interval(scores, n_resamples=1000) == pytest.approx(intervals["mine"].ravel(), abs=0.15)


def test_bootstrap_is_scipys():
    scores = np.random.default_rng(1).normal(0, 1, (6, 2))

    def mean(first, second, axis):
        return (first.mean(axis=axis) + second.mean(axis=axis)) / 2

    expected = stats.bootstrap(
        tuple(scores.T), mean, n_resamples=500, confidence_level=0.9, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    interval = bootstrap_interval(scores, row_means, coverage=0.9, n_resamples=500, seed=3)
    assert interval == pytest.approx((expected.low, expected.high), **CLOSE)


def test_bootstrap_of_one_run_or_equal_runs():
    assert bootstrap_interval(np.array([3.0]), n_resamples=20) == (3, 3)
    assert bootstrap_interval(np.full((4, 2), 2.0), n_resamples=20) == (2, 2)


def test_performance_profile():
    assert performance_profile(np.array([1, 2, 3, 4]), np.array([0, 2, 2.5, 4])) == pytest.approx([1, 0.5, 0.5, 0], **CLOSE)


def test_running_mean():
    assert running_mean([1, 2, 6, 3], 2) == pytest.approx([1, 1.5, 4, 4.5], **CLOSE)
    assert running_mean([1, 2, 6], 10) == pytest.approx([1, 1.5, 3], **CLOSE)


def test_on_grid():
    curve = on_grid(np.array([10, 20]), np.array([1.0, 3.0]), np.array([5, 10, 15, 20, 25]))
    assert curve == pytest.approx([np.nan, 1, 2, 3, np.nan], nan_ok=True, **CLOSE)


def test_band_of_runs_of_unequal_length():
    nan = np.nan
    curves = np.array([[0.0, 1, 2, nan], [10.0, 1, nan, nan], [20.0, 4, nan, nan]])
    mean, low, high = band(curves, coverage=0.9)
    assert mean == pytest.approx([10, 2, 2, nan], nan_ok=True, **CLOSE)
    assert low == pytest.approx([1, 1, 2, nan], nan_ok=True, **CLOSE)  # 5 % of the way from the lowest: 0.1 of the first gap
    assert high == pytest.approx([19, 3.7, 2, nan], nan_ok=True, **CLOSE)


def test_area_under_curve():
    assert area_under_curve(np.array([np.nan, 0, 4, 2, np.nan])) == pytest.approx((2 + 3) / 2, **CLOSE)
    assert area_under_curve(np.array([np.nan, 7])) == 7 and np.isnan(area_under_curve(np.array([np.nan])))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mann_whitney([], [1]), "first must be a non-empty row of finite numbers"),
        (lambda: rank_biserial([1], [np.nan]), "second must be a non-empty row of finite numbers"),
        (lambda: holm([0.1, 1.2]), r"p_values must be a row of numbers in \[0, 1\]"),
        (lambda: interquartile_mean(np.ones((2, 2, 2))), r"scores must be finite numbers in the shape \(runs, tasks\)"),
        (lambda: bootstrap_interval(np.ones(3), coverage=1), r"coverage must be a number in \(0, 1\), got 1"),
        (lambda: running_mean([1], 0), "window must be an integer of at least 1, got 0"),
    ],
)
def test_wrong_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def assert_effect_bootstrap(low, high, first, second):
    """A 95 % interval of r, against all ways to draw the seeds of both with replacement, each as often as it comes."""
    draws = []
    for values in (first, second):
        chosen = np.array(list(itertools.combinations_with_replacement(range(len(values)), len(values))))
        counts = np.stack([np.bincount(row, minlength=len(values)) for row in chosen])
        draws.append((counts, stats.multinomial.pmf(counts, len(values), np.full(len(values), 1 / len(values)))))
    (ours, p_ours), (theirs, p_theirs) = draws
    better = (first[:, None] > second).astype(float) + 0.5 * (first[:, None] == second)
    effects = (2 * ours @ better @ theirs.T / len(first) / len(second) - 1).ravel()
    order = np.argsort(effects)
    below = np.cumsum(np.outer(p_ours, p_theirs).ravel()[order])
    for end, share in ((low, 0.025), (high, 0.975)):
        least, most = effects[order][np.searchsorted(below, [share - 0.012, share + 0.012])]
        assert least - 1e-9 <= end <= most + 1e-9


def test_interval_of_an_effect():
    """Unequal numbers of seeds, and ties."""
    first, second = np.array([1.0, 2, 5, 5, 9, 10]), np.array([0.0, 2, 5, 6, 7])
    low, high = effect_interval(first, second)
    assert -1 < low < high <= 1
    assert_effect_bootstrap(low, high, first, second)
    assert effect_interval(first + 100, second) == (1, 1) and effect_interval(second, second + 100) == (-1, -1)
