"""What the learners regress on, computed by hand from single evaluations of the networks."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_ora import IQN, ORAIQN
from sb3_ora.risk import lower_tail_cvar
from tests.tiny import set_values, several, tiny
from tests.toy_envs import AnySpace, Scripted

B, N, GAMMA = 6, 5, 0.9


@pytest.fixture(autouse=True)
def fixed_fractions(monkeypatch):
    """The same random fractions for the same shape, so that a test can ask for them again."""

    def rand(*shape, **kwargs):
        return th.tensor(np.random.default_rng(sum(shape)).random(shape), dtype=th.float32)

    monkeypatch.setattr(th, "rand", rand)


def fractions(n):
    """A fraction from each n-th of [0, 1] for every observation, equally spaced over them from a random shift, (B, n)."""
    shifts = th.rand(n, 1).numpy()
    return th.tensor((np.arange(n)[:, None] + np.mod(shifts + np.arange(B) / B, 1)) / n, dtype=th.float32).T


def make_model(algorithm=ORAIQN, env=None, **kwargs):
    env = AnySpace(spaces.Box(-1, 1, (4,))) if env is None else env
    model = tiny(algorithm, env, gamma=GAMMA, n_quantiles=4, n_target_quantiles=N, **kwargs)
    if algorithm is ORAIQN:
        model.policy.risk.state_key.fit(np.zeros((1, 4)))
    rng = np.random.default_rng(1)
    for net in (model.quantile_net, model.quantile_net_target):  # so wild that fractions, heads and levels matter
        for parameter in net.parameters():
            parameter.data.copy_(th.tensor(rng.normal(size=parameter.shape)))
    return model


def make_batch(discounts=None, start=0):
    rng = np.random.default_rng(1)
    obs, next_obs = (th.tensor(rng.uniform(-1, 1, (B, 4)), dtype=th.float32) for _ in range(2))
    actions = start + th.arange(B).reshape(B, 1) % 3
    dones = th.tensor([0.0, 0, 0, 1, 0, 1]).reshape(B, 1)
    rewards = th.tensor(rng.normal(size=(B, 1)), dtype=th.float32)
    return ReplayBufferSamples(obs, actions, next_obs, dones, rewards, discounts)


def one_by_one(net, obs, taus):
    """Quantiles (K, B, N, A), one observation and one fraction at a time."""
    with th.no_grad():
        cells = [net(obs[b : b + 1], taus[b : b + 1, n : n + 1])[:, 0, 0] for b, n in np.ndindex(*taus.shape)]  # (K, A) each
    return th.stack(cells, dim=1).reshape(len(cells[0]), *taus.shape, -1).numpy()


def expected_targets(model, batch, next_actions, discounts=GAMMA):
    """r + gamma (1 - d) Z^k(s', a*_k), from next actions (K, B)."""
    quantiles = one_by_one(model.quantile_net_target, batch.next_observations, fractions(N))  # (K, B, N, A)
    targets = np.empty(quantiles.shape[:3])
    discounts = np.broadcast_to(discounts, B)
    for k, b in np.ndindex(targets.shape[:2]):
        future = (1 - batch.dones[b].item()) * discounts[b] * quantiles[k, b, :, next_actions[k, b]]
        targets[k, b] = batch.rewards[b].item() + future
    return targets


def assert_targets(model, batch, next_actions, discounts=GAMMA):
    targets = model._target_quantiles(batch).transpose(1, 2)  # (K, B, N')
    assert not targets.requires_grad
    np.testing.assert_allclose(targets.numpy(), expected_targets(model, batch, next_actions, discounts), rtol=1e-4, atol=1e-5)


def greedy(net, obs, taus):
    return one_by_one(net, obs, taus).mean(axis=2).argmax(axis=2)  # (K, B)


def test_each_head_has_its_own_target():
    model, batch = make_model(), make_batch()
    next_actions = greedy(model.quantile_net_target, batch.next_observations, fractions(N))
    assert (next_actions != next_actions[0]).any()
    assert_targets(model, batch, next_actions)


def test_double_q_lets_the_online_network_choose():
    model, batch = make_model(double_q=True), make_batch()
    next_actions = greedy(model.quantile_net, batch.next_observations, fractions(N))
    assert (next_actions != greedy(model.quantile_net_target, batch.next_observations, fractions(N))).any()
    assert_targets(model, batch, next_actions)


def cvar_fractions(levels):
    return np.outer(np.broadcast_to(levels, B), (np.arange(N) + 0.5) / N).astype(np.float32)


@pytest.mark.parametrize("double_q", [False, True])
def test_the_target_action_is_chosen_under_the_acting_distortion(double_q):
    model, batch = make_model(IQN, distortion="cvar", risk_level=0.1, double_q=double_q), make_batch()
    net = model.quantile_net if double_q else model.quantile_net_target
    next_actions = greedy(net, batch.next_observations, th.tensor(cvar_fractions(0.1)))
    assert (next_actions != greedy(net, batch.next_observations, fractions(N))).any()
    assert_targets(model, batch, next_actions)


def test_or_neutrally():
    model, batch = make_model(IQN, distortion="cvar", risk_level=0.1, target_risk="neutral"), make_batch()
    neutral = greedy(model.quantile_net_target, batch.next_observations, fractions(N))
    distorted = greedy(model.quantile_net_target, batch.next_observations, th.tensor(cvar_fractions(0.1)))
    assert (neutral != distorted).any()
    assert_targets(model, batch, neutral)


def test_each_row_takes_the_level_of_one_environment():
    env = several(lambda: AnySpace(spaces.Box(-1, 1, (4,))), 2)
    model, batch = make_model(IQN, env, distortion="cvar"), make_batch()
    model.adapter.acting_level = np.array([1.0, 0.02])
    low, high, mixed = (
        greedy(model.quantile_net_target, batch.next_observations, th.tensor(cvar_fractions(levels)))
        for levels in (0.02, 1.0, [1.0, 0.02] * 3)
    )
    assert (low != mixed).any() and (high != mixed).any()
    assert_targets(model, batch, mixed)


@pytest.mark.parametrize("start", [0, 2])
def test_the_ensembles_action_is_greedy_at_the_level_of_the_pair_before_it(start):
    env = AnySpace(spaces.Box(-1, 1, (4,)), spaces.Discrete(3, start=start))
    model, batch = make_model(env=env, next_action="ensemble"), make_batch(start=start)
    risk, actions = model.policy.risk, batch.actions[:, 0].numpy() - start
    keys = risk.keys(batch.next_observations.numpy(), actions)
    rows, levels = risk.table.rows(keys), np.array([1.0, 0.25, 0.3, 0.9, 0.35, 0.25])
    risk.table.alpha[rows] = levels
    quantiles = one_by_one(model.quantile_net_target, batch.next_observations, fractions(N))
    values = th.tensor(quantiles.mean(axis=2))  # (K, B, A)
    chosen = [lower_tail_cvar(values[:, b].T, levels[b]).argmax().item() for b in range(B)]
    differs = [b for b in range(B) if chosen[b] != values[:, b].mean(dim=0).argmax()]
    assert any(actions[b] > 0 for b in differs), "levels should matter, also after other actions than the first"
    assert_targets(model, batch, np.tile(chosen, (4, 1)))


def test_n_step_returns_bring_their_own_discounts():
    discounts = th.tensor([0.9, 0.81, 0.729, 0.9, 0.81, 0.729]).reshape(B, 1)
    model, batch = make_model(), make_batch(discounts)
    next_actions = greedy(model.quantile_net_target, batch.next_observations, fractions(N))
    assert_targets(model, batch, next_actions, discounts[:, 0].numpy())


def test_n_steps_reach_the_target():
    """Rewards 1, 2, 4, ... and a constant value of 5: every sample can be worked out from its observation."""
    model = tiny(IQN, Scripted((4,), (1, 2, 4, 8)), n_steps=3, gamma=0.5, learning_starts=1000)
    model.learn(100)
    assert isinstance(model.replay_buffer, NStepReplayBuffer)
    set_values(model, [[5.0, 5.0, 5.0]])
    batch = model.replay_buffer.sample(32)
    targets = model._target_quantiles(batch)[0].T  # (B, N')
    for row, t in zip(targets, batch.observations[:, 1].long().tolist(), strict=True):
        expected = {0: 1 + 1 + 1 + 5 / 8, 1: 2 + 2 + 2, 2: 4 + 4, 3: 8}[t]
        assert row.tolist() == pytest.approx([expected] * len(row))


@pytest.mark.parametrize("timeout", [False, True])
def test_only_a_true_end_stops_the_bootstrap(timeout):
    model = tiny(ORAIQN, Scripted((3,), (1.0,), timeout=timeout), gamma=0.5, learning_starts=1000)
    model.learn(60)
    set_values(model, np.full((4, 3), 8.0))
    batch = model.replay_buffer.sample(32)
    ends = batch.observations[:, 1] == 2
    expected = th.where(ends, 5.0 if timeout else 1.0, 5.0)
    assert ends.any() and not ends.all()
    th.testing.assert_close(model._target_quantiles(batch), expected.expand(4, 8, 32))


@pytest.mark.parametrize("start", [0, 2])
def test_the_loss_is_the_mean_over_heads_and_batch(start):
    model = make_model(env=AnySpace(spaces.Box(-1, 1, (4,)), spaces.Discrete(3, start=start)))
    batch, taus = make_batch(start=start), fractions(4)
    quantiles = one_by_one(model.quantile_net, batch.observations, taus)  # (K, B, N, A)
    targets = model._target_quantiles(batch).numpy()  # (K, N', B)
    losses, all_taken = [], np.empty((4, 4, B))
    for k, b in np.ndindex(4, B):
        taken = quantiles[k, b, :, b % 3]
        delta = targets[k, :, b][None, :] - taken[:, None]
        huber = np.where(np.abs(delta) <= 1, delta**2 / 2, np.abs(delta) - 0.5)
        losses.append((np.abs(taus[b].numpy()[:, None] - (delta < 0)) * huber).mean(axis=1).sum())
        all_taken[k, :, b] = taken
    loss, found = model._differentiate(batch)
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-4)
    np.testing.assert_allclose(found.numpy(), all_taken, rtol=1e-4, atol=1e-5)


