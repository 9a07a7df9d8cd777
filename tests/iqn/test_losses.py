"""The loss against its definition, pair by pair."""

import numpy as np
import pytest
import torch as th

from sb3_ora.iqn.losses import quantile_huber_loss


def pair_by_pair(quantiles, targets, taus):
    """Dabney et al. (2018), equation 3, for one row."""
    total = 0.0
    for quantile, tau in zip(quantiles, taus, strict=True):
        for target in targets:
            delta = target - quantile
            huber = 0.5 * delta**2 if abs(delta) <= 1 else abs(delta) - 0.5
            total += abs(tau - (1.0 if delta < 0 else 0.0)) * huber / len(targets)
    return total


def plain(quantiles, targets, taus):
    """The same in differentiable operations of torch, (K, B)."""
    delta = targets.unsqueeze(2) - quantiles.unsqueeze(1)  # (K, N', N, B)
    weight = (taus - (delta.detach() < 0).to(delta.dtype)).abs()
    huber = th.nn.functional.huber_loss(delta, th.zeros_like(delta), reduction="none")
    return (weight * huber).mean(dim=1).sum(dim=1)


def sample(*shape, scale=2.0, seed=0):
    return th.tensor(np.random.default_rng(seed).normal(size=shape) * scale)


def test_every_pair_counts_as_defined():
    quantiles, targets, taus = sample(3, 5, 4), sample(3, 7, 4, seed=1), th.rand(5, 4, dtype=th.float64)
    losses, _ = quantile_huber_loss(quantiles, targets, taus)
    assert losses.shape == (3, 4)
    for k in range(3):
        for b in range(4):
            expected = pair_by_pair(quantiles[k, :, b].tolist(), targets[k, :, b].tolist(), taus[:, b].tolist())
            assert losses[k, b].item() == pytest.approx(expected, rel=1e-12)


def one(*values):
    """Fractions or quantiles of one head and observation."""
    return th.tensor(values, dtype=th.float64).reshape(1, -1, 1)


@pytest.mark.parametrize("delta", [-1.0, 0.0, 1.0])
def test_where_the_huber_loss_changes_its_form(delta):
    loss, _ = quantile_huber_loss(one(0), one(delta), one(0.3)[0])
    assert loss.item() == pytest.approx(pair_by_pair([0.0], [delta], [0.3]), abs=1e-7)


def test_the_derivative_is_that_of_the_plain_expression():
    quantiles, targets, taus = sample(3, 5, 4), sample(3, 7, 4, seed=1), th.rand(5, 4, dtype=th.float64)
    _, derivative = quantile_huber_loss(quantiles, targets, taus)
    quantiles.requires_grad_()
    plain(quantiles, targets, taus).sum().backward()
    th.testing.assert_close(derivative, quantiles.grad, rtol=1e-12, atol=1e-12)


def test_the_derivative_agrees_with_finite_differences():
    quantiles, targets, taus = sample(2, 3, 2), sample(2, 4, 2, seed=1), th.rand(3, 2, dtype=th.float64)
    _, derivative = quantile_huber_loss(quantiles, targets, taus)
    for k, n, b in np.ndindex(2, 3, 2):
        step = th.zeros_like(quantiles)
        step[k, n, b] = 1e-6
        above, below = (quantile_huber_loss(quantiles + sign * step, targets, taus)[0].sum() for sign in (1, -1))
        assert derivative[k, n, b].item() == pytest.approx(((above - below) / 2e-6).item(), rel=1e-6, abs=1e-9)


def test_inputs_stay_as_they_are():
    inputs = th.randn(2, 3, 2), th.randn(2, 4, 2), th.rand(3, 2)
    before = [tensor.clone() for tensor in inputs]
    quantile_huber_loss(*inputs)
    assert all(map(th.equal, inputs, before))


def test_its_minimum_is_the_quantile():
    """Sorted atoms far apart against kappa: the loss is least where a fraction tau of them lies below."""
    targets = 1000.0 * th.arange(1, 11, dtype=th.float64)
    candidates = th.linspace(0, 11000, 1101, dtype=th.float64)
    for tau in (0.15, 0.55, 0.85):
        taus = th.full((1, 1), tau, dtype=th.float64)
        losses, _ = quantile_huber_loss(candidates.view(1, 1, -1), targets.view(1, -1, 1), taus)
        best = candidates[losses[0].argmin()].item()
        assert best == pytest.approx(np.quantile(targets.numpy(), tau, method="inverted_cdf"))
