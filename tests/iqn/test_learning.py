"""IQN learns a distribution of returns and acts on its distortion."""

import io

import numpy as np
import pytest
import torch as th

from sb3_ora import IQN
from tests.tiny import tiny
from tests.toy_envs import Chain, Gamble

ADAM = {"optimizer_kwargs": {"eps": 1e-8}}


def test_the_averse_level_takes_the_safe_arm_and_the_neutral_one_the_risky():
    """The worst tenth of the gamble is -10 for sure, its mean is 1.5; the safe arm pays 1."""
    settings = {"buffer_size": 1000, "learning_starts": 1000, "batch_size": 64, "learning_rate": 0.01}
    net = {"net_arch": [64], "head_arch": [], "n_cosines": 64, **ADAM}
    averse = tiny(IQN, Gamble(), distortion="cvar", risk_level=0.1, policy_kwargs=net, **settings)
    averse.learn(600)
    averse.train(400, batch_size=64)
    file = io.BytesIO()
    averse.save(file)
    neutral = IQN.load(file, risk_level=1.0, device="cpu")
    obs = np.ones((1, 1), dtype=np.float32)
    values = [model.policy.epistemic_values(th.ones(1, 1)).flatten().tolist() for model in (averse, neutral)]
    assert values[0] == pytest.approx([1.0, -10.0], abs=2.0)
    assert values[1] == pytest.approx([1.0, 1.5], abs=0.9)
    assert averse.predict(obs, deterministic=True)[0].item() == 0
    assert neutral.predict(obs, deterministic=True)[0].item() == 1


@pytest.mark.parametrize("double_q", [False, True])
def test_the_way_through_a_chain_is_found(double_q):
    """Moving on is worth gamma^(n - 1 - s) = 0.9^4 ... 1 in states 0 ... 4; going back for ever 0.2."""
    settings = {"gamma": 0.9, "learning_rate": 0.01, "batch_size": 32, "buffer_size": 1000, "learning_starts": 1000}
    model = tiny(IQN, Chain(), double_q=double_q, policy_kwargs=ADAM, **settings)
    model.learn(800)
    for _ in range(20):
        model.train(20, batch_size=32)
        model.quantile_net_target.load_state_dict(model.quantile_net.state_dict())
    states = np.arange(5)
    assert model.predict(states, deterministic=True)[0].tolist() == [1] * 5
    values = model.policy.epistemic_values(th.tensor(states)[:, None])[0, :, 1]
    np.testing.assert_allclose(values.detach(), 0.9 ** (4 - states), atol=0.25)
