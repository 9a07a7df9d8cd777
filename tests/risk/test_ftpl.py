import copy
from collections import defaultdict

import numpy as np
import pytest
import torch as th

from sb3_ora.risk import FTPL, RiskTable, leader, regret

GRID = np.round(np.arange(0.1, 1.001, 0.05), 12)  # 19 levels
RESCALED = (GRID - 0.1) / 0.9


class Plain:
    """The algorithm with one pair after the other, all losses kept, and the running scale written as a weighted mean."""

    def __init__(self, alphas, eta, normalize, seed):
        self.alphas, self.eta, self.normalize = alphas, eta, normalize
        self.losses, self.level = defaultdict(list), defaultdict(lambda: alphas[-1])
        self.ranges, self.rng = [], np.random.default_rng(seed)

    def update(self, loss, key):
        if loss.max() > loss.min():
            self.ranges.append(loss.max() - loss.min())
        if self.normalize and self.ranges:
            weights = 0.99 ** np.arange(len(self.ranges))[::-1]
            loss = loss / (np.dot(weights, self.ranges) / weights.sum())
        self.losses[key].append(loss)
        n = len(self.losses[key])
        rate = n**-0.5 if self.eta == "auto" else self.eta
        objective = np.sum(self.losses[key], axis=0) - self.rng.exponential(1.0 / rate) * self.alphas
        least = np.flatnonzero(objective <= objective.min() + 1e-9)
        self.level[key] = max(self.alphas[least], key=lambda a: (-abs(a - self.level[key]), a))
        return self.level[key]


def random_pairs(n_pairs, n_keys, seed):
    rng = np.random.default_rng(seed)
    losses = np.abs(rng.normal(size=(n_pairs, 1)) * np.sin(9 * GRID + rng.uniform(0, 6, (n_pairs, 1))))
    losses[rng.random(n_pairs) < 0.1] = 0.25  # equal at all levels
    return losses, rng.integers(0, n_keys, n_pairs)


def in_batches(learner, losses, keys, sizes):
    levels, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        levels.extend(learner.update(losses[part], keys[part]).tolist())
        start += size
    assert start == len(keys)
    return levels


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("eta", [0.5, 3.0, "auto"])
def test_against_the_plain_algorithm(eta, normalize):
    losses, keys = random_pairs(400, 12, seed=0)
    plain = Plain(GRID, eta, normalize, seed=5)
    learner = FTPL(GRID, eta, normalize, seed=5)
    expected = [plain.update(loss, key) for loss, key in zip(losses, keys.tolist(), strict=True)]
    assert in_batches(learner, losses, keys, [1, 7, 92, 0, 300]) == expected
    assert len(set(expected)) > 5
    assert learner.table.lookup(np.arange(12)).tolist() == [plain.level[key] for key in range(12)]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("eta", [0.5, "auto"])
def test_batches_equal_one_pair_after_the_other(eta, normalize):
    losses, keys = random_pairs(300, 4, seed=1)
    together, apart = (FTPL(GRID, eta, normalize, seed=3) for _ in range(2))
    assert in_batches(together, losses, keys, [300]) == in_batches(apart, losses, keys, [1] * 300)
    assert together.state_dict() == apart.state_dict()
    states = together.table.state_dict(), apart.table.state_dict()
    assert all(th.equal(states[0][name], states[1][name]) for name in states[0])


def test_one_key_by_default():
    losses, _ = random_pairs(6, 1, seed=2)
    learner, same = FTPL(GRID, seed=0), FTPL(GRID, seed=0)
    first = learner.update(losses[0])
    assert first.shape == (1,)
    assert [*first, *learner.update(losses[1:])] == same.update(losses, np.zeros(6, dtype=int)).tolist()
    assert learner.table.keys().tolist() == [0]


def test_the_perturbation_is_exponential_with_the_given_rate():
    """With loss c * alpha the leader is the largest level exactly if sigma > c, which has probability exp(-eta c)."""
    n_keys = 20_000
    for eta, c in [(0.5, 2.0), (2.0, 0.2), (1.0, 1.0)]:
        learner = FTPL(GRID, eta, normalize=False, table=RiskTable(1.0), seed=0)
        levels = learner.update(np.tile(c * GRID, (n_keys, 1)), np.arange(n_keys))
        assert set(levels.tolist()) == {0.1, 1.0}
        share = np.exp(-eta * c)
        assert np.mean(levels == 1.0) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / n_keys))


