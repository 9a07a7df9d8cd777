"""FTPL inside a model: levels follow from the losses by the paper's rule, key by key."""

import numpy as np
import pytest

from sb3_ora import ORAIQN
from tests.tiny import several, tiny
from tests.toy_envs import Chain, Scripted


def watch_updates(model):
    """Notes the losses and keys that FTPL takes in, and the levels it gives out."""
    seen, update = [], model.adapter.ftpl.update

    def spy(losses, keys):
        levels = update(losses, keys)
        seen.append((losses.copy(), keys.copy(), levels.copy()))
        return levels

    model.adapter.ftpl.update = spy
    return seen


def play_leader(seen, grid, eta, seed):
    """Paper, Algorithm 1, lines 10 and 11, for one pair after the other."""
    generator, sums, counts, levels, last = np.random.default_rng(seed), {}, {}, [], {}
    for losses, keys, _ in seen:
        for loss, key, draw in zip(losses, keys.tolist(), generator.standard_exponential(len(keys)), strict=True):
            sums[key] = sums.get(key, 0.0) + loss
            counts[key] = counts.get(key, 0) + 1
            sigma = draw / (counts[key] ** -0.5 if eta == "auto" else eta)
            last[key] = grid[np.argmin(sums[key] - sigma * grid)]
            levels.append(last[key])
    return levels, last


@pytest.mark.parametrize("eta", [0.5, 300.0, "auto"])
@pytest.mark.parametrize(("env", "reference"), [(Chain, "visit"), (Chain, "update"), (lambda: Scripted((3, 5)), "update")])
def test_levels_follow_from_losses(env, reference, eta):
    model = tiny(ORAIQN, several(env, 2), eta=eta, reference=reference, normalize_loss=False, learning_rate=0.05, seed=3)
    seen = watch_updates(model)
    model.learn(160)
    levels, last = play_leader(seen, model.adapter.grid, eta, seed=3)
    assert len(levels) > 20
    assert np.concatenate([given for *_, given in seen]).tolist() == pytest.approx(levels)
    table = model.policy.risk.table
    assert sorted(table.keys().tolist()) == sorted(last) or reference == "visit"
    for key, level in last.items():
        assert table.lookup(np.array([key])).item() == pytest.approx(level)


def test_the_loss_that_is_logged_is_that_of_the_levels_played():
    model = tiny(ORAIQN, several(Chain, 2), reference="update", learning_rate=0.05)
    update, seen = model.adapter.ftpl.update, []

    def spy(losses, keys):
        seen.append((losses, model.policy.risk.table.lookup(keys)))
        return update(losses, keys)

    model.adapter.ftpl.update = spy
    model.learn(160)
    losses, played = seen[-1]
    columns = [int(np.argmin(np.abs(model.adapter.grid - level))) for level in played]
    expected = np.mean([loss[column] for loss, column in zip(losses, columns, strict=True)])
    assert model.adapter.loss == pytest.approx(expected)


def changing_laws(change):
    """
    Pairs of laws of ten heads. In the first the spread changes and the mean stays, so that the risk changes most at small
    levels; in the second all but the worst head move, so that it changes most at large ones.
    """
    heads = np.arange(10.0)
    return (heads, 4.5 + (1 + change) * (heads - 4.5)), (heads, np.where(heads > 0, heads + change, heads))


@pytest.mark.parametrize("eta", [0.5, "auto"])
@pytest.mark.parametrize("normalize_loss", [True, False])
def test_adaptation_is_neither_off_nor_pinned(normalize_loss, eta):
    """A key whose losses vary most at small levels ends above 0.8, the mirrored one below 0.3."""
    model = tiny(ORAIQN, Chain(), n_heads=10, normalize_loss=normalize_loss, eta=eta)
    (a, b), (c, d) = changing_laws(0.001 if normalize_loss else 1.0)
    keys = np.array([0, 1])
    for _ in range(150):
        model.adapter._compare(keys, np.stack([a, c]), np.stack([b, d]))
        model.adapter._compare(keys, np.stack([b, d]), np.stack([a, c]))
    averse, neutral = model.policy.risk.table.lookup(np.array([1, 0]))
    assert neutral > 0.8 and averse < 0.3


@pytest.mark.parametrize(("scope", "most"), [("global", 1), ("action", 2), ("state-action", 10)])
def test_scopes(scope, most):
    model = tiny(ORAIQN, Chain(), risk_scope=scope).learn(120)
    assert 0 < len(model.policy.risk.table) <= most
    if scope == "global":
        assert len(model.policy.risk.table) == 1


def test_the_table_is_bounded():
    """Also where more pairs than that wait for an update."""
    model = tiny(ORAIQN, several(Chain, 3), max_keys=3, reference="update", train_freq=8, learning_starts=24)
    seen = watch_updates(model)
    model.learn(120)
    assert len(model.policy.risk.table) == 3
    assert len({key for _, keys, _ in seen for key in keys.tolist()}) > 3
    assert sum(len(keys) for _, keys, _ in seen) == 96


def test_one_head_has_nothing_to_adapt_to():
    model = tiny(ORAIQN, Chain(), n_heads=1).learn(80)
    assert np.isfinite(model.adapter.loss) and model.adapter.ltv == 0.0
