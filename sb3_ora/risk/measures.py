"""
Distortion risk measures of the epistemic law: K equally likely head values of one state-action pair.

Head values ``q`` are values (higher is better), so the random loss of the paper is ``X = -q`` and a
measure looks at the lower tail of ``q``. Results are on the value scale: ``measure(q, alpha)`` is
``-rho_alpha(X)`` in the notation of DRL-ORA (section 4).
"""

from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np
import torch as th

from sb3_ora.checks import check_integer
from sb3_ora.risk._common import ByValue

Levels: TypeAlias = float | np.ndarray | th.Tensor


def _levels_array(alpha: Levels) -> np.ndarray:
    """Risk levels as an array of shape () or (G,), in their own floating-point precision."""
    levels = alpha.detach().cpu().numpy() if isinstance(alpha, th.Tensor) else np.asarray(alpha)
    if levels.dtype.kind not in "fiu":
        raise TypeError(f"alpha must hold real numbers, got {alpha!r}")
    if levels.ndim > 1:
        raise ValueError(f"alpha must be a number or a vector, got shape {levels.shape}")
    if not np.all((levels > 0.0) & (levels <= 1.0)):
        raise ValueError(f"alpha must lie in (0, 1], got {alpha!r}")
    return levels if levels.dtype.kind == "f" else levels.astype(np.float64)


def _snapped(levels: np.ndarray, n_atoms: int) -> np.ndarray:
    """Move levels that miss a multiple of 1 / K by rounding only (0.1 + 0.2 and K = 10) onto it."""
    tolerance = max(1e-9, n_atoms * float(np.finfo(levels.dtype).eps))
    levels = levels.astype(np.float64)
    nearest = np.round(levels * n_atoms)
    close = (nearest >= 1.0) & (np.abs(levels * n_atoms - nearest) <= tolerance)
    return np.where(close, nearest / n_atoms, levels)


class EpistemicMeasure(ByValue, ABC):
    """
    A distortion risk measure of K equally likely head values.

    To define one, override :meth:`distortion`. Levels lie in (0, 1]; larger ones are meant to be less risk-averse.
    """

    @abstractmethod
    def distortion(self, u: np.ndarray, alpha: float | np.ndarray) -> np.ndarray:
        """
        The distortion function ``g_alpha`` applied to the survival function of the loss (DRL-ORA, section 4).

        :param u: Survival probabilities in [0, 1], (K + 1,) for K heads.
        :param alpha: Risk levels in (0, 1], (1,) for one or (G, 1) for G of them, to be broadcast against ``u``.
        :return: ``g_alpha(u)``, (K + 1,) or (G, K + 1): non-decreasing in ``u``, 0 at 0 and 1 at 1.
        """

    def weights(self, alpha: Levels, n_atoms: int) -> np.ndarray:
        """
        Weights of the head values sorted in ascending order (worst first), from the Choquet integral:
        ``w_i = g(i / K) - g((i - 1) / K)``.

        :param alpha: Risk level, or levels (G,).
        :param n_atoms: K, the number of head values.
        :return: Weights (K,) or (G, K), float64; they sum to 1 over the heads.
        :raises ValueError: If a level is outside (0, 1], or ``distortion`` does not run from 0 to 1.
        """
        check_integer("n_atoms", n_atoms)
        levels = _snapped(_levels_array(alpha), n_atoms)
        survival = np.arange(n_atoms + 1) / n_atoms
        distorted = np.asarray(self.distortion(survival, levels[..., None]), dtype=np.float64)  # (K + 1,) or (G, K + 1)
        if np.any(np.abs(distorted[..., 0]) > 1e-6) or np.any(np.abs(distorted[..., -1] - 1.0) > 1e-6):
            raise ValueError(f"the distortion of {self!r} must be 0 at 0 and 1 at 1")
        return np.diff(distorted, axis=-1)

    def __call__(self, q: th.Tensor, alpha: Levels) -> th.Tensor:
        """
        Risk-adjusted value of the head values; differentiable in ``q``.

        :param q: Head values (..., K).
        :param alpha: Risk level, or levels (G,).
        :return: Values (...), or (..., G) for several levels; on the device and in the precision of ``q``.
        :raises TypeError: If ``q`` is not a floating-point tensor.
        :raises ValueError: If a level is outside (0, 1] or there are no heads.
        """
        if not isinstance(q, th.Tensor) or not q.is_floating_point():
            raise TypeError(f"q must be a floating-point tensor, got {getattr(q, 'dtype', type(q))}")
        if q.ndim == 0:
            raise ValueError("q must have the heads as its last dimension, got a single number")
        weights = th.as_tensor(self.weights(alpha, q.shape[-1]), dtype=q.dtype, device=q.device)
        return q.sort(dim=-1).values @ weights.mT if weights.ndim > 1 else q.sort(dim=-1).values @ weights