def test_automatic_rate_falls_with_the_losses_of_a_key():
    """After n losses of c * alpha / n each, the probability of sigma > c is exp(-c / sqrt(n))."""
    n_keys, c = 5000, 1.5
    learner = FTPL(GRID, "auto", normalize=False, seed=1)
    for _ in range(16):
        levels = learner.update(np.tile(c / 16 * GRID, (n_keys, 1)), np.arange(n_keys))
    share = np.exp(-c / 16**0.5)
    assert np.mean(levels == 1.0) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / n_keys))
    assert np.all(learner.table.column("loss_count")[:n_keys] == 16)


def test_levels_do_not_depend_on_the_scale_of_losses_when_normalised():
    losses, keys = random_pairs(200, 5, seed=3)
    levels = FTPL(GRID, seed=0).update(losses, keys)
    assert np.array_equal(FTPL(GRID, seed=0).update(losses * 2.0**-20, keys), levels)
    assert not np.array_equal(FTPL(GRID, normalize=False, seed=0).update(losses * 2.0**-20, keys), levels)


def test_running_scale():
    learner = FTPL([0.1, 1.0])
    assert learner.scale == 1.0
    learner.update([0.5, 0.5])
    assert learner.scale == 1.0  # equal losses say nothing about the scale
    learner.update([0.0, 4.0])
    assert learner.scale == pytest.approx(4.0)  # unbiased from the first range on
    learner.update([1.0, 0.0])
    assert learner.scale == pytest.approx((0.99 * 4.0 + 1.0) / 1.99)
    for _ in range(3000):
        learner.update([0.0, 0.25])
    assert learner.scale == pytest.approx(0.25)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_key_moves_to_where_its_losses_are_small(mirrored):
    learner, rng = FTPL(GRID, seed=0), np.random.default_rng(0)
    shape = RESCALED if mirrored else 1.0 - RESCALED
    for _ in range(300):
        level = learner.update(0.003 * rng.random() * shape)  # about the size met on CartPole
    assert (level < 0.3) if mirrored else (level > 0.8)


# Leader


def test_leader_against_brute_force():
    rng = np.random.default_rng(4)
    cumulative = rng.integers(0, 3, (500, 19)).astype(float)  # many ties
    sigma, previous = rng.choice([0.0, 0.0, 1.3], 500), rng.choice([0.1, 0.33, 0.5, 0.625, 1.0], 500)
    for pair in range(500):
        chosen = leader(cumulative[pair], sigma[pair], GRID, previous[pair])
        objective = [cumulative[pair, g] - sigma[pair] * GRID[g] for g in range(19)]
        ties = [g for g in range(19) if objective[g] <= min(objective) + 1e-9]
        expected = max(ties, key=lambda g: (-round(abs(GRID[g] - previous[pair]), 9), g))
        assert chosen == expected


def test_ties_go_to_the_nearest_level_and_then_to_the_largest():
    alphas = np.array([0.2, 0.4, 0.6, 0.8])
    tied = np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert [leader(losses, 0.0, alphas, level) for losses, level in zip(tied, (0.3, 0.4, 1.0), strict=True)] == [0, 2, 3]


def test_rounding_does_not_break_ties():
    cumulative = np.array([1e6 * 0.1 * 3, 1e6 * 0.3, 1e6 * 0.3 + 1.0])  # the first two differ in the last bit
    assert leader(cumulative, 0.0, np.array([0.1, 0.5, 1.0]), 0.1) == 0
    assert leader(cumulative, 0.0, np.array([0.1, 0.5, 1.0]), 1.0) == 1


# Regret


def alternating(t, rng):
    """Losses that leave whoever follows the unperturbed leader always on the wrong side."""
    return 0.5 * (1.0 - RESCALED) if t == 0 else RESCALED if t % 2 else 1.0 - RESCALED


def noisy(t, rng):
    """Independent losses, not convex in the level, least on average in the inside of the grid."""
    return np.abs(RESCALED - np.clip(rng.normal(0.35, 0.15), 0, 1)) + 0.1 * np.sin(12 * RESCALED + rng.normal()) + 0.1


def play(sequence, horizon, n_runs, eta, seed=0):
    """Mean regret over independent keys, and regret of the leader without perturbation, each at every time."""
    rng = np.random.default_rng(seed)
    losses = np.array([sequence(t, rng) for t in range(horizon)])
    learner, keys = FTPL(GRID, eta, normalize=False, seed=seed), np.arange(n_runs)
    chosen = np.empty((horizon, n_runs), dtype=int)
    level = learner.table.lookup(keys)
    for t in range(horizon):
        chosen[t] = np.searchsorted(GRID, level)
        level = learner.update(np.tile(losses[t], (n_runs, 1)), keys)
    before = np.vstack([np.zeros(len(GRID)), np.cumsum(losses, axis=0)[:-1]])
    unperturbed = regret(losses, np.argmin(before, axis=1))
    return np.mean([regret(losses, chosen[:, run]) for run in range(n_runs)], axis=0), unperturbed


