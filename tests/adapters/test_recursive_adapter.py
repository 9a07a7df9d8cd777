"""Recursive ORA against brute force over the levels."""

import numpy as np
import pytest
import torch as th

from sb3_ora import ORAIQN
from sb3_ora.risk import lower_quantile, lower_tail_cvar
from tests.tiny import tiny
from tests.toy_envs import Chain, Scripted

FINE = np.linspace(0.1, 1.0, 3601)


def loss(measure, old, new, alpha, previous):
    """|rho_alpha(X_t) - rho_{alpha_t}(X_{t+1})| on levels alpha (G,)."""
    return (measure(th.tensor(old), th.as_tensor(alpha)) - measure(th.tensor(new), previous)).abs().numpy()


def compare(model, laws):
    """Give laws (T, 2, K) to the adapter, all for key 7, and return the levels before and after each."""
    levels = []
    for old, new in laws:
        before = model.policy.risk.table.lookup(np.array([7])).item()
        model.adapter._compare(np.array([7]), old[None], new[None])
        levels.append((before, model.policy.risk.table.lookup(np.array([7])).item()))
    return levels


@pytest.mark.parametrize("n_heads", [1, 2, 5, 10])
def test_no_level_does_better(n_heads):
    model = tiny(ORAIQN, Chain(), n_heads=n_heads, risk_adapter="recursive")
    rng = np.random.default_rng(n_heads)
    laws = rng.normal(size=(200, 2, n_heads))
    laws[:, 1] = laws[:, 0] + 0.3 * laws[:, 1]
    laws[::5] = laws[::5].round()  # with ties
    for (old, new), (before, after) in zip(laws, compare(model, laws), strict=True):
        assert 0.1 <= after <= 1.0
        least = loss(lower_tail_cvar, old, new, FINE, before).min()
        assert loss(lower_tail_cvar, old, new, np.array([after]), before).item() <= least + 1e-9


def test_other_measures_try_the_grid():
    model = tiny(ORAIQN, Chain(), n_heads=5, risk_adapter="recursive", epistemic_measure="quantile")
    laws = np.random.default_rng(0).normal(size=(200, 2, 5))
    for (old, new), (before, after) in zip(laws, compare(model, laws), strict=True):
        losses = loss(lower_quantile, old, new, model.adapter.grid, before)
        best = losses <= losses.min() + 1e-12
        distance = np.abs(model.adapter.grid - before)
        nearest = best & (distance <= distance[best].min() + 1e-9)  # of equals the nearest, then the largest
        assert after == pytest.approx(model.adapter.grid[nearest].max())


def test_an_unchanged_law_keeps_its_level():
    model = tiny(ORAIQN, Chain(), n_heads=5, risk_adapter="recursive")
    rows = model.policy.risk.table.rows(np.array([7]))
    model.policy.risk.table.alpha[rows] = 0.37
    law = np.array([-2.0, -1.0, 0.0, 1.0, 5.0])
    assert compare(model, [(law, law)] * 3)[-1][1] == pytest.approx(0.37)


def test_logged_loss():
    """Mean over the pairs of a batch, each at the level it had before, the second of a key at the one the first gave it."""
    laws = np.random.default_rng(3).normal(size=(3, 2, 4))
    model = tiny(ORAIQN, Chain(), risk_adapter="recursive")
    assert np.isnan(model.adapter.loss)
    model.adapter._compare(np.array([3, 7, 7]), laws[:, 0], laws[:, 1])
    alone = tiny(ORAIQN, Chain(), risk_adapter="recursive")
    compare(alone, laws[1:2])
    levels = [1.0, 1.0, alone.policy.risk.table.lookup(np.array([7])).item()]
    assert levels[2] != 1.0
    losses = [loss(lower_tail_cvar, old, new, np.array([a]), a).item() for (old, new), a in zip(laws, levels, strict=True)]
    assert model.adapter.loss == pytest.approx(np.mean(losses))


def test_pairs_of_one_batch_come_one_after_the_other():
    """The same key three times in one batch, between other keys, as if in three batches."""
    laws = np.random.default_rng(0).normal(size=(6, 2, 4))
    keys = np.array([3, 7, 7, 4, 7, 3])
    together, alone = (tiny(ORAIQN, Chain(), risk_adapter="recursive") for _ in range(2))
    together.adapter._compare(keys, laws[:, 0], laws[:, 1])
    for i in range(6):
        alone.adapter._compare(keys[i : i + 1], laws[i : i + 1, 0], laws[i : i + 1, 1])
    assert np.array_equal(*(model.policy.risk.table.lookup(keys) for model in (together, alone)))


@pytest.mark.parametrize("env", [Chain, lambda: Scripted((3, 5))])
def test_training(env):
    model = tiny(ORAIQN, env(), risk_adapter="recursive", learning_rate=0.05, train_freq=1)
    seen, inner = [], model.adapter._compare

    def spy(keys, before, after):
        previous = model.policy.risk.table.lookup(keys)
        inner(keys, before, after)
        seen.extend(zip(before, after, previous, model.policy.risk.table.lookup(keys), strict=True))

    model.adapter._compare = spy
    model.learn(120)
    assert len(seen) > 20 and len({level for *_, level in seen}) > 3
    for old, new, before, after in seen:
        least = loss(lower_tail_cvar, old, new, FINE, before).min()
        assert loss(lower_tail_cvar, old, new, np.array([after]), before).item() <= least + 1e-6
