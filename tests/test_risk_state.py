"""The risk attitude of a policy: keys, levels and risk-adjusted values."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from scipy.stats import norm

from sb3_ora.risk import BucketKey, CVaR, DiscreteKey, LowerQuantile, LowerTailCVaR, Neutral, RiskTable, Wang, lower_tail_cvar
from sb3_ora.risk.state import NO_ACTION, RiskState


def discrete_state(scope="state-action", n_states=5, n_actions=3, initial=0.9, measure=None):
    key = DiscreteKey(spaces.Discrete(n_states)) if scope == "state-action" else None
    return RiskState(Neutral(), 1.0, 4, measure or LowerTailCVaR(), RiskTable(initial), key, scope, n_actions)


def put(risk, alphas):
    rows = risk.table.rows(np.array(list(alphas)))
    risk.table.alpha[rows] = list(alphas.values())


def test_state_action_keys_number_the_pairs():
    risk = discrete_state()
    states, actions = np.repeat(np.arange(5), 3).reshape(-1, 1), np.tile(np.arange(3), 5)
    assert risk.keys(states, actions).tolist() == list(range(15))


@pytest.mark.parametrize(("scope", "expected"), [("action", [2, 0, 2]), ("global", [0, 0, 0])])
def test_keys_of_the_coarser_scopes(scope, expected):
    assert discrete_state(scope).keys(np.array([[1], [2], [3]]), np.array([2, 0, 2])).tolist() == expected


def test_levels_come_from_the_pair_before():
    risk = discrete_state()
    put(risk, {4 * 3 + 1: 0.3, 2 * 3 + 0: 0.5})
    levels = risk.alphas(np.array([[4], [4], [2], [4]]), np.array([1, 0, 0, NO_ACTION]))
    assert levels.tolist() == [0.3, 0.9, 0.5, 0.9]


def test_keys_of_states_may_be_known_already():
    risk, observations = discrete_state(), np.array([[4], [4], [2], [4]])
    put(risk, {4 * 3 + 1: 0.3, 2 * 3 + 0: 0.5})
    states, previous = risk.state_keys(observations), np.array([1, 0, 0, NO_ACTION])
    assert states.tolist() == [4, 4, 2, 4]
    assert risk.pair_keys(states, np.array([1, 0, 0, 2])).tolist() == [13, 12, 6, 14]
    assert risk.alphas(None, previous, states).tolist() == [0.3, 0.9, 0.5, 0.9]
    assert discrete_state("action").state_keys(observations) is None


def test_fractions_follow_the_level():
    risk = RiskState(CVaR(), 0.5, 4)
    for level in (0.5, 0.25, 0.5):
        risk.level = level
        assert risk.taus()[0].tolist() == pytest.approx([level * part for part in (0.125, 0.375, 0.625, 0.875)])
        assert risk.taus(1.0)[0].tolist() == pytest.approx([0.125, 0.375, 0.625, 0.875])
    risk.distortion = Wang()
    expected = norm.cdf(norm.ppf([0.125, 0.375, 0.625, 0.875]) + 1.0)
    assert risk.taus(1.0)[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert risk.to("meta").taus(1.0).device.type == "meta"


def test_levels_of_the_coarser_scopes():
    by_action, shared = discrete_state("action"), discrete_state("global")
    put(by_action, {0: 0.2, 2: 0.4})
    put(shared, {0: 0.2})
    states, previous = np.zeros((4, 1)), np.array([0, 1, 2, NO_ACTION])
    assert by_action.alphas(states, previous).tolist() == [0.2, 0.9, 0.4, 0.9]
    assert shared.alphas(states, previous).tolist() == [0.2] * 4


def test_looking_levels_up_changes_nothing():
    risk = discrete_state()
    put(risk, {1: 0.3})
    risk.alphas(np.array([[4], [0]]), np.array([1, 1]))
    assert risk.table.keys().tolist() == [1]


def test_risk_values_are_those_of_the_measure_at_each_states_level():
    risk = discrete_state()
    values = np.random.default_rng(0).normal(size=(7, 4, 3))
    alphas = np.array([0.1, 0.35, 0.8, 1.0])
    found = risk.risk_values(values, alphas)
    for b, a in np.ndindex(4, 3):
        assert found[b, a] == pytest.approx(lower_tail_cvar(th.tensor(values[:, b, a]), alphas[b]).item())


def test_quantile_measure_of_ten_heads():
    """At 0.3 the fourth lowest of ten heads."""
    risk = discrete_state(measure=LowerQuantile())
    values = np.random.default_rng(0).permutation(10.0 * np.arange(1, 11)).reshape(10, 1, 1)
    assert risk.risk_values(values, np.array([0.3])).item() == 40.0


@pytest.mark.parametrize("n_heads", [1, 5])
def test_the_mean_where_there_is_no_measure(n_heads):
    values = np.random.default_rng(0).normal(size=(n_heads, 4, 3))
    plain = RiskState(Neutral(), 1.0, 4, n_actions=3)
    composite = discrete_state()
    composite.use_mean = True
    put(composite, {0: 0.1})
    for risk in (plain, composite):
        assert risk.alphas(np.zeros((4, 1)), np.zeros(4, dtype=int)).tolist() == [1.0] * 4
        np.testing.assert_allclose(risk.risk_values(values, np.full(4, 0.1)), values.mean(axis=0))


def test_fractions_at_one_level_and_at_many():
    risk = RiskState(CVaR(), 0.5, 4)
    middle = [0.125, 0.375, 0.625, 0.875]
    assert risk.taus().tolist() == [[0.5 * tau for tau in middle]]
    assert risk.taus(0.25).tolist() == [[0.25 * tau for tau in middle]]
    rows = risk.taus(np.array([0.5, 1.0])).tolist()
    assert rows == [[0.5 * tau for tau in middle], middle]


def filled_state():
    key = BucketKey(spaces.Box(-np.inf, np.inf, (2,)))
    risk = RiskState(CVaR(), 0.3, 4, LowerTailCVaR(), RiskTable(1.0), key, n_actions=3)
    risk.state_key.fit(np.random.default_rng(0).normal(size=(20, 2)))
    risk.table.add_column("loss_sum", (6,))
    put(risk, {key: 0.1 + key / 1000 for key in range(100)})
    risk.table.column("loss_sum")[:] = np.random.default_rng(1).normal(size=risk.table.column("loss_sum").shape)
    risk.use_mean = True
    return risk


def test_state_survives_a_file(through_file):
    saved, loaded = filled_state(), filled_state()
    state = through_file(saved.state_dict())
    loaded.level, loaded.use_mean = 0.9, False
    loaded.table = RiskTable(1.0)
    loaded.state_key = BucketKey(spaces.Box(-np.inf, np.inf, (2,)))
    loaded.load_state_dict(state)
    assert (loaded.level, loaded.use_mean) == (0.3, True)
    assert loaded.table.keys().tolist() == list(range(100))
    keys = np.arange(100)
    assert np.array_equal(loaded.table.lookup(keys), saved.table.lookup(keys))
    rows = [risk.table.rows(keys) for risk in (loaded, saved)]
    assert np.array_equal(loaded.table.column("loss_sum")[rows[0]], saved.table.column("loss_sum")[rows[1]])
    observations = np.random.default_rng(2).normal(size=(50, 2)) * 3
    assert np.array_equal(loaded.state_key(observations), saved.state_key(observations))


def test_saved_tensors_need_no_float64():
    assert {tensor.dtype for tensor in filled_state().state_dict().values()} <= {th.int64, th.bool, th.float32, th.uint8}


def test_a_state_without_a_level_is_refused_where_all_must_match():
    with pytest.raises(RuntimeError, match="level"):
        filled_state().load_state_dict({})
