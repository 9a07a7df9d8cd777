import numpy as np
import pytest
import torch as th
from scipy.optimize import linprog

from sb3_ora.risk import lower_tail_cvar, satisficing_level

ALPHA_MIN, ALPHA_MAX = 0.1, 1.0
TINY = 1e-6  # a lowest level that no clipping reaches


def least_loss_by_linear_program(x, target):
    """The paper's linear program: minimise mean c over b >= 0, c >= 0 with c_k >= b (x_k - target) + 1."""
    n = len(x)
    costs = np.append(np.full(n, 1.0 / n), 0.0)
    result = linprog(costs, A_ub=np.column_stack([-np.eye(n), x - target]), b_ub=-np.ones(n))
    assert result.status == 0
    return result.fun


def least_loss_by_trying_kinks(x, target):
    """A convex piecewise linear function is least at a kink, or at 0: x (..., K), target (...)."""
    gaps = x - target[..., None]
    kinks = np.divide(-1.0, gaps, out=np.zeros_like(gaps), where=gaps < 0)  # (..., K)
    losses = [np.maximum(kinks[..., [k]] * gaps + 1.0, 0.0).mean(axis=-1) for k in range(x.shape[-1])]
    return np.minimum(np.min(losses, axis=0), 1.0)


def cvar_of_loss(x, alpha):
    """Right-tail CVaR as a minimum over thresholds among the atoms."""
    return min(y + np.maximum(x - y, 0.0).mean() / alpha for y in x)


def random_cases(n_cases, n_atoms, seed, rounded=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_cases, n_atoms)) * 10.0 ** rng.integers(-3, 4, (n_cases, 1))
    if rounded:  # many equal atoms, and targets that hit atoms
        x = rng.integers(-3, 4, (n_cases, n_atoms)).astype(float)
        return x, rng.integers(-3, 4, n_cases).astype(float)
    low, high = x.min(axis=1), x.max(axis=1)
    return x, low + (high - low) * rng.uniform(-0.2, 1.2, n_cases)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("n_atoms", [1, 2, 3, 10, 25])
def test_against_linear_programming(n_atoms, rounded):
    x, target = random_cases(40, n_atoms, seed=n_atoms, rounded=rounded)
    levels = satisficing_level(x, target, TINY, 1.0)
    for case in range(len(x)):
        expected = np.clip(least_loss_by_linear_program(x[case], target[case]), TINY, 1.0)
        assert levels[case] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("n_atoms", [1, 2, 5, 10, 40])
def test_against_brute_force(n_atoms, rounded):
    x, target = random_cases(3000, n_atoms, seed=100 + n_atoms, rounded=rounded)
    expected = least_loss_by_trying_kinks(x, target)
    np.testing.assert_allclose(satisficing_level(x, target, TINY, 1.0), np.clip(expected, TINY, 1.0), atol=1e-9)
    np.testing.assert_allclose(satisficing_level(x, target, ALPHA_MIN, 0.9), np.clip(expected, ALPHA_MIN, 0.9), atol=1e-9)


@pytest.mark.parametrize("rounded", [False, True])
def test_it_solves_the_recursive_problem(rounded):
    """The paper's equivalence: no level brings the CVaR nearer to the target (theorem 5)."""
    x, target = random_cases(300, 10, seed=7, rounded=rounded)
    grid = np.linspace(ALPHA_MIN, ALPHA_MAX, 901)
    levels = satisficing_level(x, target, ALPHA_MIN, ALPHA_MAX)
    on_grid = -lower_tail_cvar(th.tensor(-x), grid).numpy()  # (300, 901)
    inside = 0
    for case in range(len(x)):
        attained = abs(cvar_of_loss(x[case], levels[case]) - target[case])
        scale = np.abs(x[case]).max() + abs(target[case])
        assert attained <= np.abs(on_grid[case] - target[case]).min() + 1e-9 * scale
        if ALPHA_MIN < levels[case] < ALPHA_MAX:
            inside += 1
            assert attained <= 1e-9 * scale  # the target itself is met
    assert inside > 50


def test_it_is_the_largest_risk_aversion_that_meets_the_target():
    """The paper's problem: max 1 - alpha subject to rho_alpha(X) <= target."""
    x, target = random_cases(200, 10, seed=8)
    levels = satisficing_level(x, target, TINY, 1.0)
    for case in np.flatnonzero((levels > TINY) & (levels < 1.0)):
        scale = np.abs(x[case]).max()
        assert cvar_of_loss(x[case], levels[case]) <= target[case] + 1e-9 * scale
        assert cvar_of_loss(x[case], levels[case] * 0.99) > target[case]


