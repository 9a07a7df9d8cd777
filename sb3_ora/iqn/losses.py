"""The loss of implicit quantile networks."""

import torch as th


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
    delta = targets.detach().unsqueeze(-2) - quantiles.unsqueeze(-1)  # (..., N, N')
    weight = (taus.unsqueeze(-1) - (delta.detach() < 0).to(delta.dtype)).abs()  # (..., N, N')
    huber = th.nn.functional.huber_loss(delta, th.zeros_like(delta), reduction="none")
    return (weight * huber).mean(dim=-1).sum(dim=-1)
