"""Composite IQN acts by the mean of its heads, whatever the measure."""

import io

import numpy as np
import pytest

from sb3_ora import ORAIQN
from sb3_ora.adapters import CompositeAdapter
from sb3_ora.iqn import IQNPolicy
from tests.tiny import set_values, tiny
from tests.toy_envs import Chain

#: By the mean action 1 is better, by the worst or the second worst head action 0
VALUES = [[0.0, -4.0], [0.0, -3.0], [0.0, 5.0], [0.5, 3.0]]
AVERSE = {"alpha_max": 0.25, "evaluation_eps": 0.0}


def actions(model):
    states, previous = np.arange(5), (np.array([0, 1, 0, 1, 1]),)
    return model.predict(states, previous, deterministic=True)[0].tolist() + model.predict(states)[0].tolist()


@pytest.mark.parametrize("measure", ["cvar", "quantile"])
def test_it_acts_by_the_mean_and_leaves_the_table_alone(measure):
    kwargs = {"epistemic_measure": measure, **AVERSE}
    adaptive = tiny(ORAIQN, Chain(), risk_adapter="ftpl", **kwargs)
    model = tiny(ORAIQN, Chain(), risk_adapter="composite", **kwargs).learn(80)
    for either in (adaptive, model):
        set_values(either, VALUES)
    assert actions(adaptive) == [0] * 10
    assert actions(model) == [1] * 10
    assert len(model.policy.risk.table) == 0
    assert set(model.adapter.alphas_used) == {1.0}


def test_it_stays_so_through_files(tmp_path):
    model = tiny(ORAIQN, Chain(), risk_adapter="composite", epistemic_measure="quantile", **AVERSE)
    set_values(model, VALUES)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    loaded = ORAIQN.load(tmp_path / "model", env=Chain())
    assert actions(model) == actions(loaded) == [1] * 10
    policy = IQNPolicy.load(tmp_path / "policy")
    assert policy.predict(np.arange(5), (np.ones(5),))[0].tolist() == [1] * 5
    set_values(loaded, VALUES)
    loaded.learn(40)
    assert loaded.policy.risk.use_mean and len(loaded.policy.risk.table) == 0


def test_as_a_callback_it_holds_until_another_adapter_learns():
    """The model's own adapter is FTPL: back in charge after loading, it adapts again."""
    model = tiny(ORAIQN, Chain(), evaluation_eps=0.0).learn(40, callback=CompositeAdapter())
    assert model.policy.risk.use_mean
    file = io.BytesIO()
    model.save(file)
    loaded = ORAIQN.load(file, env=Chain())
    assert loaded.policy.risk.use_mean
    loaded.learn(80)
    assert not loaded.policy.risk.use_mean and len(loaded.policy.risk.table) > 0
