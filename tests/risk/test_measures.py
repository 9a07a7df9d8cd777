import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch as th
from scipy import stats
from scipy.integrate import quad

from sb3_ora.risk import (
    EpistemicMeasure,
    LowerQuantile,
    LowerTailCVaR,
    left_truncated_variance,
    lower_quantile,
    lower_tail_cvar,
    make_measure,
)

LEVELS = [0.01, 0.05, 0.1, 0.25, 0.3, 0.35, 0.5, 0.777, 0.9, 0.99]


class ProportionalHazard(EpistemicMeasure):
    """A measure that users might write: g(u) = u ** alpha."""

    def distortion(self, u, alpha):
        return u**alpha


def choquet(losses, g):
    """The paper's integral of a distorted survival function, by quadrature between the atoms."""
    knots = np.unique(np.append(losses, 0.0))

    def distorted_survival(x):
        return g(np.mean(losses > x)) - (x < 0.0)

    return sum(quad(distorted_survival, low, high)[0] for low, high in pairwise(knots))


def rockafellar_uryasev(losses, alpha):
    """Right-tail CVaR as a minimum over thresholds, which is attained at an atom."""
    return min(y + np.maximum(losses - y, 0.0).mean() / alpha for y in losses)


@pytest.mark.parametrize("alpha", [*LEVELS, 1.0])
@pytest.mark.parametrize("n_heads", [1, 2, 7, 10, 31])
def test_cvar_is_the_choquet_integral_and_the_minimum_over_thresholds(alpha, n_heads):
    q = np.random.default_rng(n_heads).normal(1.0, 3.0, n_heads)
    value = lower_tail_cvar(th.tensor(q), alpha).item()
    assert value == pytest.approx(-choquet(-q, lambda u: min(u / alpha, 1.0)), abs=1e-6)
    assert value == pytest.approx(-rockafellar_uryasev(-q, alpha), abs=1e-12)


@pytest.mark.parametrize("alpha", LEVELS)
@pytest.mark.parametrize("n_heads", [1, 2, 7, 10, 31])
def test_quantile_is_the_choquet_integral_and_the_inverse_distribution_function(alpha, n_heads):
    q = np.random.default_rng(n_heads).normal(1.0, 3.0, n_heads)
    value = lower_quantile(th.tensor(q), alpha).item()
    assert value == pytest.approx(-choquet(-q, lambda u: float(u > alpha)), abs=1e-6)
    losses = np.sort(-q)
    n_below = np.arange(1, n_heads + 1)  # K times the distribution function at each atom
    assert value == -losses[np.argmax(n_below >= n_heads * (1.0 - alpha) - 1e-9)]


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9, 1.0])
def test_own_measure_is_the_choquet_integral(alpha):
    q = np.random.default_rng(0).normal(size=12)
    assert ProportionalHazard()(th.tensor(q), alpha).item() == pytest.approx(-choquet(-q, lambda u: u**alpha), abs=1e-6)


@pytest.mark.parametrize(
    ("law", "lower_tail_mean"),
    [
        (stats.norm(2.0, 3.0), lambda a: 2.0 - 3.0 * stats.norm.pdf(stats.norm.ppf(a)) / a),
        (stats.uniform(-1.0, 4.0), lambda a: -1.0 + 2.0 * a),
        (stats.expon(), lambda a: 1.0 + (1.0 - a) * np.log1p(-a) / a if a < 1.0 else 1.0),
    ],
    ids=["normal", "uniform", "exponential"],
)
def test_cvar_of_known_laws(law, lower_tail_mean):
    n_heads = 1000
    q = th.tensor(law.ppf((np.arange(n_heads) + 0.5) / n_heads))
    for alpha in (0.05, 0.1, 0.25, 0.5, 0.9, 1.0):
        assert lower_tail_cvar(q, alpha).item() == pytest.approx(lower_tail_mean(alpha), abs=0.01)


def test_cvar_counts_a_straddling_head_in_part():
    q = th.tensor([5.0, 1.0, 2.0, 9.0], dtype=th.float64)
    # floor(0.6 * 4) = 2 whole heads and 0.4 of the third lowest
    assert lower_tail_cvar(q, 0.6).item() == pytest.approx((1.0 + 2.0 + 0.4 * 5.0) / 2.4)


def test_level_one_is_the_mean_for_cvar_and_the_largest_head_for_the_quantile():
    q = th.randn(6, 9, dtype=th.float64, generator=th.Generator().manual_seed(0))
    th.testing.assert_close(lower_tail_cvar(q, 1.0), q.mean(dim=-1))
    th.testing.assert_close(lower_quantile(q, 1), q.amax(dim=-1))


@pytest.mark.parametrize("n_heads", [3, 10, 20, 100, 1000])
def test_levels_off_a_multiple_by_rounding_count_as_the_multiple(n_heads):
    q = th.arange(n_heads, dtype=th.float64)
    n = np.arange(1, n_heads)
    exact = th.tensor(np.minimum(n, n_heads - 1), dtype=th.float64)  # the (n + 1)-th lowest of 0 ... K - 1
    for rounding in (-4e-16, 0.0, 4e-16):
        assert th.equal(lower_quantile(q, n / n_heads + rounding), exact)
    assert th.equal(lower_quantile(q, (n / n_heads).astype(np.float32)), exact)
    assert th.equal(lower_quantile(q, th.arange(1, n_heads) / n_heads), exact)


def test_levels_between_multiples_are_left_alone():
    q = th.arange(10, dtype=th.float64)
    assert lower_quantile(q, 0.3 - 1e-6).item() == 2.0
    assert lower_quantile(q, 0.3 + 1e-6).item() == 3.0


