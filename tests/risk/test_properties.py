"""What holds for whatever numbers: the risk measures, distortions, tables and adaptations."""

import math

import numpy as np
import pytest
import torch as th

from sb3_ora.adapters.ensemble import alpha_grid
from sb3_ora.risk import (
    CPW,
    EWAF,
    FTPL,
    BucketKey,
    CVaR,
    LowerQuantile,
    LowerTailCVaR,
    Power,
    RiskTable,
    SimHashKey,
    Wang,
    leader,
    left_truncated_variance,
    satisficing_level,
)
from sb3_ora.risk.state import RiskState

hypothesis = pytest.importorskip("hypothesis", reason="property-based tests need hypothesis")
from gymnasium import spaces  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as arrays  # noqa: E402

#: The same examples in every run, and no time limit for any of them
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("repeatable")

MEASURES = st.sampled_from([LowerTailCVaR(), LowerQuantile()])
LEVELS = st.one_of(
    st.sampled_from([1.0, np.nextafter(1.0, 0.0), 0.5, 1e-3, 1e-12, np.finfo(float).tiny]),
    st.floats(0.0, 1.0, exclude_min=True, allow_subnormal=False),
)
HEADS = st.one_of(st.just(1), st.just(1000), st.integers(2, 12))
NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


def vectors(size=HEADS, elements=NUMBERS):
    """Values of the heads, (K,); of one head, of a few, or of a thousand."""
    return size.flatmap(lambda n: arrays.arrays(np.float64, n, elements=elements, fill=elements))


def value(measure, q, alpha):
    return float(measure(th.from_numpy(q), alpha))


def worst_part(q, alpha):
    """Mean of the worst fraction alpha, by hand: whole heads, and a part of the next one."""
    whole = left = alpha * len(q)
    total = 0.0
    for head in sorted(q.tolist()):
        part = min(left, 1.0)
        total, left = total + part / whole * head, left - part  # in this order, so that tiny levels do not underflow
        if left <= 0:
            break
    return total


# Measures of the heads


@given(q=vectors(), alpha=LEVELS)
def test_cvar_is_the_mean_of_the_worst_part(q, alpha):
    assert value(LowerTailCVaR(), q, alpha) == pytest.approx(
        worst_part(q, alpha), rel=1e-7, abs=1e-7 * np.abs(q).max() + 1e-300
    )


@given(q=vectors(), first=LEVELS, second=LEVELS, measure=MEASURES)
def test_monotone_in_alpha(q, first, second, measure):
    low, high = sorted((first, second))
    assert value(measure, q, low) <= value(measure, q, high) + 1e-9 * np.abs(q).max()


@given(q=vectors(), alpha=LEVELS, shift=NUMBERS, factor=st.floats(0.0, 1e3), measure=MEASURES)
def test_translation_and_positive_homogeneity(q, alpha, shift, factor, measure):
    moved, expected = value(measure, factor * q + shift, alpha), factor * value(measure, q, alpha) + shift
    assert moved == pytest.approx(expected, rel=1e-9, abs=1e-9 * (factor * np.abs(q).max() + abs(shift)) + 1e-300)


@given(q=vectors(), worse=vectors(), alpha=LEVELS, measure=MEASURES)
def test_worse_heads_are_worth_less(q, worse, alpha, measure):
    lower = q - np.resize(np.abs(worse), q.shape)
    assert value(measure, lower, alpha) <= value(measure, q, alpha) + 1e-9 * np.abs(lower).max()


@given(number=NUMBERS, n=HEADS, alpha=LEVELS, measure=MEASURES)
def test_heads_that_agree(number, n, alpha, measure):
    q = np.full(n, number)
    assert value(measure, q, alpha) == pytest.approx(number, rel=1e-12)
    assert left_truncated_variance(q) == 0.0


@given(q=vectors())
def test_ends_of_alpha(q):
    tiny, scale = np.finfo(float).tiny, 1e-9 * np.abs(q).max()
    assert value(LowerTailCVaR(), q, 1.0) == pytest.approx(q.mean(), abs=scale)
    assert value(LowerTailCVaR(), q, tiny) == pytest.approx(q.min(), abs=scale)
    assert value(LowerQuantile(), q, 1.0) == q.max()
    assert value(LowerQuantile(), q, tiny) == q.min()


@given(q=vectors(), alpha=LEVELS)
def test_a_quantile_is_one_of_the_heads(q, alpha):
    found = value(LowerQuantile(), q, alpha)
    k = len(q)
    assert found in q
    assert (q < found).sum() <= alpha * k + 1e-6 * k  # at most that share of the heads is below it
    assert (q <= found).sum() >= min(alpha * k, k) - 1e-6 * k


