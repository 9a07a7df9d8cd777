"""The loss of implicit quantile networks."""

import torch as th


def quantile_huber_loss(quantiles: th.Tensor, targets: th.Tensor, taus: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    r"""
    Quantile regression with the Huber loss at :math:`\kappa = 1`: for every pair of a quantile and a target,
    :math:`|\tau_i - 1\{\delta_{ij} < 0\}| \, h(\delta_{ij})` with :math:`\delta_{ij} = y_j - Z_{\tau_i}`,
    summed over the quantiles and averaged over the targets (Dabney et al. 2018, equation 3).

    Its derivative comes from the same pass over the pairs, without autograd: with :math:`c` as :math:`\delta` clipped to
    [-1, 1], the Huber term is :math:`c (\delta - c / 2)`, its derivative :math:`c`, and :math:`c` times the weight of the
    quantile is :math:`\tau |c| + \min(c, 0)`.

    :param quantiles: estimated quantiles, (K, N, B)
    :param targets: samples of the target distribution, (K, N', B)
    :param taus: fractions of the estimated quantiles, (N, B)
    :return: the loss, (K, B), and its derivative by the quantiles, (K, N, B)
    """
    delta = targets.unsqueeze(2) - quantiles.unsqueeze(1)  # (K, N', N, B)
    clipped = delta.clamp(-1, 1)
    slope = th.addcmul(clipped.clamp(max=0), taus, clipped.abs())  # minus the derivative of each pair
    n_targets = targets.shape[1]
    derivative = slope.sum(dim=1).div_(-n_targets)
    return delta.sub_(clipped, alpha=0.5).mul_(slope).sum(dim=(1, 2)).div_(n_targets), derivative
