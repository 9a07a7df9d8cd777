from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from sb3_ora.risk import EWAF, PublishedARTController, tail_variance

GOLDEN = Path(__file__).parents[1] / "data" / "art_agent.npz"


@pytest.fixture(scope="module")
def golden():
    """What the published ART code gives for made-up inputs."""
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def test_update_by_hand():
    bandit = EWAF(2, learning_rate=0.5)
    assert bandit.probabilities.tolist() == [0.5, 0.5]
    bandit.update(1, 2.0)  # 0.5 * 2 / 0.5
    assert bandit.weights.tolist() == [0.0, 2.0]
    bandit.update(0, -1.0)
    averse = np.exp(0.0) / (np.exp(0.0) + np.exp(2.0))
    assert bandit.weights.tolist() == pytest.approx([-0.5 / averse, 2.0])
    assert bandit.best == 1


def test_long_run_against_the_plain_formula():
    rng = np.random.default_rng(0)
    bandit, weights = EWAF(4, learning_rate=0.01, decay=0.02, floor=0.05), np.zeros(4)
    for _ in range(300):
        arm, feedback = int(rng.integers(4)), rng.normal()
        probability = softmax(weights)[arm]
        weights = 0.98 * weights
        weights[arm] += 0.01 * feedback / max(probability, 0.05)
        bandit.update(arm, feedback)
        np.testing.assert_allclose(bandit.probabilities, softmax(weights), rtol=1e-9)
        assert bandit.best == np.argmax(weights)


def test_the_floor_limits_one_step():
    bandit = EWAF(2, learning_rate=1.0, floor=0.1)
    bandit.weights[:] = [0.0, 50.0]
    bandit.update(0, 1.0)
    assert bandit.weights[0] == pytest.approx(10.0)


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, -1)])
@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("size", [1e9, 1e308])
def test_finite_for_huge_feedback(signs, decay, size):
    bandit = EWAF(3, learning_rate=2.0, decay=decay, floor=1e-2, seed=0)
    with np.errstate(over="raise", invalid="raise"):
        for step in range(2000):
            bandit.update(step % 3, signs[step % 2] * size)
            probabilities = bandit.probabilities
            assert np.isfinite(bandit.weights).all()
            assert np.isfinite(probabilities).all()
            assert probabilities.sum() == pytest.approx(1.0)
        assert 0 <= bandit.sample() < 3


def test_draws_follow_the_probabilities():
    bandit = EWAF(3, learning_rate=1.0, seed=0)
    bandit.weights[:] = np.log([0.2, 0.5, 0.3])
    drawn = bandit.sample(20_000)
    assert drawn.shape == (20_000,)
    assert isinstance(bandit.sample(), int)
    counts = np.bincount(drawn, minlength=3)
    assert stats.chisquare(counts, 20_000 * np.array([0.2, 0.5, 0.3])).pvalue > 1e-4


def test_it_finds_the_better_arm():
    best = []
    for seed in range(20):
        rng, bandit = np.random.default_rng(seed), EWAF(3, learning_rate=0.05, seed=seed)
        for _ in range(500):
            arm = bandit.sample()
            bandit.update(arm, rng.normal([-0.5, 0.5, 0.0][arm]))
        best.append(bandit.best)
    assert np.mean(np.array(best) == 1) >= 0.9


def test_bandit_state_round_trip(through_file):
    bandit = EWAF(3, learning_rate=0.5, seed=1)
    for arm in bandit.sample(10):
        bandit.update(int(arm), 0.3)
    twin = EWAF(3, learning_rate=0.5, seed=2)
    twin.load_state_dict(through_file(bandit.state_dict()))
    assert np.array_equal(twin.weights, bandit.weights)
    assert np.array_equal(twin.sample(50), bandit.sample(50))
    twin.update(0, 1.0)
    assert not np.array_equal(twin.weights, bandit.weights)
    with pytest.raises(ValueError, match=r"weights must have shape \(2,\), got \(3,\)"):
        EWAF(2, learning_rate=0.5).load_state_dict(bandit.state_dict())


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_arms", 0), ("learning_rate", 0.0), ("decay", 1.0), ("decay", -0.1), ("floor", 0.0), ("floor", 1.5)],
)
def test_bad_bandit_arguments_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        EWAF(**{"n_arms": 2, "learning_rate": 0.5, name: value})


def test_bad_bandit_input_is_refused():
    bandit = EWAF(2, learning_rate=0.5)
    for arm in (-1, 2):
        with pytest.raises(ValueError, match=r"arm must lie in \[0, 2\)"):
            bandit.update(arm, 1.0)
    with pytest.raises(ValueError, match="feedback"):
        bandit.update(0, float("nan"))
    assert bandit.weights.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("script", "name"), [("simulation", "ewaf_alpha_sim"), ("flight", "ewaf_alpha_flight")])