def test_edge_cases():
    x = np.array([1.0, 2.0, 3.0, 6.0])  # mean 3
    assert satisficing_level(x, 3.0, ALPHA_MIN, ALPHA_MAX) == 1.0  # mean at the target
    assert satisficing_level(x, 2.9, ALPHA_MIN, ALPHA_MAX) == 1.0  # mean above it
    assert satisficing_level(x, 0.5, ALPHA_MIN, ALPHA_MAX) == 1.0  # all above it
    assert satisficing_level(x, 6.1, ALPHA_MIN, ALPHA_MAX) == 0.1  # all below it
    assert satisficing_level(x, 6.0, ALPHA_MIN, ALPHA_MAX) == 0.25  # equal to the one largest atom
    assert satisficing_level(x, 6.0, 0.4, ALPHA_MAX) == 0.4
    assert satisficing_level(np.array([1.0, 6.0, 6.0, 6.0]), 6.0, ALPHA_MIN, ALPHA_MAX) == 0.75
    assert satisficing_level(np.array([1.0, 6.0, 6.0, 6.0]), 6.0, ALPHA_MIN, 0.5) == 0.5


def test_equal_atoms():
    x = np.full(5, 0.3)
    assert satisficing_level(x, 0.3, ALPHA_MIN, ALPHA_MAX) == 1.0
    assert satisficing_level(x, 0.3 - 1e-3, ALPHA_MIN, ALPHA_MAX) == 1.0
    assert satisficing_level(x, 0.3 + 1e-3, ALPHA_MIN, ALPHA_MAX) == 0.1


@pytest.mark.parametrize("offset", [-1e-12, 0.0, 1e-12])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_ties_hold_within_rounding(offset, scale):
    x = scale * np.array([-5.0, 0.1, 0.7, 0.7 * (1.0 + 2e-16)])
    assert satisficing_level(x, scale * (0.7 + offset), ALPHA_MIN, ALPHA_MAX) == pytest.approx(0.5, abs=1e-9)


def test_one_head_and_a_thousand():
    assert satisficing_level(np.array([2.0]), 1.0, ALPHA_MIN, ALPHA_MAX) == 1.0
    assert satisficing_level(np.array([2.0]), 2.0, ALPHA_MIN, ALPHA_MAX) == 1.0
    assert satisficing_level(np.array([2.0]), 3.0, ALPHA_MIN, ALPHA_MAX) == 0.1
    x = np.random.default_rng(0).normal(size=1000)
    for alpha in (0.123, 0.5, 0.987):  # the level whose CVaR is the target comes back
        assert satisficing_level(x, cvar_of_loss(x, alpha), TINY, 1.0) == pytest.approx(alpha, abs=1e-9)


def test_any_leading_dimensions_and_one_target_for_all():
    x = np.random.default_rng(1).normal(size=(2, 3, 6))
    levels = satisficing_level(x, 0.2, ALPHA_MIN, ALPHA_MAX)
    assert levels.shape == (2, 3)
    for index in np.ndindex(2, 3):
        assert levels[index] == satisficing_level(x[index], 0.2, ALPHA_MIN, ALPHA_MAX)
    assert satisficing_level(x[:0], np.zeros((0, 3)), ALPHA_MIN, ALPHA_MAX).shape == (0, 3)


def test_bad_input_is_refused():
    x = np.array([1.0, 2.0])
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="x and target must be finite"):
            satisficing_level(x, bad, ALPHA_MIN, ALPHA_MAX)
        with pytest.raises(ValueError, match="x and target must be finite"):
            satisficing_level(np.array([1.0, bad]), 0.0, ALPHA_MIN, ALPHA_MAX)
    with pytest.raises(ValueError, match="x must have at least one atom"):
        satisficing_level(np.zeros((3, 0)), 0.0, ALPHA_MIN, ALPHA_MAX)
    with pytest.raises(ValueError, match="alpha_min"):
        satisficing_level(x, 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="alpha_min"):
        satisficing_level(x, 1.0, 0.6, 0.5)
    with pytest.raises(ValueError, match="alpha_max"):
        satisficing_level(x, 1.0, 0.1, 1.1)
