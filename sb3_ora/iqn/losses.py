"""The loss of implicit quantile networks."""

from typing import Any

import torch as th


def losses_and_slopes(quantiles: th.Tensor, targets: th.Tensor, taus: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    The loss and its derivative from one pass over the pairs: with c = clip(delta) to [-1, 1], the Huber term is
    c (delta - c / 2), its derivative is c, and c times the weight of the quantile is tau |c| + min(c, 0).

    :param quantiles: estimated quantiles, (..., N)
    :param targets: samples of the target distribution, (..., N')
    :param taus: fractions of the estimated quantiles, broadcast to (..., N)
    :return: the loss of :func:`quantile_huber_loss`, (...), and its derivative by the quantiles, (..., N)
    """
    # Targets come first: sums over them run along the memory
    delta = targets.movedim(-1, 0).unsqueeze(-1) - quantiles  # (N', ..., N)
    clipped = delta.clamp(-1, 1)
    slope = th.addcmul(clipped.clamp(max=0), taus, clipped.abs())  # minus the derivative of each pair
    derivative = slope.sum(dim=0).div_(-len(delta))
    return delta.sub_(clipped, alpha=0.5).mul_(slope).sum(dim=(0, -1)).div_(len(delta)), derivative


class _QuantileHuber(th.autograd.Function):
    """The loss with its gradient in closed form."""

    @staticmethod
    def forward(ctx: Any, quantiles: th.Tensor, targets: th.Tensor, taus: th.Tensor) -> th.Tensor:
        loss, derivative = losses_and_slopes(quantiles, targets, taus)
        ctx.save_for_backward(derivative)
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: th.Tensor) -> tuple[th.Tensor, None, None]:
        (derivative,) = ctx.saved_tensors
        return derivative * grad_outputs[0].unsqueeze(-1), None, None


def quantile_huber_loss(quantiles: th.Tensor, targets: th.Tensor, taus: th.Tensor) -> th.Tensor:
    r"""
    Quantile regression with the Huber loss at :math:`\kappa = 1`: for every pair of a quantile and a target,
    :math:`|\tau_i - 1\{\delta_{ij} < 0\}| \, h(\delta_{ij})` with :math:`\delta_{ij} = y_j - Z_{\tau_i}`,
    summed over the quantiles and averaged over the targets (Dabney et al. 2018, equation 3).

    :param quantiles: estimated quantiles, (..., N)
    :param targets: samples of the target distribution, (..., N'), treated as constants
    :param taus: fractions of the estimated quantiles, broadcast to (..., N)
    :return: the loss, (...)
    """
    return _QuantileHuber.apply(quantiles, targets.detach(), taus)