@pytest.mark.parametrize("measure", [LowerTailCVaR(), LowerQuantile(), ProportionalHazard()], ids=repr)
@pytest.mark.parametrize("n_heads", [1, 2, 10, 1000])
def test_weights_are_a_probability_vector(measure, n_heads):
    alphas = np.linspace(0.05, 1.0, 39)
    weights = measure.weights(alphas, n_heads)
    assert weights.shape == (39, n_heads)
    assert weights.dtype == np.float64
    assert np.all(weights >= -1e-15)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
    for alpha, row in zip(alphas, weights, strict=True):
        # powers of at most 1, which NumPy rounds differently for a vector of exponents and for one
        np.testing.assert_allclose(measure.weights(float(alpha), n_heads), row, rtol=0, atol=1e-15)


@pytest.mark.parametrize("measure", [LowerTailCVaR(), LowerQuantile()], ids=repr)
def test_batches_and_grids_agree_with_one_at_a_time(measure):
    q = th.randn(2, 3, 5, 8, generator=th.Generator().manual_seed(1))
    alphas = th.tensor([0.1, 0.4, 0.65, 1.0])
    values = measure(q, alphas)
    assert values.shape == (2, 3, 5, 4)
    assert values.dtype == th.float32
    assert measure(q, 0.4).shape == (2, 3, 5)
    for g, alpha in enumerate(alphas.tolist()):
        for index in np.ndindex(2, 3, 5):
            assert measure(q[index], alpha).item() == pytest.approx(values[index][g].item(), abs=1e-6)
    assert measure(q[:0], alphas).shape == (0, 3, 5, 4)


def test_cvar_rises_with_the_level_and_is_continuous():
    q = th.randn(10, dtype=th.float64, generator=th.Generator().manual_seed(2))
    values = lower_tail_cvar(q, np.linspace(0.01, 1.0, 100_000)).numpy()
    assert np.all(np.diff(values) >= -1e-12)
    assert np.diff(values).max() < 1e-3


def test_gradients():
    q = th.randn(4, 6, dtype=th.float64, generator=th.Generator().manual_seed(3), requires_grad=True)
    alphas = np.array([0.1, 0.45, 1.0])
    assert th.autograd.gradcheck(lambda q: lower_tail_cvar(q, alphas), (q,))
    lower_quantile(q, 0.2).sum().backward()
    second_lowest = th.zeros_like(q).scatter(1, q.argsort(dim=1)[:, 1:2], 1.0)
    assert th.equal(q.grad, second_lowest)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.0001, float("nan"), np.array([0.5, 2.0])])
def test_levels_outside_the_unit_interval_are_refused(alpha):
    with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\]"):
        lower_tail_cvar(th.zeros(3), alpha)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="alpha must be a number or a vector"):
        lower_tail_cvar(th.zeros(3), np.full((2, 2), 0.5))
    with pytest.raises(TypeError, match="alpha"):
        lower_tail_cvar(th.zeros(3), "0.5")
    with pytest.raises(TypeError, match="q must be a floating-point tensor"):
        lower_tail_cvar(th.zeros(3, dtype=th.int64), 0.5)
    with pytest.raises(TypeError, match="q must be a floating-point tensor"):
        lower_tail_cvar(np.zeros(3), 0.5)
    with pytest.raises(ValueError, match="q must have the heads"):
        lower_tail_cvar(th.tensor(1.0), 0.5)
    with pytest.raises(ValueError, match="n_atoms"):
        lower_tail_cvar(th.zeros(2, 0), 0.5)


def test_a_distortion_that_does_not_reach_one_is_refused():
    class Half(EpistemicMeasure):
        def distortion(self, u, alpha):
            return u / 2

    with pytest.raises(ValueError, match="must be 0 at 0 and 1 at 1"):
        Half().weights(0.5, 4)


def test_measures_are_values():
    assert LowerTailCVaR() == LowerTailCVaR()
    assert LowerTailCVaR() != LowerQuantile()
    assert hash(LowerTailCVaR()) == hash(LowerTailCVaR())
    assert repr(LowerTailCVaR()) == "LowerTailCVaR()"
    assert pickle.loads(pickle.dumps(LowerQuantile())) == LowerQuantile()


def test_make_measure():
    own = ProportionalHazard()
    assert make_measure("cvar") == LowerTailCVaR()
    assert make_measure("quantile") == LowerQuantile()
    assert make_measure(own) is own
    with pytest.raises(ValueError, match=r"epistemic_measure must be one of \['cvar', 'quantile'\].*'var'"):
        make_measure("var")
    with pytest.raises(TypeError, match="epistemic_measure"):
        make_measure(LowerTailCVaR)


@pytest.mark.parametrize("n_heads", [1, 2, 5, 10])
def test_left_truncated_variance_by_its_definition(n_heads):
    q = np.random.default_rng(n_heads).normal(size=(4, 3, n_heads))
    for index in np.ndindex(4, 3):
        losses = -q[index]
        median = np.median(losses)
        expected = 2.0 / n_heads * sum((x - median) ** 2 for x in losses if x > median)
        assert left_truncated_variance(q)[index] == pytest.approx(expected)


def test_left_truncated_variance_looks_at_the_worse_heads_only():
    assert left_truncated_variance(np.array([-10.0, 0.0, 0.0, 0.0, 0.0])) == pytest.approx(2 / 5 * 100)
    assert left_truncated_variance(np.array([10.0, 0.0, 0.0, 0.0, 0.0])) == 0.0