class LowerTailCVaR(EpistemicMeasure):
    """
    Mean of the worst ``alpha`` fraction of the head values; the plain mean at ``alpha = 1``.

    It is exact for the K-atom law, hence continuous in ``alpha``: a head that straddles the fraction counts in part.
    Source: right-tail CVaR of the loss, Acerbi and Tasche (2002); distortion ``g(u) = min(u / alpha, 1)``.
    """

    def distortion(self, u: np.ndarray, alpha: float | np.ndarray) -> np.ndarray:
        return np.minimum(u / alpha, 1.0)


class LowerQuantile(EpistemicMeasure):
    """
    The ``min(floor(alpha K) + 1, K)``-th lowest head value: 0.5 is the (upper) median, 1 the largest head.

    At ``alpha = 1`` this measure is optimistic, not risk-neutral.
    Source: right-tail quantile of the loss, Dhaene et al. (2012); distortion ``g(u) = 1{u > alpha}``, set to 1 at
    ``u = 1`` so that it stays a distortion for ``alpha = 1``.
    """

    def distortion(self, u: np.ndarray, alpha: float | np.ndarray) -> np.ndarray:
        return ((u > alpha) | (u >= 1.0)).astype(np.float64)


def lower_tail_cvar(q: th.Tensor, alpha: Levels) -> th.Tensor:
    """
    Lower-tail CVaR of K equally likely values, see :class:`LowerTailCVaR`.

    :param q: Values (..., K).
    :param alpha: Risk level in (0, 1], or levels (G,).
    :return: CVaR (...), or (..., G) for several levels.
    """
    return LowerTailCVaR()(q, alpha)


def lower_quantile(q: th.Tensor, alpha: Levels) -> th.Tensor:
    """
    Lower quantile of K equally likely values, see :class:`LowerQuantile`.

    :param q: Values (..., K).
    :param alpha: Risk level in (0, 1], or levels (G,).
    :return: Quantiles (...), or (..., G) for several levels.
    """
    return LowerQuantile()(q, alpha)


def make_measure(spec: str | EpistemicMeasure) -> EpistemicMeasure:
    """
    Epistemic measure from its name.

    :param spec: "cvar", "quantile", or a measure, which is returned as it is.
    :return: The measure.
    :raises ValueError: If the name is unknown.
    :raises TypeError: If it is neither a name nor a measure.
    """
    if isinstance(spec, EpistemicMeasure):
        return spec
    measures: dict[str, type[EpistemicMeasure]] = {"cvar": LowerTailCVaR, "quantile": LowerQuantile}
    if not isinstance(spec, str):
        raise TypeError(f"epistemic_measure must be a name or an EpistemicMeasure object, got {spec!r}")
    if spec not in measures:
        raise ValueError(f"epistemic_measure must be one of {sorted(measures)} or an EpistemicMeasure, got {spec!r}")
    return measures[spec]()


def left_truncated_variance(q: np.ndarray) -> np.ndarray:
    """
    Left-truncated variance of the loss ``X = -q`` about its median: the spread of the worse half of the heads,
    ``(2 / K) * sum over X_k > med(X) of (X_k - med(X))^2``.

    Source: Mavrin et al. (2019), applied to the law of the heads.

    :param q: Head values (..., K).
    :return: Truncated variance (...), in squared units of value.
    """
    ordered, n = np.sort(q, axis=-1), q.shape[-1]  # np.median takes much longer
    median = (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2
    shortfall = np.maximum(median[..., None] - q, 0.0)  # (..., K)
    return 2.0 * np.mean(shortfall**2, axis=-1)