def test_controller_against_the_published_code(golden, script, name):
    controller = PublishedARTController(script=script)
    for variances, levels in zip(golden["ewaf_tcv"], golden[name], strict=True):
        controller.reset()
        assert controller.level == pytest.approx(levels[0], abs=1e-12)
        ours = [controller.update(variance) for variance in variances]
        np.testing.assert_allclose(ours, levels[1:], rtol=0, atol=1e-12)
    assert np.ptp(golden[name]) > 0.8  # the sequences do exercise it


def test_controller_settles_where_constant_variance_takes_it():
    """
    With variance v in every step the windowed sums are 2v, 3v, 4v, 5v, 5v, ...: they fall by -2v, -v, -v, -v, 0, ...
    from 0, and the weights move by the means of the last five falls, twice the learning rate times their sum in all.
    """
    moved = 2 + 3 / 2 + 4 / 3 + 5 / 4 + 5 / 5 + 3 / 5 + 2 / 5 + 1 / 5
    for learning_rate in (2.0, 0.5):
        controller = PublishedARTController(0.2, 0.6, learning_rate)
        levels = [controller.update(0.25) for _ in range(20)]
        gap = 6.0 - 2.0 * learning_rate * moved * 0.25
        assert levels[-1] == pytest.approx(0.2 + 0.4 / (1.0 + np.exp(-gap)))


def test_controller_with_a_window_of_one_follows_the_last_variance():
    controller = PublishedARTController(window=1)
    for variance in (0.25, 0.4, 1.2, 0.7):
        level = controller.update(variance)
    assert level == pytest.approx(0.1 + 0.9 / (1.0 + np.exp(-(6.0 - 4.0 * 0.7))))


def test_controller_survives_variances_that_overflow_the_published_code():
    controller = PublishedARTController()
    assert [controller.update(tcv) for tcv in (1e9, 1e9, 1e9)][-1] == pytest.approx(0.1)
    for _ in range(20):
        level = controller.update(0.0)
    assert 0.1 <= level <= 1.0


def test_controller_state_round_trip(golden, through_file):
    variances = golden["ewaf_tcv"][1]
    controller = PublishedARTController()
    for variance in variances[:7]:
        controller.update(variance)
    twin = PublishedARTController()
    twin.load_state_dict(through_file(controller.state_dict()))
    assert twin.level == controller.level
    assert [twin.update(v) for v in variances[7:]] == [controller.update(v) for v in variances[7:]]


def test_bad_controller_input_is_refused():
    with pytest.raises(ValueError, match="level_min"):
        PublishedARTController(level_min=0.9, level_max=0.5)
    with pytest.raises(ValueError, match="window"):
        PublishedARTController(window=0)
    with pytest.raises(ValueError, match="learning_rate"):
        PublishedARTController(learning_rate=-1.0)
    with pytest.raises(ValueError, match=r"script must be one of 'simulation', 'flight', got 'paper'"):
        PublishedARTController(script="paper")
    with pytest.raises(ValueError, match="tcv"):
        PublishedARTController().update(float("inf"))


def test_tail_variance_against_the_published_code(golden):
    """The published network in numpy, at its sixteenths up to the median."""

    def layer(x, name):
        return x @ golden[f"local0/{name}.weight"].T.astype(float) + golden[f"local0/{name}.bias"]

    taus = np.arange(1, 9) / 16
    cosines = np.cos(np.pi * np.arange(64) * taus[:, None])
    features = np.maximum(layer(golden["states"][:4].astype(float), "head"), 0.0)
    embedded = features[:, None] * np.maximum(layer(cosines, "cos_embedding"), 0.0)  # (4, 8, 16)
    hidden = np.maximum(layer(np.maximum(layer(embedded, "hidden_layer"), 0.0), "hidden_layer_2"), 0.0)
    quantiles = layer(hidden, "output_layer").transpose(0, 2, 1)  # (4, 12, 8)
    np.testing.assert_allclose(tail_variance(quantiles, 1 / 32), golden["tcv"], rtol=2e-3, atol=1e-8)


def test_tail_variance_of_a_uniform_return():
    """About the median of U(0, 1): 2 * integral over (0, 1/2) of (1/2 - q)^2 dq = 1/12."""
    n = 2000
    assert tail_variance(np.arange(1, n // 2 + 1) / n, 2 / n) == pytest.approx(1 / 12, rel=1e-2)


def test_credit_by_the_probability_of_the_draw():
    """Also where the weights have moved since; below the floor by the floor, here 0.2."""
    bandit = EWAF(2, learning_rate=0.5, floor=0.2)
    bandit.weights[:] = [3.0, 0.0]
    for probability, raised in ((0.5, 0.5 * 2 / 0.5), (0.1, 0.5 * 2 / 0.2)):
        before = bandit.weights.copy()
        bandit.update(1, 2.0, probability)
        assert (bandit.weights - before).tolist() == pytest.approx([0, raised])
    with pytest.raises(ValueError, match=r"probability must be a number in \[0, 1\], got 1.5"):
        bandit.update(1, 2.0, 1.5)