@given(n=HEADS, alphas=st.lists(LEVELS, min_size=1, max_size=4), measure=MEASURES)
def test_weights_are_a_law(n, alphas, measure):
    weights = measure.weights(np.array(alphas), n)
    assert weights.shape == (len(alphas), n) and weights.dtype == np.float64
    assert (weights >= 0).all() and weights.sum(axis=1) == pytest.approx(1.0)
    if isinstance(measure, LowerTailCVaR):
        assert (np.diff(weights, axis=1) <= 1e-12).all()  # the worse a head is, the more it counts


@given(
    shape=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    n=HEADS,
    alphas=st.lists(LEVELS, min_size=1, max_size=3),
    dtype=st.sampled_from([th.float32, th.float64, th.float16]),
    measure=MEASURES,
)
def test_shapes_and_precision(shape, n, alphas, dtype, measure):
    q = th.zeros(*shape, n, dtype=dtype)
    assert measure(q, alphas[0]).shape == shape and measure(q, alphas[0]).dtype == dtype
    assert measure(q, np.array(alphas)).shape == (*shape, len(alphas))


@given(
    alpha=st.one_of(st.floats(max_value=0.0), st.floats(min_value=np.nextafter(1.0, 2.0)), st.just(math.nan)), measure=MEASURES
)
def test_levels_that_are_none(alpha, measure):
    with pytest.raises(ValueError, match="alpha must lie in"):
        measure(th.zeros(3), alpha)


@given(q=vectors(), bad=st.sampled_from([math.nan, math.inf, -math.inf]), place=st.integers(0, 999), alpha=LEVELS)
def test_heads_that_are_no_numbers_do_not_pass_for_numbers(q, bad, place, alpha):
    q[place % len(q)] = bad
    assert not math.isfinite(value(LowerTailCVaR(), q, 1.0))
    with pytest.raises(ValueError, match="must be finite"):
        satisficing_level(q, 0.0, 0.1, 1.0)


@given(q=vectors(), alpha=LEVELS, measure=MEASURES)
def test_the_policy_values_actions_by_the_same_measure(q, alpha, measure):
    state = RiskState(CVaR(), 1.0, 1, measure, RiskTable(1.0), scope="global")
    risk = state.risk_values(q[:, None, None], np.array([alpha]))
    assert risk.shape == (1, 1)
    assert risk[0, 0] == pytest.approx(value(measure, q, alpha), rel=1e-9, abs=1e-9 * np.abs(q).max())
    state.use_mean = True  # composite: the mean, whatever the measure and the level
    assert state.risk_values(q[:, None, None], np.array([alpha]))[0, 0] == pytest.approx(q.mean())


# Adaptation


def grids():
    return st.tuples(LEVELS, LEVELS, st.floats(0.01, 1.0)).map(lambda t: (*sorted(t[:2]), t[2]))


@given(grid=grids())
def test_grids(grid):
    low, high, step = grid
    levels = alpha_grid(low, high, step)
    assert levels[-1] == pytest.approx(high) and (levels > 0 if low > 1e-11 else levels >= 0).all() and (levels <= 1).all()
    assert (np.diff(levels) > 0).all() and (np.diff(levels) <= step + 1e-9).all()


@given(
    grid=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.05, 1.0)),
    eta=st.one_of(st.just("auto"), st.floats(1e-6, 1e6)),
    normalize=st.booleans(),
    keys=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    scale=st.sampled_from([0.0, 1e-12, 1.0, 1e6, 1e150]),
    seed=st.integers(0, 9),
)
def test_levels_of_ftpl(grid, eta, normalize, keys, scale, seed):
    levels = alpha_grid(*sorted(grid[:2]), grid[2])
    losses = scale * np.random.default_rng(seed).random((len(keys), len(levels)))
    together, alone = (FTPL(levels, eta, normalize, RiskTable(1.0), seed=1) for _ in range(2))
    played = together.update(losses, np.array(keys))
    assert played.shape == (len(keys),) and np.isin(played, levels).all()
    one_by_one = [alone.update(loss, np.array([key]))[0] for loss, key in zip(losses, keys, strict=True)]
    assert np.array_equal(played, one_by_one)
    assert np.isfinite(together.scale) and together.scale >= 0
    for bad in (math.nan, math.inf):
        before = together.table.state_dict()
        with pytest.raises(FloatingPointError, match="losses must be finite"):
            together.update(np.full(len(levels), bad), np.array([0]))
        assert all(th.equal(part, before[name]) for name, part in together.table.state_dict().items())