def updated(model):
    """How far one gradient step moves the trained parameters, as one vector."""
    before = th.cat([parameter.detach().clone().flatten() for parameter in model.quantile_net.parameters()])
    model.train(1, batch_size=16)
    return th.cat([parameter.detach().flatten() for parameter in model.quantile_net.parameters()]) - before


def test_gradients_are_clipped_and_steps_follow_the_learning_rate():
    sgd = {"optimizer_class": th.optim.SGD}
    steps = []
    for max_grad_norm in (None, 0.01):
        settings = {"learning_rate": lambda left: 0.5 * left, "policy_kwargs": sgd, "max_grad_norm": max_grad_norm}
        model = tiny(IQN, Scripted(), gradient_steps=0, **settings)
        model.learn(40)
        model._current_progress_remaining = 0.5
        np.random.seed(1)
        steps.append(updated(model))
    assert steps[0].norm() > 0.25 * 0.01
    th.testing.assert_close(steps[1], steps[0] * (0.25 * 0.01 / steps[0].norm()), rtol=1e-3, atol=1e-7)
    assert steps[1].norm().item() == pytest.approx(0.25 * 0.01, rel=1e-3)


@pytest.mark.parametrize("batch_size", [3, 8])  # each with fractions of its own, and four that share them
def test_the_fractions_are_unbiased(monkeypatch, batch_size):
    """The mean loss over many draws is the integral of the loss over both fractions."""
    monkeypatch.undo()  # draws that differ
    model, batch = make_model(env=AnySpace(spaces.Box(-1, 1, (4,)), spaces.Discrete(1))), make_batch()
    rows = th.arange(batch_size) % B
    batch = ReplayBufferSamples(*(None if part is None else part[rows] for part in batch._replace(actions=0 * batch.actions)))
    th.manual_seed(0)
    losses = np.array([model._differentiate(batch).loss.item() for _ in range(2000)]) / model.n_quantiles
    grid = (np.arange(200) + 0.5) / 200
    taus = th.tensor(grid, dtype=th.float32).unsqueeze(0)
    with th.no_grad():
        quantiles = model.quantile_net(batch.observations, taus)[..., 0].numpy()  # (K, B, 200)
        nexts = model.quantile_net_target(batch.next_observations, taus)[..., 0].numpy()
    targets = batch.rewards.numpy() + GAMMA * (1 - batch.dones.numpy()) * nexts
    delta = targets[:, :, None, :] - quantiles[:, :, :, None]
    huber = np.where(np.abs(delta) <= 1, delta**2 / 2, np.abs(delta) - 0.5)
    expected = (np.abs(grid[:, None] - (delta < 0)) * huber).mean()
    error = losses.std() / np.sqrt(len(losses))
    assert 0 < error < 0.01 * expected
    assert losses.mean() == pytest.approx(expected, abs=4 * error)