def slope(horizons, regrets):
    return np.polyfit(np.log(horizons), np.log(regrets), 1)[0]


@pytest.mark.parametrize("sequence", [alternating, noisy])
@pytest.mark.parametrize("rate", [lambda horizon: horizon**-0.5, lambda horizon: "auto"], ids=["fixed", "auto"])
def test_average_regret_falls(sequence, rate):
    average = {horizon: play(sequence, horizon, 64, rate(horizon))[0][-1] / horizon for horizon in (200, 3200)}
    assert 0.0 < average[3200] < 0.5 * average[200]
    assert average[3200] < 0.05


def test_without_perturbation_the_alternating_losses_would_give_linear_regret():
    unperturbed = play(alternating, 1000, 1, 1.0)[1]
    assert unperturbed[999] > 0.45 * 1000


@pytest.mark.parametrize("sequence", [alternating, noisy])
def test_regret_grows_with_the_square_root_of_the_horizon(sequence):
    horizons = [100, 300, 1000, 3000]
    regrets = [play(sequence, horizon, 16, horizon**-0.5)[0][-1] for horizon in horizons]
    assert min(regrets) > 0.0
    assert slope(horizons, regrets) < 0.6


@pytest.mark.slow  # about half a minute
@pytest.mark.parametrize("sequence", [alternating, noisy])
def test_regret_grows_with_the_square_root_of_long_horizons(sequence):
    horizons = [100, 1000, 10_000, 100_000]
    regrets = [play(sequence, horizon, 16, horizon**-0.5)[0][-1] for horizon in horizons]
    assert min(regrets) > 0.0
    assert slope(horizons, regrets) < 0.6


# State and errors


def test_state_round_trip(through_file):
    losses, keys = random_pairs(200, 5, seed=6)
    learner = FTPL(GRID, "auto", seed=7)
    learner.update(losses[:100], keys[:100])
    table = RiskTable(1.0)
    table.load_state_dict(through_file(learner.table.state_dict()))
    twin = FTPL(GRID, "auto", table=table, seed=99)
    twin.load_state_dict(through_file(learner.state_dict()))
    copied = copy.deepcopy(learner)
    expected = learner.update(losses[100:], keys[100:])
    assert np.array_equal(twin.update(losses[100:], keys[100:]), expected)
    assert np.array_equal(copied.update(losses[100:], keys[100:]), expected)
    assert twin.scale == learner.scale


def test_a_key_that_was_dropped_starts_again():
    learner = FTPL(GRID, table=RiskTable(1.0, max_keys=2), normalize=False, seed=0)
    for _ in range(50):
        learner.update(10.0 * GRID, np.array([1]))
    assert learner.table.lookup(np.array([1])) == 0.1
    learner.update(np.zeros((2, 19)), np.array([2, 3]))
    assert learner.table.lookup(np.array([1])) == 1.0
    learner.update(GRID, np.array([1]))
    row = learner.table.rows(np.array([1]))
    assert learner.table.column("loss_count")[row] == 1
    np.testing.assert_array_equal(learner.table.column("loss_sum")[row], [GRID])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_changes_nothing(bad):
    losses, keys = random_pairs(20, 3, seed=8)
    learner = FTPL(GRID, seed=0)
    learner.update(losses, keys)
    before, table = learner.state_dict(), learner.table.state_dict()
    losses[7, 3] = bad
    with pytest.raises(FloatingPointError, match="losses must be finite"):
        learner.update(losses, keys + 2)
    assert learner.state_dict() == before
    assert all(th.equal(value, table[name]) for name, value in learner.table.state_dict().items())


def test_bad_input_is_refused():
    learner = FTPL(GRID)
    with pytest.raises(ValueError, match=r"losses must have shape \(P, 19\), got \(1, 3\)"):
        learner.update(np.zeros(3))
    with pytest.raises(ValueError, match=r"keys must have shape \(2,\), got \(3,\)"):
        learner.update(np.zeros((2, 19)), np.arange(3))
    with pytest.raises(ValueError, match=r"keys must have shape \(4,\), got \(2, 2\)"):
        learner.update(np.zeros((4, 19)), np.arange(4).reshape(2, 2))
    for eta in (0.0, -1.0, np.inf, "slow"):
        with pytest.raises(ValueError, match="eta"):
            FTPL(GRID, eta)
    for alphas in ([], [[0.1, 1.0]], [0.1, np.nan], [0.5, 0.1], [0.1, 0.1]):
        with pytest.raises(ValueError, match="alphas"):
            FTPL(alphas)
    with pytest.raises(ValueError, match="column 'loss_sum' has shape"):
        FTPL([0.1, 1.0], table=learner.table)