@given(cumulative=vectors(st.integers(1, 9)), sigma=st.floats(0.0, 1e6), previous=LEVELS)
def test_the_leader_has_the_least_perturbed_loss(cumulative, sigma, previous):
    alphas = np.linspace(0.1, 1.0, len(cumulative))
    chosen = leader(cumulative, sigma, alphas, previous)
    objective = cumulative - sigma * alphas
    assert objective[chosen] <= objective.min() + 1e-9 * np.abs(objective).max()


@given(x=vectors(), target=NUMBERS, bounds=st.tuples(LEVELS, LEVELS).map(sorted))
def test_satisficing_levels(x, target, bounds):
    low, high = bounds
    level = float(satisficing_level(x, target, low, high))
    assert low <= level <= high
    if x.mean() > target + 1e-6 * np.abs(x).max():
        assert level == high
    if x.max() < target - 1e-6 * (np.abs(x).max() + abs(target)):
        assert level == low
    if low < level < high and np.abs(x - target).min() > 1e-3 * (np.abs(x).max() + abs(target)):
        assert -worst_part(-x, level) == pytest.approx(target, rel=1e-5, abs=1e-5 * np.abs(x).max())


@given(feedback=st.lists(st.tuples(st.integers(0, 2), st.floats(-1e308, 1e308)), max_size=12), rate=st.floats(1e-6, 1e6))
def test_probabilities_of_the_bandit(feedback, rate):
    bandit = EWAF(3, rate, decay=0.1, seed=0)
    for arm, credit in feedback:
        bandit.update(arm, credit)
    assert np.isfinite(bandit.weights).all()
    assert (bandit.probabilities >= 0).all() and bandit.probabilities.sum() == pytest.approx(1.0)
    assert bandit.sample() in range(3)


# Distortions of the return, tables and keys


@given(distortion=st.sampled_from([CVaR(), CPW(), Wang(), Power()]), level=st.floats(0.05, 1.0), n=st.integers(1, 40))
def test_distortions_keep_order_and_stay_in_the_unit_interval(distortion, level, n):
    taus = th.linspace(0.001, 0.999, n, dtype=th.float64)
    if isinstance(distortion, CPW):
        level = max(level, 0.28)  # below, the formula of Tversky and Kahneman does not increase everywhere
    for sign in (1,) if isinstance(distortion, CVaR | CPW) else (1, -1):
        distorted = distortion(taus, sign * level)
        assert distorted.shape == taus.shape and ((distorted >= 0) & (distorted <= 1)).all()
        assert (distorted.diff() >= -1e-12).all()
        if sign < 0 or isinstance(distortion, CVaR):
            assert (distorted <= taus + 1e-12).all()  # averse: looks at worse returns


@given(max_keys=st.integers(1, 6), calls=st.lists(st.lists(st.integers(-3, 9), min_size=1, max_size=6), max_size=8))
def test_a_table_is_an_ordered_dict_of_limited_size(max_keys, calls):
    table, model = RiskTable(0.5, max_keys), {}
    for number, keys in enumerate(calls):
        if len(set(keys)) > max_keys:
            with pytest.raises(ValueError, match=f"at most max_keys={max_keys}"):
                table.rows(np.array(keys))
            continue
        rows = table.rows(np.array(keys))
        table.alpha[rows] = number / 10
        for key in keys:
            model.pop(key, None)
            model[key] = number / 10
        while len(model) > max_keys:
            model.pop(next(iter(model)))
        assert table.keys().tolist() == list(model) and len(table) <= max_keys
        assert table.lookup(np.arange(-3, 10)).tolist() == [model.get(key, 0.5) for key in range(-3, 10)]


@given(batch=arrays.arrays(np.float32, (4, 3), elements=st.floats(width=32, allow_nan=False)), row=st.integers(0, 3))
def test_keys_of_states(batch, row):
    """Whole numbers in range, the same in another batch; infinities have a key too, NaN has none."""
    space = spaces.Box(-1, 1, (3,))
    for key in (BucketKey(space), SimHashKey(space, n_bits=16)):
        if isinstance(key, SimHashKey) and not (np.abs(batch) < 1e30).all():
            continue  # projections overflow
        keys = key(batch)
        assert keys.shape == (4,) and keys.dtype == np.int64 and ((keys >= 0) & (keys < 1 << 48)).all()
        assert key(batch[row : row + 1]) == keys[row]
        spoiled = batch.copy()
        spoiled[row, 1] = math.nan
        with pytest.raises(ValueError, match="got NaN"):
            key(spoiled)