def test_transitions_that_share_their_fractions():
    """Transition b has those of row b modulo T; they are equally spaced, from shifts that differ."""
    model = make_model()
    taus = model._draw_taus(5, batch_size=12)
    assert taus.shape == (3, 5)
    assert (taus * 5).int().tolist() == [list(range(5))] * 3
    np.testing.assert_allclose(np.diff(np.sort(taus * 5 % 1, axis=0), axis=0), 1 / 3, atol=1e-5)
    assert (taus * 5 % (1 / 3)).std(dim=1).min() > 0.01
    assert model._draw_taus(5, batch_size=10).shape == (10, 5)
    obs = th.randn(12, 4)
    expected = one_by_one(model.quantile_net, obs, taus.repeat(4, 1))
    np.testing.assert_allclose(model.quantile_net(obs, taus).detach(), expected, rtol=1e-4, atol=1e-4)


def test_levels_of_all_environments_reach_targets_that_share_fractions():
    """Eight transitions have two rows of fractions, but three environments three levels: transitions take them in turn."""
    levels = [1.0, 0.5, 0.02]
    model = tiny(IQN, several(lambda: AnySpace(spaces.Box(-1, 1, (4,))), 3), distortion="cvar")
    model.adapter.acting_level = np.array(levels)
    taus, distorted = model._target_taus(8, model._target_levels())
    assert distorted
    n = model.n_target_quantiles
    of_transitions = taus.repeat(8 // len(taus), 1)[:, n:]
    used = of_transitions[:, -1] / ((n - 0.5) / n)  # CVaR multiplies the last midpoint by the level
    assert used.tolist() == pytest.approx([*levels, *levels, *levels[:2]], rel=1e-5)
