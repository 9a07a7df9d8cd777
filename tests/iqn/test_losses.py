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
    """The same in differentiable operations of torch."""
    delta = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)
    weight = (taus.unsqueeze(-1) - (delta.detach() < 0).to(delta.dtype)).abs()
    huber = th.nn.functional.huber_loss(delta, th.zeros_like(delta), reduction="none")
    return (weight * huber).mean(dim=-1).sum(dim=-1)


def sample(*shape, scale=2.0, seed=0):
    return th.tensor(np.random.default_rng(seed).normal(size=shape) * scale)


def test_every_pair_counts_as_defined():
    quantiles, targets, taus = sample(3, 4, 5), sample(3, 4, 7, seed=1), th.rand(4, 5, dtype=th.float64)
    losses = quantile_huber_loss(quantiles, targets, taus)
    assert losses.shape == (3, 4)
    for k in range(3):
        for b in range(4):
            expected = pair_by_pair(quantiles[k, b].tolist(), targets[k, b].tolist(), taus[b].tolist())
            assert losses[k, b].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("delta", [-1.0, 0.0, 1.0])
def test_where_the_huber_loss_changes_its_form(delta):
    loss = quantile_huber_loss(th.tensor([0.0]), th.tensor([delta]), th.tensor([0.3]))
    assert loss.item() == pytest.approx(pair_by_pair([0.0], [delta], [0.3]), abs=1e-7)


def test_the_gradient_is_that_of_the_plain_expression():
    quantiles, targets, taus = sample(3, 4, 5), sample(3, 4, 7, seed=1), th.rand(4, 5, dtype=th.float64)
    upstream = sample(3, 4, seed=2)
    fused, unfused = quantiles.clone().requires_grad_(), quantiles.clone().requires_grad_()
    (quantile_huber_loss(fused, targets, taus) * upstream).sum().backward()
    (plain(unfused, targets, taus) * upstream).sum().backward()
    th.testing.assert_close(fused.grad, unfused.grad, rtol=1e-12, atol=1e-12)


def test_the_gradient_agrees_with_finite_differences():
    quantiles, targets, taus = sample(2, 3).requires_grad_(), sample(2, 4, seed=1), th.rand(2, 3, dtype=th.float64)
    assert th.autograd.gradcheck(lambda q: quantile_huber_loss(q, targets, taus), (quantiles,))


def test_targets_are_constants_and_inputs_stay_as_they_are():
    quantiles, targets = th.randn(2, 3, requires_grad=True), th.randn(2, 4, requires_grad=True)
    before = [quantiles.detach().clone(), targets.detach().clone()]
    quantile_huber_loss(quantiles, targets, th.rand(2, 3)).sum().backward()
    assert targets.grad is None
    assert th.equal(quantiles.detach(), before[0]) and th.equal(targets.detach(), before[1])


def test_its_minimum_is_the_quantile():
    """Sorted atoms far apart against kappa: the loss is least where a fraction tau of them lies below."""
    targets = 1000.0 * th.arange(1, 11, dtype=th.float64)
    candidates = th.linspace(0, 11000, 1101, dtype=th.float64)
    for tau in (0.15, 0.55, 0.85):
        losses = quantile_huber_loss(candidates[:, None], targets.expand(1101, 10), th.full((1101, 1), tau, dtype=th.float64))
        assert candidates[losses.argmin()].item() == pytest.approx(np.quantile(targets.numpy(), tau, method="inverted_cdf"))
