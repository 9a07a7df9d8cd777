"""What the ensemble adds: heads that agree where there is data, and actions chosen by how much they do."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_ora import ORAIQN
from sb3_ora.risk import left_truncated_variance, lower_tail_cvar
from tests.tiny import set_values, tiny
from tests.toy_envs import AnySpace, Chain

ADAM = {"optimizer_kwargs": {"eps": 1e-8}}


def spread(model, n_states):
    """LTV of the heads in each state of a one-hot chain, the mean over actions (S,)."""
    values = model.policy.epistemic_values(th.eye(n_states)).detach().numpy()  # (K, S, A)
    return left_truncated_variance(values.transpose(1, 2, 0)).mean(axis=1)


def test_heads_agree_where_there_is_data_and_less_elsewhere():
    """States 0 ... 4 of 10 are visited; randomised priors keep the heads apart in the others."""
    net = {"net_arch": [64], "head_arch": [16], "prior_scale": 3.0, **ADAM}
    settings = {"n_heads": 10, "gamma": 0.9, "learning_rate": 5e-3, "batch_size": 32, "buffer_size": 400}
    model = tiny(ORAIQN, Chain(10, 5, one_hot=True), policy_kwargs=net, learning_starts=1000, **settings)
    before = spread(model, 10)
    model.learn(400)
    for _ in range(12):
        model.train(25, batch_size=32)
        model.quantile_net_target.load_state_dict(model.quantile_net.state_dict())
    after = spread(model, 10)
    assert (after[:5] < 0.1 * before[:5]).all()
    assert after[6:].mean() > 4 * after[:5].mean()


def test_a_fixed_small_level_avoids_what_the_heads_disagree_on():
    """
    Action 0 was seen to pay 1. Action 1 was never tried: its heads are around 2, some far below 1. At level 0.1 the first
    is better, at 1 the second; both for predict and in training.
    """
    chosen = []
    for alpha in (0.1, 1.0):
        settings = {"alpha_min": alpha, "alpha_max": alpha, "n_heads": 10, "learning_rate": 5e-3, "exploration_final_eps": 0.0}
        net = {"prior_scale": 5.0, **ADAM}
        model = tiny(ORAIQN, AnySpace(spaces.Box(1, 1, (2,)), spaces.Discrete(2)), policy_kwargs=net, **settings)
        model.quantile_net.heads[-1].bias.data.view(10, 2)[:, 1] += 2.0
        obs = np.ones((1, 2), dtype=np.float32)
        for _ in range(50):
            model.replay_buffer.add(obs, obs, np.array([[0]]), np.ones(1), np.ones(1), [{}])
        model._setup_learn(1)
        model.train(150, batch_size=32)
        values = model.policy.epistemic_values(th.ones(1, 2))[:, 0].detach()  # (K, A)
        assert values[:, 0].numpy() == pytest.approx(np.ones(10), abs=0.3)
        assert values[:, 1].mean() > 1.3 and values[:, 1].min() < 0.5
        model.exploration_rate, model.num_timesteps = 0.0, 1000
        in_training = model._sample_action(0, None, 1)[0].item()
        chosen.append((model.predict(obs, deterministic=True)[0].item(), in_training))
    assert chosen == [(0, 0), (1, 1)]


def test_training_acts_at_the_level_of_the_pair_before():
    """The CVaR of the heads by hand, step by step, with the previous action of each environment."""
    model = tiny(ORAIQN, Chain(), exploration_initial_eps=0.0, exploration_final_eps=0.0, learning_starts=0)
    model._setup_learn(1)
    values = th.tensor([[1.0, -2.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])  # (K, A)
    set_values(model, values)
    rows = model.policy.risk.table.rows(np.array([2 * 3 + 0, 2 * 3 + 1]))
    model.policy.risk.table.alpha[rows] = [0.25, 0.8]
    model.exploration_rate = 0.0
    model._last_obs = np.array([3])
    for previous, alpha in [(0, 0.25), (1, 0.8), (-1, 1.0)]:
        model._previous_actions, model._acting = np.array([previous]), None
        expected = int(lower_tail_cvar(values.T, alpha).argmax())
        assert model._sample_action(0, None, 1)[0].item() == expected
        assert model._acting_alphas.tolist() == [alpha]


def test_the_quantile_measure_in_place_of_cvar():
    """At 0.5 the third of four heads: 3 for action 1, against the mean of the lower two, 0."""
    actions = []
    for measure in ("cvar", "quantile"):
        model = tiny(ORAIQN, Chain(), alpha_min=0.5, alpha_max=0.5, epistemic_measure=measure)
        set_values(model, [[1.0, -2.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
        actions.append(model.predict(np.array([0]), deterministic=True)[0].item())
    assert actions == [0, 1]


def test_heads_start_and_stay_apart():
    model = tiny(ORAIQN, Chain(), n_heads=5).learn(80)
    values = model.policy.epistemic_values(th.arange(5)[:, None]).detach()
    assert (values.std(dim=0) > 1e-4).all()
